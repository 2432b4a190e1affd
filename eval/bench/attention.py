"""Attention alone: our kernels next to PyTorch's, forward and backward.

    python -m eval.bench attention
    python -m eval.bench attention --lengths=512,1024,4096 --head_dims=64,96 --groups=1,3 --documents=0,256,512,1024

A row prints as soon as it is measured: TFLOP/s of each implementation, and its time relative to the first. The forward
pass counts 4 x D x heads FLOPs for each pair of a query and a key that it sees, the backward pass 2.5 times as many.
"""

import itertools
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import model
from eval.bench.timing import alternating, device_seconds

lengths = (2048, 8192)  # T
head_dims = (64,)  # D, of 18 query heads on a GPU, 6 on a CPU
groups = (1,)  # query heads per key head
documents = (0, 512)  # mean length of the documents of a row; 0 = the row is one document
only = ("ours", "cudnn", "flash", "varlen")  # some of these and reference; the others must agree with the first
tokens = 16384  # tokens of a batch
repeats = 15  # the median of these counts


def check(cfg):
    """Yield what is wrong with the settings."""
    yield from (f"only={name}: not known" for name in cfg.only if name not in DENSE | DOCUMENTS)


class Case:
    """One problem: inputs as in training, where q, k and v are views of one packed projection."""

    def __init__(self, T, D, group, causal, mean, tokens):
        on_gpu = torch.cuda.is_available()
        device, dtype, H = ("cuda", torch.bfloat16, 18) if on_gpu else ("cpu", torch.float32, 6)
        generator = torch.Generator().manual_seed(T + mean)
        B = max(1, tokens // T)
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


OURS = {"ours": ours, "reference": partial(ours, backend="reference")}
DENSE = OURS | {
    "cudnn": partial(pytorch, backend=SDPBackend.CUDNN_ATTENTION),
    "flash": partial(pytorch, backend=SDPBackend.FLASH_ATTENTION),
}
DOCUMENTS = OURS | {"varlen": varlen}


def runnable(case, names):
    """Return {name: {"forward" or "backward": function}} of the implementations that agree with the first one."""
    known, found, expected = DENSE if case.bounds[0] is None else DOCUMENTS, {}, None
    for name in filter(known.get, names):
        try:
            forward = partial(known[name](case), *case.inputs)
            output = forward()
            backward = partial(torch.autograd.grad, output, case.inputs, case.d_out, retain_graph=True)
            results = output.detach(), *backward()
            expected = expected or results
            for tensor, x, y in zip(("output", "dq", "dk", "dv"), results, expected):
                error = ((x - y).float().norm() / y.float().norm()).item()
                if not error < 0.02:
                    raise ValueError(f"its {tensor} differs by {error:.0%} from that of {next(iter(found), 'itself')}")
            found[name] = {"forward": forward, "backward": backward}
        except Exception as error:  # whatever goes wrong in another implementation, measure the rest
            line = max(str(error).splitlines()[:3], key=len, default=repr(error))  # where compilers say what is wrong
            print(f"  left out: {name}: {line.strip()[:200]}", flush=True)
    return found


# ----------------------------------------------------------------------------
# The benchmark


def main(cfg):
    print(f"medians of {cfg.repeats}, {cfg.tokens} tokens; TFLOP/s (time relative to the first)")
    print(f"{'T':>5}{'D':>5}{'group':>6}{'mask':>8}{'docs':>6}{'pass':>10}")
    for shape in itertools.product(cfg.documents, cfg.lengths, cfg.head_dims, cfg.groups, (False, True)):
        mean, T, D, group, causal = shape
        case = Case(T, D, group, causal, mean, cfg.tokens)
        found = runnable(case, cfg.only)
        for which, cost in {"forward": 1, "backward": 2.5}.items() if found else ():
            seconds = alternating({name: f[which] for name, f in found.items()}, cfg.repeats, device_seconds)
            first, tflop = next(iter(seconds.values())), cost * case.flops / 1e12
            speeds = "".join(f"   {name} {tflop / x:.3g} ({x / first:.2f})" for name, x in seconds.items())
            line = f"{T:>5}{D:>5}{group:>6}{'causal' if causal else 'full':>8}{mean:>6}{which:>10}"
            print(f"{line}{speeds}", flush=True)
