"""`python eval/bench.py kernels`: attention alone, ours beside PyTorch's, forward, backward and both.

    python eval/bench.py kernels --quick=True --search=True --out=eval/results/kernels.jsonl
    python eval/bench.py kernels --head_dims=64 --lengths=2048,8192 --documents=0

A row prints as soon as it is measured: TFLOP/s of each implementation, after it its time relative to ours.
4 x D x heads FLOPs for each pair of a query and a key that it sees in the forward pass, 2.5 times that in the backward.
"""

import inspect
import itertools
import json
import sys
import time
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import checkpoint
import configurator
import model
from eval.bench.timing import alternating, device_seconds, hardware
from model import attention, why_not_triton

lengths = ()  # T; empty = 512 to 8,192 on a GPU, 64 on a CPU
head_dims = (64, 128)  # D; heads x D is 1,536 on a GPU, 384 on a CPU
groups = (1, 3)  # query heads of a key head
documents = (0, 256, 512, 1024)  # mean length of the documents of a row; 0 = the row is one document
passes = ("forward", "backward", "both")  # forward alone runs as at inference
only = ""  # some of ours,dense,cudnn,flash,flex,varlen,reference; empty = all, but reference on a CPU only
quick = False  # the rows that matter most: T 2,048 and 8,192, D 64, group 1, documents 0 and 512; a few minutes
search = False  # also time other launch settings than those of model.LAUNCH, at D 64
tokens = 0  # of a batch; 0 = 16,384 on a GPU, 128 on a CPU
repeats = 0  # of which the median counts; 0 = 15 on a GPU, 2 on a CPU
out = ""  # also append each row to this file, as a line of JSON


def check(s):
    for name, low in dict(tokens=0, repeats=0).items():
        if s[name] < low:
            yield f"{name}={s[name]}: must be at least {low}"
    for name, low in dict(lengths=1, head_dims=2, groups=1, documents=0).items():
        if min(s[name], default=low) < low:
            yield f"{name}={s[name]}: must be at least {low} each"
    for name, known, values in (("passes", PASSES, s["passes"]), ("only", IMPLEMENTATIONS, s["only"].split(","))):
        for value in values:
            if value and value not in known:
                yield f"{name}={value}: must be some of {', '.join(known)}"
    for D in s["head_dims"]:
        for group in s["groups"]:
            if 384 % D or 384 // D % group:
                yield f"head_dims={D}, groups={group}: 384 must be a multiple of D x group"
    if s["out"] and not Path(s["out"]).absolute().parent.is_dir():
        yield f"out={s['out']}: no such folder"


# ----------------------------------------------------------------------------
# Implementations. Each takes a case, made below, and returns a function of q (B, T, H, D), k and v (B, T, H_kv, D).


def ours(case, backend="triton"):
    return lambda q, k, v: attention(q, k, v, case.causal, *case.bounds, backend=backend)


def dense(case):
    """Ours without the documents: what they save."""
    return lambda q, k, v: attention(q, k, v, case.causal, backend="triton")


def through_sdpa(case, backend):
    def run(q, k, v):
        with sdpa_kernel(backend):
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=case.group > 1)
            return o.transpose(1, 2)

    return run


def flex(case):
    """Compiled. With documents the block mask is made in the step, as each batch has its own; else once, if causal."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    make = torch.compile(create_block_mask, dynamic=False, fullgraph=True)
    start, end = case.bounds
    B, T, device = case.q.shape[0], case.q.shape[1], case.q.device.type

    def mask():
        def see(b, h, i, j):
            inside = (start[b, i] <= j) & (j < end[b, i]) if start is not None else i >= 0
            return inside & (j <= i) if case.causal else inside

        return make(see, B if start is not None else None, None, T, T, device)

    static = mask() if case.causal and start is None else None

    def run(q, k, v):
        block_mask = mask() if start is not None else static
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        return compiled(q, k, v, block_mask=block_mask, enable_gqa=case.group > 1).transpose(1, 2)

    return run


def varlen(case):
    """The documents of a batch in one row. Key heads are not repeated where torch can share them itself (enable_gqa,
    torch 2.12), else they are, within what is timed. The longest document is known, as the loader could tell."""
    from torch.nn.attention.varlen import varlen_attn

    start = case.bounds[0]
    first = (start == torch.arange(start.shape[1], device=start.device)).flatten()
    cuts = torch.cat([first.nonzero().flatten(), first.new_tensor([len(first)], dtype=torch.long)]).int()
    longest = int(cuts.diff().max())
    shares = "enable_gqa" in inspect.signature(varlen_attn).parameters
    options = dict(enable_gqa=case.group > 1) if shares else {}
    options |= dict(window_size=(-1, 0) if case.causal else (-1, -1))

    def run(q, k, v):
        if case.group > 1 and not shares:
            k, v = (x.repeat_interleave(case.group, 2) for x in (k, v))
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)  # (B T, H, D)
        return varlen_attn(q, k, v, cuts, cuts, longest, longest, **options).view_as(case.q)

    return run


# name -> (makes the function, whether it is for cases without documents, with them)
IMPLEMENTATIONS = {
    "ours": (ours, True, True),
    "dense": (dense, False, True),
    "cudnn": (partial(through_sdpa, backend=SDPBackend.CUDNN_ATTENTION), True, False),
    "flash": (partial(through_sdpa, backend=SDPBackend.FLASH_ATTENTION), True, False),
    "flex": (flex, True, True),
    "varlen": (varlen, False, True),
    "reference": (partial(ours, backend="reference"), True, True),  # by default on a CPU only
}
PASSES = {"forward": 1, "backward": 2.5, "both": 3.5}  # and their FLOPs, the forward being 1


class Case:
    """Inputs as in training: q, k and v are views of one packed projection."""

    def __init__(self, T, D, group, causal, mean, tokens, width, device, dtype, gradients=True):
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
            after = torch.cat([torch.where(first, t, T)[:, 1:], torch.full((B, 1), T)], 1)  # where the next one begins
            end = after.flip(1).cummin(1).values.flip(1)
            pairs = int((end - start).sum())
            self.bounds = start.int().to(device), end.int().to(device)
        if causal:
            pairs = (pairs + B * T) // 2
        self.flops = 4 * H * D * pairs


def functions_of(case, function):
    """{pass: function to time}, after the output and gradients of one call: (functions, results)."""
    inputs = (case.q, case.k, case.v)
    out = function(*inputs)
    if not out.requires_grad:
        return {"forward": lambda: function(*inputs)}, (out,)
    gradients = partial(torch.autograd.grad, out, inputs, case.d_out, retain_graph=True)
    functions = {"forward": lambda: function(*inputs), "backward": gradients,
                 "both": lambda: torch.autograd.grad(function(*inputs), inputs, case.d_out)}  # fmt: skip
    return functions, (out.detach(), *gradients())


def say_why_not(name, error, said):
    """Once: the longest of an error's first three lines, where compilers put what matters."""
    why = f"{name}: {type(error).__name__}: {max(str(error).splitlines()[:3], key=len, default='').strip()[:200]}"
    if why not in said:
        print(f"  left out: {why}", flush=True)
    said.add(why)


def implementations(case, names, said):
    """{name: {pass: function}} of those that run this case and agree with the first; the others say why not, once."""
    found, first = {}, None
    for name in names:
        make, plain, with_documents = IMPLEMENTATIONS[name]
        if not (with_documents if case.bounds[0] is not None else plain):
            continue
        try:
            functions, results = functions_of(case, make(case))
            if first is None:
                first = results
            for what, x, y in zip(("output", "dq", "dk", "dv"), results, first):
                error = ((x - y).float().norm() / y.float().norm()).item()
                if name != "dense" and not error < 0.02:
                    raise ValueError(f"its {what} differs from that of {next(iter(found))} by {error:.0%}")
            found[name] = functions
        except Exception as error:  # whatever another implementation does, the rest is measured
            say_why_not(name, error, said)
    return found


# ----------------------------------------------------------------------------
# The benchmark


def speeds(tflop, seconds):
    base = next(iter(seconds.values()))
    return "".join(f"   {name} {tflop / x:.3g} ({x / base:.2f})" for name, x in seconds.items())


def main(argv):
    s = configurator.load(__file__, argv, check)
    on_gpu = torch.cuda.is_available()
    device, dtype = torch.device("cuda" if on_gpu else "cpu"), torch.bfloat16 if on_gpu else torch.float32
    if s["quick"]:
        s |= dict(lengths=(2048, 8192) if on_gpu else (64,), head_dims=(64,), groups=(1,), documents=(0, 512))
    s["lengths"] = s["lengths"] or ((512, 1024, 2048, 4096, 8192) if on_gpu else (64,))
    s["tokens"], s["repeats"] = s["tokens"] or (16_384 if on_gpu else 128), s["repeats"] or (15 if on_gpu else 2)
    width = 1536 if on_gpu else 384
    names = s["only"].split(",") if s["only"] else [*IMPLEMENTATIONS][: -1 if on_gpu else None]  # no reference on a GPU
    print(hardware())
    versions = checkpoint.versions(device) | {"triton": getattr(model.triton, "__version__", None)}

    n = 8192 if on_gpu else 512
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    matmul = 2 * n**3 / alternating({"": lambda: a @ b}, s["repeats"], device_seconds)[""] / 1e12
    print(f"matrix product of {n} x {n}, {str(dtype)[6:]}: {matmul:.3g} TFLOP/s\nmedians of {s['repeats']} alternating "
          f"repeats, {s['tokens']} tokens, heads x D = {width}; TFLOP/s (time relative to the first)")  # fmt: skip

    def record(**row):
        if s["out"]:
            row |= dict(date=time.strftime("%Y-%m-%dT%H:%M:%S"), matmul_tflops=matmul, tokens=s["tokens"], **versions)
            with open(s["out"], "a") as file:
                file.write(json.dumps(row) + "\n")

    said = set()
    print(f"{'T':>5}{'D':>5}{'group':>6}{'mask':>8}{'docs':>6}{'pass':>10}{'of matmul':>11}")
    gradients = s["passes"] != ("forward",)
    cases = itertools.product(s["documents"], s["lengths"], s["head_dims"], s["groups"], (False, True))
    for mean, T, D, group, causal in cases:
        case = Case(T, D, group, causal, mean, s["tokens"], width, device, dtype, gradients)
        torch.compiler.reset()  # FlexAttention is compiled for each case; torch stops compiling after eight otherwise
        found = implementations(case, names, said)
        for which in s["passes"] if found else ():
            seconds = alternating({name: f[which] for name, f in found.items()}, s["repeats"], device_seconds)
            tflop = PASSES[which] * case.flops / 1e12
            share = tflop / next(iter(seconds.values())) / matmul
            print(f"{T:>5}{D:>5}{group:>6}{'causal' if causal else 'full':>8}{mean:>6}{which:>10}{share:>11.0%}"
                  + speeds(tflop, seconds), flush=True)  # fmt: skip
            record(T=T, D=D, group=group, causal=causal, documents=mean, which=which, tflop=tflop, seconds=seconds)
    if s["search"]:
        search_settings(s, width, device, dtype, record, said)


# (queries, keys, warps, stages, most registers) to try instead of model.LAUNCH's, where there is more than one choice.
# Of dq and dkv: programs of 8 warps, two to a multiprocessor or one, and twice as many of 4.
CANDIDATES = {
    "forward": ((128, 64, 4, 2, None), (128, 64, 4, 3, None), (128, 128, 8, 2, None), (128, 128, 8, 3, None)),
    "dq": ((128, 64, 8, 2, 128), (128, 64, 8, 2, None), (64, 64, 4, 2, None)),
    "dkv": ((64, 128, 8, 2, None), (64, 64, 4, 2, None)),
}


def search_settings(s, width, device, dtype, record, said):
    """Times the kernels at D=64 with the table's launch settings, the first of a line, and with CANDIDATES."""
    if why := why_not_triton(device.type, 64, dtype):
        print(f"  left out: launch settings: {why}")
        return
    table, names = model.launch_settings, ("QUERIES", "KEYS", "num_warps", "num_stages", "maxnreg")
    print("launch settings (queries x keys, warps, stages, most registers), those of model.LAUNCH first")
    for T, causal, (kernel, candidates) in itertools.product(s["lengths"], (False, True), CANDIDATES.items()):
        case, functions = Case(T, 64, 1, causal, 0, s["tokens"], width, device, dtype), {}
        which = "forward" if kernel == "forward" else "backward"  # which dq and dkv are parts of
        own = table(kernel, model.architecture(device), width // 64, width // 64, 64, dtype, causal, False)
        for row in dict.fromkeys([tuple(own.get(name) for name in names), *candidates]):

            def settings(asked, *args, row=row, kernel=kernel):
                return table(asked, *args) | (dict(zip(names, row)) if asked == kernel else {})

            run = patch("model.launch_settings", settings)(functions_of(case, ours(case))[0][which])
            try:
                run()
                functions["{}x{},{},{},{}".format(*row)] = run
            except Exception as error:  # too much shared memory, or what a compiler says
                say_why_not(f"{kernel} {row}", error, said)
        if not functions:
            continue
        seconds = alternating(functions, s["repeats"], device_seconds)
        tflop = PASSES[which] * case.flops / 1e12
        print(f"{T:>5} {'causal' if causal else 'full':<7}{kernel:<8}" + speeds(tflop, seconds), flush=True)
        record(T=T, D=64, group=1, causal=causal, kernel=kernel, which=which, tflop=tflop, seconds=seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
