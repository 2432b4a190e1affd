"""The model, its attention and its loss."""

import pytest
import torch
import torch.nn.functional as F
from model_helpers import Operators, attention_results, loss_and_gradients, random_documents, small_batch, small_model

import model
import model_checks
from model import ModelConfig, PretrainingLoss, Transformer, attention, attention_bounds, linear_cross_entropy
from helpers import rows_of

both_masks = pytest.mark.parametrize("causal", [True, False])


def plain_attention(q, k, v, causal, start=None, end=None):
    """The definition, one query at a time, in float64."""
    B, T, H, D = q.shape
    q, k, v = q.double(), k.double(), v.double()
    rows = []
    for b in range(B):
        for t in range(T):
            lo, hi = (0, T) if start is None else (int(start[b, t]), int(end[b, t]))
            hi = min(hi, t + 1) if causal else hi
            for h in range(H):
                g = h // (H // k.shape[2])
                weights = (k[b, lo:hi, g] @ q[b, t, h] / D**0.5).softmax(0)
                rows.append(weights @ v[b, lo:hi, g])  # zeros where there are no keys
    return torch.stack(rows).view(B, T, H, D)


@both_masks
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("T, H, H_kv, padding", [(1, 2, 2, 0), (2, 2, 1, 0), (17, 3, 1, 0), (33, 4, 2, 5)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
def test_attention_backends_agree_with_the_definition(causal, documents, T, H, H_kv, padding, dtype, tolerance):
    torch.manual_seed(T)
    q, k, v, d_out = (torch.randn(2, T, h, 8, dtype=torch.float64).to(dtype) for h in (H, H_kv, H_kv, H))
    start, end = random_documents(2, T, padding) if documents else (None, None)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    expected = plain_attention(*exact, causal, start, end)
    expected = expected, *torch.autograd.grad(expected, exact, d_out.double())
    for backend in ("reference", "sdpa", "auto"):
        found = attention_results(q, k, v, d_out, causal, (start, end), backend)
        for x, e in zip(found, expected):
            assert x.dtype == dtype and (x - e).norm() <= tolerance * max(e.norm(), 0.1 * d_out.norm()), backend
            if documents and padding:
                assert x[:, -padding:].eq(0).all()


def test_an_edit_of_the_mask_is_seen_at_the_length_of_the_rows(monkeypatch):
    original = model.attention_mask
    monkeypatch.setattr(model, "attention_mask", lambda T, *args: original(T, *args).triu(-400))
    is_edited = model_checks.attention_is_edited.__wrapped__
    assert [is_edited(T) for T in (128, 401, 402, 4096)] == [False, False, True, True]


def test_a_query_that_sees_nothing_has_an_output_of_0(monkeypatch):
    q, original = torch.randn(1, 16, 2, 8), model.attention_mask
    monkeypatch.setattr(model, "attention_mask", lambda T, *args: original(T, *args).tril(-1))
    for bounds in (None, None), random_documents(1, 16):
        assert attention(q, q, q, True, *bounds, backend="reference")[0].ne(0).all((1, 2)).tolist()[:2] == [False, True]


@pytest.mark.parametrize("documents", [False, True])
@both_masks
def test_the_reference_does_what_attention_mask_says(monkeypatch, causal, documents):
    """A student's mask, a window of three tokens, has an effect in each case."""
    q, bounds = torch.randn(1, 16, 2, 8), random_documents(1, 16) if documents else (None, None)
    before, original = attention(q, q, q, causal, *bounds, backend="reference"), model.attention_mask
    monkeypatch.setattr(model, "attention_mask", lambda T, *args: original(T, *args).tril(1).triu(-1))
    after = attention(q, q, q, causal, *bounds, backend="reference")
    assert not torch.equal(after, before)


@pytest.mark.parametrize("bounds", [
    "0-3 0-3 0-3 3-5 3-5 5-5",  # documents, then padding
    "0-0 0-0 2-4 2-4 4-4 5-6",  # padding around them
    "0-3 0-3 0-3 0-4 0-5 0-6",  # a prefix LM
    "-1-2 0-3 1-4 2-5 3-6 4-7",  # a window
    "0-0 0-0 0-0 0-0 0-0 0-0",
    "0-6 0-6 0-6 3-6 3-6 3-6",
])  # fmt: skip
@both_masks
def test_the_queries_that_see_a_key_are_an_interval(causal, bounds):
    bounds = [[int(n) for n in pair.rsplit("-", 1)] for pair in bounds.split()]
    bounds = torch.tensor(bounds).T[:, None]  # doc_start and doc_end, (1, T)
    start, end, first, last = attention_bounds(causal, *bounds)
    seen = model.attention_mask(6, causal, *bounds)[0, 0]
    token = torch.arange(6)
    assert torch.equal(seen, (start.T <= token) & (token < end.T))
    assert torch.equal(seen.T, (first.T <= token) & (token < last.T))
    last_query = max(seen.any(1).nonzero(), default=-1)
    for x in (first, last):
        assert x.dtype == torch.int32 and (x.diff() >= 0).all() and x.max() <= last_query + 1


def test_bounds_that_decrease_are_refused():
    for start, end in ([0, 0, 2, 1], [4, 4, 4, 4]), ([0, 0, 0, 0], [4, 4, 3, 4]):
        with pytest.raises(RuntimeError, match="must not decrease along a row"):
            attention_bounds(False, torch.tensor([start]), torch.tensor([end]))


def test_causal_leaks_nothing_from_the_right():
    """Changing token j never changes h_i for i < j, bit for bit; without the mask it does."""
    model, T = small_model(), 24
    tokens = torch.randint(0, 97, (1, T))
    with torch.no_grad():
        h, full = model(tokens, causal=True), model(tokens, causal=False)
        for j in range(1, T):
            changed = tokens.clone()
            changed[0, j] = (tokens[0, j] + 1) % 97
            assert torch.equal(model(changed, causal=True)[0, :j], h[0, :j])
            assert not torch.isclose(model(changed, causal=True)[0, j], h[0, j]).all()
            assert (model(changed, causal=False)[0] - full[0]).abs().amax(-1).gt(1e-7).all()


@both_masks
def test_documents_side_by_side_equal_documents_alone(causal):
    model, lengths = small_model(), torch.tensor((7, 1, 22))
    tokens = torch.randint(0, 97, (1, 30))
    start = torch.repeat_interleave(torch.tensor([0, 7, 8]), lengths)[None].int()
    end = torch.repeat_interleave(torch.tensor([7, 8, 30]), lengths)[None].int()
    packed = model(tokens, causal, start, end)
    alone = torch.cat([model(piece, causal) for piece in tokens.split(lengths.tolist(), dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)


def test_the_flag_changes_the_mask_and_nothing_else():
    """The last token sees everything either way: with one layer its state is the same under both masks."""
    model = small_model(n_layer=1)
    tokens = torch.randint(0, 97, (3, 20))
    a, b = model(tokens, causal=True), model(tokens, causal=False)
    torch.testing.assert_close(a[:, -1], b[:, -1])
    assert not torch.allclose(a[:, 0], b[:, 0])
    assert [n for n, _ in model.named_buffers()] == ["cos", "sin"]  # no mask is kept anywhere


def test_initial_weights(monkeypatch):
    """A layer may set its own weights to a constant."""
    torch.manual_seed(0)
    for name, p in Transformer(ModelConfig(qkv_bias=True, qk_norm=True)).named_parameters():
        if p.dim() == 2:
            assert abs(p.std() - 0.02) < 1e-3 and abs(p.mean()) < 1e-3, name
        else:
            assert p.eq(1 if "norm" in name else 0).all(), name
    tied = Transformer(ModelConfig(tie_embeddings=True))
    assert tied.head.weight is tied.embedding.weight

    class Zero(model.Block):
        def __init__(self, config):
            super().__init__(config)
            torch.nn.init.zeros_(self.down.weight)

    monkeypatch.setattr(model, "Block", Zero)
    block = Transformer(ModelConfig()).blocks[1]
    assert not block.down.weight.any() and abs(block.attn_out.weight.std() - 0.02) < 1e-3


@pytest.mark.parametrize("shape, message", rows_of("impossible shapes"))
def test_impossible_shapes_are_named(shape, message):
    with pytest.raises(ValueError, match=message):
        Transformer(ModelConfig(**eval(f"dict({shape})")))


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-6), (torch.bfloat16, 8e-3)])  # the softmax is fp32
@pytest.mark.parametrize("N, V", [(1, 5), (63, 97), (200, 30_000)])  # the last takes several chunks
def test_linear_cross_entropy_is_plain_cross_entropy(N, V, dtype, tolerance):
    """With hidden states in bf16 and weights in fp32, as in training, too."""
    torch.manual_seed(N)
    hidden = torch.randn(N, 16, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(V, 16, dtype=torch.promote_types(dtype, torch.float32), requires_grad=True)
    targets = torch.randint(0, V, (N,))
    targets[N // 2 :: 3] = -1
    total = linear_cross_entropy(hidden, weight, targets)
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    plain = F.cross_entropy(exact[0] @ exact[1].T, targets, ignore_index=-1, reduction="sum")
    assert total.item() == pytest.approx(plain.item(), rel=tolerance)
    found, expected = torch.autograd.grad(total * 0.5, (hidden, weight)), torch.autograd.grad(plain * 0.5, exact)
    for x, e in zip(found, expected):
        assert (x - e).norm() <= tolerance * e.norm()
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(hidden, weight, targets), total)


def test_the_plain_loss(monkeypatch):
    """It equals the fused one over several chunks, in value and gradient. An edit of it has no effect without
    gradients, as in validation. An edit of the logits has one there, too."""
    torch.manual_seed(0)
    batch, small = small_batch(), small_model()
    batch["targets"] = batch["targets"].index_fill(0, torch.arange(5), -1)
    monkeypatch.setattr(model.plain_cross_entropy, "__defaults__", (9,))
    fused, plain = (loss_and_gradients(PretrainingLoss(small, plain=plain), batch, False) for plain in (0, 1))
    torch.testing.assert_close(plain, fused, rtol=1e-4, atol=1e-5)
    is_edited, original = model_checks.loss_is_edited.__wrapped__, model.plain_loss
    forward, halves = Transformer.forward, lambda self, *x: forward(self, *x).unflatten(1, (2, -1)).flatten(1, 2)
    monkeypatch.setattr(Transformer, "forward", halves)  # an edit that needs a row of an even length
    assert not is_edited(True) and not is_edited(False)
    monkeypatch.setattr(model, "plain_loss", lambda *args: original(*args).detach() / 2 + original(*args) / 2)
    assert is_edited(True)  # the same value, half of the gradient
    monkeypatch.setattr(Transformer, "logits", lambda self, hidden: 2 * torch.tanh(self.head(hidden) / 2))
    capped = PretrainingLoss(small, plain=True)(batch, False)[0]
    monkeypatch.setattr(model, "plain_loss", lambda logits, targets: logits.sum())
    with torch.no_grad():
        validated = PretrainingLoss(small, plain=True)(batch, False)[0]
        logits = small.logits(small(batch["tokens"], False).flatten(0, 1)[batch["positions"]])
    expected = F.cross_entropy(logits, batch["targets"], ignore_index=-1, reduction="sum").item()
    assert capped.item() == pytest.approx(expected) == validated.item() and abs(expected - fused[0]) > 1


def test_logits_exist_only_in_chunks():
    """No tensor of tokens x vocabulary is ever made, forward or backward."""
    config = ModelConfig(50_000, n_layer=1, d_model=16, n_head=2, n_kv_head=1, d_ff=16, seq_len=1024)
    model, tokens = Transformer(config), torch.randint(0, config.vocab_size, (1, config.seq_len))
    batch = {"tokens": tokens, "positions": torch.arange(config.seq_len), "targets": tokens.flatten()}
    with Operators() as operators:
        PretrainingLoss(model)(batch, causal=True)[0].backward()
    shapes = [x.shape for x in operators.outputs]
    assert 0 < max(shape.numel() // 50_000 for shape in shapes if 50_000 in shape and 16 not in shape) <= 64
    assert all(p.grad is not None for p in model.parameters())


@both_masks
def test_recomputing_activations_changes_nothing(causal):
    results, model = [], small_model()
    for model.recompute in (False, True):
        results.append(loss_and_gradients(PretrainingLoss(model), small_batch(), causal))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("causal, documents", [(False, True), (True, False)])
def test_compiled_equals_eager(causal, documents):
    """As train.py compiles it: block by block, and the loss."""
    batch = small_batch(random_documents(2, 40) if documents else (None, None))
    loss = PretrainingLoss(small_model())
    eager = loss_and_gradients(loss, batch, causal)
    loss.compile_parts()
    torch.testing.assert_close(loss_and_gradients(loss, batch, causal), eager, rtol=1e-4, atol=1e-4)
