"""Is the fused attention right on this GPU? Do the fused loss and attention still compute what model.py says?"""

import warnings
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import torch

import model
from runtime import decision_of_rank_0, world

MASKS = [*product((True, False), repeat=2)]  # causal, documents
fused_attention = partial(model.attention, backend="triton")
exact_attention = partial(model.attention, backend="reference")
pytorch_attention = partial(model.attention, backend="sdpa")


def three_documents(B, T, device):
    """Return doc_start and doc_end, int32 (B, T), of rows with three documents and four tokens of padding.

    A token sees the rest of its document and, to its left, half a document's length. This is not symmetric, so the
    bounds of the queries and those of the keys differ.
    """
    t = torch.arange(T, dtype=torch.int32, device=device).expand(B, T)
    length = T // 3
    start = t // length * length
    end = (start + length).clamp(max=T - 4)
    start = start.maximum(t - length // 2)
    return start.masked_fill(t >= T - 4, T - 4), end


def attention_inputs(config, dtype, device, causal, documents, B, T):
    """Return random (q, k, v, d_out), where d_out is the gradient of the output, and (causal, doc_start, doc_end)."""
    heads = (config.n_head, config.n_kv_head, config.n_kv_head, config.n_head)
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(B, T, sum(heads), config.head_dim, generator=generator).to(device, dtype)
    bounds = three_documents(B, T, device) if documents else (None, None)
    return packed.split(heads, dim=2), (causal, *bounds)


def attention_results(attention, q, k, v, d_out, *mask):
    """Return an attention function's output and the gradients of q, k and v. mask: causal, doc_start, doc_end."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, *mask)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), d_out)]


def relative_error(found, exact):
    """Return the largest relative error among the tensors of `attention_results`; infinite if one has a NaN."""
    largest = 0.0
    for x, expected in zip(found, exact):
        error = (x.double() - expected).norm() / expected.double().norm()
        largest = max(largest, error.nan_to_num(nan=torch.inf).item())
    return largest


def check_attention(config, dtype, device, causal, documents, fused=fused_attention):
    """Return the largest relative error of the output and gradients of the fused attention for a small random batch.

    The reference is the formula in float64. Rows of 304 tokens end in a partial block. 304 is a multiple of 16, so
    training uses the same compiled kernels. Raises what the kernels raise.
    """
    tensors, mask = attention_inputs(config, dtype, device, causal, documents, 2, 304)
    exact = attention_results(exact_attention, *(x.double() for x in tensors), *mask)
    return relative_error(attention_results(fused, *tensors, *mask), exact)


@lru_cache  # a study asks for each of its runs
def loss_is_edited(causal):
    """Return whether `plain_loss` of `Transformer.logits`, or its gradient, differs from the fused loss."""
    transformer = model.Transformer(model.ModelConfig(vocab_size=64)).eval()
    torch.nn.init.normal_(transformer.head.weight)  # larger logits, which a soft cap changes
    t = torch.arange(16)
    batch = {"tokens": t.view(2, 8), "positions": t, "targets": t * 5 % 17 - 1}  # -1, 4, 9, 14, 2 and so on
    found = []
    for plain in (False, True):
        loss, _ = model.PretrainingLoss(transformer, plain)(batch, causal)
        (gradient,) = torch.autograd.grad(loss, transformer.head.weight)
        found.append(torch.cat((loss[None], gradient.flatten())))
    return not torch.allclose(*found, rtol=1e-5, atol=1e-5)


@lru_cache
def attention_is_edited(seq_len):
    """Return whether the attention formula or `attention_mask` differs from PyTorch's attention.

    seq_len: the tokens of a row, of which at most 16,384 are compared in the mask.
    """
    T = max(1, min(seq_len, 16_384))  # a wrong seq_len is reported elsewhere
    for causal in (True, False):  # without documents, for which the "sdpa" backend calls `attention_mask` itself
        expected = torch.ones(T, T, dtype=torch.bool).tril(0 if causal else T)
        error = check_attention(model.ModelConfig(), torch.float32, "cpu", causal, False, pytorch_attention)
        if error > 1e-3 or not (model.attention_mask(T, causal) == expected).all():
            return True
    return False


def stress_attention(config, dtype, device, causal, documents, fused=fused_attention, passes=50, B=8, T=2048):
    """Return how many of `passes` forward and backward passes are not bitwise equal to the first.

    Raises ValueError if the first differs from PyTorch's attention by more than the rounding of both, since
    `check_attention` sees short rows only. A race between a kernel's copies and its matrix products can be too rare for
    `check_attention`: Triton before 3.7.1 leaves out a fence (fence.proxy.async) between them on Hopper.
    """
    tensors, mask = attention_inputs(config, dtype, device, causal, documents, B, T)
    first = attention_results(fused, *tensors, *mask)
    error = relative_error(first, attention_results(pytorch_attention, *tensors, *mask))
    if error > 0.02:
        raise ValueError(f"for rows of {T} tokens it differs from PyTorch's attention by {error:.1%}")
    different = torch.zeros((), dtype=torch.int64, device=device)  # on the GPU, so that passes need not wait
    for _ in range(passes - 1):
        again = attention_results(fused, *tensors, *mask)
        unequal = [(x != y).any() for x, y in zip(again, first)]
        different += torch.stack(unequal).any()
    return different.item()


def fused_attention_fails(config, dtype, device):
    """Return why the fused attention must not be used for this model on this GPU, or "" if it can be.

    It can be if, for each mask, its error is no more than rounding and the same input always gives the same result.
    """
    if why := model.why_not_triton("cuda", config.head_dim, dtype):
        return why
    allowed = 1e-4 if dtype == torch.float32 else 1e-2
    try:
        for mask in MASKS:
            error = check_attention(config, dtype, device, *mask)
            if error > allowed:
                return f"its relative error is {error:.1e}; rounding explains at most {allowed:.0e}"
            if dtype == torch.float32:  # one stage, see LAUNCH in model.py: no copy runs beside a product
                continue
            if unequal := stress_attention(config, dtype, device, *mask):
                return f"the same input gave another result {unequal} times"
    except Exception as fault:  # from Triton's compiler or the driver, or there is no C compiler
        return f"it raises {type(fault).__name__}: {fault}"[:300]
    return ""


def set_attention(transformer, device, versions, earlier):
    """Choose "triton" or "sdpa" for a model on a GPU, and note it in `versions`. If it is "sdpa", warn why.

    earlier: a checkpoint's dict, or None. Its backend is kept if no version and no line of model.py has changed, even
    if the check might now decide differently. Rank 0 chooses for all processes.
    """
    before = {}
    if earlier and earlier["source"]["model.py"] == Path(model.__file__).read_text(encoding="utf-8"):
        before = dict(earlier["versions"])
    backend = before.pop("attention", "")
    if before != versions:
        backend = ""
    if world()[0] == 0 and not backend:
        why = fused_attention_fails(transformer.config, transformer.compute_dtype, device)
        if why:
            warnings.warn(f"using PyTorch's attention instead of the fused kernels: {why}")
        backend = "sdpa" if why else "triton"
    transformer.attention_backend = versions["attention"] = decision_of_rank_0(backend)
