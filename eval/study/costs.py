"""A plan as text: the tree of its runs, and what all of it costs."""

import shlex
import time

import torch

import configurator
from eval.study.jobs import FINETUNE
from eval.tasks.registry import find_task
from model import Transformer
from runtime import flops_per_token, peak_flops, resolve_auto

LENGTHS = {"sc": 64, "tc": 32, "qa": 200, "ir": 200}  # tokens of an example, a guess for the estimate
SLOWER = 3  # than pretraining: fine-tuning has small batches, scores and starts anew; seen in config/study_small.py


def describe(plan):
    """Return the plan as text: the tree of runs, then the amount of everything."""
    runs = plan.runs.values()
    trained, saved = sum(run.budget - run.start for run in runs), sum(run.start for run in runs)
    tokens, flops, disk = map(sum, zip(*(cost(plan, run) for run in runs)))
    tuning = finetuning_flops(plan)
    settings = resolve_auto(plan.shape[plan.size][0])
    speed, source = flops_per_second(torch.device(settings.device), settings.dtype)
    trials = sum(run.lr > 0 for run in runs)
    lines = [
        *tree(plan),
        "",
        f"tokens of pretraining {tokens:,}",
        f"FLOPs {flops:.2g} of pretraining, {tuning:.2g} of fine-tuning, if texts are as long as usual",
        f"hours on this machine {flops / speed / 3600:,.1f} + {SLOWER * tuning / speed / 3600:,.1f}, at "
        f"{speed / 1e12:,.3g} TFLOP/s, {source}, and 1/{SLOWER} of that in fine-tuning",
        f"disk {disk / 1e9:,.1f} GB",
        "",
        *[f"runs that choose a learning rate {trials}"] * (trials > 0),
        f"final models {len(plan.finals)}",
        f"intermediate models {len(plan.inside)}",
        f"fine-tuning runs {sum(map(plan.jobs, plan.finals + plan.inside))}",
        f"fine-tuning runs of random weights {sum(map(plan.jobs, plan.random))}",
        f"steps trained {trained}",
        f"steps saved by sharing {saved}",
    ]
    return "\n".join(lines)


def tree(plan, before="", indent=""):
    """Yield a line for each run that begins with the run `before`, each followed by the lines of those below it."""
    for run in plan.runs.values():
        if run.before == before:
            begin = f"from step {run.start:,}, " if run.parent else "from the final weights, " if run.base else ""
            clm = [f"CLM to {run.clm:,}"] if run.clm > run.start else []
            mlm = [f"MLM to {run.budget:,}"] if run.clm < run.budget else []
            keep = f", keeps {' '.join(f'{step:,}' for step in run.keep)}" if run.keep else ""
            yield f"{indent}{run.name}: {begin}{', '.join(clm + mlm)}{keep}"
            yield from tree(plan, run.name, indent + "  ")


def cost(plan, run):
    """Return (tokens, FLOPs, bytes of checkpoints: weights and two moments in fp32) of a run."""
    settings, config = plan.shape[run.size]
    causal, full = (flops_per_token(config, config.seq_len, c, 1 if c else run.mask) for c in (True, False))
    clm = max(0, run.clm - run.start)
    mlm = run.budget - run.start - clm
    with torch.device("meta"):
        n = sum(weights.numel() for weights in Transformer(config).parameters())
    step = settings.global_batch_tokens
    return step * (clm + mlm), step * (clm * causal + mlm * full), 12 * n * (len(run.keep) + 1)


def finetuning_flops(plan):
    """Return the FLOPs of all fine-tuning runs: 6 for each weight of the blocks and token."""
    total = 0
    for task, args in plan.cfg.tasks:
        settings = configurator.load(FINETUNE, shlex.split(f"{plan.cfg.finetune} {args}"))
        length = LENGTHS[find_task(task).family]
        for model in plan.models:
            n_tokens = plan.jobs(model) // len(plan.cfg.tasks) * settings.max_steps * settings.batch_size * length
            total += n_tokens * flops_per_token(plan.shape[model.run.size][1], length, False, 0)
    return total


def flops_per_second(device, dtype):
    """Return (the FLOP/s that this machine may reach in training, how that is known)."""
    if device.type == "cuda" and (peak := peak_flops(device)):
        n = torch.cuda.device_count()
        return 0.4 * peak * n, f"40 % of the peak of {n} x {torch.cuda.get_device_name()}"
    a, times = torch.randn(1024, 1024, device=device).to(getattr(torch, dtype)), []
    for _ in range(6):
        started = time.perf_counter()
        (a @ a).sum().item()
        times.append(time.perf_counter() - started)
    return 0.4 * 2 * 1024**3 / min(times), f"40 % of what a product of matrices reaches here in {dtype}"
