"""The benchmarks run; their numbers are for people to read."""

import re
import subprocess
import sys

import pytest

from conftest import ROOT
from eval import bench


def test_loader(capsys):
    threads = bench.torch.get_num_threads()
    bench.bench_loader(T=64, windows=2, tokens=20_000, repeats=1)
    bench.torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7 and all(re.search(r"\d+\.\dM tokens/s$", line) for line in lines)


def test_step(capsys):
    bench.bench_step(windows=2, repeats=1)
    text = capsys.readouterr().out
    assert re.search(r"nanoGPT-style, fp32 +[\d,]+ tokens/s +1.00x", text) and text.count("tokens/s") == 5


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


def test_usage():
    done = subprocess.run([sys.executable, "eval/bench.py", "speed"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "eval/bench.py loader" in done.stderr
