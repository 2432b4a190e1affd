"""The launch table, compiled for every architecture without a GPU. Run by test_kernels.py in a process of its own,
since Triton decides at import whether kernels are compiled or interpreted."""

import itertools

import pytest
import torch

from eval.bench.__main__ import ARCHITECTURES, compile_kernel
from model import KERNELS

# By default every architecture, head dim, kernel, mask and dtype is met, but not in every combination.
CROSS_SECTION = [
    (90, 64, "forward", False, False), (90, 64, "forward", False, True), (90, 64, "dq", True, True),
    (90, 64, "dkv", True, False), (90, 128, "forward", True, True), (90, 128, "dkv", False, True),
    (80, 64, "dkv", True, True), (80, 128, "forward", True, True), (86, 64, "dq", False, False),
    (89, 96, "dkv", True, False), (100, 64, "forward", True, True), (120, 32, "forward", False, True),
    ("gfx90a", 64, "dq", True, False), ("gfx942", 64, "forward", True, True),
]  # fmt: skip
GRID = itertools.product(ARCHITECTURES, (32, 64, 96, 128), KERNELS, (False, True), (False, True))
REST = [pytest.param(*case, marks=pytest.mark.slow) for case in GRID if case not in CROSS_SECTION]


@pytest.mark.parametrize("architecture, D, which, causal, documents", CROSS_SECTION + REST)
def test_a_row_compiles_without_spills_or_serial_products(architecture, D, which, causal, documents):
    dtype = torch.float16 if D == 128 else torch.bfloat16  # the two differ in the name of an instruction
    found = compile_kernel(which, architecture, D, dtype, causal, documents)
    print(found)
    assert found["shared"] <= ARCHITECTURES[architecture][0] and found["matrix"] > 0
    assert found["stack"] <= 16 and not found.get("serial")


@pytest.mark.parametrize("D, which", [(64, "dkv"), *(pytest.param(*case, marks=pytest.mark.slow)
                                                    for case in itertools.product((32, 64, 96, 128), KERNELS))])  # fmt: skip
def test_fp32_compiles_without_spills(D, which):
    for architecture in (80, 90):
        found = compile_kernel(which, architecture, D, torch.float32, True, True)
        assert found["stack"] <= 16 and found["matrix"] == 0, found  # ieee: no tf32
