"""The benchmarks run; their numbers are for people to read."""

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.attention.varlen
from helpers import ROOT

import configurator
from eval.bench import attention, loader, memory, step
from model import ModelConfig, PretrainingLoss, Transformer, attention_mask
from model import attention as our_attention


@pytest.fixture(autouse=True)
def keep_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_loader(capsys):
    loader.main(["--seq_len=64", "--windows=2", "--tokens=20000", "--repeats=1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 8 and all(re.search(r"\d+\.\dM tokens/s$", line) for line in lines[1:])


# ----------------------------------------------------------------------------
# Training steps and fine-tuning


@pytest.mark.parametrize(
    "names",
    [
        ["ours", "sdpa", "fp32", "nanogpt"],
        pytest.param(["compiled", "compiled_sdpa", "transformers"], marks=pytest.mark.slow),
    ],
)
def test_step(capsys, names):
    if "transformers" in names:
        pytest.importorskip("transformers")
    step.main(["--micro_batch=2", "--steps=1", "--repeats=1", f"--only={','.join(names)}"])
    text = capsys.readouterr().out
    found = re.findall(r"^(\w+) +[\d,]+ tokens/s +[\d.]+x$", text, re.M)
    assert found == 2 * names and text.index("CLM:") < text.index("MLM:")
    assert text.count("Self CPU time total") == 2  # the profiler's table


@pytest.mark.parametrize("causal", [True, False])
def test_the_model_of_transformers_is_the_same_architecture(causal):
    """With our weights it has our loss."""
    pytest.importorskip("transformers")
    config = ModelConfig(vocab_size=50, n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=16)
    torch.manual_seed(0)
    ours, hub_model = Transformer(config), step.HubModel(config, causal, torch.float32, compiled=False)
    weights = {"model.embed_tokens": ours.embedding, "lm_head": ours.head, "model.norm": ours.norm}
    weights = {name: module.weight for name, module in weights.items()}
    for i, block in enumerate(ours.blocks):
        names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"]
        names += ["self_attn.o_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
        values = *block.qkv.weight.split([n * config.head_dim for n in block.heads]), *block.gate_up.weight.chunk(2)
        values += tuple(m.weight for m in (block.attn_out, block.down, block.attn_norm, block.mlp_norm))
        weights |= {f"model.layers.{i}.{name}": value for name, value in zip(names, values, strict=True)}
    hub_model.model.load_state_dict({f"{name}.weight": value for name, value in weights.items()})
    tokens = torch.randint(50, (3, 16))
    if causal:
        targets = tokens.roll(-1, 1)
        targets[:, -1] = -1
        batch = {"tokens": tokens, "positions": torch.arange(48), "targets": targets.flatten()}
    else:
        targets = torch.tensor([3, 4, -1, 5, 6])
        batch = {"tokens": tokens, "positions": torch.tensor([1, 5, 20, 33, 47]), "targets": targets}
    total, count = PretrainingLoss(ours)(batch, causal)
    assert hub_model(batch, causal)[0].item() == pytest.approx((total / count).item(), rel=1e-5)


def test_finetune(capsys):
    from eval.bench import finetune

    finetune.main(["--d_model=64", "--n_layer=1", "--texts=2", "--batches=1", "--repeats=1"])
    text = capsys.readouterr().out
    assert text.count("the faster padded loop takes") == 2 and text.count("tokens of text/s") == 6


# ----------------------------------------------------------------------------
# Attention


SMALL = ["--head_dims=64", "--tokens=128", "--repeats=1"]


def test_attention(capsys, tmp_path):
    out = tmp_path / "attention.jsonl"
    shape = ["--groups=3", "--lengths=40", "--documents=0,12", "--only=reference,flash,cudnn"]
    attention.main([*SMALL, *shape, "--search=True", f"--out={out}"])
    text, rows = capsys.readouterr().out, [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 2 * 2 * 2 and "left out: cudnn" in text
    for row in rows:
        assert set(row["seconds"]) == ({"reference"} if row["documents"] else {"reference", "flash"})
        assert {"date", "device", "torch", "triton", "matmul_tflops", "tokens"} <= set(row)
        bounds = attention.Case(40, 64, 3, row["causal"], row["documents"], 128).bounds
        pairs = attention_mask(40, row["causal"], *bounds).expand(3, 1, 40, 40).sum().item()
        assert row["tflop"] * 1e12 == pytest.approx(4 * 384 * pairs * {"forward": 1, "backward": 2.5}[row["which"]])


def test_attention_that_computes_something_else_is_left_out(capsys):
    def wrong(case):
        return lambda q, k, v: our_attention(q, k, v, not case.causal, *case.bounds)

    known = {"reference": attention.IMPLEMENTATIONS["reference"], "wrong": (wrong, True, True)}
    found = attention.runnable(attention.Case(40, 64, 1, True, 12, 128), ["reference", "wrong"], known)
    assert list(found) == ["reference"] and "its output differs from that of reference by" in capsys.readouterr().out


@pytest.mark.parametrize("causal", [True, False])
def test_varlen_gets_the_same_documents(monkeypatch, causal):
    """The operator, which needs a GPU, is replaced by a loop over the documents that it gets."""

    def loop(q, k, v, cuts, cuts_k, longest, longest_k, *, window_size, enable_gqa):
        assert torch.equal(cuts, cuts_k) and cuts.dtype == torch.int32 and longest == longest_k == cuts.diff().max()
        parts = [slice(a, b) for a, b in itertools.pairwise(cuts.tolist())]
        return torch.cat([our_attention(q[None, p], k[None, p], v[None, p], window_size == (-1, 0))[0] for p in parts])

    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", loop)
    case = attention.Case(40, 64, 3, causal, 12, 128)
    assert list(attention.runnable(case, ["reference", "varlen"])) == ["reference", "varlen"]


@pytest.mark.slow
def test_flex_attention_sees_the_same_keys(capsys):
    shape = ["--groups=3", "--lengths=64", "--documents=0,16", "--passes=forward", "--only=reference,flex"]
    attention.main([*SMALL, *shape])
    text = capsys.readouterr().out
    assert text.count(" flex ") == 4 and "left out" not in text


@pytest.mark.slow
def test_our_kernels_and_their_launch_settings():
    """Interpreted, in a process of its own."""
    pytest.importorskip("triton")
    shape = ["--lengths=16", "--tokens=16", "--repeats=1", "--documents=0,8", "--only=ours,reference", "--search=True"]
    command = [sys.executable, "-m", "eval.bench", "attention", *shape]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0 and "left out" not in done.stdout, done.stdout + done.stderr
    assert [done.stdout.count(f" {name} ") for name in ("ours", "table", "64,64,4,2,None")] == [8, 6, 4]


# ----------------------------------------------------------------------------
# Memory, the command line, and the script for a GPU


def test_activation_memory_is_linear_in_layers_and_counts_what_is_kept():
    config = ModelConfig(n_layer=3, seq_len=64, d_model=64, n_head=4, n_kv_head=2, d_ff=96)
    one, two, three = (memory.activation_bytes(config, n) for n in (1, 2, 3))
    assert three - two == pytest.approx(two - one, rel=0.01)
    least = 64 * 2 * (64 * 4 + 96 * 4)  # in bf16: the inputs of the four products, and q, k, v
    assert least < two - one < 8 * least


def test_usage(run):
    for args, code, message in (
        (["speed"], 1, "python -m eval.bench NAME"),
        (["--help"], 0, "python -m eval.bench NAME"),
        (["memory", "--help"], 0, "usage: python -m eval.bench memory"),
        (["step", "--model=2b"], 2, "one of demo, 210m"),
        (["step", "--only=ours,theirs"], 2, "only=theirs"),
        (["attention", "--only=fast"], 2, "only=fast"),
        (["attention", "--groups=5"], 2, "multiple of D x group"),
        (["aot", "--architectures=70"], 2, "must be some of 80, 86"),
    ):
        found, text = run(args, script="eval.bench")
        assert found == code and message in text, text


def test_the_gpu_script_asks_for_what_there_is():
    text = (ROOT / "eval/bench/gpu.sh").read_text().replace("${MODEL:-210m}", "210m").replace("$out/", "")
    lines = [shlex.split(line) for line in text.splitlines() if re.match(r"part \w+ \d+ python", line)]
    parts = {name: (int(limit), command) for _, name, limit, _, *command in lines}
    assert list(parts) == ["tests", "attention", "step_clm", "step_mlm", "train"]
    assert sum(limit for limit, _ in parts.values()) <= 24 * 60  # as its comment says
    assert all((ROOT / word).exists() for word in parts["tests"][1] if word.startswith("tests/"))
    for name, module in (("attention", attention), ("step_clm", step), ("step_mlm", step)):
        configurator.load(module.__file__, parts[name][1][3:], module.check)
    configurator.load(ROOT / "train.py", parts["train"][1][1:])


@pytest.mark.slow
def test_the_gpu_script_runs_to_its_end(tmp_path):
    """On a CPU. A part that fails does not stop the next one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["sh", "eval/bench/gpu.sh", tmp_path / "out", "step_clm", "step_mlm"]
    environment = os.environ | {"PATH": path, "MODEL": "none"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    exits = re.findall(r"^(\w+): exit (\d+)", done.stdout, re.M)
    assert exits == [("step_clm", "2"), ("step_mlm", "2")], done.stdout
    assert done.stdout == (tmp_path / "out/summary.txt").read_text()
    assert "model=none: must be one of" in (tmp_path / "out/step_clm.txt").read_text()
