"""Models from, and to, folders in the format of the Hugging Face hub.

A folder holds config.json, the weights in *.safetensors, and the tokenizer in tokenizer.json. `load` reads Llama,
SmolLM, TinyLlama, Mistral, Qwen 2, Qwen 3 and EuroBERT, and the study's own models. `write_folder` writes folders that
`transformers` opens as EuroBERT, Llama or Qwen 3. Reading and writing weights needs the safetensors package; a name on
the hub needs huggingface_hub.
"""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import torch

from data.card import model_card
from data.files import MALFORMED, lock_folder, sync
from data.objective import is_decoder, phases_of, predicts_from
from data.tokenizer import Tokenizer, optional_package, read_json
from errors import Damaged, DataError
from model import ModelConfig, Transformer

# By name, as a model with the same tensors can be another function (Gemma scales its embeddings). "sl_model" are the
# study's (hf:MLMvsCLM/...), which are EuroBERT's architecture under the name of their own code.
KINDS = ("llama", "mistral", "qwen2", "qwen3", "eurobert", "sl_model")

# The fields of a config.json: their names in ModelConfig and on the hub, those with a default, and what our model does.
FIELDS = {
    "vocab_size": "vocab_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "d_model": "hidden_size",
    "d_ff": "intermediate_size",
    "seq_len": "max_position_embeddings",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "head_dim": "head_dim",
    "tie_embeddings": "tie_word_embeddings",
    "qkv_bias": "attention_bias",
}
DEFAULTS = {
    "rope_theta": 10000.0,
    "head_dim": 0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "hidden_act": "silu",
    "mlp_bias": False,
    "rope_type": "default",
    "partial_rotary_factor": 1.0,
}
ALLOWED = {
    "hidden_act": ("silu", "swish"),
    "mlp_bias": (False,),
    "rope_type": ("default", "llama3"),
    "partial_rotary_factor": (1.0,),
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
    """Return the fields of a ModelConfig that a config.json describes. DataError lists all that our model cannot do."""
    content = read_json(file)
    kind = content.get("model_type")
    if kind not in KINDS:
        raise DataError(f"{file}: model_type={kind!r:.80}: must be one of {', '.join(KINDS)}")
    try:
        config, wrong = convert(kind, content)
    except MALFORMED as error:
        raise DataError(f"{file}: damaged, or not of a model: {type(error).__name__}: {error}") from None
    if wrong:
        raise DataError(f"{file}: our model cannot do what this one does: {'; '.join(wrong)}")
    return vars(config)


def convert(kind, content):
    """Return the ModelConfig of a config.json's content, and what our model cannot do, a sentence each.

    Within its sliding window a model attends to everything, so a window is a limit of seq_len and no more.
    """
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}  # of transformers 5, or of 4
    given = content | rope
    c = DEFAULTS | {"use_sliding_window": kind == "mistral"}
    c |= {name: value for name, value in given.items() if value is not None}
    c["rope_theta"] = float(c["rope_theta"])
    if kind == "qwen2":
        c["attention_bias"] = True
    c["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    if c["use_sliding_window"] and c.get("sliding_window"):
        c["max_position_embeddings"] = min(c["max_position_embeddings"], c["sliding_window"])
    scaling = tuple(c[name] for name in SCALING) if c["rope_type"] == "llama3" else ()
    fields = {ours: c.get(theirs) for ours, theirs in FIELDS.items()}
    config = ModelConfig(**fields, rope_scaling=scaling, qk_norm=kind == "qwen3")
    wrong = []
    for name, values in ALLOWED.items():
        if c[name] not in values:
            wrong.append(f"{name}={c[name]!r}: must be {values[0]}")
    return config, wrong + config.problems()


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
        layer = block[1]
        rows = len(x) // len(BLOCK[part])
        if part == "qkv":
            q = model[f"blocks.{layer}.attn_out.weight"].shape[1]
            kv = (len(x) - q) // 2
            rows = [q, kv, kv]
        for theirs, view in zip(BLOCK[part], x.split(rows), strict=True):
            views[f"model.layers.{layer}.{theirs}.{kind}"] = view
    return views


# ----------------------------------------------------------------------------
# In


def load(folder, need_tokenizer, report):
    """Return a model folder as the dict of a checkpoint at step 0; see `checkpoint.load`.

    Every tensor of the folder must have a place, or the error lists it. If the tokenizer has more ids than the model,
    the new rows of embedding and head are the mean of the others, which changes the other logits least (Hewitt, 2021).
    A bare encoder gets a head of zeros. Weights become fp32.
    """
    config = shape(folder / "config.json")
    found = stored_tensors(folder)
    tokenizer = None
    try:
        tokenizer = Tokenizer.load(folder)
    except DataError:
        if need_tokenizer:
            raise
    rows = config["vocab_size"]
    if tokenizer:
        config["vocab_size"] = max(rows, tokenizer.vocab_size)
    content = read_json(folder / "config.json")
    return {
        "step": 0,
        "model": place(found, config, rows, folder, report),
        "config": config,
        "settings": {},
        "is_causal": content.get("is_causal", True),  # False: a decoder's class as an encoder
        "tokenizer": tokenizer and tokenizer.state(),
        "tokenizer_ranks": tokenizer and tokenizer.file_bytes(),
    }


def stored_tensors(folder):
    """Return {name: tensor} of a model folder. The tensors are mapped, not read, and have the dtype of the file."""
    library = optional_package("safetensors.torch")
    files = sorted(folder.glob("model-*.safetensors"))
    if (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    if not files:  # opening a pickle can run any code
        raise DataError(f"{folder}: no model.safetensors. Pickles (pytorch_model.bin) are not read: convert them")
    found = {}
    for file in files:
        try:
            found |= library.load_file(file)
        except optional_package("safetensors").SafetensorError as error:
            raise Damaged(f"{file} is damaged or not a safetensors file ({error})") from error
    if "embed_tokens.weight" in found:  # transformers' AutoModel saves without this prefix
        found = {name if name == HEAD else f"model.{name}": x for name, x in found.items()}
    return found


def place(found, config, rows, folder, report):
    """Return the state dict of a Transformer with the stored tensors of a folder. Raises DataError.

    rows: of the stored embedding. The config may have more.
    """
    with torch.device("meta"):
        shapes = Transformer(ModelConfig(**config)).state_dict()
    if config["tie_embeddings"]:
        found.pop(HEAD, None)  # a copy of the embedding
    if wrong := list(misfits(found, hub_views(shapes, rows))):
        what = f"{len(wrong)} of its tensors are not those of its config.json"
        raise DataError(f"{folder}: {what}: {'; '.join(wrong[:20])}")

    model = {name: torch.empty(x.shape) for name, x in shapes.items()}
    if config["tie_embeddings"]:
        model["head.weight"] = model["embedding.weight"]
    wanted = hub_views(model, rows)
    for name in wanted.keys() & found.keys():
        wanted[name].copy_(found[name])
    if new := config["vocab_size"] - rows:
        report(f"{folder}: {new} new tokens begin as the mean of the {rows} old ones")
        for name in "embedding.weight", "head.weight":
            model[name][rows:] = model[name][:rows].mean(0)
    if HEAD not in found and not config["tie_embeddings"]:
        report(f"{folder}: an encoder without a head: it gets one of zeros, to be trained")
        model["head.weight"].zero_()
    return model


def misfits(found, wanted):
    """Yield what is wrong with the tensors of a folder: all that are missing, unexpected, or of a wrong shape."""
    for name in wanted:
        if name not in found and name != HEAD:
            yield f"{name}: missing"
    for name, x in found.items():
        if name in wanted:
            if x.shape != wanted[name].shape or not x.is_floating_point():
                yield f"{name}: {x.dtype} {tuple(x.shape)}, expected {tuple(wanted[name].shape)} of floats"
        elif name.endswith("o_proj.bias"):  # Llama's attention_bias is for q, k, v and the output
            if x.any():
                yield f"{name}: not 0, but our model has biases only for q, k and v"
        elif not name.endswith("rotary_emb.inv_freq"):  # in old files, though it follows from rope_theta
            yield f"{name}: unexpected"


# ----------------------------------------------------------------------------
# Out

EXPORTS = ("eurobert", "llama", "qwen3")  # what --as may be

# What is written for each --as: a decoder, an encoder with or without a head that fills in masks, or a model of a
# family of finetune.py. Each has its class in transformers, the pipeline tag of its model card, and the names that the
# parts of its head have there.
TABLE = """
llama     decoder    LlamaForCausalLM                   text-generation
eurobert  fill-mask  EuroBertForMaskedLM                fill-mask
eurobert  encoder    EuroBertModel                      feature-extraction
eurobert  sc         EuroBertForSequenceClassification  text-classification   0=dense 2=classifier
eurobert  tc         EuroBertForTokenClassification     token-classification  1=classifier
eurobert  qa         EuroBertForTokenClassification     token-classification  1=classifier
eurobert  ir         EuroBertModel                      sentence-similarity
qwen3     decoder    Qwen3ForCausalLM                   text-generation
qwen3     encoder    Qwen3Model                         feature-extraction
qwen3     tc         Qwen3ForTokenClassification        token-classification  1=score
qwen3     qa         Qwen3ForTokenClassification        token-classification  1=score
qwen3     ir         Qwen3Model                         sentence-similarity
"""
CLASSES = {(kind, role): rest for kind, role, *rest in map(str.split, TABLE.strip().splitlines())}
HEADS = {"decoder": "AutoModelForCausalLM", "fill-mask": "AutoModelForMaskedLM"}  # with our output head
PROMPTS = {"query": "Query: ", "document": "Document: "}  # as InformationRetrieval puts them before its texts
LOCK = "export.lock"


def check_export(folder, kind):
    """Raise DataError if a folder is there already, or if there is no such kind of export."""
    if kind not in EXPORTS:
        kinds = "eurobert (an encoder), llama (a decoder) or qwen3 (either, of a model that began as a Qwen 3)"
        raise DataError(f"--as={kind}: must be {kinds}")
    if os.path.lexists(folder):
        raise DataError(f"{folder} is there already: give another folder")


def write_folder(state, model, path, folder, kind):
    """Write a checkpoint's dict as a folder that transformers opens without code of ours; all of it or nothing.

    model: its Transformer. path: of the checkpoint; its scores lie beside it. kind: "eurobert", an encoder; "llama", a
    decoder; or "qwen3", either of them. Encoders open with sentence-transformers too, with mean pooling. A model that
    finetune.py has saved is written with its head and the names of its labels. Raises DataError if no class in
    transformers computes what the model does, or Damaged if the checkpoint's records are not those of this project.
    """
    folder = Path(folder)
    try:
        role = role_of(state, kind, path)
        weights = hub_weights(state, kind, role)
        texts = hub_texts(state, path, folder.name, kind, role, sum(x.numel() for x in weights.values()))
    except DataError:
        raise
    except MALFORMED as error:
        why = f"{type(error).__name__}: {error!s:.200}"
        raise Damaged(f"{path}: its records are not as train.py or finetune.py writes them ({why})") from error
    bad = [name for name, x in weights.items() if not x.isfinite().all()]
    if bad:
        listed = ", ".join(bad[:5])
        raise DataError(f"{path}: {len(bad)} of its tensors have values that are not finite ({listed}): give another")
    with new_folder(folder) as partial:
        for file, text in texts.items():
            (partial / file).parent.mkdir(exist_ok=True)
            (partial / file).write_text(text, encoding="utf-8")
        save_file = optional_package("safetensors.torch").save_file
        save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
        check_function(model, partial, role, path)
        sync(partial / "model.safetensors")


@contextmanager
def new_folder(folder):
    """Yield an empty folder that becomes `folder` at the end. After an error nothing is left.

    It lies in FOLDER.partial, which is locked. The lock marks FOLDER.partial as ours, so what an export that was killed
    has left there is removed. Raises DataError if there is another FOLDER.partial, or if another process has the lock.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    names = os.listdir(partial) if partial.is_dir() else []
    if names and LOCK not in names:
        raise DataError(f"{partial} is in the way, and no export made it (it has no {LOCK}): give another folder")
    with lock_folder(partial, LOCK):
        content = partial / folder.name
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        try:
            yield content
            os.rename(content, folder)
        finally:
            shutil.rmtree(content, ignore_errors=True)  # before its lock
            shutil.rmtree(partial, ignore_errors=True)


def role_of(state, kind, path):
    """Return what a checkpoint's dict is exported as, the second key of CLASSES. Raises DataError."""
    fine_tuned = state.get("fine_tuned")
    if fine_tuned and fine_tuned["settings"]["causal"]:
        raise DataError(f"{path} is fine-tuned with causal=True: transformers has no class for it")
    has_norms = state["config"]["qk_norm"]
    roles = {}  # {kind that can express this model: its role there}
    for other in EXPORTS:
        role = fine_tuned["family"] if fine_tuned else pretrained_role(state, other)
        if (other, role) in CLASSES and has_norms == (other == "qwen3"):  # only Qwen 3 has norms of queries and keys
            roles[other] = role
    if kind not in roles:
        norms = "with" if has_norms else "without"
        what = f"a model for {role}, " if fine_tuned else ""
        right = " or ".join(f"give --as={other}" for other in roles) or "no class of transformers fits"
        raise DataError(f"{path}: {what}{norms} norms of queries and keys, which --as={kind} cannot express: {right}")
    return roles[kind]


def pretrained_role(state, kind):
    """Return "decoder", "encoder" or "fill-mask" for a checkpoint that is not fine-tuned."""
    if kind == "llama":
        return "decoder"
    if kind == "eurobert":  # its head for masks predicts a hidden token at the token's own position
        return "fill-mask" if predicts_from(phases_of(state)) == "mask" else "encoder"
    phases = phases_of(state)  # a Qwen 3 is either: the last phase decides
    causal = is_decoder(phases) if phases else state.get("is_causal", True)
    return "decoder" if causal else "encoder"


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
    kind = HEADS.get(role, "AutoModel")
    tokens = torch.randint(model.config.vocab_size, (2, 16), generator=torch.Generator().manual_seed(0))
    ours = model(tokens, causal=role == "decoder")
    if role in HEADS:
        ours = model.logits(ours)
    try:
        theirs = getattr(library, kind).from_pretrained(folder)(tokens)[0]
    except Exception as error:  # of many kinds
        raise DataError(f"{path}: transformers {library.__version__} cannot open what it becomes: {error}") from error
    if not torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * theirs.abs().max().item()):
        apart = f"outputs of up to {theirs.abs().max():.3g} differ by up to {(ours - theirs).abs().max():.3g}"
        why = "was model.py edited, or is transformers too old (docs/hub.md)?"
        raise DataError(f"{path}: transformers {library.__version__} computes something else from it ({apart}): {why}")


# ----------------------------------------------------------------------------
# The contents of an exported folder


def hub_weights(state, kind, role):
    """Return {the hub's name: tensor} of a checkpoint."""
    weights = hub_views(state["model"])
    if role not in HEADS or state["config"]["tie_embeddings"]:
        weights.pop(HEAD, None)
    for name in [*weights]:
        if name.endswith("q_proj.bias"):  # with it, the output has a bias too
            weights[name.replace("q_proj", "o_proj")] = torch.zeros(state["config"]["d_model"])
    if "fine_tuned" in state:
        names = dict(part.split("=") for part in CLASSES[kind, role][2:])
        for name, x in state["fine_tuned"]["head"].items():
            part, _, what = name.partition(".")
            weights[f"{names[part]}.{what}"] = x  # "2.bias" becomes "classifier.bias"
    return weights


def hub_texts(state, path, title, kind, role, parameters):
    """Return {file name: text} of all files but the weights."""
    name, tag, *_ = CLASSES[kind, role]
    tokenizer = Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])
    max_len = state["config"]["seq_len"]
    if "fine_tuned" in state:
        max_len = min(max_len, state["fine_tuned"]["settings"]["max_len"])
    config = hub_config(state, tokenizer, name, kind, role)
    contents = {"config.json": config}
    contents |= tokenizer_files(tokenizer, max_len, append_eos=role != "decoder", for_words=role == "tc")
    if role in ("fill-mask", "encoder", "ir"):
        contents |= sentence_files(state["config"]["d_model"], max_len, PROMPTS if role == "ir" else {})
    texts = {file: json.dumps(content, ensure_ascii=False, indent=1) for file, content in contents.items()}
    note = "check" if "is_causal" in config else ""
    texts["README.md"] = model_card(title, tag, state, path, max_len, parameters, note)
    return texts


def hub_config(state, tokenizer, name, kind, role):
    """Return the content of config.json."""
    ours = vars(ModelConfig(**state["config"]))
    config = {"architectures": [name], "model_type": kind, "dtype": "float32", "hidden_act": "silu", "mlp_bias": False}
    config |= {theirs: ours[field] for field, theirs in FIELDS.items()}
    config |= {"rope_scaling": None, "attention_dropout": 0.0, "initializer_range": 0.02}
    if ours["rope_scaling"]:
        config["rope_scaling"] = dict(zip(SCALING, ours["rope_scaling"]), rope_type="llama3")
    config |= {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id, "pad_token_id": tokenizer.pad_id}
    if kind == "eurobert":
        config |= {"mask_token_id": tokenizer.mask_id, "classifier_pooling": "mean"}
    elif role != "decoder":
        config["is_causal"] = False  # transformers from 5.2.0 on gives a decoder the full mask then
    if role in ("sc", "tc", "qa"):
        labels = state["fine_tuned"]["labels"]
        if role == "qa":
            labels = ["outside", "answer"]
        elif not labels:  # a number for each text
            labels = ["number"]
            config["problem_type"] = "regression"
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
    special = tokenizer.special_tokens
    name_of = {i: name for name, i in special.items()}
    eos = name_of[tokenizer.eos_id]
    config = {
        "eos_token": eos,
        "pad_token": name_of[tokenizer.pad_id],
        "mask_token": name_of[tokenizer.mask_id],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    content = tokenizer.to_json()
    added = {token["content"]: token for token in content["added_tokens"]}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for name, i in special.items():
        added[name] = flags | added.get(name, {}) | {"id": i, "content": name, "special": True}
    added[config["mask_token"]]["lstrip"] = True
    content["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])
    if for_words and tokenizer.word_prefix:
        # A normalizer, as ByteLevel(add_prefix_space=True) after Split would put a space before each piece.
        prepend = {"type": "Prepend", "prepend": tokenizer.word_prefix}
        own = [content["normalizer"]] if content["normalizer"] else []
        content["normalizer"] = {"type": "Sequence", "normalizers": [prepend, *own]}
        config["add_prefix_space"] = True
    if append_eos:
        first, second = ({"Sequence": {"id": text, "type_id": 0}} for text in "AB")
        end = {"SpecialToken": {"id": eos, "type_id": 0}}
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [first, end],
            "pair": [first, end, second, end],
            "special_tokens": {eos: {"id": eos, "ids": [tokenizer.eos_id], "tokens": [eos]}},
        }
    engine = optional_package("tokenizers").Tokenizer.from_str(json.dumps(content))
    for name, i in special.items():  # the library numbers tokens that are not in the vocabulary itself
        if engine.token_to_id(name) != i:
            raise DataError(f"{name!r} has id {i}, but tokenizer.json would give it {engine.token_to_id(name)}")
    return {"tokenizer.json": content, "tokenizer_config.json": config}
