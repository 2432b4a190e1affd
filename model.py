"""A Transformer for text with one set of weights and either attention mask.

`Transformer(config)(tokens, causal)` is a decoder when `causal` is True and an encoder when it is False. Nothing else
changes: the parameters, the rotary positions, the norms and the output head are the same. So a model can start with
causal language modeling (CLM), continue with masked language modeling (MLM) and end as an encoder.

The architecture is that of Llama and EuroBERT: pre-norm RMSNorm, rotary positions, grouped-query attention, SwiGLU,
no dropout. Three options serve other decoders: biases in attention (Qwen 2), norms of queries and keys (Qwen 3), and
scaled rotary frequencies (Llama 3.1).
"""

from __future__ import annotations  # the kernels' type hints must not need Triton

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint as recompute

# ----------------------------------------------------------------------------
# Configuration

MAX_LAYERS = 1000
MAX_WEIGHTS = 10**11
MAX_ROTARY = 2**29  # seq_len * head_dim; the rotary tables then take 3 GB


@dataclass
class ModelConfig:
    """The shape of a model. The defaults are the demo's."""

    vocab_size: int = 4096
    n_layer: int = 4
    n_head: int = 2  # query heads
    n_kv_head: int = 1  # key and value heads; each serves n_head / n_kv_head query heads
    d_model: int = 128
    d_ff: int = 320  # hidden width of the SwiGLU MLP
    seq_len: int = 128  # the longest input, in tokens
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = False  # True: the output head shares the embedding's weight
    qkv_bias: bool = False  # biases on the queries, keys and values, as in Qwen 2
    rope_scaling: tuple = ()  # as in Llama 3.1: (factor, low, high, context), see `rope_tables`
    head_dim: int = 0  # width of a head; 0 = d_model / n_head
    qk_norm: bool = False  # an RMSNorm for the queries and one for the keys, as in Qwen 3

    def __post_init__(self):
        if self.head_dim == 0 and self.n_head > 0 and self.d_model % self.n_head == 0:
            self.head_dim = self.d_model // self.n_head

    def problems(self):
        """Return what is wrong with this shape, as a list of sentences. Builds nothing."""
        found = []
        for name, value in vars(self).items():
            kind = type(getattr(ModelConfig, name))  # the default's type
            fits = type(value) is kind or (kind is float and type(value) is int)
            if not fits:
                found.append(f"{name}={value!r:.80}: must be of type {kind.__name__}")
            elif kind in (int, float) and name != "head_dim" and not 0 < value < 2**63:
                found.append(f"{name}={value!r:.80}: must be above 0 and below 2**63")
        if found:
            return found

        if self.head_dim <= 0 or self.head_dim % 2:
            shape = f"d_model={self.d_model}, n_head={self.n_head}, head_dim={self.head_dim}"
            found.append(f"{shape}: head_dim, by default d_model / n_head, must be an even integer above 0")
        if self.n_head % self.n_kv_head:
            found.append(f"n_head={self.n_head}, n_kv_head={self.n_kv_head}: n_head must be a multiple of n_kv_head")
        attention = 2 * (self.n_head + self.n_kv_head) * self.head_dim * self.d_model
        mlp = 3 * self.d_ff * self.d_model
        weights = self.n_layer * (attention + mlp) + self.vocab_size * self.d_model
        limits = [
            ("n_layer", self.n_layer, MAX_LAYERS),
            ("seq_len * head_dim", self.seq_len * self.head_dim, MAX_ROTARY),
            ("the number of weights", weights, MAX_WEIGHTS),
        ]
        for name, number, most in limits:
            if number > most:
                found.append(f"{name} is {number:,}: must be at most {most:,}")
        if self.rope_scaling:
            numbers = [x for x in self.rope_scaling if type(x) in (int, float) and 0 < x < 2**63]
            if len(self.rope_scaling) != 4 or len(numbers) != 4 or numbers[1] >= numbers[2]:
                found.append(f"rope_scaling={self.rope_scaling}: must be factor, low < high, context, all above 0")
        return found


# A small model for a CPU, and the three models of the paper (which have a vocabulary of 128,256).
PRESETS = {
    "demo": {},  # the defaults above
    "210m": dict(n_layer=12, n_head=12, n_kv_head=12, d_model=768, d_ff=3072, seq_len=2048),
    "610m": dict(n_layer=26, n_head=18, n_kv_head=6, d_model=1152, d_ff=4096, seq_len=2048),
    "1b": dict(n_layer=28, n_head=18, n_kv_head=6, d_model=1728, d_ff=5120, seq_len=2048),
}


# ----------------------------------------------------------------------------
# Attention


def attention_mask(T, causal, doc_start=None, doc_end=None, device=None):
    """Return which keys (columns) each query (row) may see: bool, (T, T), or (B, 1, T, T) with bounds.

    This mask is the whole difference between an encoder and a decoder. Fused attention has it built in. To try another
    mask, edit this function and give --attention=reference: "triton" never calls it, "sdpa" only with bounds.
    """
    t = torch.arange(T, device=device)
    if causal:
        see = t[None, :] <= t[:, None]
    else:
        see = torch.ones(T, T, dtype=torch.bool, device=device)
    if doc_start is None:
        return see
    inside = (t >= doc_start[..., None]) & (t < doc_end[..., None])  # (B, T, T)
    return (see & inside)[:, None]


def why_not_triton(device_type, D, dtype):
    """Return why the fused kernels cannot run here, or "" if they can."""
    if triton is None:
        return "Triton is not installed"
    if D not in (32, 64, 96, 128):
        return f"head dim {D} is not 32, 64, 96 or 128"
    if dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return f"{dtype} is not bfloat16, float16 or float32"
    if triton.knobs.runtime.interpret and dtype == torch.bfloat16:
        return "Triton's interpreter computes bfloat16 wrongly: give --dtype=float32"
    if device_type != "cuda" and not triton.knobs.runtime.interpret:
        return f"device {device_type}: the kernels need a GPU, or TRITON_INTERPRET=1 set before Python starts"
    return ""


def resolve_backend(device_type, T, D, dtype):
    """Return the attention backend that "auto" stands for, for rows of T tokens and head dim D."""
    if device_type == "cuda":
        return "sdpa" if why_not_triton(device_type, D, dtype) else "triton"
    if device_type == "cpu" and dtype.itemsize == 2 and T <= 256:
        return "reference"  # 2 to 4 times as fast there
    return "sdpa"


def attention_bounds(causal, doc_start, doc_end):
    """Return the bounds that the fused kernels need, four int32 (B, T), or [] if doc_start is None.

    The first two say which keys a query sees: doc_start and doc_end (see `attention`) with the causal mask built in.
    Neither decreases along a row, so the queries that see a key are an interval, too. The last two are its bounds.
    For example, in a prefix LM whose prefix has three tokens:

        keys that a query sees      [0,3)  [0,3)  [0,3)  [0,4)  [0,5)
        queries that see a key      [0,5)  [0,5)  [0,5)  [3,5)  [4,5)

    Raises RuntimeError if a bound decreases. On a GPU, for which this does not wait, the error comes later, as a
    device-side assertion.
    """
    if doc_start is None:
        return []
    T = doc_start.shape[1]
    start, end = (x.clamp(0, T).int().contiguous() for x in (doc_start, doc_end))
    t = torch.arange(T, dtype=torch.int32, device=start.device)
    if causal:
        end = end.minimum(t + 1)
    fits = (start.diff() >= 0).all() & (end.diff() >= 0).all()
    torch._assert_async(fits, "attention backend 'triton': doc_start and doc_end must not decrease along a row")
    keys = t.expand_as(start).contiguous()
    first = torch.searchsorted(end, keys, right=True, out_int32=True)  # the first query with end > key
    last = torch.searchsorted(start, keys, right=True, out_int32=True)  # the first query with start > key
    n = (start < end[:, -1:]).sum(1, keepdim=True, dtype=torch.int32)  # (B, 1): from here on, queries see nothing
    return [start, end, first.minimum(n), last.minimum(n)]


def attention(q, k, v, causal, doc_start=None, doc_end=None, backend="auto", bounds=None):
    """Compute softmax(q kᵀ / sqrt(D)) v with grouped heads, a causal or full mask, and bounds for each token.

    q: (B, T, H, D). k, v: (B, T, H_kv, D), where H is a multiple of H_kv: query head h reads key head h // (H / H_kv).
    doc_start, doc_end: int32 (B, T), or None if each row is one document. Token t sees the keys in
        [doc_start[t], doc_end[t]), and of those only the ones up to t if causal. Neither may decrease along a row.
        A token with an empty interval, such as padding, has an output of 0. For padding, set both bounds to the end
        of the document before it. The bounds express documents, a prefix LM (causal=False, doc_end[t] = max(end of
        the prefix, t + 1)) and sliding windows (t - w, t + w + 1). The kernels skip what no token of a block sees.
    backend: "triton" is the fused kernels at the end of this file. "sdpa" is PyTorch's fused attention.
        "reference" is the formula in plain PyTorch, in q's dtype. "auto" is one of them, see `resolve_backend`.
    bounds: what `attention_bounds(causal, doc_start, doc_end)` returns, if the caller shares it between layers.

    Returns (B, T, H, D) in q's dtype.
    """
    T, H, D = q.shape[1:]
    if backend == "auto":
        backend = resolve_backend(q.device.type, T, D, q.dtype)
    if backend not in ("triton", "sdpa", "reference"):
        raise ValueError(f"attention backend {backend!r}: expected 'auto', 'triton', 'sdpa' or 'reference'")
    if backend == "triton":
        if why := why_not_triton(q.device.type, D, q.dtype):
            raise ValueError(f"attention backend 'triton': {why}")
        if T * H * D >= 2**31:  # the kernels' offsets within a row of tokens have 32 bits
            raise ValueError("attention backend 'triton': T * H * D must be below 2**31. Use 'sdpa' instead")
        v = v.contiguous()  # as a view, it would keep all of the packed projection in memory until the backward pass
        if bounds is None:
            bounds = attention_bounds(causal, doc_start, doc_end)
        return fused_attention(q, k, v, causal, bounds)[0]

    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
    group = H // k.shape[1]
    if group > 1:  # enable_gqa=True would change the gradients' last bits on a CPU, and keep all scores on a GPU
        k = k.repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
    bias = None  # added to the scores: 0 where a query may look, a large negative number elsewhere
    if backend == "reference" or doc_start is not None:
        see = attention_mask(T, causal, doc_start, doc_end, q.device)  # (T, T) or (B, 1, T, T)
        bias = torch.where(see, q.new_zeros(()), torch.finfo(q.dtype).min / 2)
    if backend == "reference":
        scores = torch.add(bias, q @ k.transpose(-1, -2), alpha=D**-0.5)  # (B, H, T, T): q kᵀ / sqrt(D) + bias
        out = scores.softmax(-1) @ v
    else:
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal and bias is None)
    if bias is not None:  # the softmax of a token that sees nothing, such as padding, is meaningless
        out = out.masked_fill(~see.any(-1, keepdim=True), 0)
    return out.transpose(1, 2)  # (B, T, H, D)


# ----------------------------------------------------------------------------
# Layers. Weights are fp32; activations have the model's compute_dtype.


class Linear(nn.Linear):
    """A linear layer, by default without bias, whose weights are cast to the dtype of the input."""

    def __init__(self, d_in, d_out, bias=False):
        super().__init__(d_in, d_out, bias)

    def forward(self, x):
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class RMSNorm(nn.RMSNorm):
    """Compute x / sqrt(mean(x²) + eps) * weight in fp32 (Zhang and Sennrich, 2019)."""

    def forward(self, x):
        return super().forward(x.float()).to(x.dtype)


def rope_tables(seq_len, head_dim, theta, scaling=()):
    """Return cos, (seq_len, 1, 1, D/2), and (-sin, sin), (seq_len, 1, 2, D/2), of position * theta^(-2i / D) in fp32.

    scaling: as in Llama 3.1. Pairs that turn fewer than `low` times in `context` tokens turn `factor` times
        slower, those that turn more than `high` times are left alone, and those in between are interpolated.
    """
    i = torch.arange(0, head_dim, 2, device="cpu").float()
    frequency = theta ** (-i / head_dim)
    if scaling:
        factor, low, high, context = scaling
        turns = frequency * context / (2 * torch.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)  # 1 = leave alone
        frequency = frequency * (kept + (1 - kept) / factor)
    position = torch.arange(seq_len, device="cpu").float()
    angle = torch.outer(position, frequency)[:, None, None]  # (seq_len, 1, 1, D/2)
    sin = angle.sin()
    return angle.cos(), torch.cat((-sin, sin), dim=2)


def rotate(x, cos, sin):
    """Apply rotary positions (Su et al., 2021) in fp32. x: (B, T, H, D). cos, sin: from `rope_tables`.

    Each pair (a, b) = (x[i], x[i + D/2]) is rotated to (a cos - b sin, b cos + a sin), by an angle that is
    proportional to the position. So the product of a query and a key depends only on their distance.
    """
    pair = x.float().unflatten(-1, (2, -1))  # (B, T, H, 2, D / 2)
    return (pair * cos + pair.flip(-2) * sin).flatten(-2).to(x.dtype)


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self, config):
        super().__init__()
        d, D, eps = config.d_model, config.head_dim, config.norm_eps
        self.heads = (config.n_head, config.n_kv_head, config.n_kv_head)  # of q, k and v
        self.attn_norm = RMSNorm(d, eps)
        self.qkv = Linear(d, sum(self.heads) * D, config.qkv_bias)
        self.q_norm = RMSNorm(D, eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(D, eps) if config.qk_norm else nn.Identity()
        self.attn_out = Linear(config.n_head * D, d)
        self.mlp_norm = RMSNorm(d, eps)
        self.gate_up = Linear(d, 2 * config.d_ff)
        self.down = Linear(config.d_ff, d)

    def forward(self, x, cos, sin, *mask):
        """x: (B, T, d_model). cos, sin: rows of `rope_tables`. mask: the arguments of `attention` from `causal` on."""
        qkv = self.qkv(self.attn_norm(x)).unflatten(-1, (sum(self.heads), -1))  # (B, T, H + 2 H_kv, D)
        q, k, v = qkv.split(self.heads, dim=2)
        q = rotate(self.q_norm(q), cos, sin)
        k = rotate(self.k_norm(k), cos, sin)
        y = attention(q, k, v, *mask)  # (B, T, H, D)
        x = x + self.attn_out(y.flatten(2))

        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)  # (B, T, d_ff) each
        return x + self.down(F.silu(gate) * up)


# ----------------------------------------------------------------------------
# The model


class Transformer(nn.Module):
    """tokens (B, T) -> hidden states (B, T, d_model). `logits` maps those to the vocabulary.

    The weights are fp32. Three attributes may be changed at any time: `compute_dtype` is the dtype of activations and
    matrix products. `recompute` runs each block's forward pass again in the backward pass instead of keeping its
    activations: a third more compute, far less memory. `attention_backend` is passed to `attention`.
    """

    def __init__(self, config):
        super().__init__()
        if problems := config.problems():
            raise ValueError("ModelConfig: " + "; ".join(problems))
        self.config = config
        self.compute_dtype = torch.float32
        self.recompute = False
        self.attention_backend = "auto"
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
            if p.is_meta or p.min() == p.max():  # on the meta device, or constant, such as the weight of a norm
                continue
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, causal, doc_start=None, doc_end=None):
        """tokens: int64 (B, T), T <= seq_len. causal: True for a decoder, False for an encoder.
        doc_start, doc_end: see `attention`. Returns (B, T, d_model) in `compute_dtype`.
        """
        T = tokens.shape[1]
        if T > self.config.seq_len:
            raise ValueError(f"{T} tokens in a row, but this model's seq_len is {self.config.seq_len}")
        backend = self.attention_backend
        if backend == "auto":
            backend = resolve_backend(tokens.device.type, T, self.config.head_dim, self.compute_dtype)
        bounds = attention_bounds(causal, doc_start, doc_end) if backend == "triton" else None  # once for all layers
        args = (self.cos[:T], self.sin[:T], causal, doc_start, doc_end, backend, bounds)
        x = self.embedding(tokens).to(self.compute_dtype)  # (B, T, d_model)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x = recompute(block, x, *args, use_reentrant=False)
            else:
                x = block(x, *args)
        return self.norm(x)

    def logits(self, hidden):
        """Map hidden states (..., d_model) to logits (..., vocab_size).

        The fused loss reads head.weight and skips this. If you edit it, for a soft cap say, train with --loss=plain.
        """
        return self.head(hidden)

    @property
    def device(self):
        return self.embedding.weight.device


# ----------------------------------------------------------------------------
# Loss


def loss_and_gradient(logits, targets, weights, with_grad):
    """Return the summed cross entropy in fp32 and its gradient with respect to the logits, or None.

    logits: (n, V). targets: int64 (n,), negative where nothing is predicted. weights: (n,), 0 there. Works in place,
    because the logits are the largest tensor of a training step. Compiled, their fp32 copy never gets into memory. To
    train another loss, edit `plain_loss` instead, for which autograd computes the gradient.
    """
    target, weight = targets.clamp(min=0)[:, None], weights[:, None]  # (n, 1), as are all tensors but x and gradient
    x = logits.to(torch.float32, copy=torch.compiler.is_compiling())
    at_target = x.gather(1, target)
    largest = x.amax(-1, keepdim=True)
    sum_exp = x.sub_(largest).exp_().sum(-1, keepdim=True)
    losses = sum_exp.log() + largest - at_target
    loss = (losses * weight).sum()
    if not with_grad:
        return loss, None
    scale = weight / sum_exp
    gradient = x.mul_(scale).to(logits.dtype)  # softmax - onehot, except at the target, which comes next
    entry = (at_target - largest).exp() * scale - weight.float()
    row = torch.arange(len(x), device=x.device)[:, None]
    return loss, gradient.index_put_((row, target), entry.to(logits.dtype))


@lru_cache
def adds_in_fp32(device, dtype):
    """Return whether one kernel can add a matrix product in this dtype to an fp32 matrix. Tries it."""
    x = torch.ones(16, 16, device=device)
    try:
        torch.addmm(x, x.to(dtype), x.to(dtype), out_dtype=x.dtype, out=x)
    except (RuntimeError, TypeError):  # on a CPU, for example
        return False
    return x.eq(17).all().item()


class LinearCrossEntropy(torch.autograd.Function):
    """The summed cross entropy of softmax(hidden weightᵀ), with chunk x V logits in memory at a time, not N x V.

    The forward pass also computes the gradients of hidden and weight, while a chunk's logits are there.
    The idea is Liger-Kernel's (Hsu et al., 2024).
    """

    @staticmethod
    def forward(ctx, hidden, weight, targets, weights, chunk, with_grad, loss_and_gradient):
        w = weight.to(hidden.dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        d_hidden = torch.empty_like(hidden) if with_grad else None
        d_weight = torch.zeros_like(weight) if with_grad else None
        for i in range(0, len(hidden), chunk):
            rows = slice(i, i + chunk)
            h = hidden[rows]  # (n, d)
            loss, d_logits = loss_and_gradient(h @ w.T, targets[rows], weights[rows], with_grad)  # d_logits: (n, V)
            total += loss
            if not with_grad:
                continue
            d_hidden[rows] = d_logits @ w
            if adds_in_fp32(h.device, h.dtype):  # saves time and a rounding to 16 bits
                torch.addmm(d_weight, d_logits.T, h, out_dtype=d_weight.dtype, out=d_weight)
            else:
                d_weight += d_logits.T @ h
        ctx.save_for_backward(d_hidden, d_weight)
        return total

    @staticmethod
    def backward(ctx, d_total):
        d_hidden, d_weight = ctx.saved_tensors
        # In place, because d_weight is large. So PyTorch refuses a second backward pass of the same loss.
        return d_hidden.mul_(d_total), d_weight.mul_(d_total), *[None] * 5


def linear_cross_entropy(hidden, weight, targets, weights=None, loss_and_gradient=loss_and_gradient):
    """Return the fp32 cross entropy in nats, summed over the predicted tokens.

    hidden: (N, d). weight: (V, d). targets: int64 (N,), negative where nothing is predicted. weights: (N,), the
    weight of each token in the sum, 0 where nothing is predicted; None: each predicted token counts 1.
    """
    if weights is None:
        weights = targets >= 0
    N, V = len(hidden), len(weight)
    chunk = max(64, 2**21 // V // 64 * 64)  # rows with about 2 million logits, which fit a CPU's cache
    if hidden.is_cuda:  # equal chunks of at most 2^30 logits (2.1 GB in 16 bits), or 1/32 of a smaller GPU's memory
        memory = torch.cuda.get_device_properties(hidden.device).total_memory
        largest = min(2**30, memory // 64) // V
        n_chunks = max(1, -(-N // largest))
        chunk = max(1, -(-N // n_chunks))  # 32,768 rows x 128,256 on 80 GB: 4 chunks of 8,192
    return LinearCrossEntropy.apply(hidden, weight, targets, weights, chunk, torch.is_grad_enabled(), loss_and_gradient)


def cross_entropy(logits, targets):
    """Return the cross entropy of each row of logits (n, V), fp32. targets: int64 (n,), -1 where none is predicted."""
    return F.cross_entropy(logits, targets, ignore_index=-1, reduction="none")


def plain_loss(logits, targets):
    """Return the training loss of each row with --loss=plain, fp32 (n,). Edit this to train another one.

    Autograd does the rest. Rows without a target do not count. Validation always uses `cross_entropy`.
    """
    return cross_entropy(logits, targets)


def plain_cross_entropy(hidden, logits_of, targets, weights, loss, chunk=1024):
    """Sum a loss over chunks of rows. Their logits are computed again in the backward pass instead of being kept.

    hidden: (N, d). logits_of: maps (n, d) to (n, V). targets: int64 (N,). weights: (N,). Returns fp32 ().
    """

    def loss_of(hidden, targets, weights):
        losses = loss(logits_of(hidden).float(), targets)
        if losses.shape != targets.shape:
            raise ValueError(f"plain_loss returned {tuple(losses.shape)}: expected {len(targets)} losses, one per row")
        return (losses * weights).sum()

    chunks = zip(hidden.split(chunk), targets.split(chunk), weights.split(chunk))
    return sum(recompute(loss_of, *rows, use_reentrant=False) for rows in chunks)


class PretrainingLoss(nn.Module):
    """batch -> (sum of losses, number of predicted tokens). This is the module that DDP wraps.

    Divide the sum by the number in the whole step, over all micro-batches and processes.

    batch: a dict with `tokens` (B, T), `positions` (N,) in the flattened batch, `targets` (N,), and, where rows
        hold several documents, `doc_start` and `doc_end` (B, T). With `weights` (N,), 0 where nothing is predicted,
        the losses are weighted, and the second value is the sum of the weights.

    CLM and MLM share this code. They differ in the mask (`causal`), in `positions` and `targets` (which tokens are
    predicted, and from where), and in what `tokens` shows there.
    """

    def __init__(self, model, plain=False):
        super().__init__()
        self.model = model
        self.plain = plain  # train `plain_loss` of `Transformer.logits`
        self.loss_and_gradient = loss_and_gradient

    def forward(self, batch, causal):
        hidden = self.model(batch["tokens"], causal, batch.get("doc_start"), batch.get("doc_end"))
        predicted = hidden.flatten(0, 1)[batch["positions"]]  # (N, d): the head runs on these only
        targets = batch["targets"]
        weights = batch.get("weights", targets >= 0)
        if self.plain:
            loss = plain_loss if torch.is_grad_enabled() else cross_entropy
            total = plain_cross_entropy(predicted, self.model.logits, targets, weights, loss)
        else:
            total = linear_cross_entropy(predicted, self.model.head.weight, targets, weights, self.loss_and_gradient)
        return total, weights.sum()

    def compile_parts(self):
        """Compile each block and the loss of a chunk, in place. The names of the weights stay the same.

        All blocks share one compilation per mask and shape. DDP still communicates during the backward pass. Do not
        compile the whole module instead: torch 2.11 compiles LinearCrossEntropy to a function whose gradients are 0.
        """
        torch.compiler.assume_constant_result(why_not_triton)  # it is called once, while a block is traced
        torch._dynamo.config.optimize_ddp = False  # or DDP would split each block's graph at its buckets
        torch._dynamo.config.recompile_limit = 64  # shapes: full and last micro-batches of each objective
        for block in self.model.blocks:
            block.compile(dynamic=False, fullgraph=True)
        self.loss_and_gradient = torch.compile(loss_and_gradient, dynamic=False, fullgraph=True)


# ----------------------------------------------------------------------------
# Fused attention in Triton. The scores exist one block at a time, in registers.
#
# Forward (FlashAttention-2, Dao, 2023). A program holds a block of queries of one head and loops over blocks of
# keys. For each query it keeps m, the largest score so far, l, the sum of 2^(score - m), and acc, the sum of
# 2^(score - m) v. When m grows, alpha = 2^(old m - new m) rescales both sums. For example:
#
#     scores in base 2       1, 3 | 2, 5                   (two blocks of two keys)
#     after the 1st block    m = 3   l = 2^-2 + 2^0 = 1.25
#     after the 2nd block    m = 5   l = 1.25 * 2^(3 - 5) + 2^-3 + 2^0 = 1.4375
#     log-sum-exp            5 + log2(1.4375) = log2(2^1 + 2^3 + 2^2 + 2^5) = log2(46)
#
# Backward. With S = Q Kᵀ / sqrt(D), P = softmax(S), O = P V and dO, the gradient of O:
#
#     dV = Pᵀ dO    dP = dO Vᵀ    dS = P * (dP - delta)    dQ = dS K / sqrt(D)    dK = dSᵀ Q / sqrt(D)
#
# where delta, (T,), is the row sum of P * dP, which equals the row sum of O * dO. P is not stored but recomputed from S
# and the log-sum-exp of its rows. There are two kernels: dq_kernel holds a block of queries and loops over keys
# (dQ, delta), dkv_kernel holds a block of keys and loops over queries (dK, dV). Each program owns the rows that it
# sums, so results are bitwise repeatable. The price is that both compute S and dP: 7 matrix products instead of 5.
#
# Two rules. The scale, times log2(e), goes into the fp32 multiply-add before exp2, where it costs nothing. Scaling
# a 16-bit q or k would round it once more and make the gradients' error 4 to 9 times as large. And a computed block
# is never transposed on its way into a product, which some compilers get wrong on Hopper: dK and dV start from K Qᵀ.

try:
    import triton
    import triton.language as tl
    from triton import jit
except ImportError:  # without Triton the kernels below are plain functions that nobody calls
    triton, jit = None, lambda function: function


@jit
def load_columns(x, start, T, BLOCK: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, CHECK: tl.constexpr):
    """Load rows start .. start + BLOCK of a (T, WIDTH) matrix whose rows lie STRIDE apart, see `load_block`.

    The offset from x has 32 bits. With a 64-bit part, the compiler would keep the addresses of all of a thread's loads
    in registers, up to 39 more, and advance each of them in every iteration.
    """
    r = tl.arange(0, BLOCK)[:, None]
    d = tl.arange(0, WIDTH)[None, :]
    ptrs = x + ((start + r) * STRIDE + d)
    if CHECK:
        return tl.load(ptrs, mask=start + r < T, other=0.0)
    else:
        return tl.load(ptrs)


@jit
def load_block(x, start, T, BLOCK: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, CHECK: tl.constexpr):
    """Load rows start .. start + BLOCK of one head's (T, D) matrix, with zeros in rows past T.

    Returns a tuple of one block (BLOCK, D) or, if D = 96, of two, with 64 and 32 columns: a width must be a power of
    two. x: where the matrix begins in a tensor (B, T, HEADS, D). CHECK=False promises that all rows exist.
    """
    first = load_columns(x, start, T, BLOCK, 64 if D == 96 else D, HEADS * D, CHECK)
    if D == 96:
        return first, load_columns(x + 64, start, T, BLOCK, 32, HEADS * D, CHECK)
    else:
        return (first,)


@jit
def store_block(x, start, block, scale, T, HEADS: tl.constexpr, D: tl.constexpr):
    """Store scale * block, a tuple as `load_block` returns, in rows start .. start + BLOCK of x, in x's dtype."""
    for i in tl.static_range(len(block)):
        values = block[i] * scale
        r = tl.arange(0, values.shape[0])[:, None]
        d = 64 * i + tl.arange(0, values.shape[1])[None, :]
        ptrs = x + start * (HEADS * D) + (r * (HEADS * D) + d)
        # Not start + r < T as in `load_columns`: the compiler would keep these sums in registers during the loops.
        tl.store(ptrs, values.to(x.dtype.element_ty), mask=r < T - start)


@jit
def dot_columns(a, b):
    """Return a bᵀ (R, C) of blocks (R, D) and (C, D). "ieee": no tf32 for fp32 inputs."""
    s = tl.dot(a[0], tl.trans(b[0]), input_precision="ieee")
    if len(a) == 2:
        s = tl.dot(a[1], tl.trans(b[1]), s, input_precision="ieee")
    return s


@jit
def add_dot(acc, p, x):
    """Return acc + p x of p (R, C) and blocks acc (R, D) and x (C, D)."""
    p = p.to(x[0].dtype)
    first = tl.dot(p, x[0], acc[0], input_precision="ieee")
    if len(x) == 2:
        return first, tl.dot(p, x[1], acc[1], input_precision="ieee")
    else:
        return (first,)


@jit
def mask_bounds(doc_start, doc_end, b, start, T, BLOCK: tl.constexpr, STEP: tl.constexpr, CAUSAL: tl.constexpr,
                DOCUMENTS: tl.constexpr, FOR_KEYS: tl.constexpr):  # fmt: skip
    """Return (first, last, lo, begin, end, hi), which say where the mask of tokens start .. start + BLOCK lies.

    Each query sees the keys of an interval [first, last). Each key is seen by the queries of an interval (FOR_KEYS:
    doc_start and doc_end are then the second half of `attention_bounds`). Neither end decreases along a row, so the
    first and the last token of a block determine the rest. For two documents and a padding token, T = 6:

        token              0      1      2      3      4      5
        document         [0,3)  [0,3)  [0,3)  [3,5)  [3,5)  [5,5)
        query, causal    [0,1)  [0,2)  [0,3)  [3,4)  [3,5)  [5,5)    tokens 0 .. 2: [lo, hi) = [0,3), all see [0,1)
        key, causal      [0,3)  [1,3)  [2,3)  [3,5)  [4,5)  [5,5)    tokens 0 .. 2: [lo, hi) = [0,3), all see [2,3)

    [lo, hi) covers the intervals of all BLOCK tokens. [begin, end) lies inside each of them, and begins and ends a
    multiple of STEP after lo (STEP = 1 in the example). Only the edges, [lo, begin) and [end, hi), need a mask.
    """
    t = start + tl.arange(0, BLOCK)
    final = tl.minimum(start + BLOCK, T) - 1  # the last token of the block
    first, last = tl.zeros_like(t), tl.zeros_like(t) + T
    lo, begin, end, hi = 0, 0, T, T  # lo and end are bounds of the first token, begin and hi of the final one
    if DOCUMENTS:
        doc_start += b * T
        doc_end += b * T
        first = tl.load(doc_start + t, mask=t < T, other=0)
        last = tl.load(doc_end + t, mask=t < T, other=0)
        lo, begin = tl.load(doc_start + start), tl.load(doc_start + final)
        end, hi = tl.load(doc_end + start), tl.load(doc_end + final)
    elif CAUSAL and FOR_KEYS:  # key <= query, seen from the key
        first = t
        lo, begin = start, final
    elif CAUSAL:  # and seen from the query
        last = t + 1
        end, hi = start + 1, final + 1
    if DOCUMENTS and FOR_KEYS:
        lo = lo // 16 * 16  # aligns dkv_kernel's loads of lse and delta
    begin = lo + tl.cdiv(begin - lo, STEP) * STEP
    if CAUSAL or DOCUMENTS:
        end = tl.maximum(begin, end)
    end = begin + (end - begin) // STEP * STEP
    return first, last, lo, begin, end, hi


@jit
def num_blocks(lo, begin, end, hi, STEP: tl.constexpr, MASKED: tl.constexpr):
    """Return how many blocks of STEP tokens lie between begin and end or, if MASKED, at the two edges."""
    if not MASKED:
        return (end - begin) // STEP
    return (begin - lo) // STEP + tl.cdiv(hi - end, STEP)


@jit
def block_start(i, lo, begin, end, STEP: tl.constexpr, MASKED: tl.constexpr):
    """Return the first token of the i-th block that `num_blocks` counts."""
    if not MASKED:
        return begin + i * STEP
    start = lo + i * STEP
    return tl.where(start < begin, start, start + end - begin)


@jit
def masked_scores(rows, cols, start, first, last, CHECK_FIRST: tl.constexpr, CHECK_LAST: tl.constexpr):
    """Return rows (R, D) times cols (C, D) transposed, -inf where column start + j is outside of [first, last)."""
    s = dot_columns(rows, cols)  # (R, C)
    j = start + tl.arange(0, s.shape[1])[None, :]
    if CHECK_FIRST:
        s = tl.where(j >= first[:, None], s, -float("inf"))
    if CHECK_LAST:
        s = tl.where(j < last[:, None], s, -float("inf"))
    return s


@jit
def forward_kernel(
    q, k, v, out, lse,
    doc_start, doc_end, T,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr,  # query heads, key heads, width of a head
    CAUSAL: tl.constexpr, DOCUMENTS: tl.constexpr,  # the mask; bounds have the causal one built in
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # queries and keys of a block
):  # fmt: skip
    """Compute out (B, T, H, D) and lse (B, H, T), the log2 of the sum of exp(score), for BLOCK_M queries of one head.

    Grid (H, blocks of queries, B). The heads of a group run side by side and share their keys in the cache.
    """
    SCALE: tl.constexpr = 1.4426950408889634 * D**-0.5  # log2(e) / sqrt(D)
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(0).to(tl.int64)
    start_m = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M  # last block first: if causal, it takes longest
    head = (b * T * H + h) * D  # of q and out
    kv_head = (b * T * H_KV + h // (H // H_KV)) * D
    first, last, lo, begin, end, hi = mask_bounds(
        doc_start, doc_end, b, start_m, T, BLOCK_M, BLOCK_N, CAUSAL, DOCUMENTS, FOR_KEYS=False
    )
    q_block = load_block(q + head, start_m, T, BLOCK_M, H, D, True)
    acc = [tl.zeros(columns.shape, tl.float32) for columns in q_block]
    l_i = tl.zeros([BLOCK_M], tl.float32)
    m_i = tl.full([BLOCK_M], -1e30, tl.float32)  # finite, because inf - inf would be NaN in a row that sees nothing
    for MASKED in tl.static_range(2):  # two loops, written once: what all queries see, then the edges
        n_blocks = num_blocks(lo, begin, end, hi, BLOCK_N, MASKED)
        for i in tl.range(n_blocks, num_stages=1 if MASKED and not DOCUMENTS else None):  # few edges: no pipeline
            start_n = block_start(i, lo, begin, end, BLOCK_N, MASKED)
            k_block = load_block(k + kv_head, start_n, T, BLOCK_N, H_KV, D, MASKED)
            s = masked_scores(q_block, k_block, start_n, first, last, MASKED and DOCUMENTS, MASKED)
            m_ij = tl.maximum(m_i, tl.max(s, 1) * SCALE)
            p = tl.exp2(tl.fma(s, SCALE, -m_ij[:, None]))  # (BLOCK_M, BLOCK_N), like s
            alpha = tl.exp2(m_i - m_ij)
            v_block = load_block(v + kv_head, start_n, T, BLOCK_N, H_KV, D, MASKED)
            acc = [x * alpha[:, None] for x in acc]
            acc = add_dot(acc, p, v_block)
            l_i = l_i * alpha + tl.sum(p, 1)
            m_i = m_ij

    sees = l_i > 0
    scale = tl.where(sees, 1 / l_i, 0)
    store_block(out + head, start_m, acc, scale[:, None], T, H, D)
    offs_m = start_m + tl.arange(0, BLOCK_M)
    tl.store(lse + (b * H + h) * T + offs_m, tl.where(sees, m_i + tl.log2(l_i), 0), mask=offs_m < T)


@jit
def dq_kernel(
    q, k, v, out, lse, d_out, dq, delta,
    doc_start, doc_end, T,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr,  # query heads, key heads, width of a head
    CAUSAL: tl.constexpr, DOCUMENTS: tl.constexpr,  # the mask; bounds have the causal one built in
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # queries and keys of a block
):  # fmt: skip
    """Compute dq (B, T, H, D), and delta (B, H, T) for `dkv_kernel`, for BLOCK_M queries of one head.

    The grid is that of `forward_kernel`.
    """
    SCALE: tl.constexpr = 1.4426950408889634 * D**-0.5
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(0).to(tl.int64)
    start_m = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    head = (b * T * H + h) * D
    kv_head = (b * T * H_KV + h // (H // H_KV)) * D
    first, last, lo, begin, end, hi = mask_bounds(
        doc_start, doc_end, b, start_m, T, BLOCK_M, BLOCK_N, CAUSAL, DOCUMENTS, FOR_KEYS=False
    )
    q_block = load_block(q + head, start_m, T, BLOCK_M, H, D, True)
    do_block = load_block(d_out + head, start_m, T, BLOCK_M, H, D, True)
    o_block = load_block(out + head, start_m, T, BLOCK_M, H, D, True)
    row = (b * H + h) * T
    lse_i = tl.load(lse + row + offs_m, mask=offs_m < T, other=0.0)
    delta_i = tl.zeros([BLOCK_M], tl.float32)
    for i in tl.static_range(len(o_block)):
        delta_i += tl.sum(o_block[i].to(tl.float32) * do_block[i].to(tl.float32), 1)
    tl.store(delta + row + offs_m, delta_i, mask=offs_m < T)

    acc = [tl.zeros(columns.shape, tl.float32) for columns in q_block]
    for MASKED in tl.static_range(2):
        n_blocks = num_blocks(lo, begin, end, hi, BLOCK_N, MASKED)
        for i in tl.range(n_blocks, num_stages=1 if MASKED and not DOCUMENTS else None):
            start_n = block_start(i, lo, begin, end, BLOCK_N, MASKED)
            k_block = load_block(k + kv_head, start_n, T, BLOCK_N, H_KV, D, MASKED)
            v_block = load_block(v + kv_head, start_n, T, BLOCK_N, H_KV, D, MASKED)
            s = masked_scores(q_block, k_block, start_n, first, last, MASKED and DOCUMENTS, MASKED)
            p = tl.exp2(tl.fma(s, SCALE, -lse_i[:, None]))  # (BLOCK_M, BLOCK_N), like dp and ds
            dp = dot_columns(do_block, v_block)
            ds = p * (dp - delta_i[:, None])
            acc = add_dot(acc, ds, k_block)
    store_block(dq + head, start_m, acc, D**-0.5, T, H, D)


@jit
def dkv_kernel(
    q, k, v, lse, d_out, delta, dk, dv,
    doc_start, doc_end, T,
    H: tl.constexpr, H_KV: tl.constexpr, D: tl.constexpr,  # query heads, key heads, width of a head
    CAUSAL: tl.constexpr, DOCUMENTS: tl.constexpr,  # the mask; bounds have the causal one built in
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,  # queries and keys of a block
):  # fmt: skip
    """Compute dk and dv (B, T, H_kv, D) for BLOCK_N keys of one key head, summed over its query heads in order.

    Grid (H_kv, blocks of keys, B). If causal, the first keys take longest, because every query sees them.
    """
    SCALE: tl.constexpr = 1.4426950408889634 * D**-0.5
    b = tl.program_id(2).to(tl.int64)
    h_kv = tl.program_id(0).to(tl.int64)
    start_n = tl.program_id(1) * BLOCK_N
    kv_head = (b * T * H_KV + h_kv) * D
    first, last, lo, begin, end, hi = mask_bounds(
        doc_start, doc_end, b, start_n, T, BLOCK_N, BLOCK_M, CAUSAL, DOCUMENTS, FOR_KEYS=True
    )
    k_block = load_block(k + kv_head, start_n, T, BLOCK_N, H_KV, D, True)
    v_block = load_block(v + kv_head, start_n, T, BLOCK_N, H_KV, D, True)
    dk_acc = [tl.zeros(columns.shape, tl.float32) for columns in k_block]
    dv_acc = dk_acc

    for member in range(H // H_KV):
        h = h_kv * (H // H_KV) + member
        head = (b * T * H + h) * D
        row = (b * H + h) * T
        for MASKED in tl.static_range(2):
            n_blocks = num_blocks(lo, begin, end, hi, BLOCK_M, MASKED)
            for i in tl.range(n_blocks, num_stages=1 if MASKED and not DOCUMENTS else None):
                start_m = block_start(i, lo, begin, end, BLOCK_M, MASKED)
                offs_m = start_m + tl.arange(0, BLOCK_M)
                q_block = load_block(q + head, start_m, T, BLOCK_M, H, D, MASKED)
                do_block = load_block(d_out + head, start_m, T, BLOCK_M, H, D, MASKED)
                mask, other = (offs_m < T, 0.0) if MASKED else (None, None)  # values past T are 0
                lse_i = tl.load(lse + row + offs_m, mask=mask, other=other)
                delta_i = tl.load(delta + row + offs_m, mask=mask, other=other)
                s = masked_scores(
                    k_block, q_block, start_m, first, last, MASKED and (CAUSAL or DOCUMENTS), MASKED and DOCUMENTS
                )
                p = tl.exp2(tl.fma(s, SCALE, -lse_i[None, :]))  # (BLOCK_N, BLOCK_M), like dp and ds: transposed
                dv_acc = add_dot(dv_acc, p, do_block)
                dp = dot_columns(v_block, do_block)
                ds = p * (dp - delta_i[None, :])
                dk_acc = add_dot(dk_acc, ds, q_block)

    store_block(dk + kv_head, start_n, dk_acc, D**-0.5, T, H_KV, D)
    store_block(dv + kv_head, start_n, dv_acc, 1.0, T, H_KV, D)


KERNELS = {"forward": forward_kernel, "dq": dq_kernel, "dkv": dkv_kernel}

# Launch settings of the three kernels by (architecture, head dim): BLOCK_M, BLOCK_N, warps, stages, and sometimes the
# most registers of a thread: so few that one more program fits on a multiprocessor, or so many that the compiler need
# not spill any. Rows with "causal" are for the causal mask without bounds. "fp32" stands for fp32 inputs on any GPU,
# None for all other GPUs and the interpreter. A head dim of 96 without a row uses that of 128.
# The rows of (90, 64) and (90, 96) were among the fastest of about ten on an H200 with the full and the causal mask
# (docs/results/speed). The others were never timed: they are the largest blocks that spill no more than a few bytes of
# registers, see tests/ahead_of_time.py.
LAUNCH = {
    (90, 64): ((64, 64, 4, 3), (64, 64, 4, 2), (32, 64, 4, 3)),
    (90, 64, "causal"): ((64, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3)),
    (90, 96): ((128, 64, 4, 3), (64, 64, 4, 2), (32, 64, 4, 3)),
    (90, 96, "causal"): ((128, 64, 4, 3), (64, 64, 4, 2), (64, 64, 4, 2)),
    (90, 128): ((128, 64, 8, 3), (128, 64, 8, 2), (32, 128, 8, 2)),
    (100, 32): ((128, 64, 4, 3, 168), (128, 64, 8, 2), (64, 128, 8, 2)),
    (100, 64): ((128, 64, 4, 3), (128, 64, 8, 2), (64, 64, 8, 2)),
    (100, 128): ((128, 64, 8, 3), (128, 64, 8, 2, 192), (64, 64, 8, 1, 192)),
    ("gfx9", 32): ((128, 64, 4, 2), (128, 64, 4, 2), (64, 128, 4, 2)),
    ("gfx9", 64): ((128, 64, 4, 2), (128, 64, 4, 2), (32, 64, 4, 2)),
    ("gfx9", 128): ((128, 64, 4, 2), (128, 32, 4, 2), (32, 64, 4, 1)),
    (None, 32): ((128, 64, 4, 3), (128, 64, 8, 2), (64, 128, 8, 2)),
    (None, 64): ((128, 64, 4, 2), (128, 32, 4, 2), (32, 128, 8, 2)),
    (None, 96): ((128, 64, 8, 2), (128, 32, 8, 2), (16, 64, 4, 2)),
    (None, 128): ((128, 64, 8, 2), (128, 32, 8, 2), (32, 64, 4, 2)),
    ("fp32", 32): ((32, 32, 8, 1),) * 3,
    ("fp32", 64): ((32, 32, 8, 1),) * 3,
    ("fp32", 128): ((32, 32, 8, 1), (16, 16, 8, 1), (16, 32, 8, 1)),
}


@lru_cache
def architecture(device):
    """Return 90 for an H100 or H200, 80 for an A100, "gfx9" for AMD's CDNA, None for a CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return properties.gcnArchName[:4] if torch.version.hip else 10 * properties.major + properties.minor


def launch_settings(which, architecture, H, H_kv, D, dtype, causal, documents):
    """Return a kernel's constants and launch settings, as keyword arguments of its launch."""
    if dtype == torch.float32:
        architecture = "fp32"
    width = triton.next_power_of_2(D)
    causal = causal and not documents  # bounds have the causal mask built in
    keys = (architecture, D, "causal" * causal), (architecture, D), (architecture, width), (None, D)
    row = next(LAUNCH[key] for key in keys if key in LAUNCH)[list(KERNELS).index(which)]  # the first that exists
    names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "maxnreg")
    return dict(H=H, H_KV=H_kv, D=D, CAUSAL=causal, DOCUMENTS=documents) | dict(zip(names, row))


def launch(which, tensors, causal, bounds):
    """Launch a kernel. tensors: its arguments, from q and k on. bounds: those of the queries; for dkv, of the keys."""
    q, k, *others = [x.contiguous() for x in tensors]  # the kernels assume these strides
    B, T, H, D = q.shape
    H_kv = k.shape[2]
    settings = launch_settings(which, architecture(q.device), H, H_kv, D, q.dtype, causal, len(bounds) > 0)
    heads, rows = (H_kv, "BLOCK_N") if which == "dkv" else (H, "BLOCK_M")
    grid = heads, triton.cdiv(T, settings[rows]), B
    doc_start, doc_end = bounds or (None, None)
    with torch.cuda.device_of(q):
        KERNELS[which][grid](q, k, *others, doc_start, doc_end, T, **settings)


def empty_outputs(q):
    """Allocate the output and the log-sum-exp for queries (B, T, H, D)."""
    B, T, H, _ = q.shape
    return q.new_empty(q.shape), q.new_empty(B, H, T, dtype=torch.float32)


# Two operators. torch.compile needs the shapes of their outputs (register_fake), autograd the gradients.
@torch.library.custom_op(
    "nanoencoder::attention",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, bool causal, Tensor[] bounds) -> (Tensor, Tensor)",
)
def fused_attention(q, k, v, causal, bounds):
    """Return `attention`'s output (B, T, H, D), and the log-sum-exp of the scores in base 2, fp32 (B, H, T)."""
    out, lse = empty_outputs(q)
    launch("forward", (q, k, v, out, lse), causal, bounds[:2])
    return out, lse


@torch.library.custom_op(
    "nanoencoder::attention_backward",
    mutates_args=(),
    schema="(Tensor d_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool causal, Tensor[] bounds) "
    "-> (Tensor, Tensor, Tensor)",
)
def fused_attention_backward(d_out, q, k, v, out, lse, causal, bounds):
    """Return the gradients of q, k and v."""
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    delta = torch.empty_like(lse)
    launch("dq", (q, k, v, out, lse, d_out, dq, delta), causal, bounds[:2])
    launch("dkv", (q, k, v, lse, d_out, delta, dk, dv), causal, bounds[2:])
    return dq, dk, dv


def save_for_backward(ctx, inputs, output):
    q, k, v, ctx.causal, bounds = inputs
    ctx.save_for_backward(q, k, v, *output, *bounds)


def backward(ctx, d_out, d_lse):
    q, k, v, out, lse, *bounds = ctx.saved_tensors
    gradients = fused_attention_backward(d_out, q, k, v, out, lse, ctx.causal, bounds)
    return *gradients, None, [None] * len(bounds)


fused_attention.register_fake(lambda q, *_: empty_outputs(q))
fused_attention_backward.register_fake(lambda d_out, q, k, v, *_: [x.new_empty(x.shape) for x in (q, k, v)])
fused_attention.register_autograd(backward, setup_context=save_for_backward)
