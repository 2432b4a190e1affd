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

import configurator
import model
from eval.bench.timing import alternating, print_hardware
from model_checks import relative_error

lengths = (2048, 8192)  # T
head_dims = (64,)  # D, of 18 query heads on a GPU, 6 on a CPU
groups = (1,)  # query heads per key head
documents = (0, 512)  # mean length of the documents of a row; 0 = the row is one document
only = ("ours", "cudnn", "flash", "varlen")  # names of IMPLEMENTATIONS below; the others must agree with the first
tokens = 16384  # tokens of a batch
repeats = 15  # the median of these counts

DEVICE, DTYPE, H = ("cuda", torch.bfloat16, 18) if torch.cuda.is_available() else ("cpu", torch.float32, 6)


def check(cfg):
    """Yield what is wrong with the settings."""
    return configurator.value_problems(cfg, choices={"only": IMPLEMENTATIONS})


class Case:
    """One problem. As in a model, q, k and v are contiguous: a launch copies others, which would be timed, too."""

    def __init__(self, T, D, group, causal, mean, tokens):
        generator = torch.Generator().manual_seed(T + mean)
        B = max(1, tokens // T)
        heads = (H, H // group, H // group)
        packed = torch.randn(B, T, sum(heads), D, generator=generator).to(DEVICE, DTYPE)
        self.inputs = [x.contiguous().requires_grad_() for x in packed.split(heads, dim=2)]
        self.d_out = torch.randn(B, T, H, D, generator=generator).to(DEVICE, DTYPE)
        self.causal = causal
        self.group = group
        self.bounds = (None, None)
        if mean:  # each token begins a document with probability 1 / mean
            document = (torch.rand(B, T, generator=generator) < 1 / mean).cumsum(1)  # (B, T): each token's document
            start = torch.searchsorted(document, document)
            end = torch.searchsorted(document, document, right=True)
            self.bounds = start.int().to(DEVICE), end.int().to(DEVICE)
        mask = model.attention_mask(T, causal, *self.bounds, DEVICE)
        self.flops = 4 * H * D * mask.expand(B, 1, T, T).sum().item()


# ----------------------------------------------------------------------------
# Implementations. Each takes a case and returns a function of q (B, T, H, D), k and v (B, T, H_kv, D).


def ours(case, backend="triton"):
    bounds = model.attention_bounds(case.causal, *case.bounds)  # a model computes them once for all layers
    return lambda q, k, v: model.attention(q, k, v, case.causal, *case.bounds, backend, bounds)


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


def flex(case):
    """FlexAttention, compiled: the best-known one for documents. Its forward pass also builds a batch's mask."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.compiler.reset()  # each case is compiled for its own shapes
    build = torch.compile(create_block_mask)
    attend = torch.compile(flex_attention)
    start = case.bounds[0]
    B, T = start.shape

    def see(b, h, i, j):
        same = start[b, i] == start[b, j]
        return same & (i >= j) if case.causal else same

    def run(q, k, v):
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mask = build(see, B, None, T, T, device=start.device)
        return attend(q, k, v, block_mask=mask, enable_gqa=case.group > 1).transpose(1, 2)

    return run


IMPLEMENTATIONS = {
    "ours": ours,
    "reference": partial(ours, backend="reference"),
    "cudnn": partial(pytorch, backend=SDPBackend.CUDNN_ATTENTION),
    "flash": partial(pytorch, backend=SDPBackend.FLASH_ATTENTION),
    "varlen": varlen,
    "flex": flex,
}
DOCUMENTS = {"cudnn": False, "flash": False, "varlen": True, "flex": True}  # the others run with them and without


def runnable(case, names):
    """Return {name: {"forward" or "backward": function}} of the implementations that agree with the first one."""
    found = {}
    expected = None  # the output and gradients of the first one
    has_documents = case.bounds[0] is not None
    for name in names:
        if DOCUMENTS.get(name, has_documents) != has_documents:
            continue
        try:
            forward = partial(IMPLEMENTATIONS[name](case), *case.inputs)
            output = forward()
            backward = partial(torch.autograd.grad, output, case.inputs, case.d_out, retain_graph=True)
            results = [output.detach(), *backward()]
            expected = expected or results
            error = relative_error(results, expected)
            if error > 0.02:
                raise ValueError(f"its output or gradients differ by {error:.0%} from those of the first")
            found[name] = {"forward": forward, "backward": backward}
        except Exception as error:  # whatever goes wrong in another implementation, measure the rest
            print(f"  left out: {name}: {error!r}"[:500])
    return found


# ----------------------------------------------------------------------------
# The benchmark


def measure(functions, repeats, flops, columns):
    """Print a row for each pass. functions: what `runnable` returns. columns: the first ones, which name the case."""
    for which, cost in (("forward", 1), ("backward", 2.5)):
        seconds = alternating({name: passes[which] for name, passes in functions.items()}, repeats)
        cells = ""
        for name, s in seconds.items():
            cells += f"   {name} {cost * flops / 1e12 / s:.3g} ({s / [*seconds.values()][0]:.2f})"
        print(f"{columns}{which}{cells}")


def bare_speeds(repeats):
    """Print what a product of square matrices and a copy reach: they tell a throttled card from a slow kernel."""
    n = 8192 if DEVICE == "cuda" else 512
    x = torch.randn(n, n, device=DEVICE, dtype=DTYPE)  # random: a GPU is faster on equal numbers
    source = x.repeat(16, 1)
    functions = {
        "product": partial(torch.mm, x, x, out=torch.empty_like(x)),
        "copy": partial(torch.empty_like(source).copy_, source),
    }
    seconds = alternating(functions, repeats)
    tflops = 2 * n**3 / seconds["product"] / 1e12
    gigabytes = 2 * source.nbytes / seconds["copy"] / 1e9
    print(f"medians: a bare matrix product {tflops:.3g} TFLOP/s, a copy {gigabytes:,.0f} GB/s")


def main(cfg):
    print_hardware()
    bare_speeds(cfg.repeats)
    print(f"medians of {cfg.repeats}, {cfg.tokens} tokens; TFLOP/s (time relative to the first)")
    shapes = itertools.product(cfg.documents, cfg.lengths, cfg.head_dims, cfg.groups, (False, True))
    for mean, T, D, group, causal in shapes:
        case = Case(T, D, group, causal, mean, cfg.tokens)
        mask = "causal" if causal else "full"
        columns = f"T {T}, D {D}, group {group}, {mask}, documents {mean}, "
        measure(runnable(case, cfg.only), cfg.repeats, case.flops, columns)
