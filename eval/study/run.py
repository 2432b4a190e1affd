"""Carry out a plan, wave by wave. The jobs of a wave do not depend on each other. Finished jobs are not repeated."""

import json
from collections import defaultdict
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import torch

import checkpoint
import configurator
from data.files import refuse_malformed
from data.hub import stored_tensors
from data.shards import load_data
from errors import DataError
from eval.study.branch import SCHEDULE, TRAIN, globals_of
from eval.study.jobs import PLANNED_FILE, Job, run_all, slots
from eval.study.plan import DEFAULTS, FINETUNE, FINETUNE_DEFAULTS
from eval.study.results import best, read
from eval.tasks.hub_encoder import problem
from run import RESUME_MAY_CHANGE, last_logged

# Settings that may change after a job was started, because no weight and no score depends on them.
MAY_DIFFER = {
    "train.py": RESUME_MAY_CHANGE - {"data"},
    "finetune.py": {"save_model", "device", "tasks_dir", "eval_interval", "eval_examples"},
}


# ----------------------------------------------------------------------------
# Checks before anything starts


def problems_of(plan, runs, points):
    """Yield (name, sentence) for each reason why some runs or points of fine-tuning cannot start.

    This checks the arguments of each run and task, the tasks' files, the given checkpoints, and finished jobs.
    """
    cfg = plan.cfg
    n_gpus = torch.cuda.device_count()
    if runs and 0 < n_gpus < cfg.processes:
        yield f"processes={cfg.processes}", f"this machine has {n_gpus} GPUs"
    commands = []
    for run in runs:
        new_folder = f"--out_dir={cfg.out_dir}/new"  # what is in the run's own folder does not matter
        shape = f"--init_from={run.settings.init_from}"  # model=origin needs it
        commands.append((run.folder.name, [*arguments(run), new_folder, shape]))
        if (run.folder / "config.json").exists():
            yield from changed(training(run, cfg.processes), f"Give the row another name, or remove {run.folder}")
    yield from refusals(TRAIN, commands)
    if not points:
        return
    for point in points:
        job = finetuning(plan, *point)
        if job and job.result.exists():
            yield from changed(job, f"Give another out_dir, or remove the results in {plan.results / point[0].folder}")
    commands = [(name, planned.args) for name, planned in plan.tasks.items()]
    causal = any(planned.settings.causal for planned in plan.tasks.values())
    grid = dict(lr=cfg.rates, seed=cfg.finetune_seeds)
    yield from refusals(FINETUNE, commands, grid, needs_checkpoint=False, reads_data=True)
    for model in plan.models:
        if model.kind == "given" and (why := problem(model.checkpoint, causal)):
            yield model.folder, why


def grouped(pairs):
    """Return a line for each distinct sentence in pairs (name, sentence), with its first name."""
    names = defaultdict(list)
    for name, sentence in dict.fromkeys(pairs):
        names[sentence].append(name)
    lines = []
    for sentence, (first, *others) in names.items():
        more = f" and {len(others)} more" if others else ""
        lines.append(f"{first}{more}: {sentence}")
    return lines


def changed(job, to_do):
    """Yield (name, sentence) for each relevant setting that has changed since a job began.

    to_do: advice that ends the sentence. A job without planned.json is older than that file and accepted as it is.
    """
    path = job.folder / PLANNED_FILE
    if not path.exists():
        return
    with refuse_malformed(f"{path} is damaged: remove it, to accept the files beside it, or remove its folder"):
        record = json.loads(path.read_bytes())
        for script, now in job.planned.items():
            # A setting that the record lacks did not exist then, so its default counts.
            before = now | (DEFAULTS if script == "train.py" else FINETUNE_DEFAULTS) | record[script]
            for name, value in now.items():
                if name not in MAY_DIFFER[script] and differs(name, value, before[name]):
                    yield job.name, f"{name}={value}, but {script} was given {name}={before[name]}. {to_do}"


def differs(name, value, before):
    """Return whether a setting has changed. "auto" equals any value; files are compared by content, if it is known."""
    if isinstance(value, dict):
        value = value["fingerprint"]
        before = before["fingerprint"]
        if "" in (value, before):  # unknown
            return False
    return value != "auto" and json.dumps(value) != json.dumps(before)


def refusals(script, commands, planned={}, **options):
    """Yield (name, sentence) for each problem that a script would report. commands: (name, arguments) each.

    planned: settings that replace those of the commands, each a tuple of all values that jobs will get. options: for
    the script's `check`, which is called here, because a process per command would be slow.
    """
    defaults, _ = configurator.read_script(script)
    for name, args in commands:
        settings, problems = configurator.parse(args, defaults)
        settings |= planned
        for sentence in [*problems, *globals_of(script)["check"](settings, **options)]:
            yield name, sentence


# ----------------------------------------------------------------------------
# Waves


def carry_out(plan, waves):
    """Do what is missing in some waves, one after the other. Return (name, why) for each job that failed.

    waves: {name: Runs or points of fine-tuning}; see Plan.waves.
    """
    cfg = plan.cfg
    failed = []
    runs = to_train(plan) if any(wave.startswith("pretrain") for wave in waves) else []  # a report needs no checkpoint
    no_rate = f"no learning rate is chosen, because the runs with seed {cfg.finetune_seeds[0]} are missing or failed"
    for wave, items in waves.items():
        pretrains = wave.startswith("pretrain")
        if pretrains:
            jobs = [training(run, cfg.processes) for run in items if run in runs]
        else:
            jobs = [finetuning(plan, *point) for point in items]
            failed += [(point[0].folder, no_rate) for point, job in zip(items, jobs) if not job]
        failed += run_all([*filter(None, jobs)], slots(cfg.jobs, cfg.processes if pretrains else 1), wave)
    return failed


# ----------------------------------------------------------------------------
# Pretraining


def to_train(plan):
    """Return the runs to train: unfinished ones, and those whose checkpoints are gone but needed by another job.

    Raises DataError if such a run still has its last checkpoint, because it would not be trained again.
    """
    needed = {point[0].checkpoint for point in plan.points() if not has_result(plan, point)}
    runs = []
    for run in reversed(plan.runs.values()):  # each before its parent
        own = map(run.checkpoint, (*run.keep, run.max_steps))
        gone = [path for path in needed.intersection(own) if not path.exists()]
        ended = run.checkpoint().exists()
        if gone and ended:
            raise DataError(f"{gone[0]} is missing. To train this run again, delete {run.checkpoint()}, too")
        if not ended and (gone or last_logged(run.folder) < run.max_steps):
            runs.append(run)
            if not checkpoint.steps(run.folder):  # if it has any, it resumes
                needed.add(run.origin)
    return runs[::-1]


def arguments(run):
    """Return a run's arguments of train.py, without the checkpoint that it begins with."""
    ours = dict(seed=run.train_seed, out_dir=run.folder, keep_last=1, keep_steps=tuple(sorted(run.keep)), resume=True)
    return [*run.args, "--branch_from=", *(f"--{name}={value}" for name, value in ours.items())]


def training(run, processes):
    """Return the Job that starts or resumes a run. If the run's origin is missing, the job fails and says so."""
    command = [TRAIN, *arguments(run)]
    if run.start:
        command += [f"--branch_from={run.origin}", "--init_from="]  # a config file may set it
    elif run.parent:
        command.append(f"--init_from={run.origin}")
    if processes > 1:
        torchrun = [find_spec("torch.distributed.run").origin, "--standalone", f"--nproc_per_node={processes}"]
        command = torchrun + command
    return Job(run.folder.name, run.folder, command, run.checkpoint(), {"train.py": decides(run)})


def decides(run):
    """Return what determines a run's weights: its settings, its seed, the content of its data and what it begins with.

    This includes what determines its parent. For a branch, the parent's schedule is left out, because the run's own
    schedule is the same in the shared steps.
    """
    data = {"path": run.settings.data, "fingerprint": fingerprint(run.settings.data)}
    found = run.settings | {"seed": run.train_seed, "begins_with": "", "data": data}
    if run.parent:
        found["begins_with"] = "/".join(run.origin.parts[-2:])
        for name, value in decides(run.parent).items():
            if not (name in MAY_DIFFER["train.py"] or name == "dtype" or run.start and name in SCHEDULE):
                found[f"{name} of {run.parent.row}"] = value
    return found


@cache
def fingerprint(data):
    """Return the start of the fingerprint of prepared data; "" if they are missing or damaged."""
    with suppress(DataError):
        return load_data(data).fingerprint[:12]
    return ""


# ----------------------------------------------------------------------------
# Fine-tuning


@cache
def content_of(path):
    """Return a checksum of a checkpoint file (from those of its records) or of a folder's weights; "" if unreadable."""
    with suppress(OSError, BadZipFile, DataError):
        if path.is_dir():
            return checkpoint.checksum(stored_tensors(path))
        with ZipFile(path) as archive:
            return sum(record.CRC for record in archive.infolist())
    return ""


def job_folder(model, task, rate, seed):
    """Return the folder of a fine-tuning run, relative to the study's results."""
    return Path(model.folder, task, f"lr-{rate:g}_seed-{seed}")


def finetuning(plan, model, task, rate, seed):
    """Return the Job of a fine-tuning run. rate=None means the chosen rate; if there is none yet, this returns None."""
    rate = rate or chosen_rate(plan, model, task)
    if not rate:
        return None
    folder = plan.results / job_folder(model, task, rate, seed)
    ours = dict(init_from=model.checkpoint, random_weights=model.kind == "random", lr=rate, seed=seed, out_dir=folder)
    args, settings = plan.tasks[task]
    planned = {"finetune.py": settings}
    if model.run:
        planned["train.py"] = decides(model.run)
    else:  # the file may be replaced by another model
        given = {"path": str(model.checkpoint), "fingerprint": content_of(model.checkpoint)}
        planned["finetune.py"] = settings | {"init_from": given["path"], "checkpoint": given}
    command = [FINETUNE, *args, *(f"--{name}={value}" for name, value in ours.items())]
    name = f"{model.folder} on {task}, lr {rate:g}, seed {seed}"
    return Job(name, folder, command, folder / "result.json", planned)


def chosen_rate(plan, model, task):
    """Return the rate that was best on validation with the first fine-tuning seed; in a tie, the lowest.

    Each Model, and so each pretraining seed, has its own. The sets of a retrieval task share one. Returns None until
    all rates have been tried, and if all failed.
    """
    cfg = plan.cfg
    folders = {plan.results / job_folder(model, task, rate, cfg.finetune_seeds[0]) for rate in cfg.rates}
    rows, failed = read(plan.results, folders, cfg.metrics, {})
    tried = {row.folder for row in rows} | failed.keys()
    return best(rows)[0].lr if rows and len(tried) == len(folders) else None


def has_result(plan, point):
    """Return whether a fine-tuning run is done. point: see Plan.points."""
    job = finetuning(plan, *point)
    return bool(job and job.result.exists())
