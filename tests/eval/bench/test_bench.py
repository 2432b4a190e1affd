"""The benchmarks run; their numbers are for people to read."""

import itertools
import json
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.attention.varlen
from helpers import ROOT

import configurator
import model
from data import hub
from eval.bench import attention, blocks, finetune, loader, memory, roofline, step


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


def test_attention(capsys):
    shape = ["--head_dims=64", "--tokens=128", "--groups=3", "--lengths=40", "--documents=0,12", "--repeats=1"]
    bench(attention, *shape, "--only=reference,flash,cudnn")
    text = capsys.readouterr().out
    rows = re.findall(
        r"^ +40 +64 +3 +(?:full|causal) +(0|12) +(?:forward|backward).* reference \S+ \(1.00\)(.*)$", text, re.M
    )
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
        if stages == 3:
            raise RuntimeError("out of shared memory")
        return [torch.full((3,), 2.0 if BLOCK_M == 128 else 1.0)]

    def seconds(function):
        function()
        BLOCK_M, BLOCK_N, warps, stages, _ = model.LAUNCH[key][1]
        return 1 / (BLOCK_M * BLOCK_N * warps * stages) + 0.01 * (warps == 8 and BLOCK_N == 64)

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
@pytest.mark.parametrize("documents", [0, 16])
def test_flex_attention_sees_the_same_keys(documents):
    """On a CPU it has no backward pass."""
    for causal in (True, False):
        case = attention.Case(64, 64, 3, causal, documents, 128)
        q, k, v = (x.detach() for x in case.inputs)
        expected = model.attention(q, k, v, causal, *case.bounds, backend="reference")
        torch.testing.assert_close(attention.flex(case)(q, k, v), expected)


# ----------------------------------------------------------------------------
# Memory, the predicted step, the command line, and the script for a GPU


def paper_config(name):
    return model.ModelConfig(vocab_size=128_256, **model.PRESETS[name])


@pytest.mark.parametrize(
    "name, kept, peaks",
    [("210m", 0.77, {16: 22.2, 36: 39.0}), ("610m", 2.14, {24: 74.1}), ("1b", 3.12, {6: 53.5, 12: 73.8})],
)
def test_memory_of_compiled_blocks(name, kept, peaks):
    """GiB that a window keeps, and GB at the allocator's peak, as seen when a stub of CUDA ran train.py.

    That code kept q and k before their rotation too, and took chunks of 2**28 logits.
    """
    config = paper_config(name)
    rotated = 2 * config.n_layer * config.seq_len * (config.n_head + config.n_kv_head) * config.head_dim
    window = memory.compiled_bytes(config, config.n_layer) + rotated
    after = memory.compiled_bytes(config, 0)
    assert (window - after) / 2**30 == pytest.approx(kept, abs=0.006)
    for windows, peak in peaks.items():
        found = memory.fixed_bytes(config) + memory.chunk_bytes(2**28) + windows * window
        assert found / 1e9 == pytest.approx(peak, rel=0.005)


def test_eager_memory_is_linear_in_layers_and_more_than_compiled():
    config = model.ModelConfig(seq_len=64, d_model=64, n_head=4, n_kv_head=2, d_ff=96)
    one, two, three = (memory.eager_bytes(config, n) for n in (1, 2, 3))
    assert three - two == pytest.approx(two - one, rel=0.01)
    compiled = memory.compiled_bytes(config, 2) - memory.compiled_bytes(config, 1)
    assert compiled < two - one < 4 * compiled


@pytest.mark.parametrize("name", ["210m", "610m", "1b"])
def test_the_presets_fit_into_80_gb(name):
    """And the next larger micro_batch that divides the 144 windows of a GPU does not."""
    config = paper_config(name)
    cfg = configurator.load(ROOT / "train.py", [str(ROOT / f"config/{name}.py")])
    for size, micro_batch in ((80, cfg.micro_batch), (141, 2 * cfg.micro_batch)):
        most = memory.largest_micro_batch(config, size * 10**9)
        assert micro_batch == max(n for n in range(1, most + 1) if 144 % n == 0 and n in (12, 24, 48, 72, 144)), size


@pytest.mark.parametrize("name, windows, mfu", [("210m", 16, (49.1, 47.3)), ("610m", 12, (51.3, 50.7))])
def test_the_predicted_step_is_that_of_an_independent_estimate(name, windows, mfu):
    """On an H200, with an update after each micro-batch, and all T x T pairs counted."""
    cfg = configurator.load(roofline.__file__, [f"--windows={windows}", f"--micro_batch={windows}"], roofline.check)
    preset = configurator.load(ROOT / "train.py", [str(ROOT / f"config/{name}.py")])
    for causal, expected in zip((True, False), mfu):
        seconds, honest, all_pairs = roofline.predict(cfg, preset, "H200", causal)
        assert 100 * all_pairs == pytest.approx(expected, abs=1) and honest < all_pairs
        assert 0.13 < seconds["attention"] / sum(seconds.values()) < 0.27


def test_the_docs_have_the_predicted_step(capsys):
    bench(roofline)
    table = capsys.readouterr().out.split("\n\n", 1)[1]
    assert table in (ROOT / "docs/speed.md").read_text()


def test_the_command_line(run):
    for args, code, messages in (
        (["speed"], 1, ["python -m eval.bench NAME"]),
        (["memory", "--help"], 0, ["usage: python -m eval.bench memory"]),
        (["step", "--model=2b", "--only=ours,theirs"], 2, ["one of demo, 210m", "only=theirs"]),
        (["attention", "--only=fast", "--groups=5"], 2, ["only=fast", "multiple of D x group"]),
    ):
        found, text = run(args, script="eval.bench")
        assert found == code and all(message in text for message in messages), text


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it takes minutes")
def test_doctor_runs_to_its_end_whatever_fails(run, tmp_path):
    """Here the compiler is missing and the disk is full."""
    path = os.pathsep.join([str(tmp_path)])
    code, text = run(["doctor"], script="eval.bench", PATH=path, FILE_SIZE_LIMIT=str(2**24))
    assert code == 0, text
    assert "compiler: FAILED: Triton needs gcc or clang" in text and "disk: FAILED:" in text
    assert re.search(r"^demo, .*:\n  ours +[\d,]+ tokens/s.*\n  ours +[\d,]+ tokens/s", text, re.M), text
    assert text.splitlines()[-1].startswith("what to set:")


def test_doctor_sums_over_two_processes(run_world):
    for code, text in run_world(2, ["doctor", "--only=all_reduce"], script="eval.bench"):
        assert code == 0, text


def test_the_gpu_script(tmp_path):
    """With a stand-in for Python that writes what it is asked to do. Parts fail, and it runs twice in one folder."""
    stub = tmp_path / "python3"
    stub.write_text(
        f'#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\nsys.exit("doctor" in sys.argv)\n'
    )
    stub.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "MODEL": "610m", "MICRO": "12"}
    out = tmp_path / "out"
    for parts in ([], ["doctor"]):
        done = subprocess.run(
            ["sh", "eval/bench/gpu.sh", out, *parts], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        if not parts:
            text = done.stdout
    assert len([*out.iterdir()]) == 2
    names = "tests doctor kernels train finetune two_gpus step attention".split()
    assert re.findall(r"^(\w+): exit (\d)", text.split("--- summary")[0], re.M) == [
        (n, str(int(n == "doctor"))) for n in names
    ]
    limits = re.findall(r"^part \w+ (\d+)", (ROOT / "eval/bench/gpu.sh").read_text(), re.M)
    assert sum(map(int, limits)) + len(limits) <= 24 * 60

    commands = [json.loads(line) for line in text.splitlines() if line.startswith("[")]
    assert len(commands) == len(names)
    for script, args in (
        (c[c.index("train.py") :][:1][0], c[c.index("train.py") + 1 :]) for c in commands if "train.py" in c
    ):
        cfg = configurator.load(ROOT / script, args)
        assert cfg.micro_batch == 12 and cfg.model == "610m" and cfg.compile
    for command in commands:
        if command[0] == "finetune.py":
            configurator.load(ROOT / command[0], command[1:])
        if command[1] == "eval.bench":
            module = ROOT / f"eval/bench/{command[2]}.py"
            configurator.load(module, command[3:], getattr(sys.modules.get(f"eval.bench.{command[2]}"), "check", None))
        assert all((ROOT / word).exists() for word in command if word.startswith("tests/"))
