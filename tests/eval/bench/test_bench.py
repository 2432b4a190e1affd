"""The benchmarks run; their numbers are for people to read."""

import importlib.util
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import configurator
import model
import train
from helpers import ROOT
from eval import bench, bench_kernels, bench_prepare, bench_step


def test_loader(capsys):
    threads = bench.torch.get_num_threads()
    bench.bench_loader(T=64, windows=2, tokens=20_000, repeats=1)
    bench.torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7 and all(re.search(r"\d+\.\dM tokens/s$", line) for line in lines)


def test_prepare(capsys):
    bench_prepare.main(["--megabytes=1"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and all(re.search(r"\d\.\d\dM tokens/s +[\d.]+ of its time$", line) for line in lines[1:4])
    assert re.search(r"^100B tokens: \d+ GB of text, [\d.]+ core-hours, .* 200 GB of disk$", lines[5])


def steps_of(capsys, *argv):
    """{title: tokens/s} and {title: {part: percent}} that `bench.py step` prints, of one micro-batch of two windows."""
    bench_step.main(["--micro_batch=2", "--steps=1", "--repeats=1", *argv])
    text = capsys.readouterr().out
    speeds = re.findall(r"^(.+?) +([\d,]+) tokens/s +[\d.]+x$", text, re.M)
    parts = {title: {part: int(share) for part, share in re.findall(r"([a-z][a-z ]+) (\d+)%", line)}
             for title, line in re.findall(r"^(ours[^:\n]*): +(attention.*)", text, re.M)}  # fmt: skip
    return speeds, parts, text


def test_step(capsys):
    speeds, parts, text = steps_of(capsys, "--only=ours,sdpa,fp32,nanogpt")
    titles = ["ours", "ours, SDPA", "ours, fp32", "nanoGPT-style, fp32"]
    assert [title for title, _ in speeds] == 2 * titles and text.index("CLM:") < text.index("MLM:")
    assert set(parts) == {"ours", "ours, SDPA"}
    for shares in parts.values():
        assert len(shares) == 6 and 97 <= sum(shares.values()) <= 103
        assert all(shares[part] > 0 for part in ("attention", "linear layers", "head and loss")), shares


def test_the_breakdown_finds_a_slow_part(capsys, monkeypatch):
    """Forward and backward of a part are its own, on either side of which the time is another's."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            time.sleep(0.1)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(0.2)
            return gradient

    def slow(*args, attention=model.attention):
        return Slow.apply(attention(*args))

    monkeypatch.setattr(bench_step, "attention", slow)
    _, parts, _ = steps_of(capsys, "--only=ours", "--phase=mlm")
    assert parts["ours"]["attention"] > 80, parts  # four layers of 0.3 s in a step of milliseconds


@pytest.mark.slow
def test_step_compiled(capsys):
    names = ["compiled", "compiled_sdpa", *["transformers"] * bool(importlib.util.find_spec("transformers"))]
    speeds, _, _ = steps_of(capsys, f"--only={','.join(names)}", "--phase=clm")
    assert len(speeds) == len(names)


@pytest.mark.parametrize("causal", [True, False])
def test_the_model_of_transformers_is_the_same_architecture(causal):
    """With our weights it has our loss."""
    pytest.importorskip("transformers")
    config = bench.ModelConfig(vocab_size=50, n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=16)
    torch.manual_seed(0)
    ours, theirs = model.Transformer(config), bench_step.Theirs(config, causal, torch.float32, compiled=False)
    weights = {"model.embed_tokens.weight": ours.embedding.weight, "lm_head.weight": ours.head.weight,
               "model.norm.weight": ours.norm.weight}  # fmt: skip
    for i, block in enumerate(ours.blocks):
        q, k, v = block.qkv.weight.split([heads * config.head_dim for heads in block.heads])
        gate, up = block.gate_up.weight.chunk(2)
        own = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v,
               "mlp.gate_proj": gate, "mlp.up_proj": up,
               "self_attn.o_proj": block.attn_out.weight, "mlp.down_proj": block.down.weight,
               "input_layernorm": block.attn_norm.weight, "post_attention_layernorm": block.mlp_norm.weight}
        weights |= {f"model.layers.{i}.{name}.weight": weight for name, weight in own.items()}
    theirs.model.load_state_dict(weights)
    tokens = torch.randint(50, (3, 16))
    if causal:
        targets = tokens.roll(-1, 1)
        targets[:, -1] = -1
        batch = {"tokens": tokens, "positions": torch.arange(48), "targets": targets.flatten()}
    else:
        targets = torch.tensor([3, 4, -1, 5, 6])
        batch = {"tokens": tokens, "positions": torch.tensor([1, 5, 20, 33, 47]), "targets": targets}
    total, count = model.PretrainingLoss(ours)(batch, causal)
    assert theirs(batch, causal)[0].item() == pytest.approx((total / count).item(), rel=1e-5)


def test_kernels(capsys, tmp_path):
    out = tmp_path / "kernels.jsonl"
    bench_kernels.main(["--head_dims=64", "--groups=3", "--lengths=40", "--documents=0,12", "--repeats=1",
                        "--only=reference,flash,cudnn", "--search=True", f"--out={out}"])  # fmt: skip
    text, rows = capsys.readouterr().out, [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == 2 * 2 * 3 and text.count("left out: cudnn: RuntimeError") == 1
    for row in rows:
        assert set(row["seconds"]) == ({"reference"} if row["documents"] else {"reference", "flash"})
        assert {"date", "device", "torch", "triton", "matmul_tflops", "tokens"} <= set(row)
        see = model.attention_mask(40, row["causal"]).expand(3, 1, 40, 40)
        if row["documents"]:
            see = model.attention_mask(40, row["causal"], *case(40, 64, 3, row["causal"], 12).bounds)
        flops = 4 * 384 * see.sum().item() * {"forward": 1, "backward": 2.5, "both": 3.5}[row["which"]]
        assert row["tflop"] * 1e12 == pytest.approx(flops)


def case(T, D, group, causal, mean):
    return bench_kernels.Case(T, D, group, causal, mean, 128, 384, torch.device("cpu"), torch.float32)


def test_kernels_that_compute_something_else_are_left_out(capsys, monkeypatch):
    def wrong(case):
        return lambda q, k, v: model.attention(q, k, v, not case.causal, *case.bounds)

    monkeypatch.setitem(bench_kernels.IMPLEMENTATIONS, "flash", (wrong, True, True))
    found = bench_kernels.implementations(case(40, 64, 1, True, 12), ["reference", "flash"], set())
    assert list(found) == ["reference"] and "its output differs from that of reference by" in capsys.readouterr().out


@pytest.mark.parametrize("shares_heads", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_varlen_is_given_the_same_documents(monkeypatch, causal, shares_heads):
    """With the operator, which needs a GPU, replaced by a loop over the documents it is told of."""
    varlen = pytest.importorskip("torch.nn.attention.varlen")

    def loop(q, k, v, cuts, cuts_k, longest, longest_k, *, window_size):
        assert torch.equal(cuts, cuts_k) and cuts.dtype == torch.int32 and longest == longest_k == cuts.diff().max()
        parts = [slice(a, b) for a, b in itertools.pairwise(cuts.tolist())]
        causal = window_size == (-1, 0)
        return torch.cat([model.attention(q[None, p], k[None, p], v[None, p], causal)[0] for p in parts])

    def sharing(*args, window_size, enable_gqa=False):
        assert enable_gqa
        return loop(*args, window_size=window_size)

    monkeypatch.setattr(varlen, "varlen_attn", sharing if shares_heads else loop)
    found = bench_kernels.implementations(case(40, 64, 3, causal, 12), ["reference", "varlen"], set())
    assert list(found) == ["reference", "varlen"]


@pytest.mark.slow
def test_flex_attention_sees_the_same_keys(capsys):
    bench_kernels.main(["--head_dims=64", "--groups=3", "--documents=0,16", "--passes=forward", "--only=reference,flex",
                        "--repeats=1"])  # fmt: skip
    text = capsys.readouterr().out
    assert text.count(" flex ") == 4 and "left out" not in text


@pytest.mark.slow
def test_our_kernels_and_their_launch_settings():
    """Interpreted, in a process of its own."""
    pytest.importorskip("triton")
    command = [sys.executable, "eval/bench.py", "kernels", "--head_dims=64", "--groups=1", "--lengths=16",
               "--repeats=1", "--tokens=16", "--documents=0,8", "--only=ours,dense,reference", "--search=True"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0 and "left out" not in done.stdout, done.stdout + done.stderr
    assert [done.stdout.count(f" {name} ") for name in ("dense", "128x128,8,2,None", "64x64,4,2,None")] == [6, 2, 4]


def test_activation_memory_is_linear_in_layers_and_counts_what_is_kept():
    config = bench.ModelConfig(n_layer=3, seq_len=64, d_model=64, n_head=4, n_kv_head=2, d_ff=96)
    one, two, three = (bench.activation_bytes(config, n) for n in (1, 2, 3))
    assert three - two == pytest.approx(two - one, rel=0.01)
    fewest = 64 * 2 * (64 * 4 + 96 * 4)  # in bf16: the inputs of the four products, and q, k, v
    assert fewest < two - one < 8 * fewest


@pytest.mark.slow
def test_memory_table():
    done = subprocess.run([sys.executable, "eval/bench.py", "memory"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("recompute") == 3, done.stderr


def test_usage(capsys):
    done = subprocess.run([sys.executable, "eval/bench.py", "speed"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "eval/bench.py loader" in done.stderr
    wrong = ((bench_step, "--model=2b", "one of demo, 210m"), (bench_step, "--only=ours,theirs", "only=theirs"),
             (bench_step, "--steps=0", "at least 1"), (bench_step, "--mask_ratio=1.0", "below 1"),
             (bench_step, ["--model=210m", "--only=nanogpt"], "for the demo's shape"),
             (bench_kernels, "--only=fast", "only=fast"), (bench_kernels, "--passes=sideways", "passes=sideways"),
             (bench_kernels, "--groups=5", "multiple of D x group"), (bench_kernels, "--lengths=0", "at least 1"),
             (bench_prepare, "--source=nowhere", "no such file"), (bench_prepare, "--megabytes=0", "at least 1"),
             (bench_kernels, "--out=no/such/file", "no such folder"))  # fmt: skip
    for module, argument, message in wrong:
        with pytest.raises(SystemExit) as exit:
            module.main([argument] if isinstance(argument, str) else argument)
        assert exit.value.code == 2 and message in capsys.readouterr().err


def parts_of_the_script():
    text = (ROOT / "eval/gpu.sh").read_text().replace("${MODEL:-210m}", "210m").replace("$out/", "")
    return [shlex.split(line) for line in text.splitlines() if re.match(r"part \w+ \d+ python", line)]


def test_the_gpu_script_asks_for_what_there_is():
    parts = {name: (int(limit), command) for _, name, limit, _, *command in parts_of_the_script()}
    assert list(parts) == ["tests", "kernels", "step_clm", "step_mlm", "train"]
    assert sum(limit for limit, _ in parts.values()) <= 24 * 60  # as its comment says
    for name, (_, (script, *args)) in parts.items():
        if name == "tests":
            assert all((ROOT / word).exists() for word in args if word.startswith("tests/"))
        else:
            module = {"kernels": bench_kernels, "step": bench_step}.get(args[0], train)
            configurator.load(module.__file__, args[script == "eval/bench.py" :], module.check)


@pytest.mark.slow
def test_the_gpu_script_runs_to_its_end(tmp_path):
    """On a CPU: the parts that fit the time; one that fails does not stop the next."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["sh", "eval/gpu.sh", tmp_path / "out", "tests", "step_clm", "step_mlm"], cwd=ROOT,
                          env=os.environ | {"PATH": path, "MODEL": "none"}, capture_output=True, text=True)  # fmt: skip
    exits = re.findall(r"^(\w+): exit (\d+)", done.stdout, re.M)
    assert exits == [("tests", "0"), ("step_clm", "2"), ("step_mlm", "2")], done.stdout
    assert done.stdout == (tmp_path / "out/summary.txt").read_text()
    assert "model=none: must be one of" in (tmp_path / "out/step_clm.txt").read_text()
