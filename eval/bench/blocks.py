"""Better rows for the launch table of the attention kernels (LAUNCH in model.py), searched on this GPU.

The search starts at the table's row, changes one number at a time, and moves on where that is clearly faster. It
prints each step, so nothing is lost when its time runs out. Settings that fail or compute something else are left out.
"""

from functools import partial

import torch

import configurator
import model
from eval.bench.attention import Case
from eval.bench.timing import alternating, device_seconds

head_dims = (64, 128)  # D; 96 uses the row of 128
seq_len = 2048  # T
documents = 1024  # mean length of the documents of a row
tokens = 16384  # tokens of a batch
repeats = 7  # the median of these counts
gain = 0.03  # how much faster a step of the search must be

ALLOWED = (16, 32, 64, 128), (16, 32, 64, 128), (4, 8), (1, 2, 3, 4)  # BLOCK_M, BLOCK_N, warps, stages


def check(cfg):
    """Yield what is wrong with the settings."""
    if not torch.cuda.is_available():
        yield "the kernels need a GPU"
    yield from configurator.outside_limits(cfg, ["seq_len", "documents", "tokens", "repeats"], ["gain"])


def neighbors(row):
    """Yield the launch settings that differ from `row` in one number, by one place in ALLOWED."""
    for i, allowed in enumerate(ALLOWED):
        place = allowed.index(row[i])
        for value in allowed[max(0, place - 1) : place] + allowed[place + 1 : place + 2]:
            yield (*row[:i], value, *row[i + 1 :])


def search(key, i, run, cfg, seconds_of=device_seconds):
    """Improve row i of LAUNCH[key] as long as a neighbor is faster at `run()`, which returns the kernels' results."""

    def with_row(row):
        rows = model.LAUNCH[key]
        model.LAUNCH[key] = (*rows[:i], row, *rows[i + 1 :])
        return run()

    best, expected = model.LAUNCH[key][i], run()
    tried = {best}
    while waiting := [row for row in neighbors(best) if row not in tried]:
        row = waiting[0]
        tried.add(row)
        try:
            if any((x - y).float().norm() > 0.02 * y.float().norm() for x, y in zip(with_row(row), expected)):
                raise ValueError("it computes something else")
            functions = {best: partial(with_row, best), row: partial(with_row, row)}
            before, now = alternating(functions, cfg.repeats, seconds_of).values()
        except Exception as error:  # most often it needs more shared memory than there is
            print(f"  left out: {row}: {str(error).strip()[:150]}", flush=True)
            continue
        if now < (1 - cfg.gain) * before:
            print(f"  {row} takes {now / before:.0%} of the time of {best}", flush=True)
            best = row
    with_row(best)


def main(cfg):
    for D in cfg.head_dims:
        runs = {"forward": [], "dq": [], "dkv": []}
        for causal in (False, True):
            case = Case(cfg.seq_len, D, 3, causal, cfg.documents, cfg.tokens)
            q, k, v = (x.detach() for x in case.inputs)
            runs["forward"].append(partial(model.fused_attention, q, k, v, causal, *case.bounds))
            out, lse = runs["forward"][-1]()
            backward = partial(model.fused_attention_backward, case.d_out, q, k, v, out, lse, causal, *case.bounds)
            runs["dq"].append(backward)
            runs["dkv"].append(backward)
        key = model.architecture(q.device), max(32, model.triton.next_power_of_2(D))
        rows = model.LAUNCH.setdefault(key, model.LAUNCH[None, key[1]])
        for i, (which, functions) in enumerate(runs.items()):
            print(f"head dim {D}, {which}: the table has {rows[i]}", flush=True)
            search(key, i, lambda functions=functions: [x for run in functions for x in run()], cfg)
        verdict = "is as good as any" if model.LAUNCH[key] == rows else f"should be {model.LAUNCH[key]}"
        print(f"the row {key} of LAUNCH in model.py {verdict}", flush=True)
