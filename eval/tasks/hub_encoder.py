"""Encoders that are not of our own kinds, such as BERT, RoBERTa, DeBERTa and ModernBERT, run by `transformers`.

    state = load(checkpoint.find("hf:answerdotai/ModernBERT-base"))  # also what checkpoint.load reads
    encoder = encoder_of(state)  # our Transformer, or a HubEncoder, which takes the same arguments

Fine-tuning treats both alike: fp32 weights, one learning rate, the same texts. What a model's own tokenizer puts before
a text, such as [CLS], goes before each one, and its hidden state is dropped. What it puts after a text, such as [SEP],
takes the place of our eos. Dropout inside the encoder is that of its config.json, as everybody fine-tunes it.
"""

import zlib
from types import SimpleNamespace

import torch
import torch.nn as nn

import checkpoint
from data.hub import KINDS
from data.tokenizer import JsonTokenizer, optional_package, read_json
from errors import Damaged, DataError
from model import ModelConfig, Transformer


def library_config(folder):
    """Return the config by which transformers opens a model folder; None if the model is of our kinds.

    Raises DataError if it is no encoder of the transformers package itself.
    """
    content = read_json(folder / "config.json")
    kind = content.get("model_type")
    if kind in (None, *KINDS):
        return None
    library = optional_package("transformers")
    if kind not in library.CONFIG_MAPPING:
        why = "transformers has no such model. If the folder brings its own code: it is not run here (trust_remote_code)"
        raise DataError(f"{folder}: model_type={kind!r:.80}: {why}")
    config = library.CONFIG_MAPPING[kind].from_dict(content)
    if type(config) not in library.MODEL_FOR_MASKED_LM_MAPPING or config.is_encoder_decoder or content.get("is_decoder"):
        why = "nor has transformers an encoder for masked language modeling of this kind"
        raise DataError(f"{checkpoint.problem(folder)}; {why}")
    return config


def problem(path, causal=False):
    """Return why `path` gives no encoder for fine-tuning with this attention mask, or an empty string."""
    if not (why := checkpoint.problem(path)):
        return ""
    try:
        if library_config(checkpoint.find(path, files=("config.json",))) is None:
            return why
    except (Damaged, DataError) as error:
        return str(error)
    return f"{path}: causal=True: this encoder has its own mask; causal is for {', '.join(KINDS)}" if causal else ""


def load(path, report=print):
    """Return the dict of a checkpoint or a model folder of any kind. path: what `checkpoint.find` has found."""
    if not path.is_dir():
        return checkpoint.load(path, report=report, ours=False)
    state = read_folder(path) if library_config(path) else checkpoint.load(path, report=report)
    return state | {"revision": revision(path)}


def read_folder(folder):
    """Return a folder that transformers opens as the dict of a checkpoint at step 0. Raises DataError.

    `hub` in it says what a HubEncoder needs: the ids before each text, that of padding, and the largest number of tokens.
    """
    library = optional_package("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    try:
        tokens = library.AutoTokenizer.from_pretrained(folder)
        model, report = library.AutoModel.from_pretrained(
            folder, dtype=torch.float32, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # of many kinds
        raise DataError(f"{folder}: transformers cannot open it: {error}") from error
    if not tokens.is_fast:
        raise DataError(f"{folder}: {type(tokens).__name__} is not run by the tokenizers library: it has no offsets")
    drop_pooler(model)
    if missing := report["missing_keys"] & model.state_dict().keys():
        raise DataError(f"{folder}: tensors are missing: {', '.join(sorted(missing))}")

    plain, whole = (tokens("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    start = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    before, after = whole[:start], whole[start + len(plain) :]
    special = {token.content: i for i, token in tokens.added_tokens_decoder.items() if token.special}
    eos = after[-1] if after else tokens.eos_token_id
    ids = {f"{name}_id": getattr(tokens, f"{name}_token_id") for name in ("mask", "pad", "bos")}
    ids = {name: eos if i is None else i for name, i in ids.items()} | {"eos_id": eos}
    engine = tokens.backend_tokenizer.to_str().encode()
    tokenizer = JsonTokenizer(engine, name=folder.resolve().name, special_tokens=special, **ids)

    # RoBERTa's positions begin after that of padding.
    parts = (part for name, part in model.named_modules() if name.endswith("position_embeddings"))
    skipped = max((part.padding_idx + 1 for part in parts if getattr(part, "padding_idx", None) is not None), default=0)
    seq_len = model.config.max_position_embeddings - skipped - len(before)
    return {
        "step": 0,
        "model": {f"model.{name}": x for name, x in model.state_dict().items()},
        "config": read_json(folder / "config.json"),
        "settings": {},
        "tokenizer": tokenizer.state(),
        "tokenizer_ranks": tokenizer.file_bytes(),
        "hub": {"before": before, "pad_id": ids["pad_id"], "seq_len": seq_len},
    }


def drop_pooler(model):
    """Remove the layer that some encoders have on top of [CLS]; the heads of our tasks do not use it."""
    if getattr(model, "pooler", None) is not None:
        model.pooler = None


def revision(folder):
    """Return the commit of a folder that was downloaded; of another one, a checksum of its config.json and file sizes."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots":
        return folder.name
    sizes = sorted((file.name, file.stat().st_size) for file in folder.glob("*.safetensors"))
    return f"{zlib.crc32((folder / 'config.json').read_bytes() + repr(sizes).encode()):08x}"


def encoder_of(state, random_weights=False):
    """Return the encoder of a dict that `load` has returned; on the CPU, in fp32."""
    if "hub" not in state:
        return Transformer(ModelConfig(**state["config"])) if random_weights else checkpoint.model_from(state)
    encoder = HubEncoder(state["config"], **state["hub"])
    if not random_weights:
        encoder.load_state_dict(state["model"], assign=True)
    return encoder


class HubEncoder(nn.Module):
    """A model of transformers with the interface of our Transformer, for bidirectional attention."""

    def __init__(self, config, before, pad_id, seq_len):
        super().__init__()
        library = optional_package("transformers")
        own = library.CONFIG_MAPPING[config["model_type"]].from_dict(config)
        self.model = library.AutoModel.from_config(own, dtype=torch.float32)
        drop_pooler(self.model)
        self.config = SimpleNamespace(d_model=own.hidden_size, seq_len=seq_len)
        self.before, self.pad_id, self.compute_dtype = before, pad_id, torch.float32

    @property
    def device(self):
        return self.model.device

    def forward(self, tokens, causal, doc_start, doc_end):
        """As Transformer.forward, but positions outside of all texts get zeros.

        The texts of packed rows become a row each, with `before` and padding, and their hidden states go back in place.
        """
        before, B, T = len(self.before), *tokens.shape
        column = torch.arange(T, device=tokens.device)
        inside = doc_end > doc_start  # (B, T)
        text = (inside & (column == doc_start)).flatten().cumsum(0).view(B, T)[inside] - 1  # (N,)
        place = (column - doc_start)[inside] + before  # (N,)
        n, width = int(text[-1]) + 1, int(place.max()) + 1
        rows, mask = tokens.new_full((n, width), self.pad_id), tokens.new_zeros(n, width)
        rows[:, :before], mask[:, :before] = tokens.new_tensor(self.before), 1
        rows[text, place], mask[text, place] = tokens[inside], 1
        with torch.autocast(tokens.device.type, self.compute_dtype, self.compute_dtype != torch.float32):
            hidden = self.model(input_ids=rows, attention_mask=mask).last_hidden_state  # (n, width, d)
        out = hidden.new_zeros(B, T, hidden.shape[-1])
        out[inside] = hidden[text, place]
        return out
