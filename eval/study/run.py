"""Carry out a plan: pretraining runs in their order, then fine-tuning jobs. What is done already is never repeated."""

import shlex
from functools import partial

import checkpoint
from data.files import is_locked
from eval.study.jobs import Job, finetuning, part_of, run_all, slots
from eval.study.plan import TRAIN
from eval.study.results import read_runs

DIVERGED = "Stopped before the update"  # train.py prints it when the loss is not finite
CONTINUED_SEED = 1000  # added to the seed of a continued run: other masks and another order of the data than before
WAITING = "could not begin: the checkpoint that it begins with is not there, or no learning rate is chosen"


# ----------------------------------------------------------------------------
# The state of a run


def under_way(run):
    """Whether a run has a checkpoint of its own to resume from."""
    return bool(checkpoint.steps(run.folder))


def diverged(run):
    """Whether a run that tries a learning rate stopped at a loss that is not finite."""
    error = run.folder / "error.txt"
    return run.lr > 0 and error.exists() and DIVERGED in error.read_text(errors="replace")


def to_train(plan):
    """Return the names of the runs to train.

    They are those that have not ended, and those whose checkpoint is gone although a run or a fine-tuning job still to
    do begins with it.
    """
    needed = {point[0].checkpoint for point in plan.points() if not has_result(plan, *point)}
    names = set()
    for run in reversed(plan.runs.values()):  # each before those that it begins with
        *kept, last = [run.checkpoint(step) for step in (*run.keep, run.budget)]
        gone = not all(path.exists() for path in needed.intersection([*kept, last]))
        if not (last.exists() or diverged(run)) and (gone or not run.ended()):
            names.add(run.name)
            if not under_way(run):
                needed.add(begins_with(run)[1])
    return names


def chosen_lr(plan, run):
    """Return a run's peak learning rate: of several, the one whose trial ended with the lowest validation loss.

    The trials are those of the same size and objective, or of the same variant, for which the MLM loss counts. Those that
    diverged, or without a loss, are out. None before all trials have ended, and if all are out.
    """
    if run.lr or len(plan.cfg.lrs) == 1:
        return run.lr or plan.cfg.lrs[0]
    causal, losses = run.start < run.clm and run.size not in plan.named, {}
    name = "val_clm_loss" if causal else "val_mlm_loss"
    for trial in plan.runs.values():
        if trial.lr and trial.size == run.size and (trial.clm > 0) == causal and not diverged(trial):
            if not trial.ended():
                return None
            last = checkpoint.read_metrics(trial.folder)[-1]
            if name in last:
                losses[trial.lr] = last[name]
    return min(losses, key=losses.get, default=None)


# ----------------------------------------------------------------------------
# Pretraining


def begins_with(run):
    """Return the checkpoint that a run begins with as (setting of train.py, path), or ("", None) from scratch."""
    if run.parent:
        return "branch_from", run.parent.checkpoint(run.start)
    return ("init_from", run.base.checkpoint(run.base.budget)) if run.base else ("", None)


def args_for(plan, run, lr):
    """Return a run's arguments of train.py, without the checkpoint that it begins with."""
    settings = dict(
        max_steps=run.budget,
        switch_step=run.clm,
        mask_ratio=run.mask,
        seed=run.seed + CONTINUED_SEED * bool(run.base),
        warmup_steps=run.warmup,
        decay_steps=run.decay,
        out_dir=run.folder,
        keep_last=1,
        keep_steps=run.keep,
        resume=True,
    )
    if run.size in plan.named:  # its arguments say the ratio
        del settings["mask_ratio"]
    shared = plan.train_args(run.size, lr, continues=bool(run.base))
    return shared + [f"--{name}={value}" for name, value in settings.items()]


def training(plan, run):
    """Return the Job that starts or resumes a run; None until it can begin.

    That is when the checkpoint that it begins with is there, and its learning rate is chosen.
    """
    (setting, path), lr, n = begins_with(run), chosen_lr(plan, run), plan.cfg.processes
    if lr is None or (path and not path.exists() and not under_way(run)):
        return None
    args = [*args_for(plan, run, lr), *[f"--{setting}={path}"] * bool(path)]
    launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={n}"] if n > 1 else []
    return Job(run.folder, [*launcher, TRAIN, *args], run.checkpoint(run.budget))


def pretrain(plan, runs):
    """Train those of `runs` that are to be trained, as many at a time as there is room for. Return what failed."""
    cfg, names = plan.cfg, to_train(plan)
    todo = [run for run in runs if run.name in names]
    for run in todo:
        if not under_way(run) and not is_locked(run.folder):  # from step 0: train.py would miss the checkpoints
            for name in ("config.json", "metrics.jsonl"):
                (run.folder / name).unlink(missing_ok=True)
    failed, waiting = run_all(todo, partial(training, plan), slots(cfg.jobs, cfg.processes), "pretraining")
    failed = [run.name for run in failed if not diverged(run)]
    return failed + [f"{run.name}: {WAITING}" for run in waiting]


# ----------------------------------------------------------------------------
# Fine-tuning


def finetuning_of(plan, model, task, lr, seed):
    """Return the Job of a fine-tuning run. task: (name, arguments of finetune.py)."""
    cfg, (name, args) = plan.cfg, task
    args = shlex.split(f"{cfg.finetune} {args}") + ["--random_weights=True"] * model.random_weights
    first = (model, lr, seed) == (plan.models[0], cfg.finetune_lrs[0], cfg.finetune_seeds[0])
    return finetuning(plan.results, model.name, model.checkpoint, name, lr, seed, args, baseline=first)


def best_lrs(plan, model, task, lr=None):
    """Return [lr], or if it is None the rates that did best on validation with the first pretraining and fine-tuning seed.

    Each set that a retrieval task searches chooses one. [] before all rates have been tried, and if all failed.
    """
    if lr:
        return [lr]
    cfg, first = plan.cfg, next(other for other in plan.models if other.variant == model.variant)
    tried = [finetuning_of(plan, first, task, lr, cfg.finetune_seeds[0]) for lr in cfg.finetune_lrs]
    there = [job.folder for job in tried if job.result.exists()]
    if not all(job.folder in there or (job.folder / "error.txt").exists() for job in tried):
        return []
    runs = sorted(read_runs(plan.results, there), key=lambda run: (run.scores[cfg.metrics, "validation"], -run.lr))
    best = {run.task: run.lr for run in runs}  # the last one is the best
    return sorted({*best.values()})


def has_result(plan, model, task, lr, seed):
    """Whether a fine-tuning run is done. lr: None for the chosen ones, or for any of them before they are chosen."""
    rates = best_lrs(plan, model, task, lr)
    done = [finetuning_of(plan, model, task, rate, seed).result.exists() for rate in rates or plan.cfg.finetune_lrs]
    return all(done) if rates else any(done)


def job_of(plan, point):
    """Return the Job of a fine-tuning run; None if no learning rate is chosen, or until its checkpoint is there."""
    model, _, lr, _ = point
    job = lr and finetuning_of(plan, *point)
    return job if job and (job.result.exists() or model.checkpoint.exists()) else None


def finetune_all(plan, part="1/1"):
    """Run a part of the fine-tuning runs, such as "3/100": first those that choose a rate. Return what failed."""
    points, problems = part_of(part, plan.points()), []
    for chosen in (False, True):
        stage = [point for point in points if (point[2] is None) == chosen]
        its = [(m, task, rate, seed) for m, task, lr, seed in stage for rate in best_lrs(plan, m, task, lr) or [None]]
        failed, waiting = run_all(its, partial(job_of, plan), slots(plan.cfg.jobs), "fine-tuning")
        problems += [(point, "failed") for point in failed] + [(point, WAITING) for point in waiting]
    return [f"{model.name} on {task[0]}, lr {lr}, seed {seed}: {why}" for (model, task, lr, seed), why in problems]
