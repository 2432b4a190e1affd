"""Carry out a plan, wave by wave: the jobs of a wave do not depend on each other. What is done is never repeated."""

import itertools
import json
import runpy
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

import configurator
from data.files import MALFORMED, is_locked
from errors import DataError
from eval.study.jobs import ROOT, Job, run_all, slots
from eval.study.plan import TRAIN, Run, task_name
from eval.study.results import read_rows
from eval.tasks.hub_encoder import problem
from eval.tasks.registry import find_task, missing
from run import check_same_run

FINETUNE = ROOT / "finetune.py"


# ----------------------------------------------------------------------------
# Checks before anything starts


def problems_of(plan, runs, finetunes):
    """Yield (name, sentence) for all that stands in the way of some runs and, if `finetunes`, of the fine-tuning runs.

    It looks at the arguments of every run and of every task, rate and seed, and at the files of each task and the
    checkpoints that were given, once each.
    """
    cfg = plan.cfg
    new_folder = f"--out_dir={cfg.out_dir}/new"  # because what a run will begin with may not be there yet
    n_gpus = torch.cuda.device_count()
    if runs and 0 < n_gpus < cfg.processes:
        yield f"processes={cfg.processes}", f"this machine has {n_gpus} GPUs"
    for run in runs:
        if why := changed(run):
            yield run.folder.name, why
    commands = [(run.folder.name, [*arguments(run), new_folder]) for run in runs]
    yield from refusals(TRAIN, commands, world_size=cfg.processes)
    if finetunes:
        yield from problems_of_finetuning(plan, new_folder)


def problems_of_finetuning(plan, new_folder):
    commands = []
    for task, rate, seed in itertools.product(plan.tasks, plan.cfg.rates, plan.cfg.finetune_seeds):
        args = [f"--task={task}", f"--lr={rate}", f"--seed={seed}", new_folder]
        commands.append((task_name(task), [*plan.tasks[task], *args]))
    yield from refusals(FINETUNE, commands, needs_checkpoint=False)
    defaults, _ = configurator.read_script(FINETUNE)
    masks = set()  # the attention masks that the tasks want
    for task, args in plan.tasks.items():
        settings, _ = configurator.parse(args, defaults)
        masks.add(settings.causal)
        if absent := missing(find_task(task, settings.tasks_dir, settings.max_steps == 0)):
            yield task_name(task), absent
    for model, causal in itertools.product(plan.given, masks):
        if why := problem(model.checkpoint, causal):
            yield model.folder, why


def grouped(pairs):
    """Return a line for each sentence of some (name, sentence), with the first name of it."""
    names = defaultdict(dict)
    for name, sentence in pairs:
        names[sentence][name] = None
    lines = []
    for sentence, (first, *others) in names.items():
        more = f" and {len(others)} more" if others else ""
        lines.append(f"{first}{more}: {sentence}")
    return lines


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
# Waves


def carry_out(plan, waves):
    """Do what is missing of some waves, one after the other. Return (name, why) of each job that failed.

    waves: {name: Runs or points of fine-tuning}; see Plan.waves.
    """
    runs, failed = to_train(plan), []
    for name, items in waves.items():
        jobs, processes = [], 0
        for item in items:
            if not isinstance(item, Run):
                job = finetuning(plan, *item)
            elif item in runs:
                job, processes = training(plan, item), plan.cfg.processes
            else:
                continue
            if job.obstacle and not job.result.exists():
                failed.append((job.name, f"could not begin: {job.obstacle}"))
            else:
                jobs.append(job)
        failed += run_all(jobs, slots(plan.cfg.jobs, processes), name)
    return failed


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
        paths = {run.checkpoint(step) for step in (*run.keep, run.max_steps)}
        gone = [path for path in needed & paths if not path.exists()]
        if run.checkpoint().exists() or run.ended() and not gone:
            continue
        runs.append(run)
        if not run.under_way():
            needed.add(run.origin)
    return runs[::-1]


def arguments(run):
    """Return a run's arguments of train.py, without the checkpoint that it begins with."""
    ours = dict(seed=run.train_seed, out_dir=run.folder, keep_last=1, keep_steps=tuple(sorted(run.keep)), resume=True)
    return run.args + [f"--{name}={value}" for name, value in ours.items()]


def training(plan, run):
    """Return the Job that starts or resumes a run."""
    n, obstacle = plan.cfg.processes, ""
    command = ["torch.distributed.run", "--standalone", f"--nproc_per_node={n}"] if n > 1 else []
    command += [TRAIN, *arguments(run)]
    if run.parent:
        begins = "branch_from" if run.start else "init_from"
        command.append(f"--{begins}={run.origin}")
    if not run.under_way():
        if run.parent and not run.origin.exists():
            obstacle = f"{run.origin} is missing, see {run.parent.folder.name}"
        if not obstacle and not is_locked(run.folder):  # train.py would miss the checkpoints that belong to these records
            for name in ("config.json", "metrics.jsonl"):
                (run.folder / name).unlink(missing_ok=True)
    return Job(run.folder.name, run.folder, command, run.checkpoint(), obstacle)


# ----------------------------------------------------------------------------
# Fine-tuning


def job_folder(model, task, rate, seed):
    """Return the folder of a fine-tuning run, relative to that of all results."""
    return Path(model.folder, task_name(task), f"lr-{rate:g}_seed-{seed}")


def finetuning(plan, model, task, rate, seed):
    """Return the Job of a fine-tuning run; rate=None: at the chosen rate.

    One of each task scores the task's baselines, which are the same for all.
    """
    cfg, obstacle = plan.cfg, ""
    name = f"{model.folder} on {task}, {f'lr {rate:g}' if rate else 'the chosen lr'}, seed {seed}"
    if not rate:
        rate = chosen_rate(plan, model, task)
    if not rate:
        why = f"no learning rate is chosen, because the runs with seed {cfg.finetune_seeds[0]} are missing or failed"
        folder = plan.results / model.folder
        return Job(name, folder, [], folder / "result.json", why)
    folder = plan.results / job_folder(model, task, rate, seed)
    first = (model, rate, seed) == (plan.models[0], cfg.rates[0], cfg.finetune_seeds[0])
    ours = dict(task=task, init_from=model.checkpoint, lr=rate, seed=seed, out_dir=folder, baseline=first)
    if model.random_weights:
        ours["random_weights"] = True
    command = [FINETUNE, *plan.tasks[task], *(f"--{name}={value}" for name, value in ours.items())]
    if model.run and not model.checkpoint.exists():
        obstacle = f"{model.checkpoint} is missing, see {model.run.folder.name}"
    return Job(name, folder, command, folder / "result.json", obstacle)


def chosen_rate(plan, model, task):
    """Return the rate that did best on validation with the first fine-tuning seed, of a model and its pretraining seed.

    Of equals it is the lowest. The sets of a retrieval task choose together. None before all rates have been tried, and
    if all failed.
    """
    scores = {}
    for rate in sorted(plan.cfg.rates):
        folder = plan.results / job_folder(model, task, rate, plan.cfg.finetune_seeds[0])
        if (folder / "result.json").exists():
            rows = read_rows(plan.results, plan.cfg.metrics, [folder])
            scores[rate] = np.mean([row.validation for row in rows])
        elif not (folder / "error.txt").exists():
            return None
    return max(scores, key=scores.get, default=None)


def has_result(plan, point):
    """Return whether a fine-tuning run is done. point: see Plan.points."""
    return finetuning(plan, *point).result.exists()
