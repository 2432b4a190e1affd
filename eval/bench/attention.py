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
from eval.bench.timing import alternating

lengths = (2048, 8192)  # T
head_dims = (64,)  # D, of 18 query heads on a GPU, 6 on a CPU
groups = (1,)  # query heads per key head
documents = (0, 512)  # mean length of the documents of a row; 0 = the row is one document
only = ("ours", "cudnn", "flash", "varlen")  # some of these and reference; the others must agree with the first
tokens = 16384  # tokens of a batch
repeats = 15  # the median of these counts


def check(cfg):
    """Yield what is wrong with the settings."""
    for name in cfg.only:
        if name not in DENSE | DOCUMENTS:
            yield f"only={name}: not known"


class Case:
    """One problem: q and k are views of one packed projection, v is a tensor of its own, as the kernels want it."""

    def __init__(self, T, D, group, causal, mean, tokens):
        if torch.cuda.is_available():
            device, dtype, H = "cuda", torch.bfloat16, 18
        else:
            device, dtype, H = "cpu", torch.float32, 6
        generator = torch.Generator().manual_seed(T + mean)
        B = max(1, tokens // T)
        H_kv = H // group
        packed = torch.randn(B, T, H + 2 * H_kv, D, generator=generator).to(device, dtype)
        q, k, v = packed.split((H, H_kv, H_kv), dim=2)
        self.inputs = [x.requires_grad_() for x in (q, k, v.contiguous())]
        self.d_out = torch.randn(B, T, H, D, generator=generator).to(device, dtype)
        self.causal = causal
        self.group = group
        self.bounds = (None, None)
        pairs = B * T * T
        if mean:  # each token begins a document with probability 1 / mean
            begins = torch.rand(B, T, generator=generator) < 1 / mean
            document = begins.cumsum(1)  # (B, T): the number of each token's document
            start = torch.searchsorted(document, document)
            end = torch.searchsorted(document, document, right=True)
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
    options = {"window_size": (-1, 0) if case.causal else (-1, -1)}
    if case.group > 1:
        options["enable_gqa"] = True

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


def check_agreement(results, expected, first):
    """Raise ValueError if an output or gradient differs from that of the first implementation by 2 % or is no number."""
    for tensor, x, y in zip(("output", "dq", "dk", "dv"), results, expected):
        error = ((x - y).float().norm() / y.float().norm()).item()
        if not error < 0.02:
            raise ValueError(f"its {tensor} differs by {error:.0%} from that of {first}")


def runnable(case, names):
    """Return {name: {"forward" or "backward": function}} of the implementations that agree with the first one."""
    known = DENSE if case.bounds[0] is None else DOCUMENTS
    found = {}
    expected = None  # the results of the first one
    for name in names:
        if name not in known:
            continue
        try:
            forward = partial(known[name](case), *case.inputs)
            output = forward()
            backward = partial(torch.autograd.grad, output, case.inputs, case.d_out, retain_graph=True)
            results = output.detach(), *backward()
            expected = expected or results
            check_agreement(results, expected, next(iter(found), "itself"))
            found[name] = {"forward": forward, "backward": backward}
        except Exception as error:  # whatever goes wrong in another implementation, measure the rest
            lines = str(error).splitlines()[:3] or [repr(error)]
            longest = max(lines, key=len)  # where compilers say what is wrong
            print(f"  left out: {name}: {longest.strip()[:200]}", flush=True)
    return found


# ----------------------------------------------------------------------------
# The benchmark


def measure(case, functions, columns, repeats):
    """Print a row for each pass. functions: what `runnable` returns. columns: the first ones, which name the case."""
    for which, cost in (("forward", 1), ("backward", 2.5)):
        seconds = alternating({name: passes[which] for name, passes in functions.items()}, repeats)
        first = next(iter(seconds.values()))
        line = f"{columns}{which:>10}"
        for name, value in seconds.items():
            tflops = cost * case.flops / 1e12 / value
            line += f"   {name} {tflops:.3g} ({value / first:.2f})"
        print(line, flush=True)


def bare_speeds(repeats, on_gpu):
    """Return what a product of square matrices reaches here in TFLOP/s, and a copy in GB/s: more than any attention."""
    n = 8192 if on_gpu else 512
    x = torch.ones(n, n, device="cuda", dtype=torch.bfloat16) if on_gpu else torch.ones(n, n)
    product = torch.empty_like(x)
    source = torch.ones(16, n, n, device=x.device, dtype=x.dtype)
    copy = torch.empty_like(source)
    functions = {"product": partial(torch.mm, x, x, out=product), "copy": partial(copy.copy_, source)}
    seconds = alternating(functions, repeats)
    return 2 * n**3 / seconds["product"] / 1e12, 2 * source.nbytes / seconds["copy"] / 1e9


def main(cfg):
    tflops, gigabytes = bare_speeds(cfg.repeats, torch.cuda.is_available())
    print(f"medians: a bare matrix product {tflops:.3g} TFLOP/s, a copy {gigabytes:,.0f} GB/s", flush=True)
    print(f"medians of {cfg.repeats}, {cfg.tokens} tokens; TFLOP/s (time relative to the first)")
    print(f"{'T':>5}{'D':>5}{'group':>6}{'mask':>8}{'docs':>6}{'pass':>10}")
    shapes = itertools.product(cfg.documents, cfg.lengths, cfg.head_dims, cfg.groups, (False, True))
    for mean, T, D, group, causal in shapes:
        case = Case(T, D, group, causal, mean, cfg.tokens)
        functions = runnable(case, cfg.only)
        if functions:
            mask = "causal" if causal else "full"
            measure(case, functions, f"{T:>5}{D:>5}{group:>6}{mask:>8}{mean:>6}", cfg.repeats)
