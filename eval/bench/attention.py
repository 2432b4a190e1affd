"""Attention alone: our kernels next to PyTorch's, forward and backward.

    python -m eval.bench attention --search=True --out=attention.jsonl
    python -m eval.bench attention --lengths=512,1024,4096 --head_dims=64,128 --groups=1,3 --documents=0,256,512,1024

A row prints as soon as it is measured: TFLOP/s of each implementation, and its time relative to the first. The
forward pass counts 4 x D x heads FLOPs for each pair of a query and a key that it sees, the backward pass 2.5 times as
many.
"""

import itertools
import json
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import checkpoint
import configurator
import model
from eval.bench.timing import alternating, device_seconds, hardware
from model import attention

lengths = (2048, 8192)  # T
head_dims = (64,)  # D; heads x D is 1,536 on a GPU, 384 on a CPU
groups = (1,)  # query heads per key head
documents = (0, 512)  # mean length of the documents of a row; 0 = the row is one document
passes = ("forward", "backward")  # forward alone runs as at inference
only = ""  # some of ours,cudnn,flash,flex,varlen,reference; empty = all on a GPU but reference
search = False  # also time other launch settings than those of model.LAUNCH, at D=64
tokens = 16384  # tokens of a batch
repeats = 15  # the median of these counts
out = ""  # also append each row to this file, as a line of JSON

FLOPS = {"forward": 1, "backward": 2.5}  # relative to the forward pass


def check(cfg):
    """Yield what is wrong with the settings."""
    for name, known, values in (("passes", FLOPS, cfg.passes), ("only", IMPLEMENTATIONS, cfg.only.split(","))):
        for value in filter(None, values):
            if value not in known:
                yield f"{name}={value}: must be some of {', '.join(known)}"
    for D, group in itertools.product(cfg.head_dims, cfg.groups):
        if min(D, group) < 1 or 384 % (D * group):
            yield f"head_dims={D}, groups={group}: 384 must be a multiple of D x group"
    if cfg.out and not Path(cfg.out).absolute().parent.is_dir():
        yield f"out={cfg.out}: no such folder"


class Case:
    """One problem: inputs as in training, where q, k and v are views of one packed projection."""

    def __init__(self, T, D, group, causal, mean, tokens, gradients=True):
        on_gpu = torch.cuda.is_available()
        device, dtype, width = ("cuda", torch.bfloat16, 1536) if on_gpu else ("cpu", torch.float32, 384)
        generator = torch.Generator().manual_seed(T + mean)
        B, H = max(1, tokens // T), width // D
        self.causal, self.group, self.bounds = causal, group, (None, None)
        packed = torch.randn(B, T, H + 2 * H // group, D, generator=generator).to(device, dtype)
        self.q, self.k, self.v = (x.requires_grad_(gradients) for x in packed.split((H, H // group, H // group), dim=2))
        self.d_out = torch.randn(B, T, H, D, generator=generator).to(device, dtype)
        t, pairs = torch.arange(T), B * T * T
        if mean:  # each token begins a document with probability 1 / mean
            first = (torch.rand(B, T, generator=generator) < 1 / mean).index_fill_(1, torch.tensor([0]), True)
            start = torch.where(first, t, 0).cummax(1).values
            following = torch.cat([torch.where(first, t, T)[:, 1:], torch.full((B, 1), T)], 1)
            end = following.flip(1).cummin(1).values.flip(1)
            pairs = int((end - start).sum())
            self.bounds = start.int().to(device), end.int().to(device)
        if causal:
            pairs = (pairs + B * T) // 2
        self.flops = 4 * H * D * pairs


# ----------------------------------------------------------------------------
# Implementations. Each takes a case and returns a function of q (B, T, H, D), k and v (B, T, H_kv, D).


def ours(case, backend="triton"):
    return lambda q, k, v: attention(q, k, v, case.causal, *case.bounds, backend=backend)


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

    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    make = torch.compile(create_block_mask, dynamic=False, fullgraph=True)
    start, end = case.bounds
    B, T, _, _ = case.q.shape

    def see(b, h, i, j):
        inside = (start[b, i] <= j) & (j < end[b, i]) if start is not None else i >= 0
        return inside & (j <= i) if case.causal else inside

    make_mask = partial(make, see, None if start is None else B, None, T, T, case.q.device.type)
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
    cuts = torch.cat([first.nonzero().flatten(), first.new_tensor([len(first)], dtype=torch.long)]).int()
    longest = int(cuts.diff().max())  # a loader could know this too
    options = dict(window_size=(-1, 0) if case.causal else (-1, -1))
    options |= dict(enable_gqa=True) if case.group > 1 else {}

    def run(q, k, v):
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)  # (B T, H, D)
        return varlen_attn(q, k, v, cuts, cuts, longest, longest, **options).view_as(case.q)

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


def functions_of(case, function):
    """Return {pass: function to time} and the results of one call: out and, where they are wanted, dq, dk and dv."""
    inputs = (case.q, case.k, case.v)
    out = function(*inputs)
    functions = {"forward": lambda: function(*inputs)}
    if not out.requires_grad:
        return functions, (out,)
    functions["backward"] = partial(torch.autograd.grad, out, inputs, case.d_out, retain_graph=True)
    return functions, (out.detach(), *functions["backward"]())


def runnable(case, names, known=IMPLEMENTATIONS):
    """Return {name: {pass: function}} of the implementations that run this case and agree with the first one."""
    found, expected = {}, None
    for name in names:
        make, without_documents, with_documents = known[name]
        if not (without_documents if case.bounds[0] is None else with_documents):
            continue
        try:
            functions, results = functions_of(case, make(case))
            expected = expected or results
            for tensor, x, y in zip(("output", "dq", "dk", "dv"), results, expected):
                error = ((x - y).float().norm() / y.float().norm()).item()
                if not error < 0.02:
                    raise ValueError(f"its {tensor} differs from that of {next(iter(found))} by {error:.0%}")
            found[name] = functions
        except Exception as error:  # whatever goes wrong in another implementation, measure the rest
            print_left_out(name, error)
    return found


def print_left_out(name, error):
    """Print the longest of an error's first three lines, which is where compilers say what is wrong."""
    print(
        f"  left out: {name}: {max(str(error).splitlines()[:3], key=len, default=repr(error)).strip()[:200]}",
        flush=True,
    )


# ----------------------------------------------------------------------------
# The benchmark


def speeds(tflop, seconds):
    base = next(iter(seconds.values()))
    return "".join(f"   {name} {tflop / x:.3g} ({x / base:.2f})" for name, x in seconds.items())


def main(args):
    cfg = configurator.load(__file__, args, check, command="python -m eval.bench attention")
    on_gpu = torch.cuda.is_available()
    device, dtype, n = ("cuda", torch.bfloat16, 8192) if on_gpu else ("cpu", torch.float32, 512)
    names = cfg.only.split(",") if cfg.only else [name for name in IMPLEMENTATIONS if name != "reference"]
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    matmul = 2 * n**3 / alternating({"": lambda: a @ b}, cfg.repeats, device_seconds)[""] / 1e12
    print(f"{hardware()}\nmatrix product of {n} x {n}, {str(dtype)[6:]}: {matmul:.3g} TFLOP/s")
    print(f"medians of {cfg.repeats}, {cfg.tokens} tokens; TFLOP/s (time relative to the first)")
    same = dict(matmul_tflops=matmul, tokens=cfg.tokens, triton=getattr(model.triton, "__version__", None))
    same |= checkpoint.versions(torch.device(device))

    def record(**row):
        if cfg.out:
            with open(cfg.out, "a") as file:
                file.write(json.dumps(row | dict(date=time.strftime("%Y-%m-%dT%H:%M:%S")) | same) + "\n")

    print(f"{'T':>5}{'D':>5}{'group':>6}{'mask':>8}{'docs':>6}{'pass':>10}{'of matmul':>11}")
    gradients = "backward" in cfg.passes
    cases = itertools.product(cfg.documents, cfg.lengths, cfg.head_dims, cfg.groups, (False, True))
    for mean, T, D, group, causal in cases:
        case = Case(T, D, group, causal, mean, cfg.tokens, gradients)
        torch.compiler.reset()  # or torch would stop compiling FlexAttention after eight cases
        found = runnable(case, names)
        for which in cfg.passes if found else ():
            seconds = alternating({name: f[which] for name, f in found.items()}, cfg.repeats, device_seconds)
            tflop = FLOPS[which] * case.flops / 1e12
            of_matmul = tflop / next(iter(seconds.values())) / matmul
            start = f"{T:>5}{D:>5}{group:>6}{'causal' if causal else 'full':>8}{mean:>6}{which:>10}{of_matmul:>11.0%}"
            print(start + speeds(tflop, seconds), flush=True)
            record(T=T, D=D, group=group, causal=causal, documents=mean, which=which, tflop=tflop, seconds=seconds)
    if cfg.search:
        search_settings(cfg, record)


# Launch settings to try where there is more than one good choice: (BLOCK_M, BLOCK_N, warps, stages, most registers).
CANDIDATES = {
    "forward": ((128, 64, 4, 2, None), (128, 64, 4, 3, None), (128, 128, 8, 2, None), (128, 128, 8, 3, None)),
    "dq": ((128, 64, 8, 2, 128), (128, 64, 8, 2, None), (64, 64, 4, 2, None)),
    "dkv": ((64, 128, 8, 2, None), (64, 64, 4, 2, None)),
}


def search_settings(cfg, record):
    """Time each kernel at D=64 with the table's launch settings and with CANDIDATES."""
    print("launch settings (BLOCK_M, BLOCK_N, warps, stages, most registers), next to those of model.LAUNCH")
    for T, causal in itertools.product(cfg.lengths, (False, True)):
        case = Case(T, 64, 1, causal, 0, cfg.tokens, gradients=False)
        q, k, v, d_out = case.q, case.k, case.v, case.d_out
        if why := model.why_not_triton(q.device.type, 64, q.dtype):
            print(f"  left out: {why}")
            return
        out, lse = model.fused_attention(q, k, v, causal, None, None)
        dq, dk, dv, delta = (torch.empty_like(x) for x in (q, k, v, lse))
        tensors = {"forward": (q, k, v, out, lse), "dq": (q, k, v, out, lse, d_out, dq, delta)}
        tensors["dkv"] = (q, k, v, lse, d_out, delta, dk, dv)
        for which, rows in CANDIDATES.items():
            strided = (q, k, v) if which == "forward" else (q, k, v, d_out)
            functions = {}
            for row in (None, *rows):
                changed = dict(zip(("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "maxnreg"), row or ()))
                run = partial(model.launch, which, q, k, v, causal, None, None, tensors[which], strided, **changed)
                try:
                    run()
                    functions[",".join(map(str, row)) if row else "table"] = run
                except Exception as error:  # too much shared memory, or what a compiler says
                    print_left_out(f"{which} {row}", error)
            seconds = alternating(functions, cfg.repeats, device_seconds)
            tflop = {"forward": 1, "dq": 1.5, "dkv": 2}[which] * case.flops / 1e12  # as many products as it computes
            print(f"{T:>5} {'causal' if causal else 'full':<7}{which:<8}" + speeds(tflop, seconds), flush=True)
            record(T=T, D=64, group=1, causal=causal, documents=0, which=which, tflop=tflop, seconds=seconds)
