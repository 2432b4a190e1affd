"""A Transformer for text with one set of weights and either attention mask.

`Transformer(config)(tokens, causal)` is a decoder when `causal` is True and an
encoder when it is False. Nothing else changes: the parameters, the rotary
positions, the norms and the output head are the same. That is what lets a model
begin with causal language modelling (CLM), go on with masked language modelling
(MLM) and end as an encoder.

The architecture is Llama's (pre-norm RMSNorm, rotary positions, grouped-query
attention, SwiGLU, no biases, no dropout), which is also EuroBERT's.

Contents, in reading order: ModelConfig, attention, layers, Transformer, loss.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint as recomputed

import checkpoint

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
    d_ff: int = 384  # hidden width of the MLP, which has three matrices (SwiGLU)
    seq_len: int = 128  # the longest input
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = False  # True: the output head is the input embedding

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
    "demo": dict(n_layer=4, n_head=2, n_kv_head=1, d_model=128, d_ff=384, seq_len=128),
    "210m": dict(n_layer=12, n_head=12, n_kv_head=12, d_model=768, d_ff=3072, seq_len=2048),
    "610m": dict(n_layer=26, n_head=18, n_kv_head=6, d_model=1152, d_ff=4096, seq_len=2048),
    "1b": dict(n_layer=28, n_head=18, n_kv_head=6, d_model=1728, d_ff=5120, seq_len=2048),
}


# ----------------------------------------------------------------------------
# Attention


def visible(T, causal, doc_start=None, doc_end=None, device=None):
    """Which keys each query may see: bool, (T, T) or, with documents, (B, 1, T, T).

    This function is the whole difference between an encoder and a decoder.
    """
    t = torch.arange(T, device=device)
    see = torch.ones(T, T, dtype=torch.bool, device=device)
    if causal:
        see = t[None, :] <= t[:, None]  # query t sees keys 0 .. t
    if doc_start is not None:
        inside = (t >= doc_start[..., None]) & (t < doc_end[..., None])  # (B, T, T)
        see = (see & inside)[:, None]
    return see


def attention(q, k, v, causal, doc_start=None, doc_end=None, backend="auto"):
    """softmax(q kᵀ / sqrt(D)) v for grouped heads, one mask flag and document bounds.

    q: (B, T, H, D). k, v: (B, T, H_kv, D) with H a multiple of H_kv; query head h reads
    key head h // (H / H_kv). doc_start, doc_end: int32 (B, T), or None for one document
    a row. All tokens of a document share its bounds; token t sees the keys in
    [doc_start[t], doc_end[t]), and only those <= t if causal. A padding token has
    doc_start == doc_end: it sees nothing, nothing sees it, its output and gradients are 0.

    backend: "reference" spells the formula out, in q's dtype. "sdpa" is PyTorch's fused
    attention, with a dense mask where there are documents. "auto" is "sdpa", but for
    short 16-bit rows on a CPU, where the plain products were measured 2 to 4 times as fast.
    Returns (B, T, H, D) in q's dtype.
    """
    T, D, group = q.shape[1], q.shape[3], q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, D)
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if backend == "auto":
        short = q.device.type == "cpu" and q.dtype.itemsize == 2 and T <= 256
        backend = "reference" if short else "sdpa"

    bias = None  # added to the scores: 0 where a query may look, a large negative number elsewhere
    if doc_start is not None or (causal and backend == "reference"):
        see = visible(T, causal, doc_start, doc_end, q.device)  # (T, T) or (B, 1, T, T)
        bias = torch.zeros(see.shape, dtype=q.dtype, device=q.device).masked_fill_(~see, torch.finfo(q.dtype).min / 2)

    if backend == "reference":
        scores = q @ k.transpose(-1, -2) * D**-0.5  # (B, H, T, T)
        out = (scores if bias is None else scores + bias).softmax(-1) @ v
    elif backend == "sdpa":
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal and bias is None)
    else:
        raise ValueError(f"attention backend {backend!r}: expected 'auto', 'sdpa' or 'reference'")
    if doc_start is not None:  # a padding token's row of the softmax is meaningless
        out = out.masked_fill((doc_start >= doc_end)[:, None, :, None], 0)
    return out.transpose(1, 2)  # (B, T, H, D)


# ----------------------------------------------------------------------------
# Layers. Weights are fp32; activations have the model's compute dtype.


class Linear(nn.Linear):
    """A matrix without bias, cast to the dtype of its input."""

    def __init__(self, d_in, d_out):
        super().__init__(d_in, d_out, bias=False)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight, computed in fp32 (Zhang and Sennrich, 2019)."""

    def __init__(self, d_model, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d_model)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


def rope_tables(seq_len, head_dim, theta):
    """Cosine and sine of position * theta^(-2i / head_dim): two fp32 (seq_len, 1, head_dim / 2)."""
    frequency = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.arange(seq_len).float()[:, None, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Rotary positions (Su et al., 2021), half-split, in fp32. x: (B, T, H, D).

    Pair (x[i], x[i + D/2]) turns by an angle proportional to the position, so that the
    product of a query and a key depends on their distance alone.
    """
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        d, D = config.d_model, config.head_dim
        self.heads = (config.n_head, config.n_kv_head, config.n_kv_head)  # of q, k and v
        self.attn_norm = RMSNorm(d, config.norm_eps)
        self.qkv = Linear(d, sum(self.heads) * D)
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
        cos, sin = rope_tables(config.seq_len, config.head_dim, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:  # every matrix; the norms' weights stay 1
                nn.init.normal_(p, std=0.02)

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
                x = recomputed(block, x, cos, sin, causal, doc_start, doc_end, use_reentrant=False,
                              preserve_rng_state=False)  # fmt: skip
            else:
                x = block(x, cos, sin, causal, doc_start, doc_end)
        return self.norm(x)

    def logits(self, hidden):
        """hidden (..., d_model) -> logits (..., vocab_size)."""
        return self.head(hidden)

    @property
    def device(self):
        return self.embedding.weight.device

    @classmethod
    def from_state(cls, state):
        """The model of a checkpoint's dict, as `checkpoint.load` returns it; on the CPU, in fp32."""
        model = cls(ModelConfig(**state["config"]))
        model.load_state_dict(state["model"])
        return model

    @classmethod
    def from_pretrained(cls, path):
        """The model of a checkpoint file. Raises FileNotFoundError, or checkpoint.Damaged."""
        return cls.from_state(checkpoint.load(path))


# ----------------------------------------------------------------------------
# Loss


def loss_and_gradient(logits, targets):
    """logits (n, V), targets int64 (n,), negative = not predicted -> (summed loss in fp32, its gradient by the logits).

    In place, because this is the largest tensor of a step; compiled it is one pass.
    """
    keep, target = targets[:, None] >= 0, targets[:, None].clamp(min=0)  # (n, 1)
    x = logits.float()
    lse = x.logsumexp(-1, keepdim=True)
    loss = ((lse - x.gather(1, target)) * keep).sum()
    softmax = x.sub_(lse).exp_()
    return loss, softmax.scatter_add_(1, target, torch.full_like(lse, -1.0)).mul_(keep).to(logits.dtype)


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
    chunk = max(64, (2**28 if hidden.is_cuda else 2**20) // len(weight))
    with_grad = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    total = LinearCrossEntropy.apply(hidden, weight, targets, chunk, with_grad, loss_and_gradient)
    return total, (targets >= 0).sum()


class PretrainingLoss(nn.Module):
    """batch -> (sum of losses, number of predicted tokens): the module that DDP wraps.

    Both objectives are one line. They differ in the mask (`causal`), in `positions` and
    `targets` (which tokens are predicted from where) and in what `tokens` shows there.
    The last two are the batch's: see data/loader.py.
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
        for block in self.model.blocks:
            block.compile(dynamic=False, fullgraph=True)
        self.loss_and_gradient = torch.compile(loss_and_gradient, dynamic=False, fullgraph=True)
