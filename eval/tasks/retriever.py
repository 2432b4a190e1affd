"""How a retriever makes a vector of a text: as the study does, the same for all models, or in its own way.

Its own is that of sentence-transformers: what modules.json and the files beside it say, or the mean of all tokens
without prompts where a folder has no such files.
"""

import json
from typing import NamedTuple

from data.files import MALFORMED
from errors import DataError

# How the vectors of a text's tokens become one, by the names that sentence-transformers uses and has used.
POOLING = {"mean": "mean", "cls": "cls", "lasttoken": "lasttoken", "pooling_mode_lasttoken": "lasttoken"}
POOLING |= {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
MODULES = ("Transformer", "Pooling", "Normalize")


class Protocol(NamedTuple):
    """A way to make vectors. The study's: a prompt, the text and eos; the mean without what stands before them."""

    name: str = "the study's"
    query: str = "Query: "  # the prompts
    document: str = "Document: "
    pooling: str = "mean"
    cosine: bool = True  # vectors have the length 1
    max_len: int = 2**31  # in tokens
    own: bool = False  # the tokenizer's own special tokens surround a text, and count
    causal: bool = False


STUDY = Protocol()


def choose(cfg, state):
    """Return the Protocol for the settings of finetune.py and a checkpoint's dict. Raises DataError."""
    has_files = "modules.json" in state.get("files", ())
    if cfg.protocol == "study" or cfg.protocol == "auto" and not (cfg.max_steps == 0 and has_files):
        return STUDY
    if "files" not in state:
        raise DataError(f"protocol=own: {cfg.init_from} is not a model folder: only those have one")
    try:
        return own_protocol({name: json.loads(text) for name, text in state["files"].items()})
    except MALFORMED as error:
        raise DataError(f"{cfg.init_from}: its own protocol cannot be followed: {error!s:.300}: give --protocol=study")


def own_protocol(files):
    """Return the Protocol that files of sentence-transformers describe. files: {name: content}. Raises MALFORMED."""
    modules = {module["type"].split(".")[-1]: module["path"] for module in files.get("modules.json", ())}
    config = files.get("config_sentence_transformers.json", {})
    limits = files.get("sentence_bert_config.json", {})
    pooling = {"pooling_mode": "mean"}
    if modules:
        pooling = files[modules["Pooling"] + "/config.json"]
    modes = pooling.get("pooling_mode") or [name for name in pooling if "pooling_mode" in name and pooling[name]]
    modes = [modes] if isinstance(modes, str) else modes
    similarity = config.get("similarity_fn_name") or "cosine"
    facts = [*modules.keys() - {*MODULES}, *{*modes} - {*POOLING}, *{similarity} - {"cosine", "dot"}]
    if facts or len(modes) != 1 or limits.get("do_lower_case") or not pooling.get("include_prompt", True):
        raise ValueError(f"{', '.join(facts)} pooling {modes}, {limits}")
    prompts = config.get("prompts", {})
    content = files["config.json"]
    return Protocol(
        name="its own",
        query=prompts.get("query") or "",
        document=prompts.get("document") or "",
        pooling=POOLING[modes[0]],
        cosine=similarity == "cosine" or "Normalize" in modules,
        max_len=limits.get("max_seq_length") or files.get("tokenizer_config.json", {}).get("model_max_length", 2**31),
        own=True,
        causal=content["model_type"] in ("llama", "mistral", "qwen2", "qwen3") and content.get("is_causal", True),
    )
