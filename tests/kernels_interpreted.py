"""The fused kernels on a CPU, in Triton's interpreter.

test_kernels.py runs this file in a process of its own: TRITON_INTERPRET=1 must be set before model.py is imported.
The interpreter computes bf16 wrongly, so the tests use fp32 and fp16 only. The full grid is slow.
"""

import itertools

import pytest
import torch
from model_helpers import attention_results, loss_and_gradients, small_batch, small_model

import model
from model import PretrainingLoss, attention

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")  # in rows that see nothing, where 0 is stored instead
both_masks = pytest.mark.parametrize("causal", [True, False])

TOLERANCE = {(torch.float32, 1): 1e-5, (torch.float32, 3): 1e-5, (torch.float16, 1): 1e-3, (torch.float16, 3): 4e-3}
TOLERANCE[torch.float32, 60] = 1e-3  # scores of thousands: subtracting the largest one keeps the exponentials finite


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Fill new memory with NaN, so that a kernel that leaves some out is noticed."""

    def nan(make):
        def poisoned(*args, **kwargs):
            x = make(*args, **kwargs)
            return x.fill_(float("nan")) if x.is_floating_point() else x

        return poisoned

    monkeypatch.setattr(torch.Tensor, "new_empty", nan(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", nan(torch.empty_like))


def documents(B, T, length, padding, rule="documents"):
    """Bounds of documents of one length with four tokens of padding after the first, and padding at the row's end.

    rule: "prefix" lets a query also see the rest of its document's prefix, a third of it, "window" seven tokens on
    either side, and "documents" the whole document.
    """
    if not length:
        return None, None
    t = torch.arange(T)
    start = t // length * length
    end = (start + length).clamp(max=T - padding)
    if 8 < length < T - padding and padding:
        end[:length] = length - 4
    limit = end.clone()
    if rule == "window":
        start, end = start.maximum(t - 7), end.minimum(t + 8)
    elif rule == "prefix":
        end = end.minimum((start + length // 3).maximum(t + 1))
    is_padding = t >= limit
    start[is_padding] = end[is_padding] = limit[is_padding]
    return start.int().expand(B, T), end.int().expand(B, T)  # rows that share memory


def inputs(B, T, H, H_kv, D, dtype, scale=1.0, packed=False):
    rng = torch.Generator().manual_seed(0)
    x = (torch.randn(B, T, H + 2 * H_kv, D, generator=rng) * scale).to(dtype)
    return [t if packed else t.contiguous() for t in x.split((H, H_kv, H_kv), dim=2)]


def check(B, T, H, H_kv, D, dtype, causal, length=None, padding=0, scale=1.0, packed=False, d_strides="plain",
          rule="documents"):  # fmt: skip
    """out, dq, dk and dv against the formula in float64; the error is relative to the norm of the exact tensor."""
    q, k, v = inputs(B, T, H, H_kv, D, dtype, scale, packed)
    bounds = documents(B, T, length, padding, rule)
    d_out = torch.randn(B, T, H, D, generator=torch.Generator().manual_seed(1)).to(dtype)
    if d_strides == "transposed":
        d_out = d_out.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1)  # the last dimension is not contiguous
    elif d_strides == "expanded":
        d_out = d_out[:, :1].expand(B, T, H, D)  # a stride of 0
    found = attention_results(q, k, v, d_out, causal, bounds, "triton")
    exact = attention_results(*(x.double() for x in (q, k, v, d_out)), causal, bounds, "reference")
    for name, x, e in zip(("out", "dq", "dk", "dv"), found, exact):
        assert x.dtype == dtype and x.shape == e.shape
        # In a row that sees one key dq = dk = 0, so the error there is relative to d_out.
        error = (x.double() - e).norm() / max(e.norm(), 0.1 * d_out.double().norm())
        assert error <= TOLERANCE[dtype, scale], f"{name}: relative error {error:.1e}"
        if padding:
            assert x[:, T - padding :].eq(0).all(), name


# B, T, H, H_kv, D, dtype, causal, length of a document, padding, scale, packed, strides of the output's gradient
FP32, FP16 = torch.float32, torch.float16
CASES = [
    (1, 1, 2, 2, 64, FP32, True), (1, 2, 2, 1, 64, FP32, False, 1), (1, 63, 3, 1, 32, FP16, True),
    (1, 65, 1, 1, 96, FP32, False, 64), (1, 127, 2, 1, 96, FP16, True, 63, 5), (1, 64, 1, 1, 128, FP16, False),
    (1, 70, 2, 1, 32, FP32, False, 70, 70),  # no row sees anything
    (2, 66, 4, 2, 32, FP16, False, None, 0, 3, True), (2, 66, 4, 2, 32, FP16, True, 31, 0, 3, True, "transposed"),
    (1, 66, 2, 1, 32, FP32, False, 64, 0, 3, False, "expanded"), (1, 66, 2, 1, 32, FP32, True, None, 0, 60),
]  # fmt: skip
HEADS = (6, 1, 32), (4, 2, 64), (2, 1, 96), (2, 1, 128)  # H, H_kv, D
for causal, T, heads, length in [*itertools.product((True, False), (63, 127, 129), HEADS, (None, 1, 65))][::5]:
    dtype = FP32 if (T + (length or 0)) % 4 < 2 else FP16
    case = 1, T, *heads, dtype, causal, length, T // 5 if length else 0
    CASES.append(pytest.param(case, marks=pytest.mark.slow))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_equal_the_formula(case):
    check(*case)


# Blocks of the table's larger rows: with bounds within a block, without documents, and with edges on both sides.
ROWS = [  # causal, bounds, length of a document, (BLOCK_M, BLOCK_N, warps, stages)
    (True, "documents", 40, (128, 64, 8, 2)), (False, "prefix", 100, (64, 128, 8, 2)),
    (True, "documents", None, (64, 128, 8, 2)), (False, "window", 150, (64, 32, 4, 1)),
    (False, "documents", None, (128, 32, 4, 1)), (True, "documents", 90, (16, 32, 4, 1)),
    (False, "documents", 90, (32, 16, 4, 1)), (False, "prefix", 197, (32, 16, 4, 1)),
    (True, "window", 197, (16, 16, 4, 1)), (False, "window", 40, (128, 64, 8, 2)),
]  # fmt: skip
ROWS[4:] = [pytest.param(*row, marks=pytest.mark.slow) for row in ROWS[4:]]


@pytest.mark.parametrize("causal, rule, length, row", ROWS)
def test_all_kinds_of_bounds_in_blocks_that_are_not_square(monkeypatch, causal, rule, length, row):
    monkeypatch.setitem(model.LAUNCH, (None, 32), (row, row, row))
    check(1, 197, 1, 1, 32, torch.float16, causal, length, 3 if length else 0, rule=rule)


@pytest.mark.parametrize("next_document", [128, 192])
@both_masks
def test_bounds_bound_the_loops(monkeypatch, causal, next_document):
    """What lies outside of a block's bounds is not read: it may be NaN. Padding does not widen them."""
    monkeypatch.setitem(model.LAUNCH, (None, 32), ((64, 64, 4, 2),) * 3)
    q, k, v = inputs(1, 192, 1, 1, 32, torch.float16)
    start, end = (b.clone() for b in documents(1, 192, 64, 0))
    end[:, 64:124] = 124
    start[:, 124:next_document] = end[:, 124:next_document] = 124  # padding after the second document
    alone = [x[:, 64:124] for x in (q, k, v)]
    expected = attention_results(*alone, alone[0], causal, (None, None), "triton")
    for x in (q, k, v):
        x[:, :64] = x[:, 128:] = float("nan")
    found = attention_results(q, k, v, q, causal, (start, end), "triton")
    for x, e in zip(found, expected):
        assert (x[:, 64:124] - e).norm() <= 1e-3 * e.norm() and x[:, 124:128].eq(0).all()


def test_a_row_that_32_bit_offsets_cannot_address_is_refused():
    q = torch.zeros(1, 1, 1, 32).expand(1, 2**26, 1, 32)
    with pytest.raises(ValueError, match="below 2"):
        attention(q, q, q, True, backend="triton")


def test_the_backward_pass_keeps_no_packed_projection():
    """v is a part of it, but what is kept of v is its own."""
    q, k, v = (x.requires_grad_() for x in inputs(1, 16, 2, 1, 32, torch.float32, packed=True))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        kept = []
        attention(q.contiguous(), k.contiguous(), v, True, backend="triton")
    assert len(kept) == 5 and all(x.untyped_storage().nbytes() == x.nbytes for x in kept)


# --- The operator in PyTorch ---


def transformer(backend):
    encoder = small_model(scale=0.1, n_head=2, n_kv_head=1, d_model=64)
    encoder.attention_backend = backend
    return encoder


def assert_close(found, expected):
    assert all((x - e).norm() <= 1e-5 * e.norm() for x, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("rule", ["documents", "prefix"])
def test_a_whole_model_has_the_gradients_of_the_reference(rule):
    batch = small_batch(documents(2, 40, 17, 3, rule))
    losses = (PretrainingLoss(transformer(backend)) for backend in ("triton", "reference"))
    assert_close(*(loss_and_gradients(loss, batch, False) for loss in losses))


@pytest.mark.slow
@pytest.mark.parametrize("length", [None, 17])
def test_compiled_and_under_ddp_equals_eager(tmp_path, length):
    """As train.py does both."""
    batch, loss = small_batch(documents(2, 40, length, 3)), PretrainingLoss(transformer("triton"))
    eager = loss_and_gradients(loss, batch, True)
    loss.compile_parts()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        found = loss_and_gradients(torch.nn.parallel.DistributedDataParallel(loss), batch, True)
    finally:
        torch.distributed.destroy_process_group()
    assert_close(found, eager)
