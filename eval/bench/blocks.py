"""Better rows for the launch table of the attention kernels (LAUNCH in model.py), searched on this GPU.

The search starts at the table's row, changes one number at a time, and moves on where that is clearly faster. It
prints each step, so nothing is lost when its time runs out. Settings that fail or compute something else are left out.
"""

from functools import partial

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


def neighbors(row):
    """Yield the launch settings that differ from `row` in one number, by one place in ALLOWED."""
    for i, allowed in enumerate(ALLOWED):
        place = allowed.index(row[i])
        for value in allowed[max(0, place - 1) : place] + allowed[place + 1 : place + 2]:
            yield (*row[:i], value, *row[i + 1 :])


def search(key, i, run, cfg):
    """Improve row i of LAUNCH[key] as long as a neighbor is faster at `run()`, which returns the kernels' results."""

    def with_row(row):
        rows = model.LAUNCH[key]
        model.LAUNCH[key] = (*rows[:i], row, *rows[i + 1 :])
        return run()

    best, tried, expected = model.LAUNCH[key][i], {model.LAUNCH[key][i]}, run()
    while waiting := [row for row in neighbors(best) if row not in tried]:
        tried.add(waiting[0])
        try:
            if any((x - y).float().norm() > 0.02 * y.float().norm() for x, y in zip(with_row(waiting[0]), expected)):
                raise ValueError("it computes something else")
            seconds = alternating(
                {row: partial(with_row, row) for row in (best, waiting[0])}, cfg.repeats, device_seconds
            )
        except Exception as error:  # most often it needs more shared memory than there is
            print(f"  left out: {waiting[0]}: {str(error).strip().splitlines()[0][:150]}", flush=True)
            continue
        if seconds[waiting[0]] < (1 - cfg.gain) * seconds[best]:
            print(f"  {waiting[0]} takes {seconds[waiting[0]] / seconds[best]:.0%} of the time of {best}", flush=True)
            best = waiting[0]
    with_row(best)


def main(cfg):
    for D in cfg.head_dims:
        cases = [Case(cfg.seq_len, D, 3, causal, cfg.documents, cfg.tokens) for causal in (False, True)]
        q = cases[0].inputs[0].detach()
        architecture = "fp32" if q.element_size() == 4 else model.architecture(q.device)
        key = architecture, max(32, model.triton.next_power_of_2(D))
        rows = model.LAUNCH.setdefault(key, model.LAUNCH.get((None, key[1])))
        forward, backward = [], []
        for case in cases:
            q, k, v = (x.detach() for x in case.inputs)
            forward.append(partial(model.fused_attention, q, k, v, case.causal, *case.bounds))
            out, lse = forward[-1]()
            backward.append(
                partial(model.fused_attention_backward, case.d_out, q, k, v, out, lse, case.causal, *case.bounds)
            )
        for i, which in enumerate(model.KERNELS):
            print(f"head dim {D}, {which}: the table has {rows[i]}", flush=True)
            functions = forward if which == "forward" else backward
            search(key, i, lambda: [x for run in functions for x in run()], cfg)
        found = model.LAUNCH[key]
        print(f"set in LAUNCH of model.py: {key}: {found}," if found != rows else f"the row {key} is good", flush=True)
