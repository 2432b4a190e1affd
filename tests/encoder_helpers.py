"""Tiny encoders of the transformers library with random weights, each with a tokenizer that is trained on the spot."""

import json

import torch

from helpers import WORDS

TEXTS = ["Return the list of the object.", "a", "An error is raised: naïve  text\n\tof two lines 🙂", "value " * 60]
SHAPE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
SHAPE |= dict(
    max_position_embeddings=40, vocab_size=320, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2
)
DEBERTA = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm")
MODELS = {  # the class, and what its config has of its own
    "bert": ("BertForMaskedLM", {}),
    "roberta": ("RobertaModel", dict(pad_token_id=1, max_position_embeddings=42)),  # positions begin at 2
    "deberta": ("DebertaV2Model", DEBERTA),
    "modernbert": ("ModernBertModel", dict(pad_token_id=1, local_attention=8, global_attn_every_n_layers=2)),
}


def write_encoder(folder, name):
    """Write the folder of a kind of model."""
    import transformers

    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    kind, own = MODELS[name]
    kind = getattr(transformers, kind)
    model = kind(kind.config_class(**SHAPE | own))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.1)
    model.save_pretrained(folder)
    tokenizer(transformers, name).save_pretrained(folder)


def tokenizer(transformers, name):
    """Return the tokenizer of a kind of model: WordPiece, Unigram or byte-level BPE."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    if name == "bert":
        engine, special = Tokenizer(models.WordPiece(unk_token="[UNK]")), ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=320, special_tokens=special, show_progress=False)
    elif name == "deberta":
        engine, special = Tokenizer(models.Unigram()), ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
        engine.pre_tokenizer = pre_tokenizers.Metaspace()
        options = dict(special_tokens=special, unk_token="[UNK]", show_progress=False)
        trainer = trainers.UnigramTrainer(vocab_size=200, **options)
    else:
        engine, special = Tokenizer(models.BPE()), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        options = dict(special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(vocab_size=320, show_progress=False, **options)
    engine.train_from_iterator([text.lower() for text in [*TEXTS, *WORDS]] * 2, trainer)
    model = json.loads(engine.to_str())["model"]
    if name == "bert":
        return transformers.BertTokenizer(vocab=model["vocab"])
    if name == "deberta":
        return transformers.DebertaV2Tokenizer(vocab=[*map(tuple, model["vocab"])])
    if name == "roberta":
        return transformers.RobertaTokenizer(vocab=model["vocab"], merges=[*map(tuple, model["merges"])])
    engine.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 0), ("</s>", 2)])
    names = dict(cls_token="<s>", sep_token="</s>", pad_token="<pad>", mask_token="<mask>", unk_token="<unk>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=engine, **names)
