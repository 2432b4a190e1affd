"""Encoders that our Transformer cannot load, such as BERT, DeBERTa and ModernBERT. `transformers` runs them.

    path, state = open_newest("hf:answerdotai/ModernBERT-base")  # also anything that checkpoint.open_newest reads
    encoder = encoder_of(state)  # our Transformer, or a HubEncoder, which takes the same arguments

Fine-tuning treats both alike: fp32 weights, the same texts and settings. Tokens that the tokenizer puts before a text,
such as [CLS], stay, but their hidden states are dropped. The last token it puts after a text, such as [SEP], replaces
our eos. Dropout inside the encoder is that of its config.json. Code that comes with a model is never run.
"""

from types import SimpleNamespace

import numpy as np
import torch
import torch.nn as nn

import checkpoint
from data.files import refuse_malformed
from data.hub import KINDS, quiet_transformers
from data.tokenizer import optional_package
from data.tokenizer_files import read_json, read_tokenizer
from errors import DataError
from eval.tasks.model import TaskModel, predict
from eval.tasks.retriever import STUDY
from model import Transformer

FILES = ("*.json", "*/config.json", "*.txt", "*.model", "model*.safetensors")  # what to download from the hub
# The files that a checkpoint keeps, because they say how texts become vectors.
KEPT = ("config*.json", "modules.json", "sentence_*_config.json", "*/config.json", "tokenizer_config.json")
PROBE = "A Naïve  É, 日本\nend"  # a text that normalizers change


def is_ours(folder):
    """Return whether our own model can load a model folder. Raises DataError if transformers cannot either."""
    content = read_json(folder / "config.json")
    kind = str(content.get("model_type", KINDS[0]))
    if kind in KINDS:
        return True
    known = optional_package("transformers.models.auto.modeling_auto").MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if kind not in known or content.get("is_encoder_decoder") or content.get("is_decoder"):
        raise DataError(
            f"{checkpoint.problem(folder)}; nor is it an encoder of transformers for masked language modeling, and "
            "code that comes with a model (trust_remote_code) is never run"
        )
    return False


def problem(path, causal=False):
    """Return why `path` cannot be fine-tuned with this attention mask, or "" if it can."""
    why = checkpoint.problem(path)
    try:
        if not why or is_ours(checkpoint.candidates(path, ("config.json",))[0]):
            return why
    except DataError as error:
        return str(error)
    return f"{path}: causal=True: this encoder has its own mask; causal is for {', '.join(KINDS)}" if causal else ""


def open_newest(path):
    """Like `checkpoint.open_newest`, but also for models that only transformers can run."""
    newest, *_ = checkpoint.candidates(path, FILES)
    if not newest.is_dir():
        return checkpoint.open_newest(path)
    state = checkpoint.load(newest) if is_ours(newest) else read_folder(newest)
    texts = {}
    for pattern in KEPT:
        for file in sorted(newest.glob(pattern)):
            with refuse_malformed(f"{file}: not in UTF-8"):
                texts[str(file.relative_to(newest))] = file.read_text(encoding="utf-8")
    commit = newest.resolve()
    state |= {"files": texts, "revision": commit.name if commit.parent.name == "snapshots" else ""}
    return newest, state


def read_folder(folder):
    """Read a folder with transformers, and return it as the dict of a checkpoint at step 0. Raises DataError.

    Its entry `hub` has the arguments of HubEncoder: the ids before each text, the padding id, and the most tokens of a
    text.
    """
    tokenizer = read_tokenizer(folder)
    library = quiet_transformers()
    try:
        engine = engine_of(tokenizer)
        theirs = library.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        if theirs(PROBE).input_ids != engine.encode(PROBE).ids:
            raise ValueError(
                "AutoTokenizer and tokenizer.json give a text different ids. Set do_lower_case, strip_accents or "
                "add_prefix_space in tokenizer_config.json as they were when the model was trained"
            )
        whole = engine.encode("a")
        before = whole.ids[: whole.special_tokens_mask.index(0)]  # special tokens before a text
        if whole.special_tokens_mask[-1]:  # a special token ends a text
            tokenizer.eos_id = whole.ids[-1]
        model, info = library.AutoModel.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
        )
        tokenizer.vocab_size = len(model.get_input_embeddings().weight)
        model.pooler = nn.Identity()  # see HubEncoder
        weights = model.state_dict()
        if missing := sorted({*info["missing_keys"]} & weights.keys()):
            raise ValueError(f"tensors are missing: {', '.join(missing)}")
        seq_len = model.config.max_position_embeddings - len(before)
        for name, part in model.named_modules():
            padding = getattr(part, "padding_idx", None)
            if name.endswith("position_embeddings") and padding is not None:  # RoBERTa's positions start after it
                seq_len -= padding + 1
        state = {
            "step": 0,
            "model": {f"model.{name}": x for name, x in weights.items()},
            "config": read_json(folder / "config.json"),
            "settings": {},
            "tokenizer": tokenizer.state(),
            "tokenizer_ranks": tokenizer.content,
            "hub": {"before": before, "pad_id": tokenizer.pad_id, "seq_len": seq_len},
        }

        # How much does a text's vector change if a text of twice its length is in the batch? Some models see padding
        # (FNet), others change their attention with the length (BigBird). So the longer text has as many tokens as fit,
        # up to 1,024. Both texts contain eos and the largest token id.
        encoder = encoder_of(state)
        ids = np.resize([tokenizer.eos_id, *tokenizer.ordinary_ids[::-1]], min(1024, encoder.config.seq_len))
        texts = [SimpleNamespace(ids=ids), SimpleNamespace(ids=ids[: len(ids) // 2])]
        retriever = TaskModel(encoder, "ir", 0, False, 0.0, STUDY)
        _, together = predict(retriever, texts)
        (alone,) = predict(retriever, texts[1:])
        difference = np.abs(together - alone).max() / np.abs(alone).max()
        if not difference < 1e-4:  # rounding gives about 1e-6
            raise ValueError(f"a text's hidden states depend on the other texts of its batch, by {difference:.2%}")
    except Exception as error:  # transformers raises many kinds
        raise DataError(f"{folder}: transformers cannot open it as a text encoder: {error}") from error
    return state


def engine_of(tokenizer):
    """Return a model folder's tokenizer as a `tokenizers.Tokenizer`, which adds special tokens itself."""
    engine = optional_package("tokenizers").Tokenizer.from_buffer(tokenizer.content)
    engine.no_padding()
    engine.no_truncation()
    return engine


def encoder_of(state, random_weights=False, protocol=STUDY):
    """Return the encoder of a dict from `open_newest`, on the CPU, in fp32.

    With a retriever's own Protocol, an Item's ids already have the special tokens, so the encoder adds none.
    """
    if "hub" not in state:
        trained = checkpoint.model_from(state)
        encoder = Transformer(trained.config) if random_weights else trained
        encoder.attention_backend = trained.attention_backend
        encoder.one_text_per_row = depends_on_row(trained)  # see TaskModel.capacity
        return encoder
    encoder = HubEncoder(state["config"], **state["hub"])
    if protocol.own:
        encoder.config.seq_len += len(encoder.before)
        encoder.before = []
    if not random_weights:
        encoder.load_state_dict(state["model"], assign=True)
    return encoder


@torch.no_grad()
def depends_on_row(encoder):
    """Return whether a text's hidden states depend on its place in a row, as with absolute positions.

    Raises DataError if they also depend on what follows the text in its row, such as padding.
    """
    tokens = torch.tensor([[0, 1, 2, 0, 1]])  # a text, another one, and the first again
    bounds = torch.tensor([[[0, 0, 2, 3, 3]], [[2, 2, 3, 5, 5]]])
    (alone,) = encoder(tokens[:, :2], False)
    first, _, second = encoder(tokens, False, *bounds)[0].split((2, 1, 2))
    allowed = 1e-4 * alone.abs().max()  # rounding gives about 1e-6
    if (first - alone).abs().max() > allowed:
        raise DataError(
            "in the edited model.py, a text's hidden states depend on what follows it in a row, such as padding. Use "
            "only positions in [doc_start, doc_end), as `attention` does"
        )
    return bool((second - alone).abs().max() > allowed)


class HubEncoder(nn.Module):
    """A model of transformers with the interface of our Transformer, for bidirectional attention."""

    one_text_per_row = True

    def __init__(self, config, before, pad_id, seq_len):
        super().__init__()
        library = optional_package("transformers")
        own = library.CONFIG_MAPPING[config["model_type"]].from_dict(config)
        self.model = library.AutoModel.from_config(own, dtype=torch.float32)
        self.model.pooler = nn.Identity()  # replaces a layer on [CLS] that our heads do not use
        self.config = SimpleNamespace(d_model=own.hidden_size, seq_len=seq_len)
        self.before, self.pad_id, self.compute_dtype = before, pad_id, torch.float32

    @property
    def device(self):
        return self.model.device

    def forward(self, tokens, causal, doc_start, doc_end):
        """Like Transformer.forward, for one text per row, at its start. `self.before` is put before each text."""
        dtype = self.compute_dtype
        inside = doc_end > doc_start  # (B, T)
        before = tokens.new_tensor(self.before).expand(len(tokens), -1)
        rows = torch.cat((before, tokens.masked_fill(~inside, self.pad_id)), 1)
        mask = torch.cat((torch.ones_like(before), inside), 1)
        with torch.autocast(tokens.device.type, dtype, enabled=dtype != torch.float32):
            hidden = self.model(rows, attention_mask=mask).last_hidden_state
        return hidden[:, len(self.before) :]
