"""A plan as text: the tree of its runs, and what all of it costs."""

from collections import Counter

import torch

from model import Transformer
from runtime import flops_per_token


def describe(plan):
    """Return the plan as text: the tree of runs, then the amount of everything."""
    runs = plan.runs.values()
    n_weights = {size: count_weights(config) for size, (_, config) in plan.shape.items()}
    n_saved = [(len(run.keep) + 1) * n_weights[run.size] for run in runs]
    tokens = sum((run.budget - run.start) * plan.shape[run.size][0].global_batch_tokens for run in runs)
    jobs = Counter(model for model, *_ in plan.points())  # of each model
    trials = sum(run.lr > 0 for run in runs)
    lines = [
        *tree(plan),
        "",
        f"tokens of pretraining {tokens:,}",
        f"FLOPs of pretraining {sum(flops(plan, run, run.start) for run in runs):.2g}",
        f"disk {12 * sum(n_saved) / 1e9:,.1f} GB",  # weights and two moments in fp32
        "",
        *[f"runs that choose a learning rate {trials}"] * (trials > 0),
        f"final models {len(plan.finals)}",
        f"intermediate models {len(plan.inside)}",
        f"fine-tuning runs {sum(jobs[model] for model in plan.finals + plan.inside)}",
        f"fine-tuning runs of random weights {sum(jobs[model] for model in plan.random)}",
        f"steps trained {sum(run.budget - run.start for run in runs)}",
        f"steps saved by sharing {sum(run.start for run in runs)}",
    ]
    return "\n".join(lines)


def tree(plan, before=None, indent=""):
    """Yield a line for each run that begins with the run `before`, each followed by the lines of those below it."""
    for run in plan.runs.values():
        if run.before is before:
            begin = f"from step {run.start:,}, " if run.parent else "from the final weights, " if run.base else ""
            clm = [f"CLM to {run.clm:,}"] if run.clm > run.start else []
            mlm = [f"MLM to {run.budget:,}"] if run.clm < run.budget else []
            if run.size in plan.named:
                name, args = plan.named[run.size]
                args += " --switch_step=0" * (run.lr > 0)
                clm, mlm = [], [f"to {run.budget:,} as {name!r}: {args}"]
            keep = f", keeps {' '.join(f'{step:,}' for step in run.keep)}" if run.keep else ""
            yield f"{indent}{run.name}: {begin}{', '.join(clm + mlm)}{keep}"
            yield from tree(plan, run, indent + "  ")


def count_weights(config):
    with torch.device("meta"):
        return sum(weights.numel() for weights in Transformer(config).parameters())


def flops(plan, run, start):
    """Return the FLOPs of a run from a step to its end."""
    settings, config = plan.shape[run.size]
    ratios, share = (settings.mask_ratio, settings.clm_windows) if run.size in plan.named else ((run.mask,), 0)
    masked = sum(ratios) / len(ratios)  # exact for a ratio that falls from one value to another
    causal, full = (flops_per_token(config, config.seq_len, c, 1 if c else masked) for c in (True, False))
    clm = max(0, run.clm - start)  # steps
    clm += share * (run.budget - start - clm)
    return settings.global_batch_tokens * (clm * causal + (run.budget - start - clm) * full)
