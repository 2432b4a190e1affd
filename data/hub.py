"""Models from, and to, folders in the format of the Hugging Face hub.

A folder holds config.json, the weights in *.safetensors, and the tokenizer in tokenizer.json. `load` reads Llama,
SmolLM, TinyLlama, Mistral, Qwen 2, Qwen 3 and EuroBERT, and the study's own models. `write_folder` writes folders that
`transformers` opens as EuroBERT, Llama or Qwen 3. Reading and writing weights needs the safetensors package; a name on
the hub needs huggingface_hub.
"""

import json
import os
import shutil
from pathlib import Path

import torch

from data.card import model_card
from data.files import MALFORMED, sync
from data.objective import phases_of, predicts_from
from data.tokenizer import Tokenizer, optional_package, read_json
from errors import Damaged, DataError
from model import ModelConfig, Transformer

# By name, as a model with the same tensors can be another function (Gemma scales its embeddings). "sl_model" are the
# study's (hf:MLMvsCLM/...), which are EuroBERT's architecture under the name of their own code.
KINDS = ("llama", "mistral", "qwen2", "qwen3", "eurobert", "sl_model")
SIZES = {
    "vocab_size": "vocab_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "seq_len": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
}
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # of Llama 3.1's RoPE

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
OUTER = {"embedding": EMBEDDING, "norm": "model.norm.weight", "head": HEAD}
# The parts of a block: our name, and the hub's. The hub stores q, k and v apart, and gate and up.
BLOCK = {
    "attn_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "q_norm": ("self_attn.q_norm",),
    "k_norm": ("self_attn.k_norm",),
    "attn_out": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def download(name, files):
    """Return the local folder of a model on the hub, given as "hf:organization/model". Raises DataError."""
    hub = optional_package("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name.removeprefix("hf:"), allow_patterns=files))
    except Exception as error:  # of the network, the hub or the disk
        raise DataError(f"{name}: it cannot be downloaded from the hub: {error}") from error


def is_model(folder):
    """Return whether a folder is a model's. The folder of a run has a config.json too, but with other things in it."""
    file = folder / "config.json"
    return file.is_file() and b'"model_type"' in file.read_bytes()


def shape(file):
    """Return the fields of a ModelConfig that a config.json describes. DataError lists all that our model cannot do.

    Within its sliding window a model attends to everything, so a window is a limit of seq_len and no more.
    """
    c = read_json(file)
    kind, rope = c.get("model_type"), c.get("rope_parameters") or c.get("rope_scaling") or {}  # transformers 5, or 4
    if kind not in KINDS:
        raise DataError(f"{file}: model_type={kind!r:.80}: must be one of {', '.join(KINDS)}")
    defaults = {"rope_theta": 10000.0, "use_sliding_window": kind == "mistral", "hidden_act": "silu", "mlp_bias": False}
    defaults |= {"tie_word_embeddings": False, "attention_bias": False, "partial_rotary_factor": 1.0}
    c = defaults | c | rope
    rope_type = c["rope_type"] = c.get("rope_type") or c.get("type") or "default"
    allowed = {"hidden_act": ("silu", "swish"), "mlp_bias": (False,), "rope_type": ("default", "llama3")}
    allowed |= {"partial_rotary_factor": (1.0, None)}
    wrong = [f"{name}={c[name]!r}: must be {values[0]}" for name, values in allowed.items() if c[name] not in values]
    try:
        if c["use_sliding_window"] and c.get("sliding_window"):
            c["max_position_embeddings"] = min(c["max_position_embeddings"], c["sliding_window"])
        config = ModelConfig(
            **{ours: c[theirs] for ours, theirs in SIZES.items()},
            rope_theta=float(c["rope_theta"]),
            rope_scaling=tuple(c[name] for name in SCALING) if rope_type == "llama3" else (),
            tie_embeddings=c["tie_word_embeddings"],
            qkv_bias=kind == "qwen2" or c["attention_bias"],
            head_dim=c.get("head_dim") or 0,
            qk_norm=kind == "qwen3",
        )
        wrong += config.problems()
    except MALFORMED as error:
        raise DataError(f"{file}: damaged, or not of a model: {type(error).__name__}: {error}") from None
    if wrong:
        raise DataError(f"{file}: our model cannot do what this one does: {'; '.join(wrong)}")
    return vars(config)


def hub_views(model, vocab_size=None):
    """Return {the hub's name: tensor} of a Transformer's state dict. The tensors are views of its own.

    vocab_size: the rows of embedding and head that they have there, if not all.
    """
    views = {}
    for name, x in model.items():
        *block, part, kind = name.split(".")  # blocks.3.qkv.bias, norm.weight
        if part not in (BLOCK if block else OUTER):
            raise DataError(f"model folders have no place for {name}")
        if not block:
            views[OUTER[part]] = x if part == "norm" else x[:vocab_size]
            continue
        rows = len(x) // len(BLOCK[part])
        if part == "qkv":
            q = model[f"blocks.{block[1]}.attn_out.weight"].shape[1]
            rows = [q, (len(x) - q) // 2, (len(x) - q) // 2]
        for theirs, view in zip(BLOCK[part], x.split(rows), strict=True):
            views[f"model.layers.{block[1]}.{theirs}.{kind}"] = view
    return views


# ----------------------------------------------------------------------------
# In


def stored_tensors(folder):
    """Return {name: tensor} of a model folder. The tensors are mapped, not read, and have the dtype of the file."""
    library, single = optional_package("safetensors.torch"), folder / "model.safetensors"
    files, found = [single] if single.is_file() else sorted(folder.glob("model-*.safetensors")), {}
    if not files:  # opening a pickle can run any code
        raise DataError(f"{folder}: no model.safetensors. Pickles (pytorch_model.bin) are not read: convert them")
    for file in files:
        try:
            found |= library.load_file(file)
        except optional_package("safetensors").SafetensorError as error:
            raise Damaged(f"{file} is damaged or not a safetensors file ({error})") from error
    if "embed_tokens.weight" in found:  # transformers' AutoModel saves without this prefix
        found = {name if name == HEAD else f"model.{name}": x for name, x in found.items()}
    return found


def faults(found, wanted):
    """Yield what is wrong with the tensors of a folder: all that are missing, unexpected, or of a wrong shape."""
    yield from (f"{name}: missing" for name in wanted if name not in found and name != HEAD)
    for name, x in found.items():
        if name in wanted:
            if x.shape != wanted[name].shape or not x.is_floating_point():
                yield f"{name}: {x.dtype} {tuple(x.shape)}, expected {tuple(wanted[name].shape)} of floats"
        elif name.endswith("o_proj.bias"):  # Llama's attention_bias is for q, k, v and the output
            if x.any():
                yield f"{name}: not 0, but our model has biases only for q, k and v"
        elif not name.endswith("rotary_emb.inv_freq"):  # in old files, though it follows from rope_theta
            yield f"{name}: unexpected"


def load(folder, need_tokenizer, report):
    """Return a model folder as the dict of a checkpoint at step 0; see `checkpoint.load`.

    Every tensor of the folder must have a place, or the error lists it. If the tokenizer has more ids than the model,
    the new rows of embedding and head are the mean of the others, which changes the other logits least (Hewitt, 2021).
    A bare encoder gets a head of zeros. Weights become fp32.
    """
    config, found = shape(folder / "config.json"), stored_tensors(folder)
    try:
        tokenizer = Tokenizer.load(folder)
    except DataError:
        if need_tokenizer:
            raise
        tokenizer = None
    V = config["vocab_size"]
    config["vocab_size"] = max(V, tokenizer.vocab_size if tokenizer else 0)
    with torch.device("meta"):
        shapes = Transformer(ModelConfig(**config)).state_dict()
    if config["tie_embeddings"]:
        found.pop(HEAD, None)  # a copy of the embedding
    if wrong := list(faults(found, hub_views(shapes, V))):
        what = f"{len(wrong)} of its tensors are not those of its config.json"
        raise DataError(f"{folder}: {what}: {'; '.join(wrong[:20])}")

    model = {name: torch.empty(x.shape) for name, x in shapes.items()}
    if config["tie_embeddings"]:
        model["head.weight"] = model["embedding.weight"]
    wanted = hub_views(model, V)
    for name in wanted.keys() & found.keys():
        wanted[name].copy_(found[name])
    if new := config["vocab_size"] - V:
        report(f"{folder}: {new} new tokens begin as the mean of the {V} old ones")
        for name in "embedding.weight", "head.weight":
            model[name][V:] = model[name][:V].mean(0)
    if HEAD not in found and not config["tie_embeddings"]:
        report(f"{folder}: an encoder without a head: it gets one of zeros, to be trained")
        model["head.weight"].zero_()
    is_causal = read_json(folder / "config.json").get("is_causal", True)  # False: a decoder's class as an encoder
    state = {"step": 0, "model": model, "config": config, "settings": {}, "is_causal": is_causal}
    state["tokenizer"] = tokenizer and tokenizer.state()
    return state | {"tokenizer_ranks": tokenizer and tokenizer.file_bytes()}


# ----------------------------------------------------------------------------
# Out

# What is written for each --as: a decoder, an encoder with or without a head that fills in masks, or a model of a
# family of finetune.py. Each has its class in transformers, the pipeline tag of its model card, and the names that the
# parts of its head have there.
CLASSES = {
    ("llama", "decoder"): ("LlamaForCausalLM", "text-generation", {}),
    ("eurobert", "fill-mask"): ("EuroBertForMaskedLM", "fill-mask", {}),
    ("eurobert", "encoder"): ("EuroBertModel", "feature-extraction", {}),
    ("eurobert", "sc"): ("EuroBertForSequenceClassification", "text-classification", {"0": "dense", "2": "classifier"}),
    ("eurobert", "tc"): ("EuroBertForTokenClassification", "token-classification", {"1": "classifier"}),
    ("eurobert", "qa"): ("EuroBertForTokenClassification", "token-classification", {"1": "classifier"}),
    ("eurobert", "ir"): ("EuroBertModel", "sentence-similarity", {}),
    ("qwen3", "decoder"): ("Qwen3ForCausalLM", "text-generation", {}),
    ("qwen3", "encoder"): ("Qwen3Model", "feature-extraction", {}),
    ("qwen3", "tc"): ("Qwen3ForTokenClassification", "token-classification", {"1": "score"}),
    ("qwen3", "qa"): ("Qwen3ForTokenClassification", "token-classification", {"1": "score"}),
    ("qwen3", "ir"): ("Qwen3Model", "sentence-similarity", {}),
}
EXPORTS = {  # what --as may be
    "eurobert": "an encoder",
    "llama": "a decoder",
    "qwen3": "an encoder or a decoder, of a model that began as a Qwen 3",
}
PROMPTS = {"query": "Query: ", "document": "Document: "}  # as InformationRetrieval puts them before its texts


def check_export(folder, kind):
    """Raise DataError if a folder is there already, or if there is no such kind of export."""
    if kind not in EXPORTS:
        kinds = "; ".join(f"--as={name}: {what}" for name, what in EXPORTS.items())
        raise DataError(f"--as={kind}: must be one of three. {kinds}")
    if os.path.lexists(folder):
        raise DataError(f"{folder} is there already: give another folder")


def role_of(state, kind, path):
    """Return what a checkpoint's dict is exported as, the second key of CLASSES. Raises DataError."""
    saved, has_norms = state.get("fine_tuned"), state["config"]["qk_norm"]
    if has_norms != (kind == "qwen3"):
        right = "give --as=qwen3" if has_norms else "give --as=eurobert for an encoder, --as=llama for a decoder"
        what = "this model has" if has_norms else "this model does not have"
        raise DataError(f"{path}: only Qwen 3 has norms of queries and keys, which {what}: {right}")
    if saved and saved["settings"]["causal"]:
        raise DataError(f"{path} is fine-tuned with causal=True: transformers has no class for it")
    if saved:
        role = saved["family"]
    elif kind == "qwen3":  # one class for both: the last phase decides
        causal = [its["phase"] == "clm" for its in phases_of(state)] or [state.get("is_causal", True)]
        role = "decoder" if causal[-1] else "encoder"
    elif kind == "llama":
        role = "decoder"
    else:  # a head for masks predicts a hidden token at the token's own position
        role = "fill-mask" if predicts_from(state) == "mask" else "encoder"
    if (kind, role) not in CLASSES:
        kinds = " or ".join(f"--as={one}" for one, its in CLASSES if its == role)
        raise DataError(f"{path} is a model for {role}, which --as={kind} has no class for: {kinds}")
    return role


def write_folder(state, model, path, folder, kind):
    """Write a checkpoint's dict as a folder that transformers opens without code of ours; all of it or nothing.

    model: its Transformer. path: of the checkpoint; its scores lie beside it. kind: "eurobert", an encoder; "llama", a
    decoder; or "qwen3", either of them. Encoders open with sentence-transformers too, with mean pooling. A model that
    finetune.py has saved is written with its head and the names of its labels. Raises DataError if no class in
    transformers computes what the model does.
    """
    folder, head, max_len = Path(folder), {}, state["config"]["seq_len"]
    role = role_of(state, kind, path)
    if saved := state.get("fine_tuned"):
        head, max_len = saved["head"], min(max_len, saved["settings"]["max_len"])
    name, tag, parts = CLASSES[kind, role]
    tokenizer = Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])
    weights = hub_weights(state, with_head=role in ("decoder", "fill-mask"))
    contents = {"config.json": hub_config(state, tokenizer, name, kind, role)}
    for key, x in head.items():
        part, _, what = key.partition(".")  # "2.bias" becomes "classifier.bias"
        weights[f"{parts[part]}.{what}"] = x
    contents |= tokenizer_files(tokenizer, max_len, append_eos=role != "decoder", for_words=role == "tc")
    if role in ("fill-mask", "encoder", "ir"):
        contents |= sentence_files(state["config"]["d_model"], max_len, PROMPTS if role == "ir" else {})
    texts = {file: json.dumps(content, ensure_ascii=False, indent=1) for file, content in contents.items()}
    parameters = sum(x.numel() for x in weights.values())
    qwen3_encoder = contents["config.json"].get("is_causal") is False
    texts["README.md"] = model_card(folder.name, tag, state, path, max_len, parameters, qwen3_encoder)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)  # an error if it is there: it is not ours
    try:
        for file, text in texts.items():
            (partial / file).parent.mkdir(exist_ok=True)
            (partial / file).write_text(text, encoding="utf-8")
        save_file = optional_package("safetensors.torch").save_file
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        check_function(model, partial, role, path)
        sync(partial / "model.safetensors")
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@torch.no_grad()
def check_function(model, folder, role, path):
    """Raise DataError unless transformers computes from a folder what the model does, on a few random tokens.

    So an edit of model.py that the format cannot express, such as another activation, does not leave as a folder that
    computes something else. Without transformers nothing is compared.
    """
    try:
        library = optional_package("transformers")
    except DataError:
        print(f"{path}: not compared with transformers, which is not installed")
        return
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    kind = {"decoder": "AutoModelForCausalLM", "fill-mask": "AutoModelForMaskedLM"}.get(role, "AutoModel")
    tokens = torch.randint(model.config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))
    ours, theirs = model(tokens, causal=role == "decoder"), getattr(library, kind).from_pretrained(folder)(tokens)[0]
    if kind != "AutoModel":
        ours = model.logits(ours)
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * theirs.abs().max().item()):
        apart = f"outputs of up to {theirs.abs().max():.3g} differ by up to {(ours - theirs).abs().max():.3g}"
        why = "was model.py edited, or is transformers too old (docs/hub.md)?"
        raise DataError(f"{path}: transformers {library.__version__} computes something else from it ({apart}): {why}")


def hub_weights(state, with_head):
    """Return {the hub's name: tensor} of a checkpoint."""
    weights = hub_views(state["model"])
    if not with_head or state["config"]["tie_embeddings"]:
        weights.pop(HEAD, None)
    for name in [name for name in weights if name.endswith("q_proj.bias")]:  # with it, the output has a bias too
        weights[name.replace("q_proj", "o_proj")] = torch.zeros(state["config"]["d_model"])
    return weights


def hub_config(state, tokenizer, name, kind, role):
    """Return the content of config.json."""
    c, fine_tuned = vars(ModelConfig(**state["config"])), state.get("fine_tuned")
    config = {"architectures": [name], "model_type": kind, "dtype": "float32", "hidden_act": "silu", "mlp_bias": False}
    config |= {theirs: c[ours] for ours, theirs in SIZES.items()}
    config |= {"head_dim": c["head_dim"], "rope_theta": c["rope_theta"], "rope_scaling": None}
    config |= {"tie_word_embeddings": c["tie_embeddings"], "attention_bias": c["qkv_bias"], "attention_dropout": 0.0}
    config |= {"initializer_range": 0.02}
    if c["rope_scaling"]:
        config["rope_scaling"] = dict(zip(SCALING, c["rope_scaling"])) | {"rope_type": "llama3"}
    config |= {f"{token}_token_id": getattr(tokenizer, f"{token}_id") for token in ("bos", "eos", "pad")}
    if kind == "eurobert":
        config |= {"mask_token_id": tokenizer.mask_id, "classifier_pooling": "mean"}
    elif role != "decoder":
        config["is_causal"] = False  # transformers from 5.2.0 on gives a decoder the full mask then
    if fine_tuned and fine_tuned["head"]:
        labels = fine_tuned["labels"]
        if fine_tuned["family"] == "qa":
            labels = ["outside", "answer"]
        elif not labels:  # a number for each text
            labels, config["problem_type"] = ["number"], "regression"
        config["id2label"] = dict(enumerate(labels))
        config["label2id"] = {label: i for i, label in enumerate(labels)}
    return config


def sentence_files(d_model, max_len, prompts):
    """Return {file name: content} for sentence-transformers: the mean of the hidden states, compared by cosine.

    prompts: what encode_query and encode_document put before a text.
    """
    return {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "config_sentence_transformers.json": {"prompts": prompts, "similarity_fn_name": "cosine"},
        "sentence_bert_config.json": {"max_seq_length": max_len},
        "1_Pooling/config.json": {"word_embedding_dimension": d_model, "pooling_mode_mean_tokens": True},
    }


def tokenizer_files(tokenizer, max_length, append_eos, for_words=False):
    """Return {file name: content} of a tokenizer, for tokenizers.Tokenizer.from_file and transformers.AutoTokenizer.

    They give the ids of `tokenizer.encode`. With append_eos, eos ends each text, as in training; there is no bos.
    Unlike ours, they turn the names of special tokens in a text into these tokens. The mask token takes the white
    space before it with it, as `encode_masked` takes a space. max_length: in tokens. With for_words, each text and each
    word of a text that is split into words gets a space before it, as in the training of a tagger. Raises DataError.
    """
    name_of = {i: name for name, i in tokenizer.special_tokens.items()}
    mask, pad, eos = (name_of[i] for i in (tokenizer.mask_id, tokenizer.pad_id, tokenizer.eos_id))
    content = tokenizer.to_json()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = {token["content"]: token for token in content["added_tokens"]}
    for name, i in tokenizer.special_tokens.items():
        added[name] = flags | added.get(name, {}) | {"id": i, "content": name, "special": True}
    added[mask]["lstrip"] = True
    content["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])
    space = tokenizer.word_prefix if for_words else ""
    if space:  # a normalizer, as ByteLevel(add_prefix_space=True) after Split would put one before each piece
        own = [content["normalizer"]] if content["normalizer"] else []
        content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": space}, *own]}
    if append_eos:
        end = {"SpecialToken": {"id": eos, "type_id": 0}}
        one, two = ([{"Sequence": {"id": text, "type_id": 0}}, end] for text in "AB")
        content["post_processor"] = {"type": "TemplateProcessing", "single": one, "pair": one + two}
        content["post_processor"]["special_tokens"] = {eos: {"id": eos, "ids": [tokenizer.eos_id], "tokens": [eos]}}
    engine = optional_package("tokenizers").Tokenizer.from_str(json.dumps(content))
    for name, i in tokenizer.special_tokens.items():  # the library numbers tokens that are not in the vocabulary itself
        if engine.token_to_id(name) != i:
            raise DataError(f"{name!r} has id {i}, but tokenizer.json would give it {engine.token_to_id(name)}")
    config = {"eos_token": eos, "pad_token": pad, "mask_token": mask} | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    if space:
        config["add_prefix_space"] = True
    return {"tokenizer.json": content, "tokenizer_config.json": config}
