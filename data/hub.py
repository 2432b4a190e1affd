"""Models from, and to, folders in the format of the Hugging Face hub.

A folder holds config.json, the weights in *.safetensors, and the tokenizer in tokenizer.json. `load` reads Llama, SmolLM,
TinyLlama, Mistral, Qwen 2 and EuroBERT, and the study's own models. `write_folder` writes folders that `transformers`
opens as EuroBERT or Llama. Reading and writing weights needs the safetensors package; a name on the hub needs
huggingface_hub.
"""

import json
import math
import os
import shutil
from pathlib import Path

import torch

from data.files import sync
from data.tokenizer import Tokenizer, optional_package
from errors import Damaged, DataError

# By name, as a model with the same tensors can be another function (Gemma scales its embeddings). "sl_model" are the
# study's (hf:MLMvsCLM/...), which are EuroBERT's architecture under the name of their own code.
KINDS = ("llama", "mistral", "qwen2", "eurobert", "sl_model")
SIZES = {
    "vocab_size": "vocab_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "seq_len": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
}
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # of Llama 3.1's RoPE
DTYPES = ("F32", "F16", "BF16")
HEAD = "lm_head.weight"


def download(name, files):
    """Return the local folder of a model on the hub, given as "hf:organization/model". Raises DataError."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name.removeprefix("hf:"), allow_patterns=files))
    except ImportError:
        why = "to download it from the hub: pip install huggingface_hub"
    except Exception as error:  # of the network, the hub or the disk
        why = f"it cannot be downloaded from the hub: {error}"
    raise DataError(f"{name}: {why}")


def is_model(folder):
    """Return whether a folder is a model's. The folder of a run has a config.json too, but with other things in it."""
    file = folder / "config.json"
    return file.is_file() and b'"model_type"' in file.read_bytes()


def optional_package("safetensors"):
    try:
        import safetensors.torch
    except ImportError:
        raise DataError("model folders of the hub need the safetensors package: pip install safetensors") from None
    return safetensors


# ----------------------------------------------------------------------------
# The shape


def shape(file):
    """Return the fields of a ModelConfig that a config.json describes. DataError lists all that our model cannot do.

    Within its sliding window a model attends to everything, so a window is a limit of seq_len and no more.
    """
    try:
        c = json.loads(file.read_text(encoding="utf-8"))
        kind = c["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: not the config of a model ({error!r})") from error
    if kind not in KINDS:
        why = "if it computes what one of them does, change the name in the file"
        why = "our model has no QK-norm" if kind == "qwen3" else why
        raise DataError(f"{file}: model_type={kind}: must be one of {', '.join(KINDS)}; {why}")
    if wrong := [name for name in SIZES.values() if type(c.get(name)) not in (int, float)]:
        raise DataError(f"{file}: {', '.join(wrong)}: missing, or not a number")

    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}  # the first name is that of transformers 5
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    head_dim = c["hidden_size"] // c["num_attention_heads"]
    allowed = [
        ("hidden_act", c.get("hidden_act", "silu"), ("silu", "swish")),
        ("mlp_bias", c.get("mlp_bias", False), (False,)),
        ("head_dim", c.get("head_dim") or head_dim, (head_dim,)),
        ("rope_type", rope_type, ("default", "llama3")),
        ("partial_rotary_factor", rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0)), (1.0, None)),
        ("quantization_config", c.get("quantization_config"), (None,)),
    ]
    wrong = [f"{name}={value}: must be {values[0]}" for name, value, values in allowed if value not in values]
    wrong += [f"{name}: missing" for name in SCALING if rope_type == "llama3" and name not in rope]
    if wrong:
        raise DataError(f"{file}: our model cannot do what this one does: {'; '.join(wrong)}")
    window = c.get("sliding_window") if c.get("use_sliding_window", kind == "mistral") else None
    return {ours: c[theirs] for ours, theirs in SIZES.items()} | {
        "n_kv_head": c.get("num_key_value_heads") or c["num_attention_heads"],
        "seq_len": min(c["max_position_embeddings"], window or math.inf),
        "rope_theta": float(rope.get("rope_theta") or c.get("rope_theta") or 10000.0),
        "rope_scaling": tuple(rope[name] for name in SCALING) if rope_type == "llama3" else (),
        "tie_embeddings": c.get("tie_word_embeddings", False),
        "qkv_bias": kind == "qwen2" or c.get("attention_bias", False),
    }


def tensors(c, out_bias):
    """Return {the hub's name: (our name, first row, shape)} of all tensors of a model of config c, a dict.

    The hub stores q, k and v apart, and gate and up. out_bias: with Llama's `attention_bias` the output of attention
    has a bias too; ours does not, so our name is None and the tensor must be 0.
    """
    d, kv, d_ff = c["d_model"], c["n_kv_head"] * c["d_model"] // c["n_head"], c["d_ff"]
    table = {
        "model.embed_tokens.weight": ("embedding.weight", 0, (c["vocab_size"], d)),
        "model.norm.weight": ("norm.weight", 0, (d,)),
        HEAD: ("head.weight", 0, (c["vocab_size"], d)),
    }
    for i in range(c["n_layer"]):
        for name, ours, first, dims in (
            ("input_layernorm", "attn_norm", 0, (d,)),
            ("self_attn.q_proj", "qkv", 0, (d, d)),
            ("self_attn.k_proj", "qkv", d, (kv, d)),
            ("self_attn.v_proj", "qkv", d + kv, (kv, d)),
            ("self_attn.o_proj", "attn_out", 0, (d, d)),
            ("post_attention_layernorm", "mlp_norm", 0, (d,)),
            ("mlp.gate_proj", "gate_up", 0, (d_ff, d)),
            ("mlp.up_proj", "gate_up", d_ff, (d_ff, d)),
            ("mlp.down_proj", "down", 0, (d, d_ff)),
        ):
            theirs, ours = f"model.layers.{i}.{name}", f"blocks.{i}.{ours}"
            table[f"{theirs}.weight"] = (f"{ours}.weight", first, dims)
            if c["qkv_bias"] and ours.endswith("qkv"):
                table[f"{theirs}.bias"] = (f"{ours}.bias", first, dims[:1])
            if c["qkv_bias"] and out_bias and ours.endswith("attn_out"):
                table[f"{theirs}.bias"] = (None, 0, (d,))
    return table


# ----------------------------------------------------------------------------
# In


def weight_files(folder):
    """Return the safetensors files of a model folder. Raises DataError if there are none."""
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if files := sorted(folder.glob("model-*.safetensors")):
        return files
    raise DataError(
        f"{folder}: no model.safetensors. Pickles (pytorch_model.bin) are not read, as opening one can run any code. "
        "If you trust it, convert it: safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW_FILE)"
    )


def stored_tensors(folder):
    """Return {name: (file, stored name, dtype, shape)} of all tensors of a model folder. Reads no weights."""
    library, found = optional_package("safetensors"), {}
    for file in weight_files(folder):
        try:
            with library.safe_open(file, "pt") as f:
                for name in f.keys():
                    if name in found:
                        raise Damaged(f"{file}: {name} is also in {found[name][0]}")
                    x = f.get_slice(name)
                    found[name] = file, name, x.get_dtype(), tuple(x.get_shape())
        except library.SafetensorError as error:
            raise Damaged(f"{file} is damaged or not a safetensors file ({error})") from error
    if "embed_tokens.weight" in found:  # transformers' AutoModel saves without this prefix
        found = {name if name == HEAD else f"model.{name}": entry for name, entry in found.items()}
    return found


def read(file, name, *_):
    """Return one tensor. Only its part of the file is mapped into memory, and only as long as the tensor lives."""
    with optional_package("safetensors").safe_open(file, "pt") as f:
        return f.get_tensor(name)


def faults(found, wanted, optional):
    """Yield what is wrong with the tensors of a folder: all that are missing, unexpected, or of a wrong shape."""
    yield from (f"{name}: missing" for name in wanted if name not in found and name not in optional)
    for name, entry in found.items():
        dtype, dims = entry[2:]
        if name not in wanted:
            if not name.endswith("rotary_emb.inv_freq"):  # in old files, though it follows from rope_theta
                yield f"{name}: unexpected"
        elif dims != wanted[name][2] or dtype not in DTYPES:
            yield f"{name}: {dtype} {dims}, expected {wanted[name][2]} in {', '.join(DTYPES)}"
        elif wanted[name][0] is None and read(*entry).any():
            yield f"{name}: not 0, but our model has biases only for q, k and v"


def load(folder, need_tokenizer, report):
    """Return a model folder as the dict of a checkpoint at step 0; see `checkpoint.load`.

    Every tensor of the folder must have a place, or the error lists it. If the tokenizer has more ids than the model,
    the new rows of embedding and head are the mean of the others, which changes the other logits least (Hewitt, 2021).
    A bare encoder gets a head of zeros. Weights become fp32; beside them there is never more than one tensor.
    """
    config, found = shape(folder / "config.json"), stored_tensors(folder)
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    wanted = tensors(config, out_bias=kind != "qwen2")
    if config["tie_embeddings"]:
        found.pop(HEAD, None)  # a copy of the embedding
    if wrong := list(faults(found, wanted, optional=[HEAD])):
        more = f"; and {len(wrong) - 20} more" if len(wrong) > 20 else ""
        raise DataError(f"{folder}: its tensors are not those of its config.json: {'; '.join(wrong[:20])}{more}")
    try:
        tokenizer = Tokenizer.load(folder)
    except DataError:
        if need_tokenizer:
            raise
        tokenizer = None

    V = config["vocab_size"]
    config["vocab_size"] = max(V, tokenizer.vocab_size if tokenizer else 0)
    if new := config["vocab_size"] - V:
        report(f"{folder}: {new} new tokens begin as the mean of the {V} old ones")
    model = assemble(found, wanted, V, config["vocab_size"])
    if config["tie_embeddings"]:
        model["head.weight"] = model["embedding.weight"]
    elif "head.weight" not in model:
        model["head.weight"] = torch.zeros_like(model["embedding.weight"])
        report(f"{folder}: an encoder without a head: it gets one of zeros, to be trained")
    return {
        "step": 0,
        "model": model,
        "config": config,
        "settings": {},
        "tokenizer": tokenizer and tokenizer.state(),
        "tokenizer_ranks": tokenizer and tokenizer.file_bytes(),
    }


def assemble(found, wanted, old_vocab, new_vocab):
    """Return {our name: fp32 tensor}, read one by one; rows of tokens from old_vocab on are the mean of the others."""
    rows, model = {}, {}
    for ours, first, dims in wanted.values():
        rows[ours] = max(rows.get(ours, 0), first + dims[0])
    rows["embedding.weight"] = rows["head.weight"] = new_vocab
    for name, (ours, first, dims) in wanted.items():
        if ours and name in found:
            if ours not in model:
                model[ours] = torch.empty(rows[ours], *dims[1:])
            model[ours][first : first + dims[0]] = read(*found[name])
    for name in model.keys() & {"embedding.weight", "head.weight"} if new_vocab > old_vocab else ():
        model[name][old_vocab:] = model[name][:old_vocab].mean(0)
    return model


# ----------------------------------------------------------------------------
# Out

# class in transformers: the pipeline tag of its model card
PIPELINES = {"EuroBertForMaskedLM": "fill-mask", "LlamaForCausalLM": "text-generation"}
PIPELINES |= {"EuroBertForSequenceClassification": "text-classification", "EuroBertModel": "feature-extraction"}
PIPELINES |= {"EuroBertForTokenClassification": "token-classification"}
# family of a fine-tuned model: its class in transformers, and the names there of the parts of its head
FINE_TUNED = {
    "sc": ("EuroBertForSequenceClassification", {"0": "dense", "2": "classifier"}),
    "tc": ("EuroBertForTokenClassification", {"1": "classifier"}),
    "ir": ("EuroBertModel", {}),
}


def write_folder(state, path, folder, kind):
    """Write a checkpoint's dict as a folder that transformers opens without code of ours; all of it or nothing.

    path: of the checkpoint, for messages. kind: "eurobert", an encoder, which sentence-transformers opens too, with
    mean pooling; or "llama", a decoder. A model that finetune.py has saved is written with its head and the names of
    its labels. Raises DataError if the model has no class in transformers.
    """
    library, folder = optional_package("safetensors"), Path(folder)
    tokenizer = Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])
    name, head = class_and_head(state.get("fine_tuned"), path, kind)
    weights = hub_weights(state, with_head=name.endswith("LM")) | head
    files = {"config.json": hub_config(state, tokenizer, name, kind)}
    files |= tokenizer_files(tokenizer, state["config"]["seq_len"], append_eos=kind == "eurobert")
    if kind == "eurobert" and not head:
        files |= pooling_files(state["config"])
    card = model_card(folder.name, name, state, sum(x.numel() for x in weights.values()))
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / "1_Pooling" if "modules.json" in files else partial).mkdir(parents=True)
        for file, content in files.items():
            (partial / file).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
        (partial / "README.md").write_text(card, encoding="utf-8")
        library.torch.save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        sync(partial / "model.safetensors")
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def class_and_head(fine_tuned, path, kind):
    """Return the class in transformers, and {the hub's name: tensor} of the head of a fine-tuned model."""
    if not fine_tuned:
        return ("EuroBertForMaskedLM" if kind == "eurobert" else "LlamaForCausalLM"), {}
    family, cfg = fine_tuned["family"], fine_tuned["settings"]
    pooled = family == "tc" or cfg["pooling"] == "mean"
    if kind != "eurobert" or family not in FINE_TUNED or cfg["causal"] or not pooled:
        raise DataError(
            f"{path} is fine-tuned for {family} with causal={cfg['causal']} and pooling={cfg['pooling']}. There is a "
            "class for sc, tc and ir, with causal=False and mean pooling, --as=eurobert"
        )
    name, parts = FINE_TUNED[family]
    return name, {f"{parts[key[0]]}{key[1:]}": x for key, x in fine_tuned["head"].items()}  # "2.bias": classifier.bias


def hub_weights(state, with_head):
    """Return {the hub's name: tensor} of a checkpoint; the tensors are views of its own."""
    config, weights = {"qkv_bias": False} | state["config"], {}  # a checkpoint may be older than qkv_bias
    for theirs, (ours, first, dims) in tensors(config, out_bias=True).items():
        if theirs != HEAD or with_head and not config["tie_embeddings"]:
            weights[theirs] = state["model"][ours][first : first + dims[0]] if ours else torch.zeros(dims)
    return weights


def hub_config(state, tokenizer, name, kind):
    """Return the content of config.json."""
    c, fine_tuned = {"qkv_bias": False, "rope_scaling": ()} | state["config"], state.get("fine_tuned")
    config = {"architectures": [name], "model_type": kind, "dtype": "float32", "hidden_act": "silu", "mlp_bias": False}
    config |= {theirs: c[ours] for ours, theirs in SIZES.items()}
    config |= {"num_key_value_heads": c["n_kv_head"], "head_dim": c["d_model"] // c["n_head"]}
    config |= {"tie_word_embeddings": c["tie_embeddings"], "attention_bias": c["qkv_bias"], "attention_dropout": 0.0}
    config |= {"initializer_range": 0.02, "rope_theta": c["rope_theta"], "rope_scaling": None}
    if c["rope_scaling"]:
        config["rope_scaling"] = dict(zip(SCALING, c["rope_scaling"])) | {"rope_type": "llama3"}
    config |= {f"{token}_token_id": getattr(tokenizer, f"{token}_id") for token in ("bos", "eos", "pad")}
    if kind == "eurobert":
        config |= {"mask_token_id": tokenizer.mask_id, "classifier_pooling": "mean"}
    if fine_tuned and fine_tuned["head"]:
        config["id2label"] = dict(enumerate(fine_tuned["labels"]))
        config["label2id"] = {label: i for i, label in enumerate(fine_tuned["labels"])}
    return config


def pooling_files(c):
    """Return {file name: content} that tells sentence-transformers to take the mean of the hidden states."""
    module = "sentence_transformers.models."
    modules = [{"idx": 0, "name": "0", "path": "", "type": module + "Transformer"}]
    modules += [{"idx": 1, "name": "1", "path": "1_Pooling", "type": module + "Pooling"}]
    pooling = {"word_embedding_dimension": c["d_model"], "pooling_mode_mean_tokens": True}
    length = {"max_seq_length": c["seq_len"]}
    return {"modules.json": modules, "sentence_bert_config.json": length, "1_Pooling/config.json": pooling}


def tokenizer_files(tokenizer, max_length, append_eos):
    """Return {file name: content} of a tokenizer, for tokenizers.Tokenizer.from_file and transformers.AutoTokenizer.

    They give the ids of `tokenizer.encode`. With append_eos, eos ends each text, as in training; there is no bos.
    Unlike ours, they turn the names of special tokens in a text into these tokens. The mask token takes the white
    space before it with it, as `encode_masked` takes a space. max_length: in tokens. Raises DataError.
    """
    name_of = {i: name for name, i in tokenizer.special_tokens.items()}
    mask, pad, eos = (name_of[i] for i in (tokenizer.mask_id, tokenizer.pad_id, tokenizer.eos_id))
    content = tokenizer.to_json() | {"truncation": None, "padding": None, "post_processor": None}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = {token["content"]: token for token in content["added_tokens"]}
    for name, i in tokenizer.special_tokens.items():
        added[name] = flags | added.get(name, {}) | {"id": i, "content": name, "special": True}
    added[mask]["lstrip"] = True
    content["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])
    if append_eos:
        ids = {eos: {"id": eos, "ids": [tokenizer.eos_id], "tokens": [eos]}}
        end = {"SpecialToken": {"id": eos, "type_id": 0}}
        one, two = ([{"Sequence": {"id": text, "type_id": 0}}, end] for text in "AB")
        template = {"type": "TemplateProcessing", "single": one, "pair": one + two, "special_tokens": ids}
        content["post_processor"] = template
    special = {"eos_token": eos, "pad_token": pad, "mask_token": mask}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length} | special
    config |= {"model_input_names": ["input_ids", "attention_mask"], "clean_up_tokenization_spaces": False}
    return {"tokenizer.json": content, "tokenizer_config.json": config, "special_tokens_map.json": special}


def model_card(title, name, state, n_parameters):
    """Return the model card, in Markdown: what the model is and how it was trained."""
    cfg, step, fine_tuned = state["settings"], state["step"], state.get("fine_tuned")
    kind = "A decoder" if name == "LlamaForCausalLM" else "An encoder"
    lines = ["---", "library_name: transformers", f"pipeline_tag: {PIPELINES[name]}", "tags: [nanoencoder]", "---"]
    lines += [
        f"# {title}",
        f"{kind} of {n_parameters:,} parameters, pretrained with nanoencoder. Its class is `{name}`.",
    ]
    if kind == "An encoder":
        lines += ["Every text of its training ended in the end-of-sequence token; the tokenizer adds it."]
    if cfg:
        clm = min(step, cfg["switch_step"])
        lines += [
            "## Pretraining",
            f"- {step:,} of {cfg['max_steps']:,} steps of {cfg['global_batch_tokens']:,} tokens: {clm:,} steps of causal "
            f"language modeling ({clm / max(1, step):.0%}), then {step - clm:,} of masked language modeling",
            f"- {cfg['mask_ratio']:.0%} of the tokens masked",
            f"- initial weights: {cfg['branch_from'] or cfg['init_from'] or 'random'}",
            f"- fingerprint of the data: {state.get('data', 'not recorded')}",
        ]
    if fine_tuned:
        facts = {"family": fine_tuned["family"], **fine_tuned["settings"]}
        facts |= {key: fine_tuned["done"][key] for key in ("steps", "lr", "seed")}
        lines += ["## Fine-tuning", *(f"- {key}: {value}" for key, value in facts.items())]
    private = ("out_dir", "data", "wandb_project", "device")
    shown = {"model": state["config"], "pretraining": {key: cfg[key] for key in cfg if key not in private}}
    lines += ["## Settings", "```json", json.dumps(shown, indent=1), "```", ""]
    return "\n".join(lines)
