"""Model folders with oddities that real ones have: transformers' logits, or refused with a reason. One row each."""

import gzip
import json
import shutil
import zipfile

import pytest
import torch

import checkpoint
from data import hub
from data.tokenizer import Tokenizer
from errors import DataError
from hub_helpers import LLAMA3, SHAPE, TOKENS, close, random_weights

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")


def without(name):
    return {key: value for key, value in LLAMA3.items() if key != name}


GONE = object()  # a key of config.json that is deleted
ROPE = dict(rope_type="default", rope_theta=5e5)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
OLD = dict(rope_parameters=GONE, head_dim=GONE, dtype=GONE, mlp_bias=GONE, attention_bias=GONE, pretraining_tp=1)
GQA = dict(num_key_value_heads=4)
CONFIGS = [  # kind, what its config has of its own, how config.json is changed then, what the error says ("": equal)
    ("Llama", {}, dict(torch_dtype="bfloat16", dtype=GONE, pretraining_tp=2), ""),
    ("Llama", GQA, OLD | dict(num_key_value_heads=GONE, rms_norm_eps=GONE, max_position_embeddings=GONE), ""),
    ("Llama", GQA | dict(rms_norm_eps=1e-6), OLD | dict(num_key_value_heads=None, rms_norm_eps=GONE), ""),
    ("Llama", GQA | dict(rms_norm_eps=1e-6), OLD | dict(max_position_embeddings=GONE, rms_norm_eps=GONE), ""),
    ("Llama", dict(vocab_size=32000), dict(vocab_size=GONE), ""),
    ("Llama", dict(num_key_value_heads=4), dict(num_key_value_heads=0), "n_kv_head=0: must be above 0"),
    ("Llama", {}, dict(rms_norm_eps=None), "norm_eps=None: must be of type float"),
    ("Llama", dict(rope_parameters=ROPE), dict(rope_theta=77.0), ""),
    ("Llama", dict(rope_parameters=ROPE), dict(rope_parameters=dict(rope_type="default"), rope_theta=5e5), ""),
    ("Llama", dict(rope_parameters=ROPE), dict(rope_parameters=GONE, rope_theta=500000, rope_scaling=None), ""),
    ("Llama", dict(rope_parameters=ROPE), dict(rope_scaling=YARN), "rope_type='yarn': must be default"),
    ("Llama", {}, dict(rope_scaling=dict(type="linear", factor=2.0)), "rope_type='linear': must be default"),
    ("Llama", {}, dict(rope_scaling=dict(type="dynamic", factor=2.0)), "rope_type='dynamic': must be default"),
    ("Llama", {}, dict(rope_scaling=dict(type="linear", rope_type="default"), rope_theta=99.0), ""),
    ("Llama", {}, dict(rope_scaling=LLAMA3 | dict(type="linear")), ""),
    ("Llama", {}, dict(rope_scaling=without("original_max_position_embeddings")), ""),
    ("Llama", {}, dict(rope_scaling=LLAMA3, original_max_position_embeddings=8), ""),
    ("Qwen3", {}, dict(rope_parameters=dict(full_attention=ROPE)), "full_attention={.*: must be None"),
    ("Llama", {}, dict(partial_rotary_factor=0.5), "partial_rotary_factor=0.5: must be 1.0"),
    ("Llama", dict(head_dim=16), {}, ""),
    ("Llama", dict(head_dim=16), dict(head_dim=None), r"q_proj.weight: \(64, 32\), expected \(32, 32\)"),
    ("Llama", dict(attention_bias=True), {}, "o_proj.bias: .* expected nothing"),
    ("Llama", dict(mlp_bias=True), {}, "mlp_bias=True: must be False"),
    ("Llama", dict(hidden_act="gelu"), {}, "hidden_act='gelu': must be silu"),
    ("Llama", {}, dict(hidden_act="swish"), ""),
    ("Llama", dict(tie_word_embeddings=True), {}, ""),
    ("Llama", {}, dict(is_causal=False), ""),
    ("Llama", {}, dict(use_sliding_window=True, sliding_window=8, layer_types=["full_attention"] * 2), ""),
    ("Llama", {}, dict(quantization_config=dict(quant_method="gptq", bits=4)), "quantization_config"),
    ("Llama", {}, dict(num_hidden_layers=1), "layers.1.* expected nothing"),
    ("Llama", {}, dict(vocab_size=4224), r"embed_tokens.weight: \(4096, 32\), expected \(4224, 32\)"),
    ("Mistral", GQA, dict(num_key_value_heads=GONE), "n_head=4, n_kv_head=8"),
    ("Mistral", GQA, dict(attention_bias=True, mlp_bias=True, sliding_window=None), ""),
    ("Mistral", dict(sliding_window=40), {}, ""),
    ("Mistral", dict(sliding_window=16), {}, "seq_len is 16"),
    ("Mistral", {}, dict(sliding_window=GONE, max_position_embeddings=GONE), ""),
    ("Qwen2", {}, dict(attention_bias=False), ""),
    ("Qwen2", {}, dict(use_sliding_window=False, sliding_window=8, max_window_layers=1, layer_types=GONE), ""),
    ("Qwen2", dict(use_sliding_window=True, sliding_window=8, max_window_layers=1), {}, "seq_len is 8"),
    ("Qwen3", dict(head_dim=128), dict(head_dim=GONE), ""),
    ("Qwen3", dict(attention_bias=True), {}, "o_proj.bias"),
    ("EuroBert", {}, dict(rms_norm_eps=GONE, num_key_value_heads=2, clf_pooling="mean"), ""),
]  # fmt: skip


def folder_of(folder, kind="Llama", own=(), changes=()):
    """Write a tiny model with random weights and a tokenizer."""
    cls = getattr(transformers, f"{kind}For{'MaskedLM' if kind == 'EuroBert' else 'CausalLM'}")
    random_weights(cls(cls.config_class(**SHAPE | dict(own)))).save_pretrained(folder)
    for file, content in hub.tokenizer_files(Tokenizer.load("embedded"), 64).items():
        (folder / file).write_text(json.dumps(content))
    facts = json.loads((folder / "config.json").read_text()) | dict(changes)
    facts = {name: value for name, value in facts.items() if value is not GONE}
    (folder / "config.json").write_text(json.dumps(facts))
    return folder


@torch.no_grad()
def check(folder, message, path=None):
    """Compare our logits with those of transformers, or expect an error."""
    if message:
        with pytest.raises((DataError, ValueError), match=message):
            model = checkpoint.load_model(path or folder)
            model(TOKENS, True)
        return
    state = checkpoint.load(path or folder)
    model = checkpoint.model_from(state)
    auto = "AutoModelForMaskedLM" if '"eurobert"' in (folder / "config.json").read_text() else "AutoModelForCausalLM"
    theirs = getattr(transformers, auto).from_pretrained(folder, dtype=torch.float32)
    causal = state["is_causal"] and "Masked" not in auto
    torch.testing.assert_close(model.logits(model(TOKENS, causal)), theirs(TOKENS).logits, **close)


@pytest.mark.parametrize("kind, own, changes, message", CONFIGS)
def test_configs(tmp_path, kind, own, changes, message):
    check(folder_of(tmp_path / "odd", kind, own, changes), message)


def rewritten(folder, change=lambda weights: None, to="model.safetensors"):
    """Write the weights of a folder again, changed, as the file `to`."""
    weights = safetensors.load_file(folder / "model.safetensors")
    change(weights)
    safetensors.save_file(weights, folder / to, {"format": "pt"})


def sharded(folder, index=True, single=False):
    """Two files and an index; one of the files is from an older set."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    if not single:
        (folder / "model.safetensors").unlink()
    model.save_pretrained(folder / "shards", max_shard_size="300KB")
    for file in (folder / "shards").glob("model*"):
        shutil.move(file, folder / file.name)
    first = min(folder.glob("model-*"))
    shutil.copy(first, folder / "model-00001-of-00009.safetensors")
    if not index:
        (folder / "model.safetensors.index.json").unlink()
    return first


def scaled(weights):
    for x in weights.values():
        x.mul_(1.5)


def other_head(weights):
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + 1


def only_head(weights):
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")


def both_stored(weights):
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()


def half_head(weights):
    for name in "lm_head.weight", "model.embed_tokens.weight":
        weights[name] = weights["model.embed_tokens.weight"].half().float()
    weights["lm_head.weight"] = weights["lm_head.weight"].half()


def prefix_gone(weights):
    for name in [*weights]:
        weights[name.removeprefix("model.")] = weights.pop(name)


def as_half(weights):
    for name in weights:
        weights[name] = weights[name].half()


def content(data):
    return lambda folder: (folder / "model.safetensors").write_bytes(data)


def packed(pack):
    """Replace the file with the weights by one of the same name that is packed."""

    def change(folder):
        file = folder / "model.safetensors"
        data = file.read_bytes()
        pack(file, data)

    return change


def zipped(file, data):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model.safetensors", data)


def moved(folder, name, config=()):
    (folder / "model.safetensors").rename(folder / name)
    facts = json.loads((folder / "config.json").read_text()) | dict(config)
    (folder / "config.json").write_text(json.dumps(facts))


TIED, LFS = dict(tie_word_embeddings=True), b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 3"
FILES = [  # what the config has of its own, what is done to the folder, what the error says ("": equal)
    (TIED, lambda f: rewritten(f, other_head), "but lm_head.weight is another weight: set it to false"),
    (TIED, lambda f: rewritten(f, only_head), ""),
    (TIED, lambda f: rewritten(f, both_stored), ""),
    (TIED, lambda f: rewritten(f, half_head), ""),
    (TIED, lambda f: rewritten(f, prefix_gone), ""),
    ({}, lambda f: rewritten(f, only_head), r"embed_tokens.weight: nothing, expected \(4096, 32\)"),
    ({}, lambda f: rewritten(f, as_half), ""),
    ({}, lambda f: rewritten(f, scaled, "model.fp16.safetensors"), ""),
    ({}, lambda f: rewritten(f, scaled, "consolidated.safetensors"), ""),
    ({}, lambda f: rewritten(f, scaled, "adapter_model.safetensors"), ""),
    ({}, lambda f: rewritten(f, scaled, "pytorch_model.bin"), ""),
    ({}, lambda f: sharded(f), ""),
    ({}, lambda f: (sharded(f, single=True), rewritten(f, scaled)), ""),
    ({}, lambda f: sharded(f, index=False), "model.safetensors is missing or empty: get the file again"),
    ({}, lambda f: sharded(f).unlink(), "model-00001-of-0000.* is missing or empty: get the file again"),
    ({}, lambda f: sharded(f).write_bytes(LFS), "model-00001-of-.* is the pointer of a file in Git LFS.*git lfs pull"),
    ({}, lambda f: (f / "adapter_config.json").write_text("{}"), "has an adapter, adapter_config.json: merge both"),
    ({}, lambda f: moved(f, "model.fp16.safetensors"), "model.safetensors is missing or empty: .* if its path is given"),
    ({}, lambda f: moved(f, "x.safetensors", dict(transformers_weights="x.safetensors")), "_weights=.*: must be None"),
    ({}, content(LFS), "model.safetensors is the pointer of a file in Git LFS: get the file itself"),
    ({}, content(b""), "model.safetensors is missing or empty"),
    ({}, content(b"<!DOCTYPE html>"), "model.safetensors is an HTML page"),
    ({}, content(b"GGUF\x03\0\0\0"), "model.safetensors is a GGUF file"),
    ({}, content(b"\x80\x02}q\x00."), "model.safetensors is a pickle"),
    ({}, packed(lambda file, data: file.write_bytes(gzip.compress(data))), "is compressed .gzip or zstd.: unpack it"),
    ({}, packed(lambda file, data: file.write_bytes(data[:-9])), "model.safetensors is damaged or not a safetensors"),
    ({}, packed(zipped), "model.safetensors is an archive, as documents and files of torch.save"),
]  # fmt: skip


@pytest.mark.parametrize("own, change, message", FILES)
def test_files_with_weights(tmp_path, own, change, message):
    change(folder_of(tmp_path / "odd", own=own))
    check(tmp_path / "odd", message)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights", "model.fp16.safetensors"])
def test_a_file_is_known_by_its_content(tmp_path, name):
    """A path of a safetensors file is a model, with the config.json and the tokenizer beside it."""
    folder = folder_of(tmp_path / "odd")
    expected = checkpoint.load(folder)
    moved(folder, name)
    state = checkpoint.load(folder / name)
    torch.testing.assert_close(state["model"], expected["model"], atol=0, rtol=0)
    assert checkpoint.shape(folder / name) == expected["config"]
    (folder / name).write_bytes(LFS)
    with pytest.raises(DataError, match=f"{name} is the pointer of a file in Git LFS: get the file"):
        checkpoint.load(folder / name)
