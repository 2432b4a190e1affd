"""Attention alone: our kernels next to PyTorch's, forward and backward.

    python -m eval.bench attention
    python -m eval.bench attention --lengths=512,1024,4096 --head_dims=64,128 --groups=1,3 --documents=0,256,512,1024

A row prints as soon as it is measured: the first one's speed relative to a matrix product, then TFLOP/s of each
implementation, and its time relative to the first. The forward pass counts 4 x D x heads FLOPs for each pair of a
query and a key that it sees, the backward pass 2.5 times as many.
"""

import itertools
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import model
from eval.bench.timing import alternating, device_seconds, unknown_names

lengths = (2048, 8192)  # T
head_dims = (64,)  # D; heads x D is 1,536 on a GPU, 384 on a CPU
groups = (1,)  # query heads per key head
documents = (0, 512)  # mean length of the documents of a row; 0 = the row is one document
only = ""  # some of ours,cudnn,flash,flex,varlen,reference; empty = all on a GPU but reference
tokens = 16384  # tokens of a batch
repeats = 15  # the median of these counts

FLOPS = {"forward": 1, "backward": 2.5}  # relative to the forward pass


def check(cfg):
    """Yield what is wrong with the settings."""
    yield from unknown_names("only", cfg.only, IMPLEMENTATIONS)
    for D, group in itertools.product(cfg.head_dims, cfg.groups):
        if min(D, group) < 1 or 384 % (D * group):
            yield f"head_dims={D}, groups={group}: 384 must be a multiple of D x group"


class Case:
    """One problem: inputs as in training, where q, k and v are views of one packed projection."""

    def __init__(self, T, D, group, causal, mean, tokens):
        on_gpu = torch.cuda.is_available()
        device, dtype, width = ("cuda", torch.bfloat16, 1536) if on_gpu else ("cpu", torch.float32, 384)
        generator = torch.Generator().manual_seed(T + mean)
        B, H = max(1, tokens // T), width // D
        self.causal, self.group, self.bounds = causal, group, (None, None)
        packed = torch.randn(B, T, H + 2 * H // group, D, generator=generator).to(device, dtype)
        self.inputs = [x.requires_grad_() for x in packed.split((H, H // group, H // group), dim=2)]  # q, k, v
        self.d_out = torch.randn(B, T, H, D, generator=generator).to(device, dtype)
        pairs = B * T * T
        if mean:  # each token begins a document with probability 1 / mean
            ids = (torch.rand(B, T, generator=generator) < 1 / mean).cumsum(1)  # (B, T): each token's document
            start, end = (torch.searchsorted(ids, ids, right=right) for right in (False, True))
            pairs = int((end - start).sum())
            self.bounds = start.int().to(device), end.int().to(device)
        if causal:
            pairs = (pairs + B * T) // 2
        self.flops = 4 * H * D * pairs


# ----------------------------------------------------------------------------
# Implementations. Each takes a case and returns a function of q (B, T, H, D), k and v (B, T, H_kv, D).


def ours(case, backend="triton"):
    return lambda q, k, v: model.attention(q, k, v, case.causal, *case.bounds, backend=backend)


def pytorch(case, backend):
    """One of the backends of scaled_dot_product_attention, by name."""

    def run(q, k, v):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        with sdpa_kernel(backend):
            o = F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=case.group > 1)
        return o.transpose(1, 2)

    return run


def flex(case):
    """FlexAttention, compiled. With documents, each step makes its block mask, because each batch has its own."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()  # or torch would stop compiling after eight cases
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    make = torch.compile(create_block_mask, dynamic=False, fullgraph=True)
    start, end = case.bounds
    B, T, _, _ = case.d_out.shape

    def see(b, h, i, j):
        inside = (start[b, i] <= j) & (j < end[b, i]) if start is not None else i >= 0
        return inside & (j <= i) if case.causal else inside

    make_mask = partial(make, see, None if start is None else B, None, T, T, case.d_out.device.type)
    fixed = make_mask() if case.causal and start is None else None

    def run(q, k, v):
        block_mask = fixed if start is None else make_mask()
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return compiled(q, k, v, block_mask=block_mask, enable_gqa=case.group > 1).transpose(1, 2)

    return run


def varlen(case):
    """PyTorch's attention for documents that follow each other in one long row. Shares key heads from torch 2.12 on."""
    from torch.nn.attention.varlen import varlen_attn

    start = case.bounds[0]
    first = (start == torch.arange(start.shape[1], device=start.device)).flatten()
    cuts = F.pad(first.nonzero().flatten(), (0, 1), value=len(first)).int()  # where documents begin, and the end
    longest = int(cuts.diff().max())  # a loader could know this too
    options = dict(window_size=(-1, 0) if case.causal else (-1, -1))
    options |= dict(enable_gqa=True) if case.group > 1 else {}

    def run(q, k, v):
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)  # (B T, H, D)
        return varlen_attn(q, k, v, cuts, cuts, longest, longest, **options).view_as(case.d_out)

    return run


# name -> (function that makes it, whether it is for cases without documents, and with documents)
IMPLEMENTATIONS = {
    "ours": (ours, True, True),
    "cudnn": (partial(pytorch, backend=SDPBackend.CUDNN_ATTENTION), True, False),
    "flash": (partial(pytorch, backend=SDPBackend.FLASH_ATTENTION), True, False),
    "flex": (flex, True, True),
    "varlen": (varlen, False, True),
    "reference": (partial(ours, backend="reference"), True, True),
}


def runnable(case, names, known=IMPLEMENTATIONS):
    """Return {name: {"forward" or "backward": function}} of the implementations that agree with the first one."""
    found, expected = {}, None
    for name in names:
        make, *suits = known[name]
        if not suits[case.bounds[0] is not None]:
            continue
        try:
            forward = partial(make(case), *case.inputs)
            result = forward()
            backward = partial(torch.autograd.grad, result, case.inputs, case.d_out, retain_graph=True)
            results = result.detach(), *backward()
            expected = expected or results
            for tensor, x, y in zip(("output", "dq", "dk", "dv"), results, expected):
                error = ((x - y).float().norm() / y.float().norm()).item()
                if not error < 0.02:
                    raise ValueError(f"its {tensor} differs from that of {next(iter(found))} by {error:.0%}")
            found[name] = {"forward": forward, "backward": backward}
        except Exception as error:  # whatever goes wrong in another implementation, measure the rest
            line = max(str(error).splitlines()[:3], key=len, default=repr(error))  # where compilers say what is wrong
            print(f"  left out: {name}: {line.strip()[:200]}", flush=True)
    return found


# ----------------------------------------------------------------------------
# The benchmark


def main(cfg):
    on_gpu = torch.cuda.is_available()
    device, dtype, n = ("cuda", torch.bfloat16, 8192) if on_gpu else ("cpu", torch.float32, 512)
    names = cfg.only.split(",") if cfg.only else [name for name in IMPLEMENTATIONS if name != "reference"]
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    matmul = 2 * n**3 / alternating({"": lambda: a @ b}, cfg.repeats, device_seconds)[""] / 1e12
    print(f"matrix product of {n} x {n}, {str(dtype)[6:]}: {matmul:.3g} TFLOP/s")
    print(f"medians of {cfg.repeats}, {cfg.tokens} tokens; TFLOP/s (time relative to the first)")
    print(f"{'T':>5}{'D':>5}{'group':>6}{'mask':>8}{'docs':>6}{'pass':>10}{'of matmul':>11}")
    for shape in itertools.product(cfg.documents, cfg.lengths, cfg.head_dims, cfg.groups, (False, True)):
        mean, T, D, group, causal = shape
        case = Case(T, D, group, causal, mean, cfg.tokens)
        found = runnable(case, names)
        for which in FLOPS if found else ():
            seconds = alternating({name: f[which] for name, f in found.items()}, cfg.repeats, device_seconds)
            base, tflop = next(iter(seconds.values())), FLOPS[which] * case.flops / 1e12
            speeds = "".join(f"   {name} {tflop / x:.3g} ({x / base:.2f})" for name, x in seconds.items())
            line = f"{T:>5}{D:>5}{group:>6}{'causal' if causal else 'full':>8}{mean:>6}{which:>10}"
            print(f"{line}{tflop / base / matmul:>11.0%}{speeds}", flush=True)
