"""The launch table, compiled for every architecture without a GPU.

test_kernels.py runs this file in a process of its own, because Triton decides at import whether kernels are compiled
or interpreted.
"""

import itertools

import pytest
import torch

from eval.bench.aot import TARGETS, compile_kernel
from model import KERNELS

FAST = [
    ("90", 64, "forward", False, False), ("90", 64, "dkv", True, True), ("80", 128, "dq", False, True),
    ("gfx942", 64, "forward", True, False),
]  # fmt: skip
GRID = itertools.product(TARGETS, (32, 64, 128), KERNELS, (False, True), (False, True))
SLOW = [case for case in GRID if case not in FAST][::7]  # `python -m eval.bench aot` compiles all of them


@pytest.mark.parametrize(
    "architecture, D, which, causal, documents",
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_a_row_compiles_without_spills_or_serial_products(architecture, D, which, causal, documents):
    dtype = torch.float16 if D == 128 else torch.bfloat16  # the two differ in the name of an instruction
    found = compile_kernel(which, architecture, D, dtype, causal, documents)
    print(found)
    assert found["shared"] <= TARGETS[architecture][0] and found["matrix"] > 0
    assert found["spills"] <= 16 and not found["serial"]  # bytes: four registers of a thread


@pytest.mark.slow
@pytest.mark.parametrize("which", KERNELS)
def test_fp32_compiles_without_spills(which):
    found = compile_kernel(which, "90", 64, torch.float32, True, True)
    assert found["spills"] == 0 and found["matrix"] == 0, found  # no tf32
