"""A grid of fine-tuning jobs: checkpoints x tasks x learning rates x seeds.

    python -m eval.study sweep --checkpoints=out/clm,out/mlm --tasks=embedded-sc,embedded-qa --lrs=5e-4,1e-3 --seeds=1,2
    python -m eval.study sweep ... --part=3/100                  # job 3 of a Slurm array of 100
    python -m eval.study report out/sweep

A job is finetune.py on one point of the grid and writes OUT_DIR/CHECKPOINT/TASK/lr-LR_seed-SEED/result.json. A job that
has its result is never repeated, so the same command continues after any interruption and tries failed jobs again.
The output of a failed job stays beside it as error.txt. Two sweeps on one grid share its jobs.
"""

import shlex
import sys
from pathlib import Path

import checkpoint
import configurator
from eval.study.jobs import check_lists, counted, finetuning, grid, grouped, is_part, part_of, problems, run_all, slots
from eval.tasks.hub_encoder import problem
from eval.tasks.registry import GLUE

checkpoints = ("out/demo",)  # checkpoints of train.py, folders of runs (the newest one of each), or models of the hub
tasks = ("embedded-sc", "embedded-tc", "embedded-qa", "embedded-ir")  # data sets by name, task files, glue = its eight
lrs = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)  # peak learning rates
seeds = (1, 2, 3, 4, 5)  # of fine-tuning
finetune = ""  # further arguments of finetune.py, the same for every job: "config/x.py --max_steps=300"
out_dir = "out/sweep"  # where the results go
part = "1/1"  # which of how many equal parts of the grid to run: 3/100
jobs = 0  # at a time on each GPU; without a GPU in all. 0 = one on each GPU, one on each core


def check(cfg):
    """Yield what is wrong with the settings, a sentence each."""
    yield from check_lists(cfg | {"tasks": expand(cfg.tasks)})
    names = [label(newest(path)) for path in cfg.checkpoints]
    yield from (f"checkpoints: two would be called {name}: rename one" for name in {*names} if names.count(name) > 1)
    for path in cfg.checkpoints:
        if not checkpoint.steps(path) and (why := problem(path)):
            yield f"checkpoints: {why}"
    if not is_part(cfg.part):
        yield f"part={cfg.part}: must be I/N with 1 <= I <= N, such as 3/100"
    yield from configurator.outside_limits(cfg, at_least_0=["jobs"])


def newest(path):
    """Return the newest checkpoint of a run's folder, or `path` itself if it is not one. Only names are read."""
    steps = checkpoint.steps(path)
    return checkpoint.path_of(path, steps[-1]) if steps else Path(path)


def label(path):
    """Return a checkpoint's name in the results: its folder and its step, or the name of a model folder."""
    path = path.resolve()
    return f"{path.parent.name}-{path.stem.removeprefix('ckpt-')}" if path.suffix == ".pt" else path.name


def expand(tasks):
    """Return tasks with the eight of GLUE in place of "glue"."""
    return tuple(name for task in tasks for name in (GLUE if task == "glue" else [task]))


def plan_jobs(cfg):
    """Return every Job of the grid."""
    models = [(label(path), path) for path in map(newest, cfg.checkpoints)]  # exact files, as pretraining may go on
    results, args, first = Path(cfg.out_dir), shlex.split(cfg.finetune), (models[0], cfg.lrs[0], cfg.seeds[0])
    return [
        finetuning(results, *model, task, lr, seed, args, baseline=(model, lr, seed) == first)
        for model, task, lr, seed in grid(models, expand(cfg.tasks), cfg.lrs, cfg.seeds)
    ]


def main(argv):
    cfg = configurator.load(__file__, argv, check, command="python -m eval.study sweep")
    mine = part_of(cfg.part, plan_jobs(cfg))
    todo = {job.folder.parent: job for job in mine if not job.result.exists()}  # of each checkpoint and task one
    new = f"--out_dir={cfg.out_dir}/new"  # because another sweep may write the result of a job at any moment
    commands = [(folder.name, [*job.command, new]) for folder, job in sorted(todo.items())]
    if found := grouped(problems(commands, slots(cfg.jobs), {})):
        sys.exit("\n".join(["nothing was started:", *found]))
    done = sum(job.result.exists() for job in mine)
    print(f"{counted(len(mine), 'job')}, {done} of them done before; results in {cfg.out_dir}")
    failed, _ = run_all(mine, lambda job: job, slots(cfg.jobs), "fine-tuning")
    if failed:
        sys.exit(f"{len(failed)} of {counted(len(mine), 'job')} failed; the same command tries them again")
