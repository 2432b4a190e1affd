"""Carry out a plan: pretraining runs in their order, then fine-tuning jobs. What is done already is never repeated."""

import os
import shlex
import subprocess
import sys
import time

from tqdm import tqdm

import checkpoint
from eval.plot import read_metrics
from eval.study import jobs
from eval.study.plan import TRAIN, checkpoint_of, folder_of, logged, results_of
from eval.study.results import read_runs

DIVERGED = "Stopped before the update"  # train.py prints it when the loss is not finite


# ----------------------------------------------------------------------------
# The state of a run


def done(plan, run):
    """Whether a run's last checkpoint is there."""
    return checkpoint.path_of(folder_of(plan, run.name), run.budget).exists()


def under_way(plan, run):
    """Whether a run has a checkpoint of its own to resume from."""
    return bool(checkpoint.steps(folder_of(plan, run.name)))


def diverged(plan, run):
    """Whether a run that tries a learning rate stopped at a loss that is not finite."""
    if not run.lr or logged(plan, run) == run.budget:
        return False
    output = folder_of(plan, run.name) / "output.txt"
    return output.exists() and DIVERGED in output.read_text(errors="replace")


def to_train(plan):
    """Return the names of the runs to train.

    They are those that have not ended, and those whose checkpoint is gone although a run or a fine-tuning job still to
    do begins with it.
    """
    points = sum(plan.rounds(), [])
    needed = {checkpoint_of(plan, model) for model, *point in points if not has_result(plan, model, *point)}
    names = set()
    for run in reversed(plan.runs.values()):  # each before those that it begins with
        kept = {checkpoint.path_of(folder_of(plan, run.name), step) for step in (*run.keep, run.budget)}
        gone = not all(path.exists() for path in kept & needed)
        if not done(plan, run) and (gone or logged(plan, run) < run.budget):
            names.add(run.name)
            if not under_way(plan, run):
                needed.add(begins_with(plan, run)[1])
    return names


def chosen_lr(plan, size, causal):
    """Return the peak learning rate whose trial run ended with the lowest validation loss of its objective.

    A run that diverged is out. None before all trials have ended, and if all of them diverged.
    """
    if len(plan.cfg.lrs) == 1:
        return plan.cfg.lrs[0]
    losses = {}
    for run in plan.runs.values():
        if run.lr and run.size == size and (run.clm > 0) == causal and not diverged(plan, run):
            if logged(plan, run) < run.budget:
                return None
            losses[run.lr] = read_metrics(folder_of(plan, run.name))[-1]["val_clm_loss" if causal else "val_mlm_loss"]
    return min(losses, key=losses.get, default=None)


# ----------------------------------------------------------------------------
# Pretraining


def begins_with(plan, run):
    """Return the checkpoint that a run begins with as (setting of train.py, path), or ("", None) from scratch."""
    if run.parent:
        return "branch_from", checkpoint.path_of(folder_of(plan, run.parent), run.start)
    return ("init_from", checkpoint.path_of(folder_of(plan, run.base), plan.longest)) if run.base else ("", None)


def args_for(plan, run, lr):
    """Return a run's arguments of train.py, without the checkpoint that it begins with."""
    warmup, decay = plan.schedule(run)
    return [
        *plan.train_args(run.size, lr, continues=bool(run.base)),
        f"--max_steps={run.budget}",
        f"--switch_step={run.clm}",
        f"--mask_ratio={run.mask}",
        f"--seed={run.seed}",
        f"--warmup_steps={warmup}",
        f"--decay_steps={decay}",
        f"--out_dir={folder_of(plan, run.name)}",
        "--keep_last=1",
        f"--keep_steps={','.join(map(str, run.keep))}",
        "--resume=True",
    ]


def start_args(plan, run):
    """Return the arguments of train.py that start or resume a run; None until it can begin.

    That is when the checkpoint that it begins with is there, and its learning rate is chosen.
    """
    (setting, path), lr = begins_with(plan, run), run.lr or chosen_lr(plan, run.size, causal=run.start < run.clm)
    if lr is None or (path and not path.exists() and not under_way(plan, run)):
        return None
    return [*args_for(plan, run, lr), *[f"--{setting}={path}"] * bool(path)]


def start(plan, run, args, slot):
    """Start train.py with its output in the run's folder. Returns the process; None if another one trains this run."""
    folder, n = folder_of(plan, run.name), plan.cfg.processes
    held = jobs.lock(folder)
    if held is None:
        return None
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}"] if n > 1 else []
    with open(folder / "output.txt", "w") as log:
        process = subprocess.Popen(
            [sys.executable, *launcher, str(TRAIN), *args],
            env=os.environ | slot,
            stdout=log,
            stderr=log,
            pass_fds=[held],  # so that the lock stays as long as the run does, whatever happens to this process
        )
    os.close(held)
    return process


def pretrain(plan, runs):
    """Train those of `runs` that are to be trained, as many at a time as there is room for. Return what failed."""
    free, names = jobs.slots(plan.cfg.jobs, plan.cfg.processes), to_train(plan)
    waiting, running, elsewhere, failed = [run for run in runs if run.name in names], {}, set(), []
    total, left = (sum(run.budget - run.start for run in some) for some in (runs, waiting))
    bar = tqdm(total=total, initial=total - left, unit="step", desc="pretraining", disable=not waiting)
    bar.mininterval = 0.5 if sys.stderr.isatty() else 20
    try:
        while running or any(start_args(plan, run) for run in waiting):
            for run in [*waiting]:
                if done(plan, run) or diverged(plan, run):  # the first: by another process
                    waiting.remove(run)
                elif len(free) > len(elsewhere - {run.name}) and (args := start_args(plan, run)):
                    if process := start(plan, run, args, free[-1]):
                        waiting.remove(run)
                        running[process] = run, free.pop()
                        bar.write(f"{run.name}: steps {run.start} to {run.budget}")
                    elif run.name not in elsewhere:
                        bar.write(f"{run.name}: another process trains it; waiting for its end")
                        elsewhere.add(run.name)  # it has a device as well
            elsewhere &= {run.name for run in waiting}
            time.sleep(0.5)
            for process in [process for process in running if process.poll() is not None]:
                run, slot = running.pop(process)
                free.append(slot)
                bar.write(outcome(plan, run))
                if not done(plan, run) and not diverged(plan, run):
                    failed.append(f"{run.name} ({folder_of(plan, run.name) / 'output.txt'})")
            trained = sum(max(0, logged(plan, run) - run.start) for run, _ in running.values())
            left = sum(run.budget - run.start for run in [*waiting, *(run for run, _ in running.values())])
            bar.update(total - left + trained - bar.n)
    finally:
        for process in running:  # each saves where it is
            process.terminate()
        for process in running:
            process.wait()
        bar.close()
    return failed + [f"{run.name} ({why_not(plan, run)})" for run in waiting]


def outcome(plan, run):
    """Return a line on how a run ended, with the end of its output if it failed."""
    if done(plan, run):
        return f"{run.name}: done"
    if diverged(plan, run):
        return f"{run.name}: diverged, its learning rate is out"
    output = folder_of(plan, run.name) / "output.txt"
    return "\n".join(
        [f"failed: {run.name}; the end of {output}:", *output.read_text(errors="replace").splitlines()[-5:]]
    )


def why_not(plan, run):
    """Return why a run could not begin."""
    _, path = begins_with(plan, run)
    if path is None or path.exists():
        return "no learning rate is chosen: the runs that try one failed, have not ended, or all diverged"
    before = plan.runs[run.parent or run.base]
    if done(plan, before):
        step = path.stem.removeprefix("ckpt-")
        return f"{before.name} is done and has not kept step {step}: delete its folder to train it again"
    return f"{path} is not there"


# ----------------------------------------------------------------------------
# Fine-tuning


def job_of(plan, model, task, lr, seed):
    """Return the Job of a fine-tuning run. task: (name, arguments of finetune.py)."""
    cfg, (name, args) = plan.cfg, task
    args = shlex.split(f"{cfg.finetune} {args}") + ["--random_weights=True"] * model.random_weights
    first = (model, lr, seed) == (plan.models[0], cfg.finetune_lrs[0], cfg.finetune_seeds[0])
    path = checkpoint_of(plan, model)
    return jobs.make_job(results_of(plan), model.name, path, name, lr, seed, args, baseline=first)


def best_lr(plan, model, task):
    """Return the learning rate that did best on validation with the first seeds of pretraining and fine-tuning.

    None before all have been tried, and if all failed.
    """
    cfg, first = plan.cfg, next(other for other in plan.models if other.variant == model.variant)
    folders = [job_of(plan, first, task, lr, cfg.finetune_seeds[0]).folder for lr in cfg.finetune_lrs]
    there = [folder for folder in folders if (folder / "result.json").exists()]
    if not there or not all(folder in there or (folder / "error.txt").exists() for folder in folders):
        return None
    results = read_runs(results_of(plan), there)
    return max(results, key=lambda result: (result.scores["main", "validation"], -result.lr)).lr


def has_result(plan, model, task, lr, seed):
    """Whether a fine-tuning job is done. lr: None for the chosen one, or for any of them before one is chosen."""
    lr = lr or best_lr(plan, model, task)
    points = [(model, task, lr, seed) for lr in ([lr] if lr else plan.cfg.finetune_lrs)]
    return any((job_of(plan, *point).folder / "result.json").exists() for point in points)


def finetune_all(plan, part="1/1"):
    """Run a part of the fine-tuning jobs, such as "3/100". Return what failed."""
    failed = []
    for number, points in enumerate(plan.rounds(), 1):
        mine = []
        for model, task, lr, seed in jobs.part_of(part, points):
            lr = lr or best_lr(plan, model, task)
            if lr and (checkpoint_of(plan, model).exists() or has_result(plan, model, task, lr, seed)):
                mine.append(job_of(plan, model, task, lr, seed))
            else:
                lacks = "no checkpoint" if lr else "no chosen learning rate"
                failed.append(f"{model.name} on {task[0]}, seed {seed}: {lacks}")
        if mine:
            print(f"fine-tuning, round {number}: {len(mine)} jobs")
            failed += [str(job.folder) for job in jobs.run_all(mine, jobs.slots(plan.cfg.jobs))]
    return failed
