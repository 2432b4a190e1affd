"""What only a GPU can show: the same function as on the CPU, and exact resume. Skipped, saying so, where there is none."""

import subprocess

import pytest
import torch

import checkpoint
from test_train import assert_same_end, assert_same_losses, metrics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def tiny(tiny):
    return [*tiny, "--d_model=128"]  # head dim 32, which the kernels take


@pytest.fixture
def on_gpu(tiny):
    return [*tiny, "--device=cuda"]


@pytest.mark.parametrize("options", [[], ["--compile=True"], ["--recompute=True"], ["--window_split=random"]])
def test_gpu_and_cpu_train_the_same(run, tiny, on_gpu, tmp_path, options):
    code, text = run([*tiny, "--device=cpu", "--window_split=random" if "split" in str(options) else "--window_split=none",
                      f"--out_dir={tmp_path / 'cpu'}"])  # fmt: skip
    assert code == 0, text
    code, text = run([*on_gpu, *options, f"--out_dir={tmp_path / 'gpu'}"])
    assert code == 0 and "not the fused kernels" not in text, text
    for line, same in zip(metrics(tmp_path / "gpu"), metrics(tmp_path / "cpu"), strict=True):
        for key in line.keys() & {"loss", "val_clm_loss", "val_mlm_loss"}:
            assert line[key] == pytest.approx(same[key], rel=1e-3), (line["step"], key)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_resume(run, on_gpu, tmp_path, dtype):
    args, a, b = [*on_gpu, f"--dtype={dtype}", "--deterministic=True"], tmp_path / "a", tmp_path / "b"
    code, text = run([*args, f"--out_dir={a}"])
    assert code == 0, text
    subprocess.run(["cp", "-r", a, b], check=True)
    for step in (10, 15, 20):
        checkpoint.path_of(b, step).unlink()
    code, text = run([*args, f"--out_dir={b}", "--resume=True"])
    assert code == 0, text
    assert_same_end(a, b, 20)


def test_micro_batch_does_not_change_the_run(run, on_gpu, tmp_path):
    for name, size in (("a", 16), ("b", 1)):
        code, text = run([*on_gpu, f"--micro_batch={size}", f"--out_dir={tmp_path / name}"])
        assert code == 0, text
    assert_same_losses(tmp_path / "a", tmp_path / "b")
