"""Better rows for the launch table of the attention kernels (LAUNCH in model.py), searched on this GPU.

The search starts at the table's row, tries other values for one number after the other, and keeps what is clearly
faster. It prints each step, so nothing is lost when its time runs out.
"""

from functools import partial

import torch

import model
from eval.bench.attention import Case
from eval.bench.timing import alternating, device_seconds

head_dims = (64, 96, 128)  # D; 96 and 128 share a row of the table
repeats = 7  # the median of these counts

SEQ_LEN = 2048  # T
TOKENS = 16384  # tokens of a batch, in documents of 1,024 on average
GAIN = 0.03  # how much faster a step of the search must be
# Of BLOCK_M, BLOCK_N, warps, stages and, in a row that has it, maxnreg.
VALUES = (16, 32, 64, 128), (16, 32, 64, 128), (4, 8), (1, 2, 3, 4), (None,)


def check(cfg):
    """Yield what is wrong with the settings."""
    if not torch.cuda.is_available():
        yield "the kernels need a GPU"


def search(key, i, run, cfg, seconds_of=device_seconds):
    """Improve row i of LAUNCH[key]. run: calls the kernels and returns their results."""

    def run_with(row):
        rows = model.LAUNCH[key]
        model.LAUNCH[key] = (*rows[:i], row, *rows[i + 1 :])
        return run()

    best, expected = model.LAUNCH[key][i], run()
    for place, values in zip(range(len(best)), VALUES):
        for row in [(*best[:place], value, *best[place + 1 :]) for value in values if value != best[place]]:
            try:
                if not all((x - y).float().norm() <= 0.02 * y.float().norm() for x, y in zip(run_with(row), expected)):
                    raise ValueError("it computes something else")
                functions = {"best": partial(run_with, best), "row": partial(run_with, row)}
                before, now = alternating(functions, cfg.repeats, seconds_of).values()
            except Exception as error:  # most often it needs more shared memory than there is
                print(f"  left out: {row}: {str(error).strip()[:150]}", flush=True)
                continue
            if now < (1 - GAIN) * before:
                print(f"  {row} takes {now / before:.0%} of the time of {best}", flush=True)
                best = row
    run_with(best)


@torch.no_grad()
def main(cfg):
    for D in cfg.head_dims:
        forward, backward = [], []  # functions that return results, for the full and the causal mask
        for causal in (False, True):
            case = Case(SEQ_LEN, D, 3, causal, 1024, TOKENS)
            forward.append(partial(model.fused_attention, *case.inputs, causal, *case.bounds))
            args = case.d_out, *case.inputs, *forward[-1](), causal, *case.bounds
            backward.append(partial(model.fused_attention_backward, *args))
        key = model.architecture(case.d_out.device), max(32, model.triton.next_power_of_2(D))
        rows = model.LAUNCH.setdefault(key, model.LAUNCH[None, key[1]])
        for i, (which, runs) in enumerate({"forward": forward, "dq": backward, "dkv": backward}.items()):
            print(f"head dim {D}, {which}: the table has {rows[i]}", flush=True)
            search(key, i, lambda runs=runs: [result for run in runs for result in run()], cfg)
        verdict = "is as good as any" if model.LAUNCH[key] == rows else f"should be {model.LAUNCH[key]}"
        print(f"the row {key} of LAUNCH in model.py {verdict}", flush=True)
