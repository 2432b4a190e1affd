"""How a text becomes a vector in retrieval: by the study's protocol, the same for all models, or by the model's own.

A model's own protocol is that of sentence-transformers: what modules.json and the files beside it say. Without such
files, it is the mean of all tokens, without prompts.
"""

import json
from typing import NamedTuple

from data.files import MALFORMED
from errors import DataError

# The old and new names of sentence-transformers for the ways to pool the vectors of a text's tokens.
POOLING = {
    "mean": "mean",
    "cls": "cls",
    "lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
}
# Settings in sentence_bert_config.json that do not change a text's vector. Others, such as do_lower_case, do.
HARMLESS = {"max_seq_length", "transformer_task", "modality_config", "module_output_name", "unpad_inputs"}


class Protocol(NamedTuple):
    """A way to make vectors. The defaults are the study's: the mean over a prompt, the text and eos."""

    name: str = "the study's"
    query: str = "Query: "  # the prompts
    document: str = "Document: "
    pooling: str = "mean"
    cosine: bool = True  # normalize vectors to length 1
    max_len: int = 2**31  # in tokens
    own: bool = False  # the tokenizer adds its special tokens to a text, and they count
    causal: bool = False


STUDY = Protocol()


def choose(cfg, state):
    """Return the Protocol for the settings of finetune.py and a checkpoint's dict. Raises DataError."""
    texts = state.get("files", {})
    if cfg.protocol == "study" or cfg.protocol == "auto" and (cfg.max_steps > 0 or "modules.json" not in texts):
        return STUDY
    if cfg.save_model and "hub" not in state:
        raise DataError("save_model: an exported model of this kind uses the study's protocol: give --protocol=study")
    try:
        return own_protocol({name: json.loads(text) for name, text in texts.items()})
    except MALFORMED as error:
        raise DataError(
            f"{cfg.init_from}: cannot follow this model's own protocol ({error!r:.600}): give --protocol=study"
        ) from error


def own_protocol(files):
    """Return the Protocol in files of sentence-transformers, {name: content}. Raises MALFORMED."""
    modules = {module["type"].split(".")[-1]: module["path"] for module in files.get("modules.json", ())}
    pooling = files[modules["Pooling"] + "/config.json"] if modules else {"pooling_mode": "mean"}
    modes = [name for name, is_on in pooling.items() if name.startswith("pooling_mode_") and is_on is True]
    mode = pooling.get("pooling_mode") or "+".join(modes)
    config = files.get("config_sentence_transformers.json", {})
    similarity = config.get("similarity_fn_name") or "cosine"
    limits = {}  # from sentence_bert_config.json; older folders have sentence_roberta_config.json and so on
    for name, content in files.items():
        if name.startswith("sentence_"):
            limits |= content
    more = {name for name, value in limits.items() if value} - HARMLESS
    more |= modules.keys() - {"Transformer", "Pooling", "Normalize"}
    known = mode in POOLING and similarity in ("cosine", "dot") and pooling.get("include_prompt", True)
    if more or config.get("truncate_dim") or not known:
        raise ValueError(f"modules {[*modules]}, pooling {pooling}, {config}, {limits}")
    prompts = config.get("prompts", {})
    content = files["config.json"]
    max_len = limits.get("max_seq_length") or files.get("tokenizer_config.json", {}).get("model_max_length")
    return Protocol(
        name="its own",
        query=prompts.get("query") or "",
        document=prompts.get("document") or "",
        pooling=POOLING[mode],
        cosine=similarity == "cosine" or "Normalize" in modules,
        max_len=max_len or STUDY.max_len,
        own=True,
        causal=content.get("is_causal", content["model_type"] not in ("eurobert", "sl_model")),
    )
