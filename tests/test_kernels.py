"""The fused attention kernels: interpreted, compiled for every architecture, and run on a GPU if there is one."""

import importlib.metadata
import importlib.util
import itertools
import os
import subprocess
import sys

import pytest
import torch
from ahead_of_time import MASKS, TARGETS, compile_kernel
from helpers import ROOT, succeed
from model_helpers import attention_results, random_documents

import model

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: bf16 accuracy is not tested")


def version(package):
    return tuple(int(n) for n in importlib.metadata.version(package).split(".")[:2])


@needs_triton
@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_interpreted(marked):
    """In a process of its own, because Triton decides at import how kernels run."""
    if version("triton") < (3, 7) and version("numpy") >= (2, 4):
        pytest.skip("this Triton's interpreter does not work with this NumPy: triton >= 3.7 or numpy < 2.4 is needed")
    options = ["-m", marked, "--tb=short", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "tests/kernels_interpreted.py", *options]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


# Rows of the launch table; `python -m tests.ahead_of_time` compiles all of them.
GRID = itertools.product(TARGETS, (32, 64, 96, 128), model.KERNELS, MASKS.values())
TIMED = ("90", 96, "dkv", (True, False))  # on a GPU this row was the fastest, although it spills
SLOW = [*GRID][::13] + [("90", 64, "dkv", (False, True)), ("100", 96, "dkv", (False, True))]
ROWS = [TIMED, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]


@needs_triton
@pytest.mark.parametrize("architecture, D, which, mask", ROWS)
def test_compiled_ahead_of_time_without_spills_or_serial_products(architecture, D, which, mask):
    dtype = torch.float16 if D == 128 else torch.bfloat16  # the two differ in the name of an instruction
    found = compile_kernel(which, architecture, D, dtype, *mask)
    assert found["shared"] <= TARGETS[architecture][0] and found["matrix"] > 0, found
    most = 112 if (architecture, D, which, mask) == TIMED else 16  # bytes: four registers of a thread
    assert found["spills"] <= most and not found["serial"], found


@needs_triton
def test_a_row_of_the_launch_table_may_be_for_the_causal_mask_alone():
    """Not for bounds, which have it built in: with these, the kernel is another one."""
    for causal, documents, rows in [(False, False, 32), (True, False, 64), (False, True, 32), (True, True, 32)]:
        settings = model.launch_settings("dkv", 90, 18, 6, 64, torch.bfloat16, causal, documents)
        assert (settings["BLOCK_M"], settings["CAUSAL"]) == (rows, causal and not documents)


def test_the_model_imports_without_triton(run, tmp_path):
    (tmp_path / "script.py").write_text("""import sys, torch
del sys.modules["model"]
sys.modules["triton"] = None  # importing it now raises ImportError
import model
assert model.attention(*[torch.zeros(1, 2, 1, 64)] * 3, True).shape == (1, 2, 1, 64)
print(model.why_not_triton("cuda", 64, torch.float32))""")
    assert succeed([run([], tmp_path / "script.py")]).endswith("Triton is not installed\n")


# --- On a GPU ---


def gpu_case(T, H, H_kv, D, documents, scale, dtype=torch.bfloat16):
    """q, k, v, d_out as views of one packed projection, and bounds."""
    torch.manual_seed(T + D)
    x = (torch.randn(2, T, 2 * H + 2 * H_kv, D, device="cuda") * scale).to(dtype)
    q, k, v, d_out = x.split((H, H_kv, H_kv, H), dim=2)
    bounds = [b.cuda() for b in random_documents(2, T, T // 10)] if documents else (None, None)
    return q, k, v, d_out / scale, bounds


@needs_gpu
@needs_triton
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [1, 3])
@pytest.mark.parametrize("H, H_kv, D", [(6, 6, 64), (6, 2, 64), (6, 1, 32), (4, 2, 96), (4, 2, 128)])
def test_bf16_is_closer_than_plain_arithmetic(causal, scale, H, H_kv, D):
    """The relative error against float64 is at most 4e-3. For long rows it is also at most 0.75 times that of PyTorch's
    plain products in bf16, for short ones at most as large (0.9 times in an emulation of the kernels' arithmetic). With
    two keys, P is often near 0 or 1 and the terms of dS cancel but for their rounding (emulated: up to 0.08)."""
    for T, documents in itertools.product([1, 2, 63, 64, 65, 127, 129, 200, 1024], [False, True]):
        q, k, v, d_out, bounds = gpu_case(T, H, H_kv, D, documents, scale)
        exact = attention_results(*(x.double() for x in (q, k, v, d_out)), causal, bounds, "reference")
        plain = attention_results(q, k, v, d_out, causal, bounds, "reference")
        ours = attention_results(q, k, v, d_out, causal, bounds, "triton")
        for name, o, p, e in zip(("out", "dq", "dk", "dv"), ours, plain, exact):
            norm = max(e.norm(), 0.1 * d_out.double().norm())
            error, plain_error = ((x.double() - e).norm() / norm for x in (o, p))
            case = f"T={T}, documents={documents}, {name}: error {error:.1e}, of plain products {plain_error:.1e}"
            assert error <= (0.3 if T == 2 else 8e-3 if scale == 3 and name in ("dq", "dk") else 4e-3), case
            assert T < 63 or error <= (0.75 if T > 1000 else 1) * plain_error, case


@needs_gpu
@needs_triton
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("documents", [False, True])
def test_on_a_gpu_auto_is_triton_and_repeats_bit_for_bit(causal, documents):
    *tensors, bounds = gpu_case(1000, 6, 2, 64, documents, 1)
    runs = [attention_results(*tensors, causal, bounds, backend) for backend in ("auto", "triton", "triton")]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run))
