"""Tiny encoders of the transformers library with random weights and a tokenizer; ours, exported."""

import string

import torch

import checkpoint
from data.hub import write_folder
from data.objective import CLM, MLM
from data.tokenizer import BYTE_CHARACTERS, PATTERN, byte_level_bpe
from data.tokenizer_files import read_tokenizer
from helpers import WORDS, record
from model import ModelConfig, Transformer
from study_helpers import state_of

TEXTS = ["Return the list of the object.", "a", "An error is raised: naïve  text\n\tof two lines 🙂", "value " * 60]
SHAPE = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=320)
SHAPE |= dict(max_position_embeddings=40, bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2)
DEBERTA = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm")
MERGES = [("t", "h"), ("th", "e")]
SETTINGS = dict(max_steps=650, global_batch_tokens=4096, seed=0, lr=1e-3, data="/some/folder/prepared/books")
MODELS = {  # {model_type: what its config has of its own}
    "bert": {},
    "roberta": dict(pad_token_id=1, max_position_embeddings=42),  # positions begin at 2
    "deberta-v2": DEBERTA,
    "modernbert": dict(pad_token_id=1, local_attention=8, global_attn_every_n_layers=2),
}


def write_encoder(folder, kind, own=None):
    """Write the folder of a kind of model. own: another config than that in MODELS, with the tokenizer of bert."""
    import transformers

    transformers.logging.disable_progress_bar()
    torch.manual_seed(0)
    library = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModel
    config = SHAPE | (MODELS[kind] if own is None else own)
    model = library.from_config(transformers.AutoConfig.for_model(kind, **config))
    for p in model.parameters():
        p.data.add_(torch.randn_like(p), alpha=0.1)
    model.save_pretrained(folder)
    tokenizer(transformers, kind if own is None else "bert").save_pretrained(folder)


def tokenizer(transformers, name):
    """Return the tokenizer of a kind of model. Its tokens are characters or bytes, and a few words."""
    import tokenizers

    characters = sorted({*"".join(TEXTS), *string.ascii_letters})
    if name == "bert":
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *characters, *(f"##{c}" for c in characters)]
        return transformers.BertTokenizer(vocab=numbered(names))
    if name == "deberta-v2":
        names = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", *(f"▁{word}" for word in WORDS), "▁", *characters]
        return transformers.DebertaV2Tokenizer(vocab=[(token, -float(i)) for token, i in numbered(names).items()])
    if name == "llama2":
        names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *characters, "th", "the"]
        one, steps = transformers.LlamaTokenizer(vocab=numbered(names), merges=MERGES), tokenizers.normalizers
        spaces = [steps.Prepend("▁"), steps.Replace(" ", "▁")]  # most files on the hub have it so
        one.backend_tokenizer.normalizer, one.backend_tokenizer.pre_tokenizer = steps.Sequence(spaces), None
        return one
    if name == "qwen":
        return transformers.Qwen2Tokenizer(vocab=numbered([*BYTE_CHARACTERS, "th", "the"]), merges=MERGES)
    vocab = numbered(["<s>", "<pad>", "</s>", "<unk>", "<mask>", *BYTE_CHARACTERS])
    if name == "roberta":
        return transformers.RobertaTokenizer(vocab=vocab, merges=[])
    engine, end = byte_level_bpe(PATTERN, vocab=vocab, merges=[]), [("<s>", 0), ("</s>", 2)]
    engine.post_processor = tokenizers.processors.TemplateProcessing("<s> $A </s>", None, end)
    names = dict(cls_token="<s>", sep_token="</s>", pad_token="<pad>", mask_token="<mask>", unk_token="<unk>")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=engine, **names)


def numbered(names):
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def random_weights(model, seed=0):
    """Weights as large as after training: with smaller ones, a wrong rotation would hardly show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(std=0.3, generator=generator).add_(name.endswith("norm.weight"))
    return model.eval()


def random_state(shape, objectives=(CLM(), MLM()), seed=0, tokenizer=None, **settings):
    """A checkpoint's dict with random weights. shape: fields of a ModelConfig. objectives: of its steps."""
    tokenizer = tokenizer or read_tokenizer("embedded")
    own = dict(tokenizer=tokenizer.state(), tokenizer_ranks=tokenizer.content)
    model = random_weights(Transformer(ModelConfig(**dict(vocab_size=tokenizer.vocab_size) | shape)), seed)
    return state_of(model, SETTINGS | settings, phases=record(*({what: [0]} for what in objectives)), **own)


def export(state, folder, kind):
    """Export a checkpoint's dict; return the folder."""
    write_folder(state, checkpoint.model_from(state), "ckpt-650.pt", folder, kind)
    return folder
