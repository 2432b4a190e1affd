"""Attention alone: our kernels next to PyTorch's, forward and backward. eval/bench/gpu.sh runs it on a GPU.

    python docs/results/speed/attention.py --lengths=512,4096 --head_dims=64,96 --documents=0,512

It prints TFLOP/s of each implementation, and its time relative to the first. The forward pass counts 4 x D x heads
FLOPs for each query and each key that it sees, the backward pass 2.5 times as many. Implementations take turns, and
medians are reported, because other work on the machine slows all of them.
"""

import itertools
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import configurator  # noqa: E402
import model  # noqa: E402
from model_checks import attention_results, relative_error  # noqa: E402
from run import versions  # noqa: E402

lengths = (2048, 8192)  # T
head_dims = (64,)  # D; there are 18 query heads on a GPU, 6 on a CPU
groups = (1,)  # query heads per key head
documents = (0, 512)  # mean length of the documents of a row; 0 = the row is one document
only = ("ours", "cudnn", "flash", "varlen")  # names of IMPLEMENTATIONS; the others must agree with the first
tokens = 16384  # tokens in a batch
repeats = 15  # timings of each; the median is reported

DEVICE, DTYPE, H = ("cuda", torch.bfloat16, 18) if torch.cuda.is_available() else ("cpu", torch.float32, 6)


def seconds_of(function):
    """Return the seconds of one call: on a CPU by the clock, on a GPU by events, with a cold L2 cache."""
    if DEVICE == "cpu":
        started = time.perf_counter()
        function()
        return time.perf_counter() - started
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.empty(2**28, dtype=torch.uint8, device="cuda").zero_()  # 256 MiB, larger than any L2
    torch.cuda._sleep(2_000_000)  # about 1 ms, so that Python's launches do not delay the work
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def alternating(functions, repeats):
    """Call {name: function} in turns and return {name: median seconds}. The first round does not count."""
    rounds = [{name: seconds_of(function) for name, function in functions.items()} for _ in range(repeats + 1)]
    return {name: statistics.median(each[name] for each in rounds[1:]) for name in functions}


# Implementations take q (B, T, H, D), k and v (B, T, H_kv, D), the mask, and the bounds of documents.


def ours(q, k, v, causal, *bounds, backend="triton"):
    return model.attention(q, k, v, causal, *bounds, backend)


def pytorch(q, k, v, causal, *bounds, backend):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)


def varlen(q, k, v, causal, doc_start, doc_end):
    """PyTorch's attention for documents that follow each other in one long row. Shares key heads from torch 2.12 on."""
    from torch.nn.attention.varlen import varlen_attn

    first = (doc_start == torch.arange(doc_start.shape[1], device=DEVICE)).flatten()
    cuts = F.pad(first.nonzero().flatten(), (0, 1), value=len(first)).int()  # where each document begins, and the end
    longest = int(cuts.diff().max())
    options = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
    flat = (x.flatten(0, 1) for x in (q, k, v))  # (B T, H, D)
    out = varlen_attn(*flat, cuts, cuts, longest, longest, window_size=(-1, 0 if causal else -1), **options)
    return out.unflatten(0, doc_start.shape)


IMPLEMENTATIONS = {
    "ours": ours,
    "reference": partial(ours, backend="reference"),
    "cudnn": partial(pytorch, backend=SDPBackend.CUDNN_ATTENTION),
    "flash": partial(pytorch, backend=SDPBackend.FLASH_ATTENTION),
    "varlen": varlen,
}
FOR_DOCUMENTS = {"cudnn": False, "flash": False, "varlen": True}  # the others run with documents and without


def inputs(T, D, group, mean, tokens):
    """Return random (q, k, v, d_out) and bounds. They are contiguous, as in a model, so no launch copies them."""
    generator = torch.Generator().manual_seed(T + mean)
    B, heads, bounds = max(1, tokens // T), (H, H // group, H // group, H), (None, None)
    packed = torch.randn(B, T, sum(heads), D, generator=generator).to(DEVICE, DTYPE)
    if mean:  # each token begins a document with probability 1 / mean
        document = (torch.rand(B, T, generator=generator) < 1 / mean).cumsum(1)  # (B, T): each token's document
        sides = (torch.searchsorted(document, document, right=right) for right in (False, True))
        bounds = tuple(x.int().to(DEVICE) for x in sides)
    return [x.contiguous() for x in packed.split(heads, dim=2)], bounds


def main(cfg):
    n = 8192 if DEVICE == "cuda" else 512
    x = torch.randn(n, n, device=DEVICE, dtype=DTYPE)  # its product shows if the GPU is throttled
    print(versions(x.device))
    seconds = alternating({"product": partial(torch.mm, x, x)}, cfg.repeats)["product"]
    print(f"medians: a bare matrix product {2 * n**3 / seconds / 1e12:.3g} TFLOP/s")
    for mean, T, D, group, causal in itertools.product(
        cfg.documents, cfg.lengths, cfg.head_dims, cfg.groups, (False, True)
    ):
        (q, k, v, d_out), bounds = inputs(T, D, group, mean, cfg.tokens)
        flops = 4 * H * D * model.attention_mask(T, causal, *bounds, DEVICE).expand(len(q), 1, T, T).sum().item()
        for x in (q, k, v):
            x.requires_grad_()
        passes, expected = {"forward": {}, "backward": {}}, None
        for name in cfg.only:
            if FOR_DOCUMENTS.get(name, mean > 0) != (mean > 0):
                continue
            try:
                function = IMPLEMENTATIONS[name]
                found = attention_results(function, q, k, v, d_out, causal, *bounds)
                expected = expected or found
                if (error := relative_error(found, expected)) > 0.02:
                    raise ValueError(f"its output or gradients differ by {error:.0%} from those of the first")
                forward = partial(function, q, k, v, causal, *bounds)
                passes["backward"][name] = partial(torch.autograd.grad, forward(), (q, k, v), d_out, retain_graph=True)
                passes["forward"][name] = forward
            except Exception as error:  # whatever goes wrong in one implementation, measure the rest
                print(f"  left out: {name}: {error!r}"[:300])
        for which, cost in ("forward", 1), ("backward", 2.5):
            seconds = alternating(passes[which], cfg.repeats)
            cells = [
                f"{name} {cost * flops / 1e12 / s:.3g} ({s / [*seconds.values()][0]:.2f})"
                for name, s in seconds.items()
            ]
            mask = "causal" if causal else "full"
            print(f"T {T}, D {D}, group {group}, {mask}, documents {mean}, {which}   {'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    check = lambda cfg: configurator.value_problems(cfg, choices={"only": IMPLEMENTATIONS})
    main(configurator.load(__file__, sys.argv[1:], check, "python docs/results/speed/attention.py"))
