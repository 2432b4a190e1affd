"""The model, its attention and its loss."""

import resource

import pytest
import torch
import torch.nn.functional as F

from runtime import flops_per_token, peak_flops
from model import (
    PRESETS,
    ModelConfig,
    PretrainingLoss,
    Transformer,
    attention,
    linear_cross_entropy,
    rope_tables,
    rotate,
)

SMALL = ModelConfig(vocab_size=97, n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=40)


def small_model(seed=0):
    """A small model whose weights are large enough for every path to matter."""
    torch.manual_seed(seed)
    model = Transformer(SMALL)
    for p in model.parameters():
        p.data.add_(torch.randn_like(p) * 0.2)
    return model


def random_documents(B, T, padding=0, seed=0):
    """doc_start, doc_end of random documents in each row; the last `padding` tokens are padding."""
    rng = torch.Generator().manual_seed(seed)
    start, end = torch.zeros(B, T, dtype=torch.int32), torch.zeros(B, T, dtype=torch.int32)
    for b in range(B):
        t = 0
        while t < T - padding:
            n = min(int(torch.randint(1, max(2, T // 2), (), generator=rng)), T - padding - t)
            start[b, t : t + n], end[b, t : t + n] = t, t + n
            t += n
    return start, end


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
                rows.append(weights @ v[b, lo:hi, g])  # of no keys: zeros
    return torch.stack(rows).view(B, T, H, D)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("T, H, H_kv, padding", [(1, 2, 2, 0), (2, 2, 1, 0), (17, 3, 1, 0), (33, 4, 2, 5), (40, 6, 2, 0)])
@pytest.mark.parametrize("documents", [False, True])
def test_attention_backends_agree_with_the_definition(backend, causal, T, H, H_kv, padding, documents):
    torch.manual_seed(T)
    q, k, v = (torch.randn(2, T, h, 8, dtype=torch.float64, requires_grad=True) for h in (H, H_kv, H_kv))
    start, end = random_documents(2, T, padding) if documents else (None, None)
    out, expected = attention(q, k, v, causal, start, end, backend), plain_attention(q, k, v, causal, start, end)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    d_out = torch.randn_like(out)
    got, wanted = (torch.autograd.grad(o, (q, k, v), d_out) for o in (out, expected))
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    if documents and padding:
        assert out[:, -padding:].eq(0).all() and all(g[:, -padding:].eq(0).all() for g in got)


def test_attention_16_bit_is_near():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 64, h, 16) for h in (4, 2, 2))
    start, end = random_documents(2, 64, padding=3)
    for dtype, tolerance in ((torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
        for backend in ("auto", "sdpa", "reference"):
            x = [t.to(dtype) for t in (q, k, v)]
            out = attention(*x, False, start, end, backend)
            error = (out.double() - plain_attention(*x, False, start, end)).norm() / out.double().norm()
            assert out.dtype == dtype and error < tolerance, (dtype, backend, error)


def test_attention_names_an_unknown_backend():
    q = torch.zeros(1, 2, 1, 4)
    with pytest.raises(ValueError, match="'flash'.*expected 'auto', 'triton', 'sdpa' or 'reference'"):
        attention(q, q, q, True, backend="flash")


def test_rope_depends_on_distance_alone_and_keeps_length():
    torch.manual_seed(0)
    cos, sin = rope_tables(50, 8, 10000.0)
    q, k = torch.randn(8), torch.randn(8)
    turned = [rotate(x.expand(1, 50, 1, 8), cos, sin)[0, :, 0] for x in (q, k)]
    for distance in (0, 1, 7):
        products = (turned[0][distance:] * turned[1][: 50 - distance]).sum(-1)
        torch.testing.assert_close(products, products[:1].expand_as(products), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(turned[0].norm(dim=-1), q.norm().expand(50))
    torch.testing.assert_close(turned[0][0], q)


# ----------------------------------------------------------------------------
# The causal flag


def test_causal_leaks_nothing_from_the_right():
    """Changing token j never changes h_i for i < j, bit for bit; without the mask it does."""
    model, T = small_model(), 24
    tokens = torch.randint(0, 97, (1, T))
    with torch.no_grad():
        h = model(tokens, causal=True)
        full = model(tokens, causal=False)
        for j in range(1, T):
            changed = tokens.clone()
            changed[0, j] = (tokens[0, j] + 1) % 97
            assert torch.equal(model(changed, causal=True)[0, :j], h[0, :j])
            assert not torch.isclose(model(changed, causal=True)[0, j], h[0, j]).all()
            assert (model(changed, causal=False)[0] - full[0]).abs().amax(-1).gt(1e-7).all()


@pytest.mark.parametrize("causal", [True, False])
def test_nothing_crosses_a_document_bound(causal):
    model, T = small_model(), 30
    tokens = torch.randint(0, 97, (1, T))
    start, end = random_documents(1, T, padding=4)
    with torch.no_grad():
        h = model(tokens, causal, start, end)
        for j in range(T):
            changed = tokens.clone()
            changed[0, j] = (tokens[0, j] + 1) % 97
            moved = (model(changed, causal, start, end) - h)[0].abs().amax(-1) > 0
            inside = (torch.arange(T) >= start[0, j]) & (torch.arange(T) < end[0, j])
            inside[j] = True  # a padding token's residual stream still is its own
            assert not moved[~inside].any()


@pytest.mark.parametrize("causal", [True, False])
def test_documents_side_by_side_equal_documents_alone(causal):
    model = small_model()
    tokens, lengths = torch.randint(0, 97, (1, 30)), (7, 1, 22)
    start = torch.repeat_interleave(torch.tensor([0, 7, 8]), torch.tensor(lengths))[None].int()
    end = torch.repeat_interleave(torch.tensor([7, 8, 30]), torch.tensor(lengths))[None].int()
    packed = model(tokens, causal, start, end)
    alone = torch.cat([model(piece, causal) for piece in tokens.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)


def test_the_flag_changes_the_mask_and_nothing_else():
    """The last token sees everything either way: with one layer its state is the same under both masks."""
    config = ModelConfig(**{**SMALL.__dict__, "n_layer": 1})
    torch.manual_seed(0)
    model = Transformer(config)
    tokens = torch.randint(0, 97, (3, 20))
    a, b = model(tokens, causal=True), model(tokens, causal=False)
    torch.testing.assert_close(a[:, -1], b[:, -1])
    assert not torch.allclose(a[:, 0], b[:, 0])
    assert [n for n, _ in model.named_buffers()] == ["cos", "sin"]  # no mask is kept anywhere


# ----------------------------------------------------------------------------
# Shapes


@pytest.mark.parametrize("name, blocks, total", [("210m", 113.3, 310.3), ("610m", 460.1, 755.6), ("1b", 966.2, 1409.5)])
def test_presets_have_the_published_sizes(name, blocks, total):
    config = ModelConfig(vocab_size=128_256, **PRESETS[name])
    with torch.device("meta"):
        model = Transformer(config)
    count = sum(p.numel() for p in model.parameters())
    assert round(count / 1e6, 1) == total
    assert round((count - 2 * 128_256 * config.d_model) / 1e6, 1) == blocks


def test_initial_weights():
    torch.manual_seed(0)
    model = Transformer(ModelConfig())
    for name, p in model.named_parameters():
        if "norm" in name:
            assert p.eq(1).all()
        else:
            assert abs(p.std() - 0.02) < 1e-3 and abs(p.mean()) < 1e-3, name
    tied = Transformer(ModelConfig(tie_embeddings=True))
    assert tied.head.weight is tied.embedding.weight


def test_impossible_shapes_are_named():
    assert ModelConfig().problems() == []
    with pytest.raises(ValueError, match="d_model=30, n_head=4"):
        Transformer(ModelConfig(d_model=30, n_head=4))
    with pytest.raises(ValueError, match="n_head=4, n_kv_head=3"):
        Transformer(ModelConfig(n_head=4, n_kv_head=3))
    with pytest.raises(ValueError, match="n_layer=0: must be at least 1"):
        Transformer(ModelConfig(n_layer=0))
    with pytest.raises(ValueError, match="41 tokens in a row.*seq_len is 40"):
        small_model()(torch.zeros(1, 41, dtype=torch.long), causal=False)


# ----------------------------------------------------------------------------
# The loss


@pytest.mark.parametrize("N, V", [(1, 5), (63, 97), (200, 30_000)])  # the last takes several chunks
def test_linear_cross_entropy_is_plain_cross_entropy(N, V):
    torch.manual_seed(N)
    hidden = torch.randn(N, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, 16, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, V, (N,))
    targets[N // 2 :: 3] = -1
    total, count = linear_cross_entropy(hidden, weight, targets)
    plain = F.cross_entropy(hidden @ weight.T, targets, ignore_index=-1, reduction="sum")
    assert count == (targets >= 0).sum()
    torch.testing.assert_close(total.double(), plain, rtol=1e-5, atol=1e-5)
    got, wanted = (torch.autograd.grad(loss * 0.5, (hidden, weight)) for loss in (total, plain))
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)  # the softmax is fp32
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(hidden, weight, targets)[0], total)


def test_linear_cross_entropy_in_bf16_is_as_near_as_plain():
    torch.manual_seed(0)
    hidden, weight = torch.randn(300, 64), torch.randn(1000, 64) * 0.1
    targets = torch.randint(0, 1000, (300,))

    def gradients(loss, h, w):
        h, w = h.clone().requires_grad_(), w.clone().requires_grad_()
        return torch.autograd.grad(loss(h, w), (h, w))

    exact = gradients(lambda h, w: F.cross_entropy(h @ w.T, targets, reduction="sum"), hidden.double(), weight.double())
    ours = gradients(lambda h, w: linear_cross_entropy(h.bfloat16(), w, targets)[0], hidden, weight)
    plain = gradients(lambda h, w: F.cross_entropy((h.bfloat16() @ w.bfloat16().T).float(), targets, reduction="sum"),
                      hidden, weight)  # fmt: skip
    for o, p, e in zip(ours, plain, exact):
        error, plain_error = ((x - e).norm() / e.norm() for x in (o, p))
        assert error < max(1.2 * plain_error, 5e-3), (error, plain_error)


def test_logits_exist_only_at_predicted_positions_and_in_chunks():
    """No tensor of tokens x vocabulary is ever made, forward or backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(t, torch.Tensor) and t.dim() == 2 and t.shape[-1] == V:
                    largest = max(largest, t.shape[0])
            return out

    V = 50_000
    model = Transformer(ModelConfig(vocab_size=V, n_layer=1, d_model=16, n_head=2, n_kv_head=1, d_ff=16, seq_len=512))
    tokens = torch.randint(0, V, (2, 512))
    batch = {"tokens": tokens, "positions": torch.arange(0, 1024), "targets": tokens.flatten()}
    with Watch():
        PretrainingLoss(model)(batch, causal=True)[0].backward()
    assert 0 < largest <= 64
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.slow
def test_the_610m_model_makes_no_logits_of_a_whole_batch():
    """Forward and backward of one window of 2,048 tokens in fp32, about 12 GiB: no tensor of tokens x vocabulary."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest, T, V = 0, 2048, 128_256

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else (out,):
                if isinstance(t, torch.Tensor) and V in t.shape and 1152 not in t.shape:
                    largest = max(largest, t.numel() // V)
            return out

    model = Transformer(ModelConfig(vocab_size=V, **PRESETS["610m"]))
    tokens = torch.randint(0, V, (1, T))
    batch = {"tokens": tokens, "positions": torch.arange(T), "targets": tokens.flatten()}
    with Watch():
        total, count = PretrainingLoss(model)(batch, causal=True)
        total.backward()
    assert 0 < largest <= 64 and abs(total / count - 11.8) < 0.3
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB")


@pytest.mark.parametrize("causal", [True, False])
def test_recomputing_activations_changes_nothing(causal):
    model = small_model()
    tokens = torch.randint(0, 97, (2, 40))
    batch = {"tokens": tokens, "positions": torch.arange(80), "targets": tokens.flatten()}
    grads = []
    for model.recompute in (False, True):
        model.zero_grad()
        PretrainingLoss(model)(batch, causal)[0].backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.parametrize("documents", [False, True])
def test_compiled_equals_eager(documents):
    """As train.py compiles it: block by block, and the loss. One compilation more for the other mask."""
    model = small_model()
    tokens = torch.randint(0, 97, (2, 40))
    start, end = random_documents(2, 40) if documents else (None, None)
    batch = {"tokens": tokens, "positions": torch.arange(80), "targets": tokens.flatten()}
    batch |= {"doc_start": start, "doc_end": end} if documents else {}
    loss = PretrainingLoss(model)
    results = []
    for compiled in (False, True):
        if compiled:
            loss.compile_parts()
        for causal in (True, False):
            model.zero_grad()
            total, count = loss(batch, causal)
            total.backward()
            results.append([total, count, *(p.grad.clone() for p in model.parameters())])
    torch.testing.assert_close(results[:2], results[2:], rtol=1e-4, atol=1e-4)


def test_a_whole_model_that_somebody_compiles_has_gradients():
    """The loss steps out of the graph by itself: torch 2.11 would lose its gradients."""
    model = small_model()
    tokens = torch.randint(0, 97, (2, 40))
    batch, grads = {"tokens": tokens, "positions": torch.arange(80), "targets": tokens.flatten()}, []
    for loss in (PretrainingLoss(model), torch.compile(PretrainingLoss(model), backend="aot_eager")):
        model.zero_grad()
        loss(batch, True)[0].backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_overfits_one_batch(causal, dtype):
    """Near zero loss under each objective, in each dtype; the summed loss needs no loss scale in fp16."""
    import numpy as np

    from data.loader import Batches
    from data.tokenizer import Tokenizer

    class Stream:
        def __len__(self):
            return 64

        def windows(self, index, T):
            return np.random.default_rng(0).integers(0, 90, (len(index), T))

    torch.manual_seed(0)
    tokenizer = Tokenizer.load("embedded")
    batch = Batches(Stream(), tokenizer, 0, 32, 2).batch(0, causal)
    model = Transformer(ModelConfig(n_layer=2, n_head=2, n_kv_head=1, d_model=64, d_ff=96, seq_len=32))
    model.compute_dtype = getattr(torch, dtype)
    loss, optimizer = PretrainingLoss(model), torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0)
    for _ in range(120):
        total, count = loss(batch, causal)
        total.backward()
        for p in model.parameters():
            p.grad /= count
        optimizer.step()
        optimizer.zero_grad()
    assert (total / count) < 0.05


def test_flops_count_matches_pytorchs():
    from torch.utils.flop_counter import FlopCounterMode

    config = ModelConfig(vocab_size=512, n_layer=3, n_head=4, n_kv_head=2, d_model=64, d_ff=96, seq_len=64)
    model, tokens = Transformer(config), torch.randint(0, 512, (4, 64))
    model.compute_dtype = torch.bfloat16  # attention as plain products: PyTorch does not count a CPU's fused one
    loss = PretrainingLoss(model)
    for predicted in (256, 64):
        batch = {"tokens": tokens, "positions": torch.arange(predicted), "targets": tokens.flatten()[:predicted]}
        with FlopCounterMode(display=False) as counter:
            loss(batch, causal=False)[0].backward()
        assert counter.get_total_flops() / 256 == pytest.approx(flops_per_token(config, 64, False, predicted / 256), rel=0.02)
    attention_part = 6 * 3 * 2 * 64 * 64
    assert flops_per_token(config, 64, False, 1) - flops_per_token(config, 64, True, 1) == attention_part / 2


@pytest.mark.parametrize("name, peak", [("NVIDIA H200", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA H100 PCIe", 756e12),
                                        ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA RTX A1000 Laptop GPU", None)])  # fmt: skip
def test_peak_flops_by_name(monkeypatch, name, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda")) == peak
    assert peak_flops(torch.device("cpu")) is None
