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
from string import Template

import torch
import torch.nn.functional as F

from data.card import model_card, read_parts
from data.files import misfits, refuse_malformed, sync, what_is
from data.objective import is_decoder, phases_of, predicts_from
from data.tokenizer import Tokenizer, json_engine, optional_package
from data.tokenizer_files import read_json, read_tokenizer
from errors import Damaged, DataError
from model import ModelConfig, Transformer
from runtime import weights_on_meta

# The tables of hub.json.
# fields      the fields of ModelConfig: their names in config.json
# kinds       the values of model_type that are read: transformers' defaults for each. They go by name, because models
#             with the same tensors can differ: Gemma scales its embeddings. sl_model is the study's models
#             (hf:MLMvsCLM/...), which are EuroBERTs under a name of their own.
# defaults    transformers' defaults for all kinds
# derived     a field that is null: the field whose value it takes
# implied     values of a kind, whatever config.json says
# allowed     what our model can do
# tensors     the parts of our model: their names on the hub, which stores q, k and v apart, and gate and up; {} = layer
# classes     what --as writes, as a decoder, an encoder (fill-mask: with a head) or a family of finetune.py: the class
#             in transformers, the pipeline tag of the model card, and the names of the parts of its head there
TABLES = json.loads(Path(__file__).with_name("hub.json").read_text())
KINDS, FIELDS, TENSORS, CLASSES = [*TABLES["kinds"]], TABLES["fields"], TABLES["tensors"], TABLES["classes"]
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

# Templates of the exported files, with $name for a model's values. `decoder`, `eurobert` and `qwen3` are what the
# config.json of a decoder, or of an encoder of that kind, has in addition. (With "is_causal": false, transformers from
# 5.2.0 on gives a decoder the full mask.)
TEMPLATES = read_parts("export.txt")
EXPORTS = "eurobert", "llama", "qwen3"  # what --as may be
HEADS = "decoder", "fill-mask"  # exported with our output head
# For sentence-transformers: the mean of the hidden states, compared by cosine. encode_query and encode_document put a
# prompt before a text.
SENTENCES = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json"


def quiet_transformers():
    """Import and return transformers, with its messages turned off."""
    library = optional_package("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library


def download(name, files):
    """Return the local folder of a model on the hub, given as "hf:organization/model". Raises DataError."""
    hub = optional_package("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name.removeprefix("hf:"), allow_patterns=files))
    except Exception as error:  # of the network, the hub or the disk
        raise DataError(f"{name}: it cannot be downloaded from the hub: {error}") from error


def shape(folder):
    """Return the fields of a ModelConfig that the config.json of a model's folder describes.

    transformers reads it in the same way. Raises DataError with all that our model cannot do. A sliding window only
    limits seq_len: in shorter texts, a model attends to everything.
    """
    file = folder / "config.json"
    content = read_json(file)
    kind = content.get("model_type")
    if kind not in KINDS:
        raise DataError(f"{file}: model_type={kind!r:.80}: must be one of {', '.join(KINDS)}")
    with refuse_malformed(f"{file}: damaged, or not of a model"):
        rope = content.get("rope_scaling") or content.get("rope_parameters") or {}  # transformers 4, or 5
        c = TABLES["defaults"] | TABLES["kinds"][kind] | content
        c |= {"rope_type": rope.get("type", "default")} | rope | TABLES["implied"][kind]
        c["rope_theta"] = float(c["rope_theta"])
        context = "original_max_position_embeddings"  # the value beside rope_scaling overrides the one in it
        c[context] = content.get(context, c[context])
        for name, source in TABLES["derived"].items():
            if c[name] is None:
                c[name] = c[source]
        if c["use_sliding_window"] and c["sliding_window"] is not None:
            c["max_position_embeddings"] = min(c["max_position_embeddings"], c["sliding_window"])
        scaling = tuple(c[name] for name in TABLES["llama3"]) if c["rope_type"] == "llama3" else ()
        fields = {ours: c.get(theirs) for ours, theirs in FIELDS.items()}
        config = ModelConfig(**fields, rope_scaling=scaling, qk_norm=kind == "qwen3")
        wrong = config.problems()
        for name, can in TABLES["allowed"].items():
            if c[name] not in can:
                wrong.append(f"{name}={c[name]!r}: must be {can[0]}")
    if wrong:
        raise DataError(f"{file}: our model cannot do what this one does: {'; '.join(wrong)}")
    return vars(config)


def hub_views(model):
    """Return {name on the hub: tensor} for `model`, a Transformer's state dict. The tensors are views."""
    views = {}
    for name, x in model.items():
        *block, part, kind = f".{name}".split(".")  # blocks.3.qkv.bias, norm.weight
        if part not in TENSORS:
            raise DataError(f"model folders have no place for {name}")
        layer = "".join(block[2:])
        rows = len(x) // len(TENSORS[part])
        if part == "qkv":
            q = model[f"blocks.{layer}.attn_out.weight"].shape[1]
            kv = (len(x) - q) // 2
            rows = [q, kv, kv]
        for theirs, view in zip(TENSORS[part], x.split(rows), strict=True):
            views[f"{theirs.format(layer)}.{kind}"] = view
    return views


# ----------------------------------------------------------------------------
# Import


def load(folder, report):
    """Return the model of a folder as the dict of a checkpoint at step 0; see `checkpoint.load`.

    The error lists every tensor that has no place. If the tokenizer has more ids than the model, the new rows of
    embedding and head are the mean of the others. This changes the other logits least (Hewitt, 2021).
    A bare encoder gets a head of zeros. Weights become fp32.
    """
    config = shape(folder)
    found = stored_tensors(folder)
    tokenizer = read_tokenizer(folder)
    with weights_on_meta():
        shapes = Transformer(ModelConfig(**config)).state_dict()

    if config["tie_embeddings"]:  # one of the two is stored, or both
        shared = found.get(EMBEDDING, found.get(HEAD))
        if HEAD in found and not torch.equal(shared.float(), found[HEAD].float()):
            raise DataError(f"{folder}: tie_word_embeddings is true, but {HEAD} is another weight: set it to false")
        found[EMBEDDING] = found[HEAD] = shared
    if HEAD not in found:
        report(f"{folder}: an encoder without a head: it gets one of zeros, to be trained")
        found[HEAD] = torch.zeros(1).expand(shapes["head.weight"].shape)
    for name in list(found):  # from Llama's attention_bias; our model has none there
        if name.endswith("o_proj.bias") and not found[name].any():
            del found[name]
    if wrong := list(misfits(found, hub_views(shapes))):
        raise DataError(f"{folder}: its tensors are not those of its config.json: {'; '.join(wrong[:20])}")

    model = {name: torch.empty(x.shape) for name, x in shapes.items()}
    for name, x in hub_views(model).items():
        x.copy_(found[name])
    new = tokenizer.vocab_size - config["vocab_size"]
    if new > 0:
        report(f"{folder}: {new} new tokens begin as the mean of the {config['vocab_size']} old ones")
        config["vocab_size"] += new
        for name in "embedding.weight", "head.weight":
            model[name] = torch.cat([model[name], model[name].mean(0).expand(new, -1)])
    return {
        "step": 0,
        "model": model,
        "config": config,
        "settings": {},
        "is_causal": read_json(folder / "config.json").get("is_causal", True),  # False: a decoder class as an encoder
        "tokenizer": tokenizer.state(),
        "tokenizer_ranks": tokenizer.content,
    }


def stored_tensors(folder):
    """Return {name: tensor} of a model's folder. The tensors are memory-mapped and have the file's dtype.

    Reads the same files as transformers. Others may have another precision or be left over from an older version.
    """
    library = optional_package("safetensors.torch")
    if (folder / "adapter_config.json").exists():
        raise DataError(f"{folder} has an adapter, adapter_config.json: merge it into its model with peft")
    files = {"model.safetensors"}
    found = {}
    index = folder / "model.safetensors.index.json"
    if index.exists() and not (folder / "model.safetensors").exists():
        with refuse_malformed(f"{index}: not an index of files with weights"):
            files = {*read_json(index)["weight_map"].values()}
    for name in sorted(files):
        file = folder / name
        try:
            found |= library.load_file(file)
        except Exception as error:  # the library has errors of its own
            what = what_is(file, "damaged or not a safetensors file")
            raise Damaged(
                f"{file} is {what}. ({error}) A model's weights are read from model.safetensors, or from the files in "
                "model.safetensors.index.json: rename a file of another name"
            ) from error
    if "embed_tokens.weight" in found:  # transformers' AutoModel saves without this prefix
        found = {name if name == HEAD else f"model.{name}": x for name, x in found.items()}
    return found


# ----------------------------------------------------------------------------
# Export


@torch.no_grad()
def write_folder(state, model, path, folder, kind):
    """Write a checkpoint's dict as a folder that transformers opens without our code; all of it or nothing.

    model: its Transformer. path: of the checkpoint. kind: "eurobert", an encoder; "llama", a decoder; or "qwen3",
    either of them. Encoders open with sentence-transformers too, with mean pooling. A model that finetune.py has saved
    is written with its head and the names of its labels. Raises DataError if no class in transformers computes what the
    model does, or Damaged if the checkpoint's records are not those of this project.
    """
    folder = Path(folder)
    library = optional_package("safetensors.torch")
    transformers = quiet_transformers()
    with refuse_malformed(f"{path}: its records are not as this version of train.py or finetune.py writes them"):
        role = role_of(state, kind, path)
        class_name, tag, head_names = CLASSES[f"{kind} {role}"]
        weights = hub_weights(state, role, head_names)
        texts = hub_texts(
            state,
            kind,
            role,
            class_name,
            title=folder.name,
            tag=tag,
            parameters=sum(x.numel() for x in weights.values()),
        )
        if "fine_tuned" in state:
            tokens, ours = state["fine_tuned"]["sample"]
        else:
            tokens = random_tokens(model.config.vocab_size, model.config.seq_len)
            ours = model(tokens[None], causal=role == "decoder")[0]
            if role in HEADS:
                ours = model.logits(ours)
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")  # stays after a kill
    partial.mkdir(parents=True)
    try:
        for file, text in texts.items():
            (partial / file).parent.mkdir(exist_ok=True)
            (partial / file).write_text(text, encoding="utf-8")
        library.save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        # On random tokens, the exported model must compute what ours does. So an edit that the format cannot express,
        # such as another activation or pooling, is refused.
        try:
            output = getattr(transformers, class_name).from_pretrained(partial)(tokens[None])[0][0]
            if role == "ir":
                output = F.normalize(output.mean(0), dim=0)
            torch.testing.assert_close(ours, output, rtol=1e-3, atol=1e-3 * output.abs().max().item())
        except Exception as error:  # of many kinds
            raise DataError(
                f"{path}: transformers computes something else than this project. Was model.py or "
                f"eval/tasks/model.py edited, or is transformers too old (docs/hub.md)? {error}"
            ) from error
        sync(partial / "model.safetensors")
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def role_of(state, kind, path):
    """Return what a checkpoint's dict is exported as, the second word of a key of CLASSES. Raises DataError."""
    phases = phases_of(state)
    tuned = state.get("fine_tuned")
    if tuned:
        role = tuned["family"]
        if tuned["settings"]["causal"]:
            raise DataError(f"{path} is fine-tuned with causal=True: transformers has no class for it")
    elif kind == "llama":
        role = "decoder"
    elif kind == "eurobert":  # its head predicts a hidden token at its own position; `load` gives a bare encoder zeros
        has_head = predicts_from(phases) == "mask" and state["model"]["head.weight"].any()
        role = "fill-mask" if has_head else "encoder"
    else:  # a Qwen 3 is either: the last phase decides
        causal = is_decoder(phases) if phases else state.get("is_causal", True)
        role = "decoder" if causal else "encoder"
    has_norms = state["config"]["qk_norm"]
    if f"{kind} {role}" not in CLASSES or has_norms != (kind == "qwen3"):
        raise DataError(
            f"{path}: --as={kind} cannot express it (a model for {role}, norms of queries and keys: {has_norms}). "
            f"There are {', '.join(CLASSES)}. Of these, qwen3 has such norms, the others have none"
        )
    return role


def random_tokens(vocab_size, seq_len):
    """Return random tokens, int64 (T,), on which an exported model is compared with ours.

    T is the model's seq_len, because a sliding window shows in long texts only. It is at most 8,192, whose logits take
    gigabytes already.
    """
    return torch.randint(vocab_size, (min(seq_len, 8192),), generator=torch.Generator().manual_seed(0))


# ----------------------------------------------------------------------------
# The contents of an exported folder


def hub_weights(state, role, head_names):
    """Return {name on the hub: tensor} of a checkpoint. head_names: see CLASSES."""
    weights = hub_views(state["model"])
    for name, x in weights.items():
        if not x.isfinite().all():
            raise DataError(f"{name} is not finite: this model has diverged")
    if role not in HEADS or state["config"]["tie_embeddings"]:
        weights.pop(HEAD, None)
    if state["config"]["qkv_bias"]:  # attention_bias means a bias on the output, too
        for layer in range(state["config"]["n_layer"]):
            weights[f"model.layers.{layer}.self_attn.o_proj.bias"] = torch.zeros(state["config"]["d_model"])
    if "fine_tuned" in state:
        for name, x in state["fine_tuned"]["head"].items():
            part, _, what = name.partition(".")
            weights[f"{head_names[part]}.{what}"] = x  # "2.bias" becomes "classifier.bias"
    return weights


def filled(template, facts):
    """Return the content of a template, with `facts` filled in for each $name."""
    return json.loads(Template(TEMPLATES[template]).substitute({name: json.dumps(x) for name, x in facts.items()}))


def hub_texts(state, kind, role, class_name, **facts_of_card):
    """Return {file name: text} of all files but the weights. facts_of_card: see `model_card`."""
    ours = vars(ModelConfig(**state["config"]))
    tokenizer = Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])
    max_len = ours["seq_len"]
    prompts = {}
    tuned = state.get("fine_tuned")
    if tuned:
        max_len = min(max_len, tuned["settings"]["max_len"])
        prompts = tuned["prompts"]
    facts = tokenizer.state() | {theirs: ours[field] for field, theirs in FIELDS.items()}
    facts |= {"architecture": class_name, "model_type": kind, "max_len": max_len, "prompts": prompts}
    config = filled("config.json", facts) | filled("decoder" if role == "decoder" else kind, facts)
    if ours["rope_scaling"]:
        config["rope_scaling"] = dict(zip(TABLES["llama3"], ours["rope_scaling"]), rope_type="llama3")
    if role in ("sc", "tc", "qa"):
        labels = ["outside", "answer"] if role == "qa" else tuned["labels"]
        if not labels:  # a number for each text
            labels = ["number"]
            config["problem_type"] = "regression"
        config["id2label"] = dict(enumerate(labels))
        config["label2id"] = dict(zip(labels, range(len(labels))))
    files = {"config.json": config} | tokenizer_files(tokenizer, max_len, role)
    if role in ("fill-mask", "encoder", "ir"):
        for file in SENTENCES:
            files[file] = filled(file, facts)
    texts = {file: json.dumps(content, ensure_ascii=False, indent=1) for file, content in files.items()}
    texts["README.md"] = model_card(state, "check" if "is_causal" in config else "", max_len=max_len, **facts_of_card)
    return texts


def tokenizer_files(tokenizer, max_len, role):
    """Return {file name: content} of a tokenizer, for tokenizers.Tokenizer.from_file and transformers.AutoTokenizer.

    They give the ids of `tokenizer.encode` and add eos, as in training: at the end of each text or, for a decoder,
    before it, where it ends the previous document. Unlike ours, they turn the names of special tokens in a text into
    these tokens. The mask token absorbs the white space before it, as in `encode_masked`. For a tagger, each text and
    each word of a text that is split into words gets a space before it, as in its training. max_len: in tokens. Raises
    DataError.
    """
    special = tokenizer.special_tokens
    name_of = {i: name for name, i in special.items()}
    eos, mask, pad = name_of[tokenizer.eos_id], name_of[tokenizer.mask_id], name_of[tokenizer.pad_id]
    facts = {"eos": eos, "eos_id": tokenizer.eos_id, "mask": mask, "pad": pad, "max_len": max_len}
    config = filled("tokenizer_config.json", facts)
    content = tokenizer.to_json()
    added = {token["content"]: token for token in content["added_tokens"]}
    flags = filled("special token", facts)
    for name, i in special.items():
        added[name] = flags | added.get(name, {}) | {"id": i, "content": name, "special": True}
    added[mask]["lstrip"] = True
    content["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])
    if role == "tc" and tokenizer.word_prefix:
        # A normalizer, because ByteLevel(add_prefix_space=True) after Split would put a space before each piece.
        prepend = {"type": "Prepend", "prepend": tokenizer.word_prefix}
        normalizers = filter(None, (prepend, content["normalizer"]))
        content["normalizer"] = {"type": "Sequence", "normalizers": [*normalizers]}
        config["add_prefix_space"] = True
    content["post_processor"] = filled("eos at the end", facts)
    if role == "decoder":
        content["post_processor"] = filled("eos at the beginning", facts)
        config |= {"bos_token": eos, "add_bos_token": True}  # transformers goes by post_processor, llama.cpp by this
    engine = json_engine(json.dumps(content).encode(), tokenizer.name)
    found = {name: engine.token_to_id(name) for name in special}
    if found != special:  # the library chooses ids for tokens outside the vocabulary
        raise DataError(f"tokenizer.json would number special tokens as {found}, not as {special}")
    return {"tokenizer.json": content, "tokenizer_config.json": config}
