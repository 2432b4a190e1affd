"""What only a GPU can show: training as on the CPU, exact resume, few waits. gpu.sh runs doctor and the benchmarks."""

import json
import signal
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import checkpoint
import helpers
from helpers import ROOT, Run, assert_same_end, copy_up_to
from model import linear_cross_entropy
from run import last_logged

assert_same_losses = partial(helpers.assert_same_losses, also=())  # a gradient's norm differs more between machines
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU_OPTIONS = [], ["--compile=True"], ["--recompute=True", "--micro_batch=1"], ["--window_split=random"]


@pytest.fixture
def on_gpu(tiny):
    return [*tiny, "--device=cuda", "--d_model=128"]  # head dim 32, which the kernels take


@pytest.mark.parametrize("options", GPU_OPTIONS)
def test_gpu_and_cpu_train_the_same(train, on_gpu, tmp_path, options):
    train(1, *on_gpu, "--device=cpu", *(word for word in options if "split" in word), f"--out_dir={tmp_path / 'cpu'}")
    train(1, *on_gpu, *options, f"--out_dir={tmp_path / 'gpu'}")
    assert json.loads((tmp_path / "gpu/config.json").read_text())["versions"]["attention"] == "triton"
    assert_same_losses(tmp_path / "gpu", tmp_path / "cpu", 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_resume(train, on_gpu, tmp_path, dtype):
    args, a, b = [*on_gpu, f"--dtype={dtype}", "--deterministic=True"], tmp_path / "a", tmp_path / "b"
    train(1, *args, f"--out_dir={a}")
    train(1, *args, f"--out_dir={copy_up_to(5, a, b)}", "--resume=True")
    assert_same_end(a, b)


@pytest.mark.slow
def test_210m_at_its_real_width_resumes_bit_for_bit(train, tmp_path):
    """Compiled, through both phases, stopped by a signal in the first."""
    args = """config/210m.py --data=data/prepared/embedded --vocab_size=128256 --micro_batch=16 --max_steps=12
        --global_batch_tokens=65536 --switch_step=6 --warmup_steps=2 --decay_steps=2 --log_interval=1 --keep_steps=()
        --eval_interval=6 --eval_windows=8 --checkpoint_interval=6 --deterministic=True""".split()
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(1, *args, f"--out_dir={whole}")
    first = Run([*args, f"--out_dir={stopped}"], tmp_path / "output")
    first.until(lambda: last_logged(stopped) >= 2)
    first.process.terminate()
    assert first.wait()[0] == 128 + signal.SIGTERM and 0 < checkpoint.steps(stopped)[-1] < 12
    train(1, *args, f"--out_dir={stopped}", "--resume=True")
    assert_same_end(whole, stopped, 12)


def waits(script, args):
    """How often a script waits for the GPU, as PyTorch counts it."""
    code = f"""
import runpy, sys, warnings
import torch
torch.cuda.init()
torch.cuda.set_sync_debug_mode("warn")
sys.argv = {[script, *map(str, args)]}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    runpy.run_path(sys.argv[0], run_name="__main__")
print("waits:", sum("synchronizing CUDA operation" in str(w.message) for w in caught))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.rsplit("waits:", 1)[1])


def test_a_training_step_waits_once(on_gpu, tmp_path):
    args = [*on_gpu, *"--eval_interval=100 --checkpoint_interval=100 --decay_steps=0 --switch_step=0".split()]
    counts = [waits("train.py", [*args, f"--max_steps={n}", f"--out_dir={tmp_path / str(n)}"]) for n in (10, 30)]
    assert counts[1] - counts[0] == 20


@pytest.mark.parametrize("family", ["sc", "tc", "qa", "ir"])
def test_a_fine_tuning_step_never_waits(encoder, tmp_path, family):
    options = "--eval_interval=1000 --epochs=100 --batch_size=4 --test_examples=5 --eval_examples=5"
    options = f"{options} --save_model=True --device=cuda --task=embedded-{family} --init_from={encoder}".split()
    counts = [waits("finetune.py", [*options, f"--max_steps={n}", f"--out_dir={tmp_path / str(n)}"]) for n in (5, 15)]
    assert counts[1] == counts[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_output_head_is_exact(dtype):
    """In several chunks, whose products add up in the fp32 gradient of the weight."""
    torch.manual_seed(0)
    N, V = 2**14 + 8, 2**17
    hidden = torch.randn(N, 64, device="cuda").to(dtype).requires_grad_()
    weight = (torch.randn(V, 64, device="cuda") * 0.1).to(dtype).float().requires_grad_()
    targets = torch.randint(0, V, (N,), device="cuda")
    total = linear_cross_entropy(hidden, weight, targets)
    found = torch.autograd.grad(total, (hidden, weight))
    exact = [x.detach().float().requires_grad_() for x in (hidden, weight)]
    for rows in torch.arange(N, device="cuda").split(1024):
        F.cross_entropy(exact[0][rows] @ exact[1].T, targets[rows], reduction="sum").backward()
    for x, e in zip(found, exact):
        assert (x.float() - e.grad).norm() < (1e-2 if dtype == torch.bfloat16 else 1e-4) * e.grad.norm()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_train_as_one(train, on_gpu, tmp_path):
    train(1, *on_gpu, f"--out_dir={tmp_path / 'one'}")
    for shard in (False, True):
        out = tmp_path / f"two-{shard}"
        train(2, *on_gpu, "--compile=True", f"--shard={shard}", f"--out_dir={out}")
        assert_same_losses(out, tmp_path / "one", 1e-3)
