"""A Transformer for text with one set of weights and either attention mask.

`Transformer(config)(tokens, causal)` is a decoder when `causal` is True and an
encoder when it is False. Nothing else changes: the parameters, the rotary
positions, the norms and the output head are the same. That is what lets a model
begin with causal language modelling (CLM), go on with masked language modelling
(MLM) and end as an encoder.

The architecture is Llama's (pre-norm RMSNorm, rotary positions, grouped-query
attention, SwiGLU, no dropout, no biases but for Qwen 2's), which is also EuroBERT's.

In reading order: ModelConfig, attention, layers, Transformer, loss, fused attention kernels.
"""

from __future__ import annotations  # so that the kernels' annotations need no Triton

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint as recompute

# ----------------------------------------------------------------------------
# Configuration


@dataclass
class ModelConfig:
    """The shape of a model. The defaults are the demo's."""

    vocab_size: int = 4096
    n_layer: int = 4
    n_head: int = 2  # query heads
    n_kv_head: int = 1  # key and value heads; each serves n_head / n_kv_head query heads
    d_model: int = 128
    d_ff: int = 320  # hidden width of the MLP, which has three matrices (SwiGLU)
    seq_len: int = 128  # the longest input
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = False  # True: the output head is the input embedding
    qkv_bias: bool = False  # biases on the queries, keys and values, which Qwen 2 has
    rope_scaling: tuple = ()  # Llama 3.x's: factor, low and high frequency factor, context before; see `rope_tables`

    @property
    def head_dim(self):
        return self.d_model // self.n_head

    def problems(self):
        """What is wrong with this shape, a sentence each; an empty list if nothing is."""
        sizes = ("vocab_size", "n_layer", "n_head", "n_kv_head", "d_model", "d_ff", "seq_len")
        found = [f"{k}={getattr(self, k)}: must be at least 1" for k in sizes if getattr(self, k) < 1]
        found += [f"{k}={getattr(self, k)}: must be above 0" for k in ("rope_theta", "norm_eps") if getattr(self, k) <= 0]
        if found:
            return found
        if self.d_model % self.n_head or self.head_dim % 2:
            found.append(f"d_model={self.d_model}, n_head={self.n_head}: d_model / n_head must be an even whole number")
        if self.n_head % self.n_kv_head:
            found.append(f"n_head={self.n_head}, n_kv_head={self.n_kv_head}: n_head must be a multiple of n_kv_head")
        return found


# The three models of the study (with its vocabulary of 128,256) and a small one for a CPU.
PRESETS = {
    "demo": dict(n_layer=4, n_head=2, n_kv_head=1, d_model=128, d_ff=320, seq_len=128),
    "210m": dict(n_layer=12, n_head=12, n_kv_head=12, d_model=768, d_ff=3072, seq_len=2048),
    "610m": dict(n_layer=26, n_head=18, n_kv_head=6, d_model=1152, d_ff=4096, seq_len=2048),
    "1b": dict(n_layer=28, n_head=18, n_kv_head=6, d_model=1728, d_ff=5120, seq_len=2048),
}


# ----------------------------------------------------------------------------
# Attention


def attention_mask(T, causal, doc_start=None, doc_end=None, device=None):
    """Which keys each query may see: bool, (T, T) or, with documents, (B, 1, T, T).

    This mask is the whole difference between an encoder and a decoder. Fused kernels make it tile by tile.
    """
    t = torch.arange(T, device=device)
    see = torch.ones(T, T, dtype=torch.bool, device=device)
    if causal:
        see = t[None, :] <= t[:, None]  # query t sees keys 0 .. t
    if doc_start is not None:
        inside = (t >= doc_start[..., None]) & (t < doc_end[..., None])  # (B, T, T)
        see = (see & inside)[:, None]
    return see


SAID = set()  # what has been printed


@torch.compiler.assume_constant_result  # a compiled model runs this while it is traced
def why_not_triton(device_type, D, dtype):
    """Why the fused kernels cannot be used here, or an empty string. On a GPU, says so once."""
    why = ""
    if triton is None:
        why = "Triton is not installed"
    elif D not in (32, 64, 96, 128):
        why = f"head dim {D} is not 32, 64, 96 or 128"
    elif dtype not in (torch.bfloat16, torch.float16, torch.float32):
        why = f"{dtype} is not bfloat16, float16 or float32"
    elif device_type != "cuda" and not triton.knobs.runtime.interpret:
        why = f"device {device_type}: the kernels need a GPU, or TRITON_INTERPRET=1 set before Python starts"
    if why and device_type == "cuda" and why not in SAID:
        SAID.add(why)
        print(f"attention: PyTorch's, not the fused kernels: {why}")
    return why


def attention(q, k, v, causal, doc_start=None, doc_end=None, backend="auto"):
    """softmax(q kᵀ / sqrt(D)) v for grouped heads, one mask flag and document bounds.

    q: (B, T, H, D). k, v: (B, T, H_kv, D) with H a multiple of H_kv; query head h reads
    key head h // (H / H_kv). doc_start, doc_end: int32 (B, T), or None for one document
    a row. All tokens of a document share its bounds; token t sees the keys in
    [doc_start[t], doc_end[t]), and only those <= t if causal. A padding token has
    doc_start == doc_end: it sees nothing, nothing sees it, its output and gradients are 0.

    backend: "triton" is the fused kernels at the end of this file. "sdpa" is PyTorch's fused
    attention, with a dense mask where there are documents. "reference" spells the formula
    out, in q's dtype. "auto" is "triton" on a GPU where it can be, else "sdpa", but for
    short 16-bit rows on a CPU, where the plain products were measured 2 to 4 times as fast.
    Returns (B, T, H, D) in q's dtype.
    """
    T, D, group = q.shape[1], q.shape[3], q.shape[2] // k.shape[2]
    if backend == "auto" and q.is_cuda:
        backend = "sdpa" if why_not_triton("cuda", D, q.dtype) else "triton"
    if backend == "triton":
        if why := why_not_triton(q.device.type, D, q.dtype):
            raise ValueError(f"attention backend 'triton': {why}")
        return fused_attention(q, k, v, causal, doc_start, doc_end)[0]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if backend == "auto":
        short = q.device.type == "cpu" and q.dtype.itemsize == 2 and T <= 256
        backend = "reference" if short else "sdpa"

    bias = None  # added to the scores: 0 where a query may look, a large negative number elsewhere
    if doc_start is not None or (causal and backend == "reference"):
        see = attention_mask(T, causal, doc_start, doc_end, q.device)  # (T, T) or (B, 1, T, T)
        bias = torch.zeros(see.shape, dtype=q.dtype, device=q.device).masked_fill_(~see, torch.finfo(q.dtype).min / 2)

    if backend == "reference":
        scores = q @ k.transpose(-1, -2) * D**-0.5  # (B, H, T, T)
        out = (scores if bias is None else scores + bias).softmax(-1) @ v
    elif backend == "sdpa":
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal and bias is None)
    else:
        raise ValueError(f"attention backend {backend!r}: expected 'auto', 'triton', 'sdpa' or 'reference'")
    if doc_start is not None:  # a padding token's row of the softmax is meaningless
        out = out.masked_fill((doc_start >= doc_end)[:, None, :, None], 0)
    return out.transpose(1, 2)  # (B, T, H, D)


# ----------------------------------------------------------------------------
# Layers. Weights are fp32; activations have the model's compute dtype.


class Linear(nn.Linear):
    """A matrix, without bias unless told, cast to the dtype of its input."""

    def __init__(self, d_in, d_out, bias=False):
        super().__init__(d_in, d_out, bias)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight, computed in fp32 (Zhang and Sennrich, 2019)."""

    def __init__(self, d_model, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


def rope_tables(seq_len, head_dim, theta, scaling=()):
    """Cosine and sine of position * theta^(-2i / head_dim), as `rotate` takes them, fp32, on the CPU.

    scaling, of Llama 3.1: pairs that turn fewer than `low` times in `context` tokens turn `factor` times slower.
    """
    frequency = theta ** (-torch.arange(0, head_dim, 2, device="cpu").float() / head_dim)
    if scaling:
        factor, low, high, context = scaling
        kept = ((frequency * context / (2 * torch.pi) - low) / (high - low)).clamp(0, 1)  # 1 = `high` turns or more
        frequency = frequency * (kept + (1 - kept) / factor)
    angle = torch.arange(seq_len, device="cpu").float()[:, None, None, None] * frequency
    return angle.cos(), torch.cat((-angle.sin(), angle.sin()), dim=2)  # (seq_len, 1, 1 or 2, head_dim / 2)


def rotate(x, cos, sin):
    """Rotary positions (Su et al., 2021), half-split, in fp32. x: (B, T, H, D).

    Pair (a, b) = (x[i], x[i + D/2]) turns to (a cos - b sin, b cos + a sin), by an angle proportional
    to the position, so that the product of a query and a key depends on their distance alone.
    """
    pair = x.float().unflatten(-1, (2, -1))  # (B, T, H, 2, D / 2)
    return (pair * cos + pair.flip(-2) * sin).flatten(-2).to(x.dtype)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        d, D = config.d_model, config.head_dim
        self.heads = (config.n_head, config.n_kv_head, config.n_kv_head)  # of q, k and v
        self.attn_norm = RMSNorm(d, config.norm_eps)
        self.qkv = Linear(d, sum(self.heads) * D, config.qkv_bias)
        self.attn_out = Linear(d, d)
        self.mlp_norm = RMSNorm(d, config.norm_eps)
        self.gate_up = Linear(d, 2 * config.d_ff)
        self.down = Linear(config.d_ff, d)

    def forward(self, x, cos, sin, causal, doc_start, doc_end):
        B, T, d = x.shape
        qkv = self.qkv(self.attn_norm(x)).view(B, T, sum(self.heads), -1)  # (B, T, H + 2 H_kv, D)
        n_rotated = self.heads[0] + self.heads[1]
        q, k = rotate(qkv[:, :, :n_rotated], cos, sin).split(self.heads[:2], dim=2)
        y = attention(q, k, qkv[:, :, n_rotated:], causal, doc_start, doc_end)
        x = x + self.attn_out(y.reshape(B, T, d))

        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)  # (B, T, d_ff) each
        return x + self.down(F.silu(gate) * up)


# ----------------------------------------------------------------------------
# The model


class Transformer(nn.Module):
    """tokens (B, T) -> hidden states (B, T, d_model); `logits` maps those to the vocabulary.

    The weights are fp32. `compute_dtype` is that of the activations and matrix products.
    With `recompute`, the backward pass runs each block's forward again instead of keeping
    its activations: about a third more compute for a fraction of the memory.
    """

    def __init__(self, config):
        super().__init__()
        if problems := config.problems():
            raise ValueError("ModelConfig: " + "; ".join(problems))
        self.config = config
        self.compute_dtype, self.recompute = torch.float32, False
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = RMSNorm(config.d_model, config.norm_eps)
        self.head = Linear(config.d_model, config.vocab_size)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight
        cos, sin = rope_tables(config.seq_len, config.head_dim, config.rope_theta, config.rope_scaling)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if not name.endswith("norm.weight"):  # those stay 1
                nn.init.normal_(p, std=0.02) if p.dim() == 2 else nn.init.zeros_(p)  # matrices and biases

    def forward(self, tokens, causal, doc_start=None, doc_end=None):
        """tokens: int64 (B, T), T <= seq_len. causal: True for a decoder, False for an encoder.

        doc_start, doc_end: see `attention`. Returns (B, T, d_model) in `compute_dtype`.
        """
        T = tokens.shape[1]
        if T > self.config.seq_len:
            raise ValueError(f"{T} tokens in a row, but this model's seq_len is {self.config.seq_len}")
        cos, sin = self.cos[:T], self.sin[:T]
        x = self.embedding(tokens).to(self.compute_dtype)  # (B, T, d_model)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x = recompute(block, x, cos, sin, causal, doc_start, doc_end, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, cos, sin, causal, doc_start, doc_end)
        return self.norm(x)

    def logits(self, hidden):
        """hidden (..., d_model) -> logits (..., vocab_size)."""
        return self.head(hidden)

    @property
    def device(self):
        return self.embedding.weight.device


# ----------------------------------------------------------------------------
# Loss


def loss_and_gradient(logits, targets):
    """logits (n, V), targets int64 (n,), negative = not predicted -> (summed loss in fp32, its gradient by the logits).

    In place, because this is the largest tensor of a step. Compiled, its fp32 copy never exists.
    """
    keep, target = targets[:, None] >= 0, targets[:, None].clamp(min=0)  # (n, 1)
    x = logits.float()
    at_target, top = x.gather(1, target), x.amax(-1, keepdim=True)
    total = x.sub_(top).exp_().sum(-1, keepdim=True)
    loss = ((total.log() + top - at_target) * keep).sum()
    gradient = x.mul_(keep / total).to(logits.dtype)  # softmax - onehot, but for the target's entry
    entry = ((at_target - top).exp() * (keep / total) - keep.float()).to(logits.dtype)
    return loss, gradient.index_put_((torch.arange(len(x), device=x.device)[:, None], target), entry)


class LinearCrossEntropy(torch.autograd.Function):
    """Cross entropy of softmax(hidden weightᵀ), summed; the logits exist one chunk at a time.

    The forward pass already makes the gradient, softmax - onehot, while a chunk's logits
    are at hand, and keeps only its two products: that with the weight (the gradient of
    hidden) and that with hidden (the gradient of the weight). Peak memory is chunk x V
    instead of N x V (the idea is Liger-Kernel's, Hsu et al., 2024).
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk, with_grad, loss_and_gradient):
        w = weight.to(hidden.dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        d_hidden = torch.empty_like(hidden) if with_grad else None
        d_weight = torch.zeros_like(weight) if with_grad else None
        for i in range(0, len(hidden), chunk):
            h = hidden[i : i + chunk]  # (n, d)
            loss, d_logits = loss_and_gradient(h @ w.T, targets[i : i + chunk])  # (n, V)
            total += loss
            if with_grad:
                d_hidden[i : i + chunk] = d_logits @ w
                d_weight += d_logits.T @ h
        ctx.save_for_backward(d_hidden, d_weight)
        return total

    @staticmethod
    def backward(ctx, d_total):
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * d_total.to(d_hidden.dtype), d_weight * d_total, None, None, None, None


@torch.compiler.disable(recursive=False)  # torch 2.11 compiles this function to one with gradients of 0
def linear_cross_entropy(hidden, weight, targets, loss_and_gradient=loss_and_gradient):
    """hidden (N, d), weight (V, d), targets int64 (N,), negative = not predicted -> (sum, count).

    sum: fp32, the cross entropy summed over the predicted tokens, in nats. count: how many
    they are. Divide by the count of the whole step, over all micro-batches and processes.
    """
    # A chunk of logits should fit a CPU's cache, or give a GPU enough rows to be busy.
    chunk = max(64, (2**28 if hidden.is_cuda else 2**21) // len(weight) // 64 * 64)
    with_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    total = LinearCrossEntropy.apply(hidden, weight, targets, chunk, with_grad, loss_and_gradient)
    return total, (targets >= 0).sum()


class PretrainingLoss(nn.Module):
    """batch -> (sum of losses, number of predicted tokens): the module that DDP wraps.

    Both objectives are one line. They differ in the mask (`causal`), in `positions` and `targets` (which
    tokens are predicted from where) and in what `tokens` shows there. The last two are the batch's.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.loss_and_gradient = loss_and_gradient

    def forward(self, batch, causal):
        hidden = self.model(batch["tokens"], causal, batch.get("doc_start"), batch.get("doc_end"))
        predicted = hidden.flatten(0, 1)[batch["positions"]]  # (N, d): the head runs on these only
        return linear_cross_entropy(predicted, self.model.head.weight, batch["targets"], self.loss_and_gradient)

    def compile_parts(self):
        """Compiles each block and the loss of a chunk, in place: the names of the weights stay.

        The blocks share one compilation for each mask and shape, and DDP's communication
        still overlaps the backward pass, which it could not with a single compiled graph.
        """
        torch._dynamo.config.optimize_ddp = False  # which would cut each block again, at the bounds of DDP's buckets
        for block in self.model.blocks:
            block.compile(dynamic=False, fullgraph=True)
        self.loss_and_gradient = torch.compile(loss_and_gradient, dynamic=False, fullgraph=True)


# ----------------------------------------------------------------------------
# Fused attention in Triton: scores exist one tile at a time, in registers.
#
# Forward (FlashAttention-2, Dao, 2023). A program holds a tile of queries of one head and
# walks over the keys. Of each row it keeps the largest score so far, m, the sum l of
# 2^(score - m), and the sum of 2^(score - m) v; a larger score rescales both sums:
#
#     scores in base 2     1, 3 | 2, 5                   (two tiles of two keys)
#     after the 1st tile   m = 3   l = 2^-2 + 2^0 = 1.25
#     after the 2nd        m = 5   l = 1.25 * 2^(3 - 5) + 2^-3 + 2^0 = 1.4375
#     log-sum-exp          5 + log2(1.4375) = log2(2^1 + 2^3 + 2^2 + 2^5) = log2(46)
#
# Backward. With S = Q Kᵀ / sqrt(D), P = softmax(S) and dO, the gradient of O = P V:
#
#     dV = Pᵀ dO    dP = dO Vᵀ    dS = P * (dP - delta)    dQ = dS K / sqrt(D)    dK = dSᵀ Q / sqrt(D)
#
# where delta, (T,), is the row sum of P * dP, which equals that of O * dO. P is not kept:
# the log-sum-exp of its row gives it back from S in one step. Two kernels share the work,
# so that each owns the rows it sums and no sum depends on which program came first: one
# walks over the keys of a tile of queries (dQ, delta), one over the queries of a tile of
# keys (dK, dV). They compute S and dP twice: 7 matrix products for 5, and bitwise repeatable.
#
# Three rules. The scale goes, times log2(e), into the fp32 multiply-add that comes before
# exp2, where it is free, and never into a 16-bit q or k: rounding those once more costs 4 to
# 9 times the error of the gradients. All sums are fp32. A computed tile is never transposed
# on its way into a product, which some compilers get wrong for Hopper: dK and dV start from
# Sᵀ = K Qᵀ instead.

try:
    import triton
    import triton.language as tl
    from triton import jit
except ImportError:  # no Triton: the kernels below stay plain functions that nobody calls
    triton, jit = None, lambda function: function


@jit
def tile(x, row, stride, T, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CHECK: tl.constexpr):
    """Rows row .. row + ROWS of one head's (T, D) matrix as (ROWS, WIDTH), zeros outside of it.

    The row's offset is 64-bit and a scalar; those within the tile are 32-bit. WIDTH is D
    rounded up to a power of two. CHECK=False promises that all rows exist.
    """
    r, d = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    at = x + tl.cast(row, tl.int64) * stride + (r * stride + d)
    if WIDTH == D and not CHECK:
        return tl.load(at)
    return tl.load(at, mask=(d < D) & (row + r < T) if CHECK else d < D, other=0.0)


@jit
def put(x, row, values, stride, T, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """The reverse of `tile`, in x's dtype."""
    r, d = tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    at = x + tl.cast(row, tl.int64) * stride + (r * stride + d)
    tl.store(at, values.to(x.dtype.element_ty), mask=(row + r < T) & (d < D))


@jit
def partners(doc_start, doc_end, b, t0, T, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CAUSAL: tl.constexpr,
             DOCUMENTS: tl.constexpr, OF_KEYS: tl.constexpr):  # fmt: skip
    """Where the masks differ. Whom tokens t0 .. t0 + ROWS meet: (first, last, lo, begin, end, hi).

    The keys that a query sees are an interval [first, last), and so are the queries that
    see a key, because documents are intervals. Two documents and a token of padding, T = 6:

        token              0      1      2      3      4      5
        document         [0,3)  [0,3)  [0,3)  [3,5)  [3,5)  [0,0)
        query, causal    [0,1)  [0,2)  [0,3)  [3,4)  [3,5)  [0,0)    tokens 0 .. 2: [lo, hi) = [0,3), all see [0,1)
        key, causal      [0,3)  [1,3)  [2,3)  [3,5)  [4,5)  [5,0)    tokens 0 .. 2: [lo, hi) = [0,3), all see [2,3)

    [lo, hi) covers those of the whole tile. [begin, end), a whole number of tiles of COLUMNS
    (above 1) from lo, is what all of it sees. Only the edges need a mask, [lo, begin) and [end, hi).
    """
    t = t0 + tl.arange(0, ROWS)
    first, last, lo, hi = tl.zeros_like(t), tl.zeros_like(t) + T, 0, T
    if DOCUMENTS:
        first = tl.load(doc_start + b * T + t, mask=t < T, other=0)
        last = tl.load(doc_end + b * T + t, mask=t < T, other=0)
    if CAUSAL and OF_KEYS:  # the one comparison, key <= query, from either side
        first = tl.maximum(first, t)
    elif CAUSAL:
        last = tl.minimum(last, t + 1)
    if DOCUMENTS:  # who meets nobody has no say in these
        lo, hi = tl.min(tl.where(first < last, first, T)), tl.max(tl.where(first < last, last, 0))
        lo = lo // 16 * 16 if OF_KEYS else lo  # so that dkv's loads of lse and delta are aligned
    elif CAUSAL and OF_KEYS:
        lo = t0
    elif CAUSAL:
        hi = tl.minimum(t0 + ROWS, T)
    begin, end = lo, hi // COLUMNS * COLUMNS
    if DOCUMENTS or (CAUSAL and OF_KEYS):
        begin += tl.cdiv(tl.maximum(tl.minimum(tl.max(first), hi) - lo, 0), COLUMNS) * COLUMNS
    if DOCUMENTS or CAUSAL:
        end = begin + tl.maximum(tl.min(last) - begin, 0) // COLUMNS * COLUMNS
    return first, last, lo, begin, end, hi


@jit
def steps(lo, begin, end, hi, COLUMNS: tl.constexpr, MASKED: tl.constexpr):
    """The number of tiles from begin to end or, MASKED, of the edges."""
    return (begin - lo) // COLUMNS + tl.cdiv(hi - end, COLUMNS) if MASKED else (end - begin) // COLUMNS


@jit
def place(i, lo, begin, end, COLUMNS: tl.constexpr, MASKED: tl.constexpr):
    """The first token of the i-th of them."""
    return (tl.where(i < (begin - lo) // COLUMNS, lo, lo + end - begin) if MASKED else begin) + i * COLUMNS


@jit
def scores(rows, columns, c, first, last, FIRST: tl.constexpr, LAST: tl.constexpr):
    """rows (R, D) times columns (C, D) transposed: (R, C); -inf if FIRST and c + j < first, or LAST and c + j >= last."""
    s = tl.dot(rows, tl.trans(columns), input_precision="ieee")  # fp32 stays fp32; nothing to 16-bit
    j = c + tl.arange(0, columns.shape[0])[None, :]
    if FIRST and LAST:
        s = tl.where((j >= first[:, None]) & (j < last[:, None]), s, -float("inf"))
    elif FIRST:
        s = tl.where(j >= first[:, None], s, -float("inf"))
    elif LAST:
        s = tl.where(j < last[:, None], s, -float("inf"))
    return s


@jit
def forward_kernel(q, k, v, out, lse, doc_start, doc_end, T, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
                   H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
                   DOCUMENTS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """One tile of queries of one head: out (B, T, H, D) and lse (B, H, T), the log2 of the sum of exp(score).

    Grid (H, tiles, B): the heads of a group run side by side and share their keys in the
    cache, and all heads of a row come before the next row.
    """
    SCALE: tl.constexpr = 1.4426950408889634 * D**-0.5  # log2(e) / sqrt(D)
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(0).to(tl.int64)
    t0 = (tl.num_programs(1) - 1 - tl.program_id(1)) * QUERIES  # from the end: if causal, the longest first
    k += b * k_b + h // GROUP * k_h
    v += b * v_b + h // GROUP * v_h
    first, last, lo, begin, end, hi = partners(doc_start, doc_end, b, t0, T, QUERIES, KEYS, CAUSAL, DOCUMENTS, False)

    queries = tile(q + b * q_b + h * q_h, t0, q_t, T, QUERIES, D, WIDTH, True)
    acc, total = tl.zeros([QUERIES, WIDTH], tl.float32), tl.zeros([QUERIES], tl.float32)
    top = tl.full([QUERIES], -1e30, tl.float32)  # finite, so that a row that sees nothing makes no inf - inf
    for masked in tl.static_range(2):  # two loops, written once: what all see, then the edges
        tiles = steps(lo, begin, end, hi, KEYS, masked)
        for i in tl.range(tiles, num_stages=1 if masked and not DOCUMENTS else None):  # few edges: not pipelined
            n = place(i, lo, begin, end, KEYS, masked)
            keys = tile(k, n, k_t, T, KEYS, D, WIDTH, masked)
            s = scores(queries, keys, n, first, last, masked and DOCUMENTS, masked)  # (QUERIES, KEYS)
            higher = tl.maximum(top, tl.max(s, 1) * SCALE)
            p = tl.exp2(tl.fma(s, SCALE, -higher[:, None]))
            shrink = tl.exp2(top - higher)
            values = tile(v, n, v_t, T, KEYS, D, WIDTH, masked)
            acc = tl.dot(p.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
            total = total * shrink + tl.sum(p, 1)
            top = higher

    sees = first < last
    acc *= tl.where(sees, 1 / total, 0)[:, None]
    put(out + (b * T * H + h) * D, t0, acc, H * D, T, QUERIES, D, WIDTH)
    t = t0 + tl.arange(0, QUERIES)
    tl.store(lse + (b * H + h) * T + t, tl.where(sees, top + tl.log2(total), 0), mask=t < T)


@jit
def dq_kernel(q, k, v, out, lse, d_out, dq, delta, doc_start, doc_end, T,
              q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h,
              H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
              DOCUMENTS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """One tile of queries of one head: dq (B, T, H, D), and delta (B, H, T) for `dkv_kernel`. Grid as forward."""
    SCALE: tl.constexpr = 1.4426950408889634 * D**-0.5
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(0).to(tl.int64)
    t0 = (tl.num_programs(1) - 1 - tl.program_id(1)) * QUERIES
    t = t0 + tl.arange(0, QUERIES)
    k += b * k_b + h // GROUP * k_h
    v += b * v_b + h // GROUP * v_h
    own = (b * T * H + h) * D  # this head in the contiguous out and dq
    first, last, lo, begin, end, hi = partners(doc_start, doc_end, b, t0, T, QUERIES, KEYS, CAUSAL, DOCUMENTS, False)

    queries = tile(q + b * q_b + h * q_h, t0, q_t, T, QUERIES, D, WIDTH, True)
    d_o = tile(d_out + b * o_b + h * o_h, t0, o_t, T, QUERIES, D, WIDTH, True)
    o = tile(out + own, t0, H * D, T, QUERIES, D, WIDTH, True)
    row_lse = tl.load(lse + (b * H + h) * T + t, mask=t < T, other=0.0)
    row_delta = tl.sum(o.to(tl.float32) * d_o.to(tl.float32), 1)
    tl.store(delta + (b * H + h) * T + t, row_delta, mask=t < T)

    acc = tl.zeros([QUERIES, WIDTH], tl.float32)
    for masked in tl.static_range(2):
        tiles = steps(lo, begin, end, hi, KEYS, masked)
        for i in tl.range(tiles, num_stages=1 if masked and not DOCUMENTS else None):
            n = place(i, lo, begin, end, KEYS, masked)
            keys = tile(k, n, k_t, T, KEYS, D, WIDTH, masked)
            values = tile(v, n, v_t, T, KEYS, D, WIDTH, masked)
            s = scores(queries, keys, n, first, last, masked and DOCUMENTS, masked)
            p = tl.exp2(tl.fma(s, SCALE, -row_lse[:, None]))  # (QUERIES, KEYS)
            dp = tl.dot(d_o, tl.trans(values), input_precision="ieee")
            ds = p * (dp - row_delta[:, None])
            acc = tl.dot(ds.to(keys.dtype), keys, acc, input_precision="ieee")
    put(dq + own, t0, acc * D**-0.5, H * D, T, QUERIES, D, WIDTH)


@jit
def dkv_kernel(q, k, v, lse, d_out, delta, dk, dv, doc_start, doc_end, T,
               q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, o_b, o_t, o_h,
               H: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
               DOCUMENTS: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """One tile of keys of one key head: dk and dv (B, T, H_kv, D), summed over the group's query heads in order.

    Grid (H_kv, tiles, B), the longest first: if causal, the first keys, which every query sees.
    """
    SCALE: tl.constexpr = 1.4426950408889634 * D**-0.5
    b, g, t0 = tl.program_id(2).to(tl.int64), tl.program_id(0).to(tl.int64), tl.program_id(1) * KEYS
    first, last, lo, begin, end, hi = partners(doc_start, doc_end, b, t0, T, KEYS, QUERIES, CAUSAL, DOCUMENTS, True)
    keys = tile(k + b * k_b + g * k_h, t0, k_t, T, KEYS, D, WIDTH, True)
    values = tile(v + b * v_b + g * v_h, t0, v_t, T, KEYS, D, WIDTH, True)
    acc_k, acc_v = tl.zeros([KEYS, WIDTH], tl.float32), tl.zeros([KEYS, WIDTH], tl.float32)

    for member in range(GROUP):
        h = g * GROUP + member
        head_q, head_do, statistics = q + b * q_b + h * q_h, d_out + b * o_b + h * o_h, (b * H + h) * T
        for masked in tl.static_range(2):
            tiles = steps(lo, begin, end, hi, QUERIES, masked)
            for i in tl.range(tiles, num_stages=1 if masked and not DOCUMENTS else None):
                m = place(i, lo, begin, end, QUERIES, masked)
                t = m + tl.arange(0, QUERIES)  # queries past T are read as zeros and add nothing
                queries = tile(head_q, m, q_t, T, QUERIES, D, WIDTH, masked)
                d_o = tile(head_do, m, o_t, T, QUERIES, D, WIDTH, masked)
                row_lse = tl.load(lse + statistics + t, mask=t < T if masked else None, other=0.0 if masked else None)
                row_delta = tl.load(delta + statistics + t, mask=t < T if masked else None, other=0.0 if masked else None)
                s = scores(keys, queries, m, first, last, masked and (CAUSAL or DOCUMENTS), masked and DOCUMENTS)
                p = tl.exp2(tl.fma(s, SCALE, -row_lse[None, :]))  # (KEYS, QUERIES), as are dp and ds
                acc_v = tl.dot(p.to(d_o.dtype), d_o, acc_v, input_precision="ieee")
                dp = tl.dot(values, tl.trans(d_o), input_precision="ieee")
                ds = p * (dp - row_delta[None, :])
                acc_k = tl.dot(ds.to(queries.dtype), queries, acc_k, input_precision="ieee")

    own = (b * T * (H // GROUP) + g) * D
    put(dk + own, t0, acc_k * D**-0.5, H // GROUP * D, T, KEYS, D, WIDTH)
    put(dv + own, t0, acc_v, H // GROUP * D, T, KEYS, D, WIDTH)


KERNELS = {"forward": forward_kernel, "dq": dq_kernel, "dkv": dkv_kernel}

# Launch settings: (architecture, head dim) -> for the three kernels in turn, (queries in a tile, keys in a tile,
# warps, stages, and where two programs are to share a multiprocessor: registers of a thread). What is not listed, and
# the interpreter, take None's. The largest tiles that compile without spills: `python eval/bench.py kernels --aot`.
LAUNCH = {
    (90, 64): ((128, 64, 4, 3), (128, 64, 8, 2, 128), (64, 128, 8, 2)),
    (90, 128): ((128, 64, 8, 3), (128, 64, 8, 2), (32, 128, 8, 2)),
    (100, 64): ((128, 64, 4, 3), (128, 64, 8, 2), (64, 64, 8, 2)),
    (100, 128): ((128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 8, 1)),
    ("gfx9", 32): ((128, 64, 4, 2), (128, 64, 4, 2), (64, 128, 4, 2)),
    ("gfx9", 64): ((128, 64, 4, 2), (128, 64, 4, 2), (32, 64, 4, 2)),
    ("gfx9", 128): ((128, 64, 4, 2), (128, 32, 4, 2), (32, 64, 4, 1)),
    (None, 32): ((128, 64, 4, 3), (128, 64, 8, 2), (64, 128, 8, 2)),
    (None, 64): ((128, 64, 8, 2), (128, 64, 8, 2), (32, 128, 8, 2)),
    (None, 128): ((64, 32, 4, 2), (128, 32, 8, 2), (32, 64, 8, 2)),
    ("fp32", 32): ((32, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)),
    ("fp32", 64): ((32, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)),
    ("fp32", 128): ((32, 32, 8, 1), (16, 16, 8, 1), (16, 32, 8, 1)),
}


@lru_cache
def architecture(device):
    """90 for an H100 or H200, 80 for an A100, "gfx9" for AMD's CDNA; None for a CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return properties.gcnArchName[:4] if torch.version.hip else 10 * properties.major + properties.minor


def launch_settings(which, architecture, H, H_kv, D, dtype, causal, documents):
    """What a kernel is compiled with: its constants and launch settings, as keyword arguments."""
    WIDTH = max(32, triton.next_power_of_2(D))
    if dtype == torch.float32:
        architecture = "fp32"
    rows = LAUNCH[(architecture if (architecture, WIDTH) in LAUNCH else None), WIDTH]
    row = dict(zip(("QUERIES", "KEYS", "num_warps", "num_stages", "maxnreg"), rows[list(KERNELS).index(which)]))
    return dict(H=H, GROUP=H // H_kv, D=D, WIDTH=WIDTH, CAUSAL=causal, DOCUMENTS=documents) | row


def launch(which, q, k, v, causal, doc_start, doc_end, tensors, strided):
    """Run a kernel on `tensors`, followed by the bounds, T, the first three strides of `strided`, and its settings."""
    (B, T, H, D), H_kv = q.shape, k.shape[2]
    own = launch_settings(which, architecture(q.device), H, H_kv, D, q.dtype, causal, doc_start is not None)
    grid = (H_kv, triton.cdiv(T, own["KEYS"]), B) if which == "dkv" else (H, triton.cdiv(T, own["QUERIES"]), B)
    if doc_start is not None:
        doc_start, doc_end = doc_start.contiguous(), doc_end.contiguous()
    strides = [stride for x in strided for stride in x.stride()[:3]]
    with torch.cuda.device_of(q):
        KERNELS[which][grid](*tensors, doc_start, doc_end, T, *strides, **own)


def unit_stride(*tensors):
    """The kernels take any strides but in the last dimension, where they want 1."""
    return [x if x.stride(-1) == 1 else x.contiguous() for x in tensors]


def outputs(q):
    """Room for the output and the log-sum-exp of queries (B, T, H, D)."""
    return q.new_empty(q.shape), q.new_empty(q.shape[0], q.shape[2], q.shape[1], dtype=torch.float32)


# Two operators that torch.compile does not look into: it needs their shapes (register_fake)
# and the rule of differentiation (register_autograd).


@torch.library.custom_op("nanoencoder::attention", mutates_args=())
def fused_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool,
    doc_start: torch.Tensor | None, doc_end: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """As `attention`. Returns out (B, T, H, D) and the log-sum-exp of each row of scores, base 2, fp32 (B, H, T)."""
    q, k, v = unit_stride(q, k, v)
    out, lse = outputs(q)
    launch("forward", q, k, v, causal, doc_start, doc_end, (q, k, v, out, lse), (q, k, v))
    return out, lse


@torch.library.custom_op("nanoencoder::attention_backward", mutates_args=())
def fused_attention_backward(
    d_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor,
    causal: bool, doc_start: torch.Tensor | None, doc_end: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of q, k and v."""
    q, k, v, d_out = unit_stride(q, k, v, d_out)
    dq, dk, dv, delta = (*(x.new_empty(x.shape) for x in (q, k, v)), torch.empty_like(lse))
    rest = q, k, v, causal, doc_start, doc_end
    launch("dq", *rest, (q, k, v, out, lse, d_out, dq, delta), (q, k, v, d_out))
    launch("dkv", *rest, (q, k, v, lse, d_out, delta, dk, dv), (q, k, v, d_out))
    return dq, dk, dv


fused_attention.register_fake(lambda q, *_: outputs(q))
fused_attention_backward.register_fake(lambda d_out, *qkv_and_rest: [x.new_empty(x.shape) for x in qkv_and_rest[:3]])


def keep_for_backward(ctx, inputs, output):
    q, k, v, ctx.causal, doc_start, doc_end = inputs
    ctx.save_for_backward(q, k, v, *output, doc_start, doc_end)


def backward(ctx, d_out, d_lse):
    q, k, v, out, lse, doc_start, doc_end = ctx.saved_tensors
    dq, dk, dv = fused_attention_backward(d_out, q, k, v, out, lse, ctx.causal, doc_start, doc_end)
    return dq, dk, dv, None, None, None


fused_attention.register_autograd(backward, setup_context=keep_for_backward)
