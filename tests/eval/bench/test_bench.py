"""The benchmarks run; their numbers are for people to read."""

import itertools
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.attention.varlen
from helpers import ROOT
from torch.utils.flop_counter import FlopCounterMode

import configurator
import model
from data import hub
from eval.bench import attention, blocks, doctor, loader, predict, step


def bench(module, *args):
    module.main(configurator.load(module.__file__, args, getattr(module, "check", None)))


def test_loader(capsys):
    threads = torch.get_num_threads()
    bench(loader, "--seq_len=64", "--windows=2", "--tokens=20000", "--repeats=1")
    torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7 and all(re.search(r"\d+\.\dM tokens/s$", line) for line in lines)


slow_variants = pytest.param(["compiled", "compiled_sdpa", "compiled_muon", "transformers"], marks=pytest.mark.slow)


@pytest.mark.parametrize("names", [["ours", "fp32", "muon", "nanogpt"], slow_variants])
def test_step(capsys, names):
    if "transformers" in names:
        pytest.importorskip("transformers")
    bench(step, "--micro_batch=2", "--steps=1", "--repeats=1", f"--only={','.join(names)}")
    text = capsys.readouterr().out
    found = re.findall(r"^(\w+) (\w+) +[\d,]+ tokens/s +[\d.]+x$", text, re.M)
    assert found == [(phase, name) for phase in ("CLM", "MLM") for name in names]
    assert text.count("Self CPU time total") == 2  # the profiler's table


@pytest.mark.slow
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


def test_attention(capsys):
    shape = ["--head_dims=64", "--tokens=128", "--groups=3", "--lengths=40", "--documents=0,12", "--repeats=1"]
    bench(attention, *shape, "--only=reference,flash,cudnn")
    text = capsys.readouterr().out
    line = r"^ +40 +64 +3 +(?:full|causal) +(0|12) +(?:forward|backward).* reference \S+ \(1.00\)(.*)$"
    rows = re.findall(line, text, re.M)
    assert [("flash" in rest) for _, rest in rows] == [documents == "0" for documents, _ in rows] and len(rows) == 8
    assert "left out: cudnn" in text


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("documents", [0, 12])
def test_attention_counts_the_pairs_that_the_mask_leaves(causal, documents):
    case = attention.Case(40, 64, 3, causal, documents, 128)
    pairs = model.attention_mask(40, causal, *case.bounds).expand(3, 1, 40, 40).sum().item()
    assert case.flops == 4 * 384 * pairs


def test_the_search_for_blocks_keeps_what_is_faster_and_right(capsys, monkeypatch):
    """With a stand-in for the kernels, whose time depends on the row, and which can fail or be wrong."""
    key = ("test", 64)
    monkeypatch.setitem(model.LAUNCH, key, ("forward", (64, 64, 4, 2, 128), "dkv"))

    def run():
        BLOCK_M, _, _, stages, _ = model.LAUNCH[key][1]
        if stages > 2:
            raise RuntimeError("out of shared memory")
        return [torch.full((3,), torch.nan if BLOCK_M == 128 else 1.0)]

    def seconds(function):
        function()
        BLOCK_M, BLOCK_N, warps, stages, _ = model.LAUNCH[key][1]
        return 1 / (BLOCK_M * BLOCK_N * warps * stages)

    blocks.search(key, 1, run, configurator.load(blocks.__file__, ["--repeats=1"]), seconds)
    assert model.LAUNCH[key] == ("forward", (64, 128, 8, 2, 128), "dkv")
    text = capsys.readouterr().out
    assert "out of shared memory" in text and "it computes something else" in text


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
@pytest.mark.parametrize("causal", [True, False])
def test_flex_attention_sees_the_same_keys(causal):
    """On a CPU it has no backward pass."""
    case = attention.Case(64, 64, 3, causal, 16, 128)
    q, k, v = (x.detach() for x in case.inputs)
    expected = model.attention(q, k, v, causal, *case.bounds, backend="reference")
    torch.testing.assert_close(attention.flex(case)(q, k, v), expected)


# ----------------------------------------------------------------------------
# Memory and the predicted step


@pytest.mark.parametrize(
    "name, kept, peaks",
    [("210m", 0.77, {16: 22.2, 36: 39.0}), ("610m", 2.14, {24: 74.1}), ("1b", 3.12, {6: 53.5, 12: 73.8})],
)
def test_memory_of_compiled_blocks(name, kept, peaks):
    """GiB that a window keeps, and GB at the allocator's peak, as seen when a stub of CUDA ran train.py.

    That code kept q and k before their rotation too, and took chunks of 2**28 logits.
    """
    config = predict.PAPER[name]
    rotated = 2 * config.n_layer * config.seq_len * (config.n_head + config.n_kv_head) * config.head_dim
    window, after = predict.window_bytes(config) + rotated, 8 * config.seq_len * config.d_model
    assert (window - after) / 2**30 == pytest.approx(kept, abs=0.006)
    for windows, peak in peaks.items():
        found = predict.fixed_bytes(config) + 6 * 2**28 + windows * window
        assert found / 1e9 == pytest.approx(peak, rel=0.005)


@pytest.mark.parametrize("more", [{}, dict(head_dim=64, qk_norm=True)])
def test_memory_of_eager_blocks(more):
    """As counted on a CPU, without weights. Its norms keep one tensor more, and v is a view of the packed projection."""
    kept, config = {}, model.ModelConfig(n_layer=3, n_head=2, n_kv_head=2, d_model=64, d_ff=96, seq_len=320, **more)
    encoder = model.Transformer(config)
    encoder.compute_dtype = torch.bfloat16

    def count(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    x = torch.randn(1, 320, 64, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        for block in encoder.blocks:
            x = block(x, encoder.cos, encoder.sin, False)
    found = sum(t.untyped_storage().nbytes() for t in kept.values() if 320 in t.shape and t.shape != encoder.cos.shape)
    q_and_k = 4 * config.head_dim
    more_on_cpu = 3 * 320 * (2 * 4 * 64 + 4 * q_and_k * config.qk_norm + 2 * q_and_k)
    expected = predict.window_bytes(config, compiled=False) - 8 * 320 * 64
    assert found == pytest.approx(expected + more_on_cpu, rel=0.02)


@pytest.mark.parametrize("name", predict.PAPER)
def test_the_presets_fit_into_80_gb(name):
    """And the next larger micro_batch that divides the 144 windows of a GPU does not."""
    cfg = configurator.load(ROOT / "train.py", [str(ROOT / f"config/{name}.py")])
    for size, micro_batch in ((80, cfg.micro_batch), (141, 2 * cfg.micro_batch)):
        most = predict.largest_micro_batch(predict.PAPER[name], size * 10**9)
        assert micro_batch == max(n for n in (12, 24, 48, 72, 144) if n <= most), size


@pytest.mark.parametrize("name, windows, mfu", [("210m", 16, (49.1, 47.3)), ("610m", 12, (51.3, 50.7))])
def test_the_predicted_step_is_that_of_an_independent_estimate(name, windows, mfu):
    """On an H200, with an update after each micro-batch, and all T x T pairs counted."""
    for causal, expected in zip((True, False), mfu):
        args = predict.PAPER[name], "H200", causal, windows, windows, 0.4
        seconds, honest, all_pairs = predict.predict_step(*args)
        assert 100 * all_pairs == pytest.approx(expected, abs=1) and honest < all_pairs
        assert 0.13 < seconds["attention"] / sum(seconds.values()) < 0.27


def test_the_docs_have_what_is_predicted(capsys):
    bench(predict)
    _, *tables = capsys.readouterr().out.split("\n\n")
    page = (ROOT / "docs/speed.md").read_text()
    assert len(tables) == 3 and all(table in page for table in tables)


def test_the_flops_of_muon_are_those_of_its_products():
    """As PyTorch counts them in one step on the matrices of a model's blocks."""
    config = model.ModelConfig(n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=24, head_dim=16)
    matrices = [p for p in model.Transformer(config).blocks.parameters() if p.ndim == 2]
    for p in matrices:
        p.grad = torch.randn_like(p)
    with FlopCounterMode(display=False) as counter:
        torch.optim.Muon(matrices).step()
    assert counter.get_total_flops() == predict.muon_flops(config)


# ----------------------------------------------------------------------------
# The command line, doctor, and the script for a GPU


def test_the_command_line(run):
    wrong = {
        step: (["--model=2b", "--only=ours,theirs"], ["one of demo, 210m", "only=theirs"]),
        attention: (["--only=fast", "--groups=5"], ["only=fast", "multiple of D x group"]),
        doctor: (["--only=nothing"], ["one of all, facts"]),
    }
    for module, (args, messages) in wrong.items():
        text = "\n".join(module.check(configurator.load(module.__file__, args)))
        assert all(message in text for message in messages), text
    code, text = run(["speed"], script="eval.bench")
    assert code == 1 and "python -m eval.bench NAME" in text


def test_doctor_goes_on_when_something_fails(capsys, monkeypatch):
    """Here the compiler and the disk."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    bench(doctor, "--only=facts", "--folder=missing")
    text = capsys.readouterr().out
    assert re.findall(r"^(\w+)", text, re.M) == ["software", "compiler", "device", "disk"]
    assert "compiler: FAILED: Triton needs gcc or clang" in text and "disk: FAILED: [Errno 2]" in text
    assert not doctor.start("a part", [sys.executable, "-c", "import time; time.sleep(60)"], 0.1)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it takes minutes")
def test_doctor(run):
    code, text = run(["doctor"], script="eval.bench")
    phases = re.findall(r"^(\w+) ours +[\d,]+ tokens/s", text, re.M)
    assert code == 0 and phases == ["CLM", "MLM"] and "FAILED" not in text, text
    assert text.splitlines()[-1].startswith("what to set:")


@pytest.mark.slow
def test_doctor_sums_over_two_processes(run_world):
    for code, text in run_world(2, ["doctor", "--only=all_reduce"], script="eval.bench"):
        assert code == 0, text


def test_the_gpu_script(tmp_path):
    """With a stand-in for Python that prints what it is asked to do. Parts fail, and it runs twice in one folder."""
    stub, out = tmp_path / "python3", tmp_path / "out"
    stub.write_text('#!/bin/sh\nprintf "asked: %s\\n" "$*"\ncase "$*" in *doctor*) exit 1;; esac\n')
    stub.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "MODEL": "610m", "MICRO": "12"}
    command = ["sh", "eval/bench/gpu.sh", out]
    done = [
        subprocess.run([*command, *parts], cwd=ROOT, env=environment, capture_output=True, text=True)
        for parts in ([], ["doctor"])
    ]
    assert [d.returncode for d in done] == [0, 0] and not done[0].stderr and len([*out.iterdir()]) == 2
    text = done[0].stdout
    names = "tests doctor kernels train finetune two_gpus step attention".split()
    codes = re.findall(r"^(\w+): exit (\d)", text.split("--- summary")[0], re.M)
    assert codes == [(name, str(int(name == "doctor"))) for name in names]
    limits = re.findall(r"^part \w+ (\d+)", (ROOT / "eval/bench/gpu.sh").read_text(), re.M)
    assert sum(map(int, limits)) + len(limits) <= 24 * 60

    folder = max(out.iterdir(), key=lambda path: len([*path.iterdir()]))  # that of all parts
    commands = [(folder / f"{name}.txt").read_text().split("asked: ")[1].split() for name in names]
    for command in commands:
        if "train.py" in command:
            cfg = configurator.load(ROOT / "train.py", command[command.index("train.py") + 1 :])
            assert cfg.micro_batch == 12 and cfg.model == "610m" and cfg.compile
        if "finetune.py" in command:
            configurator.load(ROOT / "finetune.py", command[1:])
        if "eval.bench" in command:
            module = sys.modules[f"eval.bench.{command[2]}"]
            configurator.load(module.__file__, command[3:], module.check)
        assert all((ROOT / word).exists() for word in command if word.startswith("tests/"))
