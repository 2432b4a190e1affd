"""Carry out a plan: runs of train.py in their order, then fine-tuning; or write the job scripts with which a cluster does.

What is done already is never repeated.
"""

import itertools
import json
import os
import runpy
import shlex
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

import checkpoint
import configurator
from data.files import MALFORMED, is_locked
from errors import DataError
from eval.study.jobs import ROOT, Job, run_all, slots
from eval.study.plan import TRAIN, task_name
from eval.study.results import read_rows
from eval.tasks.hub_encoder import problem
from eval.tasks.registry import find_task, missing
from run import check_same_run

FINETUNE = ROOT / "finetune.py"
JOB = """\
#!/bin/bash
#SBATCH --nodes=1 --ntasks=1 --time=24:00:00 --signal=B:TERM@300
# Add what your cluster asks for, such as --account. The arguments are the names of the array's tasks.
set -euo pipefail
cd {folder}
shift "$SLURM_ARRAY_TASK_ID"
exec {study} "--only=$1"
"""
SUBMIT = """\
#!/bin/bash
# Each array waits for the end of the one before. If anything was cut short or failed, run this again: what is done
# stays done.
set -euo pipefail
"""


# ----------------------------------------------------------------------------
# Checks before anything starts


def problems_of(plan, runs, finetunes):
    """Yield (name, sentence) for all that stands in the way of some runs and, if `finetunes`, of the fine-tuning runs.

    It looks at the arguments of every run and of every task, rate and seed, and at the files of each task and the
    checkpoints that were given, once each.
    """
    cfg, new = plan.cfg, f"--out_dir={plan.cfg.out_dir}/new"  # because what a run will begin with may not be there yet
    if runs and 0 < (n := torch.cuda.device_count()) < cfg.processes:
        yield f"processes={cfg.processes}", f"this machine has {n} GPUs"
    yield from ((run.folder.name, why) for run in runs if (why := changed(run)))
    yield from refusals(TRAIN, [(run.folder.name, [*arguments(run), new]) for run in runs], world_size=cfg.processes)

    tasks = plan.tasks if finetunes else {}
    commands = [
        (task_name(task), [*tasks[task], f"--task={task}", f"--lr={rate}", f"--seed={seed}", new])
        for task, rate, seed in itertools.product(tasks, cfg.rates, cfg.finetune_seeds)
    ]
    yield from refusals(FINETUNE, commands, needs_checkpoint=False)
    defaults, causal = configurator.read_script(FINETUNE)[0], set()
    for task, args in tasks.items():
        its = configurator.parse(args, defaults)[0]
        causal.add(its.causal)
        if absent := missing(find_task(task, its.tasks_dir)):
            yield task_name(task), absent
    for model, its in itertools.product(plan.given, causal):
        if why := problem(model.checkpoint, its):
            yield model.folder, why


def grouped(pairs):
    """Return a line for each sentence of some (name, sentence), with the first name of it."""
    names = defaultdict(dict)
    for name, sentence in pairs:
        names[sentence][name] = None
    return [f"{name}{f' and {len(rest)} more' * bool(rest)}: {why}" for why, (name, *rest) in names.items()]


def changed(run):
    """Return how a run that is there differs from what its row says now; "" if it does not."""
    path = run.folder / "config.json"
    if not path.exists():
        return ""
    try:
        record = json.loads(path.read_bytes())
        before = {k: tuple(v) if type(v) is list else v for k, v in record["settings"].items()}
        data = str(record["data_fingerprint"])
    except MALFORMED as error:
        why = "is damaged, or not the record of a run. Remove this file: the checkpoints have the settings too"
        return f"{path} {why} ({error!r})"
    now = run.settings | {"seed": run.train_seed}
    begins = {"branch_from", "init_from"} if run.parent else ()
    now |= {k: before.get(k) for k, v in now.items() if v == "auto" or k in begins}
    try:
        check_same_run({"settings": before, "data": data}, now, run.folder)
    except DataError as error:
        return f"{error}. Give the row another name, or remove {run.folder}"
    return ""


def refusals(script, commands, **options):
    """Yield (name, sentence) for each thing that a script would refuse. commands: (name, its arguments).

    options: of the script's `check`: train.py's takes world_size, finetune.py's needs_checkpoint. The check is the
    script's own. It runs here: a process for each command would take longer than all checks together.
    """
    check, (defaults, _) = runpy.run_path(str(script))["check"], configurator.read_script(script)
    for name, args in commands:
        settings, problems = configurator.parse(args, defaults)
        yield from ((name, problem) for problem in [*problems, *check(settings, **options)])


# ----------------------------------------------------------------------------
# Pretraining


def to_train(plan):
    """Return the runs to train.

    They are those that have not ended, and those whose checkpoint is gone although a run or a fine-tuning run still to
    do begins with it.
    """
    needed = {point[0].checkpoint for point in plan.points() if not has_result(plan, point)}
    runs = []
    for run in reversed(plan.runs.values()):  # each before those that it begins with
        gone = any(path in needed and not path.exists() for path in map(run.checkpoint, (*run.keep, run.max_steps)))
        if not run.checkpoint().exists() and (gone or not run.ended()):
            runs.append(run)
            if not run.under_way():
                needed.add(run.origin)
    return runs[::-1]


def arguments(run):
    """Return a run's arguments of train.py, without the checkpoint that it begins with."""
    ours = dict(seed=run.train_seed, out_dir=run.folder, keep_last=1, keep_steps=tuple(sorted(run.keep)), resume=True)
    return run.args + [f"--{name}={value}" for name, value in ours.items()]


def training(plan, run):
    """Return the Job that starts or resumes a run; None until the checkpoint that it begins with is there."""
    n, begins = plan.cfg.processes, "branch_from" if run.start else "init_from"
    if run.origin and not run.origin.exists() and not run.under_way():
        return None
    launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={n}"] if n > 1 else []
    command = [*launcher, TRAIN, *arguments(run), *[f"--{begins}={run.origin}"] * bool(run.origin)]
    return Job(run.folder, command, run.checkpoint())


def pretrain(plan, runs):
    """Train those of `runs` that are to be trained. Return (name, why) of those that failed or could not begin."""
    todo = [run for run in to_train(plan) if run in runs]
    for run in todo:
        if not run.under_way() and not is_locked(run.folder):  # from step 0: train.py would miss the checkpoints
            for name in ("config.json", "metrics.jsonl"):
                (run.folder / name).unlink(missing_ok=True)
    failed = run_all(todo, partial(training, plan), slots(plan.cfg.jobs, plan.cfg.processes), "pretraining")
    return [(run.folder.name, why) for run, why in failed]


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
            scores[rate] = np.mean([row.validation for row in rows])
        elif not (job.folder / "error.txt").exists():
            return None
    return max(scores, key=scores.get, default=None)


def job_of(plan, point):
    """Return the Job of a fine-tuning run; None until its rate is chosen and its checkpoint is there."""
    model, task, rate, seed = point
    if not (rate := rate or chosen_rate(plan, model, task)):
        return None
    job = finetuning(plan, model, task, rate, seed)
    return job if model.run is None or model.checkpoint.exists() or job.result.exists() else None


def has_result(plan, point):
    """Return whether a fine-tuning run is done."""
    job = job_of(plan, point)
    return bool(job) and job.result.exists()


def finetune_all(plan, part):
    """Do a part (a slice) of the fine-tuning runs. Return (name, why) of those that failed or could not begin."""
    failed = run_all(plan.points()[part], partial(job_of, plan), slots(plan.cfg.jobs), "fine-tuning")
    return [
        (f"{model.folder} on {task}, {f'lr {rate}' if rate else 'the chosen lr'}, seed {seed}", why)
        for (model, task, rate, seed), why in failed
    ]


# ----------------------------------------------------------------------------
# A Slurm cluster


def write_scripts(plan, args):
    """Write a job script and submit.sh to OUT_DIR/slurm, and return the path of submit.sh, which submits all jobs.

    They are an array for the runs of each depth of the tree, one or two for the fine-tuning jobs, and the report.
    args: the study's arguments.
    """
    arrays, n = defaultdict(list), min(100, len(plan.points()))
    for run in sorted(plan.runs.values(), key=lambda run: run.depth):
        arrays[f"runs-{run.depth}"].append(run.folder.name)
    for i in range((1 if plan.cfg.full_grid else 2) * bool(n)):
        arrays[f"finetune-{i}"] = [f"finetune:{part}/{n}" for part in range(1, n + 1)]
    arrays["report"] = ["report"]

    folder, study = Path(plan.cfg.out_dir, "slurm").absolute(), shlex.join([sys.executable, "-m", "eval.study", *args])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.sh").write_text(JOB.format(folder=shlex.quote(os.getcwd()), study=study))
    submit, after = SUBMIT, ""
    for name, tasks in arrays.items():
        gpus = plan.cfg.processes if name.startswith("runs") else int(name != "report")
        options = [f"--job-name={name}", f"--gpus-per-node={gpus}", f"--cpus-per-task={8 * max(1, gpus)}"]
        options += [f"--array=0-{len(tasks) - 1}", f"--output={folder}/{name}-%a.txt", f"{folder}/job.sh"]
        submit += f"id=$(sbatch --parsable{after} {shlex.join([*options, *tasks])})\n"
        after = ' "--dependency=afterany:$id"'
    (folder / "submit.sh").write_text(submit)
    return folder / "submit.sh"
