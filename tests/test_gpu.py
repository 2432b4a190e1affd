"""What only a GPU can show: training as on the CPU, and exact resume. Skipped where there is none."""

import json
import shutil

import pytest
import torch

import checkpoint

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def tiny(tiny):
    return [*tiny, "--d_model=128"]  # head dim 32, which the kernels take


@pytest.fixture
def on_gpu(tiny):
    return [*tiny, "--device=cuda"]


def assert_same_losses(a, b, tolerance):
    """The metrics of two runs agree. tolerance: relative."""
    lines = ([json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()] for out in (a, b))
    for x, y in zip(*lines, strict=True):
        assert x["step"] == y["step"]
        for key in x.keys() & {"loss", "val_clm_loss", "val_mlm_loss"}:
            assert x[key] == pytest.approx(y[key], rel=tolerance), (x["step"], key)


@pytest.mark.parametrize("options", [[], ["--compile=True"], ["--recompute=True"], ["--window_split=random"]])
def test_gpu_and_cpu_train_the_same(run, tiny, on_gpu, tmp_path, options):
    split = "--window_split=random" if "--window_split=random" in options else "--window_split=none"
    code, text = run([*tiny, "--device=cpu", split, f"--out_dir={tmp_path / 'cpu'}"])
    assert code == 0, text
    code, text = run([*on_gpu, split, *options, f"--out_dir={tmp_path / 'gpu'}"])
    assert code == 0 and "not the fused kernels" not in text, text
    assert_same_losses(tmp_path / "gpu", tmp_path / "cpu", 1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_resume(run, on_gpu, tmp_path, dtype):
    args, a, b = [*on_gpu, f"--dtype={dtype}", "--deterministic=True"], tmp_path / "a", tmp_path / "b"
    code, text = run([*args, f"--out_dir={a}"])
    assert code == 0, text
    shutil.copytree(a, b)
    for step in (10, 15, 20):
        checkpoint.path_of(b, step).unlink()
    code, text = run([*args, f"--out_dir={b}", "--resume=True"])
    assert code == 0, text
    x, y = (checkpoint.load(checkpoint.path_of(out, 20)) for out in (a, b))
    torch.testing.assert_close((x["model"], x["optimizer"]), (y["model"], y["optimizer"]), rtol=0, atol=0)
    assert_same_losses(a, b, 0)


def test_micro_batch_does_not_change_the_run(run, on_gpu, tmp_path):
    for name, size in (("a", 16), ("b", 1)):
        code, text = run([*on_gpu, f"--micro_batch={size}", f"--out_dir={tmp_path / name}"])
        assert code == 0, text
    assert_same_losses(tmp_path / "a", tmp_path / "b", 1e-5)
