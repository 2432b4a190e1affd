"""Weights in from, and out to, the model folders of the Hugging Face hub, without its libraries.

A folder holds config.json, the tensors in *.safetensors, and the tokenizer in tokenizer.json. In come Llama, SmolLM,
TinyLlama, Mistral, Qwen 2 and EuroBERT, with the study's own models; out go folders that `transformers` opens as
EuroBERT or Llama.
"""

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import torch

from data import hub_tokenizer
from data.tokenizer import Tokenizer
from data.files import write_whole
from errors import Damaged, DataError

# By name, as a model with the same tensors can be another function (Gemma scales its embeddings). "sl_model" are the
# study's (hf:MLMvsCLM/...), which are EuroBERT's architecture under the name of their own code.
KINDS = ("llama", "mistral", "qwen2", "eurobert", "sl_model")
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
HEAD = "lm_head.weight"
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # of Llama 3.1's rotations


def download(name, files):
    """The local folder of a model on the hub, given as "hf:organisation/model". DataError where that fails."""
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name.removeprefix("hf:"), allow_patterns=files))
    except ImportError:
        why = "to download it from the hub: pip install huggingface_hub"
    except Exception as error:  # of the network, the hub or the disk
        why = f"it cannot be downloaded from the hub: {error}"
    raise DataError(f"{name}: {why}")


def is_model(folder):
    """Whether it is a model's. The folder of a run has a config.json too, but with other things in it."""
    file = folder / "config.json"
    return file.is_file() and b'"model_type"' in file.read_bytes()


# ----------------------------------------------------------------------------
# The shape


def shape(file):
    """The fields of a ModelConfig that a config.json stands for. DataError with all that has no place there.

    Within its sliding window a model attends to everything, so a window is a limit of seq_len and no more.
    """
    try:
        c = json.loads(file.read_text(encoding="utf-8"))
        kind = c["model_type"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file}: not the config of a model ({error!r})") from error
    sizes = dict(vocab_size="vocab_size", n_layer="num_hidden_layers", n_head="num_attention_heads", d_model="hidden_size",
                 d_ff="intermediate_size", seq_len="max_position_embeddings", norm_eps="rms_norm_eps")  # fmt: skip
    if kind not in KINDS:
        why = "its QK-norm has no place here" if kind == "qwen3" else "if it computes what one of them does, give it that name there"
        raise DataError(f"{file}: model_type={kind}: must be one of {', '.join(KINDS)}; {why}")
    if wrong := [name for name in sizes.values() if type(c.get(name)) not in (int, float)]:
        raise DataError(f"{file}: {', '.join(wrong)}: missing, or not a number")

    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}  # the first name is that of transformers 5
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    part = rope.get("partial_rotary_factor", c.get("partial_rotary_factor", 1.0))
    D = c["hidden_size"] // c["num_attention_heads"]
    only = [("hidden_act", c.get("hidden_act", "silu"), ("silu", "swish")), ("mlp_bias", c.get("mlp_bias", False), (False,)),
            ("head_dim", c.get("head_dim") or D, (D,)), ("rope_type", rope_type, ("default", "llama3")),
            ("partial_rotary_factor", part, (1.0, None)),
            ("quantization_config", c.get("quantization_config"), (None,))]  # fmt: skip
    wrong = [f"{name}={value}: must be {values[0]}" for name, value, values in only if value not in values]
    wrong += [f"{name}: missing" for name in SCALING if rope_type == "llama3" and name not in rope]
    if wrong:
        raise DataError(f"{file}: this model has no place here: {'; '.join(wrong)}")
    window = c.get("sliding_window") if c.get("use_sliding_window", kind == "mistral") else None
    return {name: c[theirs] for name, theirs in sizes.items()} | dict(
        n_kv_head=c.get("num_key_value_heads") or c["num_attention_heads"],
        seq_len=min(c["max_position_embeddings"], window or math.inf),
        rope_theta=float(rope.get("rope_theta") or c.get("rope_theta") or 10000.0),
        rope_scaling=tuple(rope[name] for name in SCALING) if rope_type == "llama3" else (),
        tie_embeddings=c.get("tie_word_embeddings", False),
        qkv_bias=kind == "qwen2" or c.get("attention_bias", False),
    )


def tensors(c, out_bias):
    """{the hub's name: (our name, first row, shape)} of all tensors of a model of config c, a dict.

    The hub keeps q, k and v apart, and gate and up. out_bias: with Llama's `attention_bias` the output of attention
    has a bias too; ours does not, so its name is None and it must be 0.
    """
    d, kv, d_ff = c["d_model"], c["n_kv_head"] * c["d_model"] // c["n_head"], c["d_ff"]
    table = {"model.embed_tokens.weight": ("embedding.weight", 0, (c["vocab_size"], d)),
             "model.norm.weight": ("norm.weight", 0, (d,)), HEAD: ("head.weight", 0, (c["vocab_size"], d))}  # fmt: skip
    for i in range(c["n_layer"]):
        for name, ours, first, shape in (
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
            table[f"{theirs}.weight"] = (f"{ours}.weight", first, shape)
            if c["qkv_bias"] and ours.endswith("qkv"):
                table[f"{theirs}.bias"] = (f"{ours}.bias", first, shape[:1])
            if c["qkv_bias"] and out_bias and ours.endswith("attn_out"):
                table[f"{theirs}.bias"] = (None, 0, (d,))
    return table


# ----------------------------------------------------------------------------
# safetensors: 8 bytes that say how long the header is, the header in JSON, {name: {dtype, shape, data_offsets}}, and the
# tensors, one after the other (https://github.com/huggingface/safetensors). Nothing in it can run.


def header(file):
    """{name: (file, dtype's name, shape, first byte, bytes)} of a safetensors file. Damaged where it is not whole."""
    size = file.stat().st_size
    try:
        with open(file, "rb") as f:
            start = 8 + int.from_bytes(f.read(8), "little")
            if start > size:
                raise ValueError("it ends within its header, or is of another format")
            entries = json.loads(f.read(start - 8))
        entries.pop("__metadata__", None)
        found, end = {}, start
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, dims, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            if start + first != end or not all(type(n) is int and n >= 0 for n in (*dims, last - first)):
                raise ValueError(f"{name} does not begin where the tensor before it ends")
            if dtype in DTYPES and last - first != math.prod(dims) * DTYPES[dtype].itemsize:
                raise ValueError(f"{name}: {last - first} bytes do not hold {dtype} {dims}")
            found[name], end = (file, dtype, dims, end, last - first), start + last
        if end != size:
            raise ValueError(f"it has {size} bytes, its tensors end at {end}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{file} is damaged or not a safetensors file ({error})") from error
    return found


def read(file, dtype, dims, first, size):
    """The tensor, mapped: its pages are the file's and are free again when it is."""
    return torch.from_numpy(np.memmap(file, np.uint8, "c", first, (size,))).view(DTYPES[dtype]).view(dims)


def write(file, tensors):
    """Writes {name: fp32 tensor} as safetensors."""
    entries, end = {"__metadata__": {"format": "pt"}}, 0
    for name, x in tensors.items():
        entries[name] = dict(dtype="F32", shape=list(x.shape), data_offsets=[end, end + 4 * x.numel()])
        end += 4 * x.numel()
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    file.write(len(head).to_bytes(8, "little") + head)
    for x in tensors.values():
        file.write(x.contiguous().numpy())


def stored(folder):
    """`header` of all tensors of a model folder, in one file or several. DataError where there are none."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if not (folder / names[0]).is_file():
        if not index.is_file():
            raise DataError(
                f"{folder}: no model.safetensors. Pickles (pytorch_model.bin) are not read, as opening one can run any code. "
                "Who trusts it converts it: safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW_FILE)"
            )
        try:
            names = sorted(set(map(str, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(f"{index} is damaged ({error!r})") from error
    found = {}
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors") or not (folder / name).is_file():
            raise Damaged(f"{index} names {name}, which is no safetensors file of the folder")
        more = header(folder / name)
        if twice := found.keys() & more.keys():
            raise Damaged(f"{folder / name}: {min(twice)} is also in another file")
        found |= more
    return found


# ----------------------------------------------------------------------------
# In


def load(folder, need_tokenizer, report):
    """A model folder as the dict of a checkpoint at step 0; see `checkpoint.load`.

    Every tensor of the folder has a place, or the error lists it. Where the tokenizer has more ids than the model,
    the new rows of embedding and head are the mean of the others, which changes the other logits least (Hewitt, 2021).
    A bare encoder gets a head of zeros. Weights become fp32; beside them there is never more than one tensor.
    """
    file = folder / "config.json"
    config = shape(file)
    found = stored(folder)
    if "embed_tokens.weight" in found:  # transformers' AutoModel saves without this prefix
        found = {name if name == HEAD else f"model.{name}": entry for name, entry in found.items()}
    wanted = tensors(config, out_bias=json.loads(file.read_text(encoding="utf-8"))["model_type"] != "qwen2")
    absent = {HEAD} - found.keys()
    if config["tie_embeddings"]:
        absent.add(HEAD)
        found.pop(HEAD, None)  # a copy of the embedding

    faults = [f"{name}: missing" for name in wanted if name not in found and name not in absent]
    for name, (_, dtype, dims, *_) in found.items():
        if name not in wanted:
            if not name.endswith("rotary_emb.inv_freq"):  # old files keep it, though it follows from rope_theta
                faults.append(f"{name}: unexpected")
        elif dims != wanted[name][2] or dtype not in DTYPES:
            faults.append(f"{name}: {dtype} {dims}, expected {wanted[name][2]} in {', '.join(DTYPES)}")
        elif wanted[name][0] is None and read(*found[name]).any():
            faults.append(f"{name}: not 0, and attention_bias has a place on q, k and v alone")
    if faults:
        more = f"; and {len(faults) - 20} more" if len(faults) > 20 else ""
        raise DataError(f"{folder}: its tensors are not those of its config.json: {'; '.join(faults[:20])}{more}")

    try:
        tokenizer = Tokenizer.load(folder)
    except DataError:
        if need_tokenizer:
            raise
        tokenizer = None
    V, rows, model = config["vocab_size"], {}, {}
    if tokenizer and tokenizer.vocab_size > V:
        config["vocab_size"] = tokenizer.vocab_size
        report(f"{folder}: {tokenizer.vocab_size - V} new tokens begin as the mean of the {V} old ones")
    for ours, first, dims in wanted.values():
        rows[ours] = max(rows.get(ours, 0), first + dims[0])
    rows |= {"embedding.weight": config["vocab_size"], "head.weight": config["vocab_size"]}
    for name, (ours, first, dims) in wanted.items():
        if ours and name not in absent:
            if ours not in model:
                model[ours] = torch.empty(rows[ours], *dims[1:])
            model[ours][first : first + dims[0]] = read(*found[name])
    for name in model.keys() & {"embedding.weight", "head.weight"} if config["vocab_size"] > V else ():
        model[name][V:] = model[name][:V].mean(0)
    if config["tie_embeddings"]:
        model["head.weight"] = model["embedding.weight"]
    elif absent:
        model["head.weight"] = torch.zeros_like(model["embedding.weight"])
        report(f"{folder}: an encoder without a head: it gets one of zeros, to be trained")
    return dict(step=0, model=model, config=config, settings={}, tokenizer=tokenizer and tokenizer.state(),
                tokenizer_ranks=tokenizer and tokenizer.rank_bytes())  # fmt: skip


# ----------------------------------------------------------------------------
# Out

# family of a fine-tuned model: its class in transformers, and the names there of the parts of its head
TUNED = {
    "sc": ("EuroBertForSequenceClassification", {"0": "dense", "2": "classifier"}),
    "tc": ("EuroBertForTokenClassification", {"1": "classifier"}),
    "ir": ("EuroBertModel", {}),
}
PIPELINES = {"EuroBertForMaskedLM": "fill-mask", "LlamaForCausalLM": "text-generation", "EuroBertModel": "feature-extraction",
             "EuroBertForSequenceClassification": "text-classification",
             "EuroBertForTokenClassification": "token-classification"}  # fmt: skip
POOLING = [dict(idx=0, name="0", path="", type="sentence_transformers.models.Transformer"),
           dict(idx=1, name="1", path="1_Pooling", type="sentence_transformers.models.Pooling")]  # fmt: skip


def write_folder(state, path, folder, kind):
    """Writes a checkpoint's dict as a folder that transformers opens without code of ours; all of it or nothing.

    path: of the checkpoint, for messages. kind: "eurobert", an encoder, which sentence-transformers opens too, with mean
    pooling; or "llama", a decoder. A model that finetune.py has saved goes out with its head and the names of its labels.
    Raises DataError where the model has no class in transformers.
    """
    folder = Path(folder)
    tokenizer = Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])
    c = {"qkv_bias": False, "rope_scaling": ()} | state["config"]  # a checkpoint may be older than these two
    name, head, tuned = "EuroBertForMaskedLM" if kind == "eurobert" else "LlamaForCausalLM", {}, state.get("fine_tuned")
    if tuned:
        family, s = tuned["family"], tuned["settings"]
        if kind != "eurobert" or family not in TUNED or s["causal"] or (family != "tc" and s["pooling"] != "mean"):
            raise DataError(f"{path} is fine-tuned for {family} with causal={s['causal']} and pooling={s['pooling']}. There is "
                            "a class for sc, tc and ir, with causal=False and mean pooling, --as=eurobert")  # fmt: skip
        name, parts = TUNED[family]
        head = {f"{parts[key[0]]}{key[1:]}": x for key, x in tuned["head"].items()}  # "2.bias" -> "classifier.bias"

    weights = {}
    for theirs, (ours, first, dims) in tensors(c, out_bias=True).items():
        if theirs != HEAD or not (tuned or c["tie_embeddings"]):
            weights[theirs] = state["model"][ours][first : first + dims[0]] if ours else torch.zeros(dims)
    config = dict(
        architectures=[name], model_type=kind, dtype="float32", vocab_size=c["vocab_size"], hidden_size=c["d_model"],
        intermediate_size=c["d_ff"], num_hidden_layers=c["n_layer"], num_attention_heads=c["n_head"],
        num_key_value_heads=c["n_kv_head"], head_dim=c["d_model"] // c["n_head"], hidden_act="silu",
        max_position_embeddings=c["seq_len"], rms_norm_eps=c["norm_eps"], rope_theta=c["rope_theta"],
        rope_scaling=dict(zip(SCALING, c["rope_scaling"]), rope_type="llama3") if c["rope_scaling"] else None,
        tie_word_embeddings=c["tie_embeddings"], attention_bias=c["qkv_bias"], mlp_bias=False, attention_dropout=0.0,
        initializer_range=0.02, bos_token_id=tokenizer.bos_id, eos_token_id=tokenizer.eos_id, pad_token_id=tokenizer.pad_id,
    )  # fmt: skip
    files = {"config.json": config}
    if kind == "eurobert":
        config |= dict(mask_token_id=tokenizer.mask_id, classifier_pooling="mean")
    if head:
        config["id2label"] = dict(enumerate(tuned["labels"]))
        config["label2id"] = {label: i for i, label in enumerate(tuned["labels"])}
    elif kind == "eurobert":
        files |= {"modules.json": POOLING, "sentence_bert_config.json": {"max_seq_length": c["seq_len"]},
                  "1_Pooling/config.json": dict(word_embedding_dimension=c["d_model"], pooling_mode_mean_tokens=True)}  # fmt: skip

    aside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        (aside / "1_Pooling" if len(files) > 1 else aside).mkdir(parents=True)
        hub_tokenizer.write(tokenizer, aside, c["seq_len"], append_eos=kind == "eurobert")
        for file, content in files.items():
            (aside / file).write_text(json.dumps(content, indent=1), encoding="utf-8")
        (aside / "README.md").write_text(card(folder.name, name, state, weights | head), encoding="utf-8")
        write_whole(aside / "model.safetensors", lambda f: write(f, weights | head))
        os.replace(aside, folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def card(title, name, state, weights):
    """The model card, in Markdown: what the model is and how it was trained."""
    s, step, tuned = state["settings"], state["step"], state.get("fine_tuned")
    encoder = name != "LlamaForCausalLM"
    lines = ["---", "library_name: transformers", f"pipeline_tag: {PIPELINES[name]}", "tags: [nanoencoder]", "---", f"# {title}",
             f"{'An encoder' if encoder else 'A decoder'} of {sum(x.numel() for x in weights.values()):,} parameters, "
             f"pretrained with nanoencoder and written for transformers as `{name}`."]  # fmt: skip
    if encoder:
        lines += ["Every text of its training ended in the end-of-sequence token; the tokenizer adds it."]
    if s:
        clm = min(step, s["switch_step"])
        lines += ["## Pretraining", f"- {step:,} of {s['max_steps']:,} steps of {s['global_batch_tokens']:,} tokens: {clm:,} steps of "
                  f"causal language modelling ({clm / max(1, step):.0%}), then {step - clm:,} of masked language modelling",
                  f"- {s['mask_ratio']:.0%} of the tokens masked", f"- begun from: {s['branch_from'] or s['init_from'] or 'random weights'}",
                  f"- fingerprint of the data: {state.get('data', 'not recorded')}"]  # fmt: skip
    if tuned:
        lines += ["## Fine-tuning", *(f"- {key}: {value}" for key, value in {"family": tuned["family"], **tuned["settings"]}.items()),
                  *(f"- {key}: {tuned['done'][key]}" for key in ("steps", "lr", "seed"))]  # fmt: skip
    told = {key: value for key, value in s.items() if key not in ("out_dir", "data", "wandb_project", "device")}  # not where
    lines += ["## Settings", "```json", json.dumps({"model": state["config"], "pretraining": told}, indent=1), "```", ""]
    return "\n".join(lines)
