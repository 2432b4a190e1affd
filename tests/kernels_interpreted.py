"""The fused kernels on a CPU, in Triton's interpreter. Run by test_kernels.py in a process of its own:
TRITON_INTERPRET=1 must be set before model.py is imported.

The interpreter computes bf16 wrongly, so fp32 and fp16 only. Slow tests carry the full grid.
"""

from functools import partial

import pytest
import torch

import model
from model import ModelConfig, PretrainingLoss, Transformer, attention, fused_attention, fused_attention_backward

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero")  # of rows that see nothing; where() drops it

TOLERANCE = {(torch.float32, 1): 1e-5, (torch.float32, 3): 1e-5, (torch.float16, 1): 1e-3, (torch.float16, 3): 4e-3}


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Memory that a kernel should fill comes full of NaN."""

    def nan(make):
        def poisoned(*args, **kwargs):
            x = make(*args, **kwargs)
            return x.fill_(float("nan")) if x.is_floating_point() else x

        return poisoned

    monkeypatch.setattr(torch.Tensor, "new_empty", nan(torch.Tensor.new_empty))
    monkeypatch.setattr(torch, "empty_like", nan(torch.empty_like))


def documents(B, T, length, padding):
    """Bounds of documents of one length, cut at the row's end, then padding whose bounds are 0 or, every other, T."""
    t = torch.arange(T)
    start, end = t // length * length, (t // length * length + length).clamp(max=T - padding)
    start[T - padding :] = end[T - padding :] = torch.arange(padding) % 2 * T
    return start.int().expand(B, T), end.int().expand(B, T)  # rows that share memory


def inputs(B, T, H, H_kv, D, dtype, scale=1.0, packed=False, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = (torch.randn(B, T, H + 2 * H_kv, D, generator=rng) * scale).to(dtype)
    q, k, v = x.split((H, H_kv, H_kv), dim=2)
    return [t if packed else t.contiguous() for t in (q, k, v)]


def gradients(q, k, v, d_out, causal, bounds, backend):
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, causal, *bounds, backend=backend)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), d_out)


def check(B, T, H, H_kv, D, dtype, causal, length=None, padding=0, scale=1.0, packed=False, d_strides="plain"):
    """out, dq, dk and dv against the formula in float64; the error is relative to the norm of the exact tensor."""
    q, k, v = inputs(B, T, H, H_kv, D, dtype, scale, packed)
    bounds = documents(B, T, length, padding) if length else (None, None)
    d_out = torch.randn(B, T, H, D, generator=torch.Generator().manual_seed(1)).to(dtype)
    if d_strides == "transposed":
        d_out = d_out.permute(1, 3, 2, 0).contiguous().permute(3, 0, 2, 1)  # the last dimension is not contiguous
    elif d_strides == "expanded":
        d_out = d_out[:, :1].expand(B, T, H, D)  # a stride of 0
    got = gradients(q, k, v, d_out, causal, bounds, "triton")
    wanted = gradients(*(x.double() for x in (q, k, v, d_out)), causal, bounds, "reference")
    for name, g, w in zip(("out", "dq", "dk", "dv"), got, wanted):
        assert g.dtype == dtype and g.shape == w.shape
        # Of a row that sees one key, dq = dk = 0: there the error is relative to d_out.
        error = (g.double() - w).norm() / max(w.norm(), 0.1 * d_out.double().norm())
        assert error <= TOLERANCE[dtype, scale], f"{name}: relative error {error:.1e}"
        if padding:
            assert g[:, T - padding :].eq(0).all(), name


both_masks = pytest.mark.parametrize("causal", [True, False])


@both_masks
@pytest.mark.parametrize("T, H, H_kv, D, dtype, length, padding", [
    (1, 2, 2, 64, torch.float32, None, 0),
    (1, 2, 1, 32, torch.float16, 1, 0),
    (2, 2, 1, 64, torch.float32, 1, 0),
    (63, 3, 1, 32, torch.float16, None, 0),
    (64, 2, 1, 64, torch.float32, None, 0),
    (65, 1, 1, 96, torch.float32, 64, 0),
    (127, 2, 1, 64, torch.float16, 63, 5),
    (129, 3, 1, 64, torch.float16, 65, 1),
    (129, 2, 2, 64, torch.float32, 1, 0),
    (200, 1, 1, 128, torch.float16, None, 0),
    (200, 6, 1, 32, torch.float16, 200, 70),
    (200, 2, 2, 64, torch.float16, 63, 9),
])  # fmt: skip
def test_kernels_equal_the_formula(causal, T, H, H_kv, D, dtype, length, padding):
    check(1, T, H, H_kv, D, dtype, causal, length, padding)


@pytest.mark.slow
@both_masks
@pytest.mark.parametrize("T", [1, 2, 63, 64, 65, 127, 129, 200])
@pytest.mark.parametrize("D, H, H_kv", [(32, 6, 1), (64, 3, 1), (64, 4, 2), (96, 2, 2), (128, 2, 1)])
@pytest.mark.parametrize("length", [None, 1, 63, 64, 65, 200])
def test_kernels_equal_the_formula_grid(causal, T, D, H, H_kv, length):
    dtype = torch.float32 if (T + (length or 0)) % 2 else torch.float16
    check(2 if T < 100 else 1, T, H, H_kv, D, dtype, causal, length, padding=T // 5 if length else 0)


@both_masks
@pytest.mark.parametrize("dtype, packed, d_strides, length", [
    (torch.float16, True, "plain", None), (torch.float16, True, "transposed", 31),
    (torch.float32, False, "expanded", 64)])  # fmt: skip
def test_any_strides_two_rows_larger_inputs(causal, dtype, packed, d_strides, length):
    check(2, 66, 4, 2, 32, dtype, causal, length, 0, 3, packed, d_strides)


# Tiles of the table's larger rows; without documents, with bounds in the middle of a tile, and with edges on both sides.
@pytest.mark.parametrize("causal, length, row", [
    (True, None, (128, 64, 8, 2)), (True, 40, (128, 64, 8, 2)), (False, 100, (64, 128, 8, 2)), (True, None, (64, 128, 8, 2)),
    (True, 100, (32, 128, 4, 1)), (False, None, (128, 32, 4, 1)),
    (True, 90, (16, 32, 4, 1)), (False, 90, (16, 32, 4, 1)), (False, 90, (32, 16, 4, 1))])  # fmt: skip
def test_tiles_need_not_be_square(monkeypatch, causal, length, row):
    monkeypatch.setattr(model, "LAUNCH", {(None, 32): (row, row, row)})
    check(1, 197, 2, 1, 32, torch.float16, causal, length, 3 if length else 0)


@both_masks
def test_documents_bound_the_loops(monkeypatch, causal):
    """What lies beyond the documents of a tile is not read: it may be NaN. Nor does padding in the tile widen the bounds."""
    monkeypatch.setattr(model, "LAUNCH", {(None, 32): ((64, 64, 4, 2),) * 3})
    q, k, v = inputs(1, 192, 2, 1, 32, torch.float16)
    start, end = (b.clone() for b in documents(1, 192, 64, 0))
    end[:, 64:124] = 124
    start[:, 124:128] = end[:, 124:128] = torch.tensor([0, 192, 0, 192])  # padding ends the middle tile
    alone = [x[:, 64:124] for x in (q, k, v)]
    wanted = gradients(*alone, alone[0], causal, (None, None), "triton")
    for x in (q, k, v):
        x[:, :64] = x[:, 128:] = float("nan")
    got = gradients(q, k, v, q, causal, (start, end), "triton")
    for g, w in zip(got, wanted):
        assert (g[:, 64:124] - w).norm() <= 1e-3 * w.norm() and g[:, 124:128].eq(0).all()


@pytest.mark.parametrize("causal, length", [(True, None), (False, 20)])
def test_two_runs_are_bitwise_equal(causal, length):
    q, k, v = inputs(1, 70, 2, 1, 32, torch.float16)
    bounds = documents(1, 70, length, 4) if length else (None, None)
    runs = [gradients(q, k, v, q, causal, bounds, "triton") for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs))


def test_rows_that_see_nothing_make_no_nan():
    q, k, v = inputs(1, 70, 2, 1, 32, torch.float32)
    bounds = [torch.zeros(1, 70, dtype=torch.int32)] * 2
    for x in gradients(q, k, v, q, False, bounds, "triton"):
        assert x.eq(0).all()


def test_large_scores_make_no_nan():
    """Scores of thousands: the pivot keeps the exponentials finite."""
    q, k, v = inputs(1, 70, 2, 1, 32, torch.float32)
    got = gradients(q * 60, k * 60, v, v.repeat(1, 1, 2, 1), True, (None, None), "triton")
    wanted = gradients(*(x.double() for x in (q * 60, k * 60, v, v.repeat(1, 1, 2, 1))), True, (None, None), "reference")
    for g, w in zip(got, wanted):
        assert (g - w).norm() / w.norm() < 1e-3


def test_the_last_row_does_not_know_the_mask():
    q, k, v = inputs(1, 130, 2, 1, 32, torch.float32)
    a, b = (attention(q, k, v, causal, backend="triton") for causal in (True, False))
    torch.testing.assert_close(a[:, -1], b[:, -1])
    assert not torch.allclose(a[:, 0], b[:, 0])


def test_reversing_the_sequence_reverses_full_attention():
    q, k, v = inputs(1, 130, 2, 1, 32, torch.float32)
    plain = attention(q, k, v, False, backend="triton")
    torch.testing.assert_close(attention(q.flip(1), k.flip(1), v.flip(1), False, backend="triton"), plain.flip(1))


# ----------------------------------------------------------------------------
# The operator in PyTorch


@pytest.mark.parametrize("causal, length", [(True, 5), (False, None)])
def test_opcheck(causal, length):
    q, k, v = (x.requires_grad_() for x in inputs(1, 9, 2, 1, 32, torch.float32, packed=True))
    bounds = documents(1, 9, length, 2) if length else (None, None)
    torch.library.opcheck(fused_attention, (q, k, v, causal, *bounds))
    out, lse = (x.detach() for x in fused_attention(q, k, v, causal, *bounds))
    torch.library.opcheck(fused_attention_backward, (out, *(x.detach() for x in (q, k, v)), out, lse, causal, *bounds))


CONFIG = ModelConfig(vocab_size=97, n_layer=2, n_head=2, n_kv_head=1, d_model=64, d_ff=48, seq_len=40)


def whole_model(monkeypatch, backend, causal, bounds, compiled=False, wrap=lambda module: module):
    """The loss of a small Transformer and all its gradients, with attention by this backend."""
    monkeypatch.setattr(model, "attention", partial(attention, backend=backend))
    torch.manual_seed(0)
    transformer = Transformer(CONFIG)
    for p in transformer.parameters():
        p.data.add_(torch.randn_like(p) * 0.1)
    if compiled:
        for block in transformer.blocks:
            block.compile(dynamic=False, fullgraph=True)
    tokens = torch.randint(0, 97, (2, 40))
    batch = {"tokens": tokens, "positions": torch.arange(80), "targets": tokens.flatten()}
    batch |= dict(zip(("doc_start", "doc_end"), bounds)) if bounds[0] is not None else {}
    loss, _ = wrap(PretrainingLoss(transformer))(batch, causal)
    loss.backward()
    return [loss.detach(), *(p.grad for p in transformer.parameters())]


@both_masks
@pytest.mark.parametrize("length", [None, 17])
def test_a_whole_model_has_the_gradients_of_the_reference(monkeypatch, causal, length):
    bounds = documents(2, 40, length, 3) if length else (None, None)
    got, wanted = (whole_model(monkeypatch, backend, causal, bounds) for backend in ("triton", "reference"))
    for g, w in zip(got, wanted):
        assert (g - w).norm() <= 1e-5 * w.norm()


@pytest.mark.parametrize("causal, length", [(True, 17), *(pytest.param(*case, marks=pytest.mark.slow) for case in
                                                          ((True, None), (False, None), (False, 17)))])  # fmt: skip
def test_compiled_equals_eager(monkeypatch, causal, length):
    bounds = documents(2, 40, length, 3) if length else (None, None)
    got, wanted = (whole_model(monkeypatch, "triton", causal, bounds, compiled) for compiled in (True, False))
    for g, w in zip(got, wanted):
        assert (g - w).norm() <= 1e-5 * w.norm()


@pytest.mark.slow
@pytest.mark.parametrize("order", ["ddp(compile)", "compile(ddp)"])
def test_under_ddp_and_compile(monkeypatch, tmp_path, order):
    wanted = whole_model(monkeypatch, "reference", True, (None, None))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        compiled, ddp = partial(torch.compile, backend="aot_eager"), torch.nn.parallel.DistributedDataParallel
        wrap = (lambda m: ddp(compiled(m))) if order == "ddp(compile)" else (lambda m: compiled(ddp(m)))
        got = whole_model(monkeypatch, "triton", True, (None, None), wrap=wrap)
    finally:
        torch.distributed.destroy_process_group()
    for g, w in zip(got, wanted):
        assert (g - w).norm() <= 1e-5 * w.norm()
