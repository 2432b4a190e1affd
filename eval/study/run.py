"""Carry out a plan: runs of train.py in their order, then fine-tuning. What is done already is never repeated."""

import itertools
import json
import os
import runpy
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

import checkpoint
import configurator
from data.files import is_locked
from errors import DataError
from eval.study.jobs import ROOT, Job, run_all, slots
from eval.study.plan import DEFAULTS, TRAIN, task_name
from eval.study.results import read_rows
from eval.tasks.hub_encoder import problem
from eval.tasks.registry import find_task, missing

FINETUNE = ROOT / "finetune.py"
WAITING = "could not begin: the checkpoint that it begins with is not there, or no learning rate is chosen"


# ----------------------------------------------------------------------------
# Checks before anything starts


def problems_of(plan, runs, finetunes):
    """Return what stands in the way of some runs and of the fine-tuning runs, a line each, with the first name of it.

    It looks at the arguments of every run and of every task, rate and seed, and at the files of each task and the
    checkpoints that were given, once each.
    """
    cfg, found, new = plan.cfg, defaultdict(dict), f"--out_dir={plan.cfg.out_dir}/new"
    if runs and 0 < (n := torch.cuda.device_count()) < cfg.processes:
        found[f"this machine has {n} GPUs"][f"processes={cfg.processes}"] = None
    # A new folder, because what a run will begin with may not be there yet.
    commands = [(run.folder.name, [*arguments(run), new]) for run in runs]
    for run in runs:
        if why := changed(run):
            found[why][run.folder.name] = None
    os.environ["WORLD_SIZE"] = str(cfg.processes)
    for name, sentence in refusals(TRAIN, commands):
        found[sentence][name] = None
    del os.environ["WORLD_SIZE"]

    points = [(task, rate, seed) for task in plan.tasks for rate in cfg.rates for seed in cfg.finetune_seeds]
    commands = [
        (task_name(task), [*plan.tasks[task], f"--task={task}", f"--lr={rate}", f"--seed={seed}", new])
        for task, rate, seed in points * bool(finetunes)
    ]
    for name, sentence in refusals(FINETUNE, commands):
        if not sentence.startswith("init_from"):  # what is fine-tuned may not be there yet
            found[sentence][name] = None
    defaults = configurator.read_script(FINETUNE)[0]
    settings = {task: configurator.parse(args, defaults)[0] for task, args in plan.tasks.items() if finetunes}
    for task, its in settings.items():
        if absent := missing(find_task(task, its.tasks_dir)):
            found[absent][task_name(task)] = None
    for causal, model in itertools.product({its.causal for its in settings.values()}, plan.given):
        if why := problem(model.checkpoint, causal):
            found[why][model.folder] = None
    return [f"{name}{f' and {len(rest)} more' * bool(rest)}: {why}" for why, (name, *rest) in found.items()]


def changed(run):
    """Return how a run that is there differs from what its row says now; "" if it does not."""
    path = run.folder / "config.json"
    if not path.exists():
        return ""
    record = json.loads(path.read_bytes())
    before = {k: tuple(v) if type(v) is list else v for k, v in record["settings"].items()}
    now, _ = configurator.parse(arguments(run), DEFAULTS)
    begins = {"branch_from", "init_from"} if run.parent else ()
    now |= {k: before.get(k) for k, v in now.items() if v == "auto" or k in begins}
    try:
        checkpoint.check_same_run({"settings": before, "data": record["data_fingerprint"]}, now, run.folder)
    except DataError as error:
        return f"{error}. Give the row another name, or remove {run.folder}"
    return ""


def refusals(script, commands):
    """Yield (name, sentence) for each thing that a script would refuse. commands: (name, its arguments).

    The check is the script's own. It runs here: a process for each command would take longer than all checks together.
    """
    check, (defaults, _) = runpy.run_path(str(script))["check"], configurator.read_script(script)
    for name, args in commands:
        settings, problems = configurator.parse(args, defaults)
        yield from ((name, problem) for problem in [*problems, *(check(settings) or ())])


# ----------------------------------------------------------------------------
# Pretraining


def under_way(run):
    """Return whether a run has a checkpoint of its own to resume from."""
    return bool(checkpoint.steps(run.folder))


def begins_with(run):
    """Return the checkpoint that a run begins with as (setting of train.py, path), or ("", None) from scratch."""
    if run.parent is None:
        return "", None
    return ("branch_from" if run.start else "init_from"), run.parent.checkpoint(run.start)


def to_train(plan):
    """Return the runs to train.

    They are those that have not ended, and those whose checkpoint is gone although a run or a fine-tuning run still to
    do begins with it.
    """
    needed = {point[0].checkpoint for point in plan.points() if not has_result(plan, *point)}
    runs = []
    for run in reversed(plan.runs.values()):  # each before those that it begins with
        gone = any(path in needed and not path.exists() for path in map(run.checkpoint, (*run.keep, run.max_steps)))
        if not run.checkpoint().exists() and (gone or not run.ended()):
            runs.append(run)
            if not under_way(run):
                needed.add(begins_with(run)[1])
    return runs[::-1]


def arguments(run):
    """Return a run's arguments of train.py, without the checkpoint that it begins with."""
    ours = dict(seed=run.train_seed, out_dir=run.folder, keep_last=1, keep_steps=run.keep, resume=True)
    return run.args + [f"--{name}={value}" for name, value in ours.items()]


def training(plan, run):
    """Return the Job that starts or resumes a run; None until the checkpoint that it begins with is there."""
    (setting, path), n = begins_with(run), plan.cfg.processes
    if path and not path.exists() and not under_way(run):
        return None
    launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={n}"] if n > 1 else []
    command = [*launcher, TRAIN, *arguments(run), *[f"--{setting}={path}"] * bool(path)]
    return Job(run.folder, command, run.checkpoint())


def pretrain(plan, runs):
    """Train those of `runs` that are to be trained, as many at a time as there is room for. Return what failed."""
    todo = [run for run in to_train(plan) if run in runs]
    for run in todo:
        if not under_way(run) and not is_locked(run.folder):  # from step 0: train.py would miss the checkpoints
            for name in ("config.json", "metrics.jsonl"):
                (run.folder / name).unlink(missing_ok=True)
    failed, waiting = run_all(todo, partial(training, plan), slots(plan.cfg.jobs, plan.cfg.processes), "pretraining")
    return [run.folder.name for run in failed] + [f"{run.folder.name}: {WAITING}" for run in waiting]


# ----------------------------------------------------------------------------
# Fine-tuning


def job_folder(model, task, rate, seed):
    """Return the folder of a fine-tuning run, relative to that of all results."""
    return Path(model.folder, task_name(task), f"lr-{rate:g}_seed-{seed}")


def finetuning(plan, model, task, rate, seed):
    """Return the Job of a fine-tuning run. One of each task scores the task's baselines, which are the same for all."""
    cfg, folder = plan.cfg, plan.results / job_folder(model, task, rate, seed)
    first = (model, rate, seed) == (plan.models[0], cfg.rates[0], cfg.finetune_seeds[0])
    ours = dict(task=task, init_from=model.checkpoint, lr=rate, seed=seed, out_dir=folder, baseline=first)
    ours |= {"random_weights": True} if model.random_weights else {}
    args = plan.tasks[task] + [f"--{name}={value}" for name, value in ours.items()]
    return Job(folder, [FINETUNE, *args], folder / "result.json")


def chosen_rate(plan, model, task):
    """Return the rate that did best on validation with the first fine-tuning seed, of a model and its pretraining seed.

    Of equals it is the lowest. The sets of a retrieval task choose together. None before all rates have been tried, and
    if all failed.
    """
    cfg, scores = plan.cfg, {}
    for rate in sorted(cfg.rates):
        job = finetuning(plan, model, task, rate, cfg.finetune_seeds[0])
        if job.result.exists():
            rows = read_rows(plan.results, cfg.metrics, [job.folder])
            scores[rate] = np.mean([row["validation"] for row in rows])
        elif not (job.folder / "error.txt").exists():
            return None
    return max(scores, key=scores.get, default=None)


def has_result(plan, model, task, rate, seed):
    """Return whether a fine-tuning run is done. rate: None for the chosen one; without one it is not done."""
    rate = rate or chosen_rate(plan, model, task)
    return rate is not None and finetuning(plan, model, task, rate, seed).result.exists()


def job_of(plan, point):
    """Return the Job of a fine-tuning run; None if no rate is chosen, or until its checkpoint is there."""
    model, _, rate, _ = point
    job = rate and finetuning(plan, *point)
    there = model.run is None or model.checkpoint.exists()
    return job if job and (there or job.result.exists()) else None


def finetune_all(plan, part):
    """Do a part (a slice) of the fine-tuning runs: first those with a given rate. Return what failed."""
    problems, points = [], plan.points()[part]
    for chosen in (False, True):
        stage = [point for point in points if (point[2] is None) == chosen]
        stage = [(model, task, rate or chosen_rate(plan, model, task), seed) for model, task, rate, seed in stage]
        failed, waiting = run_all(stage, partial(job_of, plan), slots(plan.cfg.jobs), "fine-tuning")
        problems += [(point, "failed") for point in failed] + [(point, WAITING) for point in waiting]
    return [f"{model.folder} on {task}, lr {rate}, seed {seed}: {why}" for (model, task, rate, seed), why in problems]
