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
import model
from data import hub
from eval.bench import attention, finetune, loader, memory, step


def bench(module, *args):
    module.main(configurator.load(module.__file__, args, getattr(module, "check", None)))


def test_loader(capsys):
    threads = torch.get_num_threads()
    bench(loader, "--seq_len=64", "--windows=2", "--tokens=20000", "--repeats=1")
    torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7 and all(re.search(r"\d+\.\dM tokens/s$", line) for line in lines)


def test_finetune(capsys):
    bench(finetune, "--d_model=64", "--n_layer=1", "--texts=2", "--batches=1", "--repeats=1")
    text = capsys.readouterr().out
    assert text.count("the faster padded loop takes") == 2 and text.count("tokens of text/s") == 6


slow_variants = pytest.param(["compiled", "compiled_sdpa", "transformers"], marks=pytest.mark.slow)


@pytest.mark.parametrize("names", [["ours", "sdpa", "fp32", "nanogpt"], slow_variants])
def test_step(capsys, names):
    if "transformers" in names:
        pytest.importorskip("transformers")
    bench(step, "--micro_batch=2", "--steps=1", "--repeats=1", f"--only={','.join(names)}")
    text = capsys.readouterr().out
    found = re.findall(r"^(\w+) +[\d,]+ tokens/s +[\d.]+x$", text, re.M)
    assert found == 2 * names and text.index("CLM:") < text.index("MLM:")
    assert text.count("Self CPU time total") == 2  # the profiler's table


@pytest.mark.parametrize("causal", [True, False])
def test_the_model_of_transformers_is_the_same_architecture(causal, tmp_path):
    """With our weights it has our loss."""
    pytest.importorskip("transformers")
    config = model.ModelConfig(vocab_size=50, n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=16)
    torch.manual_seed(0)
    ours, (_, tokenizer) = model.Transformer(config), loader.random_data(tmp_path, 50, 100)
    hub_model = step.HubModel(config, tokenizer, causal, torch.float32)
    state = {"config": vars(config), "model": ours.state_dict()}
    hub_model.model.load_state_dict(hub.hub_weights(state, with_head=True))
    tokens = torch.randint(48, (3, 16))
    if causal:
        positions, targets = torch.arange(48), torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=-1).flatten()
    else:
        positions, targets = torch.tensor([1, 5, 20, 33, 47]), torch.tensor([3, 4, -1, 5, 6])
    batch = {"tokens": tokens, "positions": positions, "targets": targets}
    total, count = model.PretrainingLoss(ours)(batch, causal)
    assert hub_model(batch, causal)[0].item() == pytest.approx((total / count).item(), rel=1e-5)


# ----------------------------------------------------------------------------
# Attention


def test_attention(capsys, tmp_path):
    out = tmp_path / "attention.jsonl"
    shape = ["--head_dims=64", "--tokens=128", "--groups=3", "--lengths=40", "--documents=0,12", "--repeats=1"]
    bench(attention, *shape, "--only=reference,flash,cudnn", f"--out={out}")
    text, rows = capsys.readouterr().out, [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 2 * 2 * 2 and "left out: cudnn" in text
    for row in rows:
        assert set(row["seconds"]) == ({"reference"} if row["documents"] else {"reference", "flash"})
        assert {"date", "device", "torch", "triton", "matmul_tflops", "tokens"} <= set(row)
        bounds = attention.Case(40, 64, 3, row["causal"], row["documents"], 128).bounds
        pairs = model.attention_mask(40, row["causal"], *bounds).expand(3, 1, 40, 40).sum().item()
        assert row["tflop"] * 1e12 == pytest.approx(4 * 384 * pairs * {"forward": 1, "backward": 2.5}[row["which"]])


def test_attention_that_computes_something_else_is_left_out(capsys):
    def wrong(case):
        return lambda q, k, v: model.attention(q, k, v, not case.causal, *case.bounds)

    known = {"reference": attention.IMPLEMENTATIONS["reference"], "wrong": (wrong, True, True)}
    found = attention.runnable(attention.Case(40, 64, 1, True, 12, 128), ["reference", "wrong"], known)
    assert list(found) == ["reference"] and "its output differs from that of reference by" in capsys.readouterr().out


@pytest.mark.parametrize("causal", [True, False])
def test_varlen_gets_the_same_documents(monkeypatch, causal):
    """The operator, which needs a GPU, is replaced by a loop over the documents that it gets."""

    def loop(q, k, v, cuts, cuts_k, longest, longest_k, *, window_size, enable_gqa):
        assert torch.equal(cuts, cuts_k) and cuts.dtype == torch.int32 and longest == longest_k == cuts.diff().max()
        parts = [[x[None, a:b] for x in (q, k, v)] for a, b in itertools.pairwise(cuts.tolist())]
        return torch.cat([model.attention(*part, window_size == (-1, 0))[0] for part in parts])

    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", loop)
    case = attention.Case(40, 64, 3, causal, 12, 128)
    assert list(attention.runnable(case, ["reference", "varlen"])) == ["reference", "varlen"]


@pytest.mark.slow
@pytest.mark.parametrize("documents", [0, 16])
def test_flex_attention_sees_the_same_keys(documents):
    """On a CPU it has no backward pass."""
    for causal in (True, False):
        case = attention.Case(64, 64, 3, causal, documents, 128)
        q, k, v = (x.detach() for x in case.inputs)
        expected = model.attention(q, k, v, causal, *case.bounds, backend="reference")
        torch.testing.assert_close(attention.flex(case)(q, k, v), expected)


# ----------------------------------------------------------------------------
# Memory, the command line, and the script for a GPU


def test_activation_memory_is_linear_in_layers_and_counts_what_is_kept():
    shape = dict(seq_len=64, d_model=64, n_head=4, n_kv_head=2, d_ff=96)
    one, two, three = (memory.activation_bytes(shape, n) for n in (1, 2, 3))
    assert three - two == pytest.approx(two - one, rel=0.01)
    least = 64 * 2 * (64 * 4 + 96 * 4)  # in bf16: the inputs of the four products, and q, k, v
    assert least < two - one < 8 * least


def test_the_command_line(run):
    for args, code, messages in (
        (["speed"], 1, ["python -m eval.bench NAME"]),
        (["memory", "--help"], 0, ["usage: python -m eval.bench memory"]),
        (["step", "--model=2b", "--only=ours,theirs"], 2, ["one of demo, 210m", "only=theirs"]),
        (["attention", "--only=fast", "--groups=5"], 2, ["only=fast", "multiple of D x group"]),
    ):
        found, text = run(args, script="eval.bench")
        assert found == code and all(message in text for message in messages), text


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
