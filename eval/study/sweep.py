"""A grid of fine-tunings, checkpoints x tasks x learning rates x seeds, each an independent job.

    python eval/sweep.py --checkpoints=out/clm,out/mlm --tasks=embedded-sc,embedded-qa --lrs=5e-4,1e-3 --seeds=1,2
    python eval/sweep.py ... --part=3/100                        # job 3 of a Slurm array of 100
    python eval/report.py out/sweep

A job is finetune.py on one point of the grid and writes OUT_DIR/CHECKPOINT/TASK/lr-LR_seed-SEED/result.json. One that
has its result is never repeated, so the same command goes on after any interruption, and tries failed ones again;
the output of a failed job stays beside it as error.txt. Two sweeps on one grid do not disturb each other.
"""

import contextlib
import fcntl
import itertools
import multiprocessing
import multiprocessing.connection
import os
import random
import shlex
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

import checkpoint
import configurator
from eval.tasks.registry import EMBEDDED, TASKS

checkpoints = ("out/demo",)  # checkpoints of train.py, or folders of runs: the newest one of each
tasks = ("embedded-sc", "embedded-tc", "embedded-qa", "embedded-ir")  # data sets by name
lrs = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)  # peak learning rates
seeds = (1, 2, 3, 4, 5)  # of the fine-tunings
finetune = ""  # further words for finetune.py, the same for every job: "config/x.py --max_steps=300"
out_dir = "out/sweep"  # where the results go
part = "1/1"  # which of how many equal parts of the grid to run: 3/100
jobs = 0  # at a time on each GPU; without a GPU in all. 0 = one on each GPU, one on each core

BUSY, FAILED = 75, 1  # exit codes of a job: another sweep is at it; anything went wrong


class Job(NamedTuple):
    folder: Path
    words: list  # for finetune.py


def check(s):
    """What does not fit in the settings s, a sentence each."""
    for name in ("checkpoints", "tasks", "lrs", "seeds"):
        if not s[name]:
            yield f"{name}: give at least one"
        if twice := [value for value in dict.fromkeys(s[name]) if s[name].count(value) > 1]:
            yield f"{name}: {twice[0]} is given twice"
    for task in s["tasks"]:
        if task not in (*TASKS, *EMBEDDED):
            yield f"tasks: no data set is called {task}: python eval/tasks.py lists them"
    for path in s["checkpoints"]:
        if not checkpoint.steps(path) and (why := checkpoint.problem(path)):
            yield f"checkpoints: {why}"
    names = {}
    for path in s["checkpoints"]:
        if (other := names.setdefault(label(path), path)) != path:
            yield f"checkpoints: {other} and {path} would both be called {label(path)}: rename one's folder"
    try:
        i, n = map(int, s["part"].split("/"))
        fits = 1 <= i <= n
    except ValueError:
        fits = False
    if not fits:
        yield f"part={s['part']}: must be I/N with 1 <= I <= N, such as 3/100"
    if s["jobs"] < 0:
        yield f"jobs={s['jobs']}: must be at least 0"


def label(path):
    """What a checkpoint is called in the results: its folder and its step; a model of the hub: its name."""
    path = Path(path)
    if steps := checkpoint.steps(path):
        path = checkpoint.path_of(path, steps[-1])
    return (
        f"{path.resolve().parent.name}-{path.stem.removeprefix('ckpt-')}" if path.suffix == ".pt" else path.resolve().name
    )


def job_folder(name, task, lr, seed):
    """Below that of all results."""
    return Path(name, task, f"lr-{lr:g}_seed-{seed}")


def make_job(out_dir, name, path, task, lr, seed, words, baseline):
    """The fine-tuning of the checkpoint at `path`, called `name`; words: further ones for finetune.py. The baselines of
    a task are the same for each of its jobs: one is enough."""
    folder = Path(out_dir) / job_folder(name, task, lr, seed)
    return Job(folder, [*words, f"--task={task}", f"--init_from={path}", f"--lr={lr}", f"--seed={seed}",
                        f"--out_dir={folder}", f"--baseline={baseline}"])  # fmt: skip


def grid(s):
    """Every job, seed by seed, so that what is done first is a whole table of one seed; shuffled within a seed, so that
    equal parts of the grid take about equally long."""
    given, exact = shlex.split(s["finetune"]), {}  # exact: the file, should pretraining go on meanwhile
    for path in s["checkpoints"]:
        steps = checkpoint.steps(path)
        exact[path] = label(path), checkpoint.path_of(path, steps[-1]) if steps else path
    for seed in s["seeds"]:
        points = list(itertools.product(s["lrs"], s["tasks"], s["checkpoints"]))
        random.Random(seed).shuffle(points)
        for lr, task, path in points:
            first = (seed, lr, path) == (s["seeds"][0], s["lrs"][0], s["checkpoints"][0])
            yield make_job(s["out_dir"], *exact[path], task, lr, seed, given, first)


def share_of(part, jobs):
    """Part "3/100" of a list."""
    i, n = map(int, part.split("/"))
    return jobs[i - 1 :: n]


def run(job, environment):
    """In a process of its own: the job, its output in the job's folder until it has succeeded."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    os.setpgrp()  # Ctrl-C is for the sweep, which ends its jobs itself
    job.folder.mkdir(parents=True, exist_ok=True)
    folder = os.open(job.folder, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends, however it does
    except BlockingIOError:
        sys.exit(BUSY)
    if (job.folder / "result.json").exists():
        return
    output = job.folder / "output.txt"
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["finetune.py", *job.words]
    import finetune

    finetune.main()
    output.unlink()
    (job.folder / "error.txt").unlink(missing_ok=True)  # of an earlier try


def failed(job, exit_code):
    """Keeps what a failed job printed as error.txt, and returns the last line of it."""
    output, error = job.folder / "output.txt", job.folder / "error.txt"
    with contextlib.suppress(FileNotFoundError):  # it failed before its first word
        os.replace(output, error)
    lines = error.read_text(errors="replace").split("\n") if error.exists() else []
    return next((line for line in reversed(lines) if line.strip()), f"nothing said, exit code {exit_code}")


def slots(jobs, processes=0):
    """The environments of as many jobs as run at a time: jobs (0 = one) on each GPU, or one on every `processes` GPUs;
    without a GPU `jobs` in all (0 = one for each core, or for every `processes`), each with its part of the cores."""
    n_gpus, cores = torch.cuda.device_count(), len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    if not n_gpus:
        n = jobs or max(1, cores // max(1, processes))
        return [{"OMP_NUM_THREADS": str(max(1, cores // (n * max(1, processes))))}] * n
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(n_gpus)))
    gpus, each = gpus.split(","), max(1, processes)
    groups = [",".join(gpus[i : i + each]) for i in range(0, n_gpus - each + 1, each)]
    return [{"CUDA_VISIBLE_DEVICES": group} for group in groups] * (1 if processes else jobs or 1)


def run_all(mine, free):
    """Runs the jobs that have no result yet, as many at a time as there are environments in `free`: those that failed."""
    todo = [job for job in mine if not (job.folder / "result.json").exists()]
    server = multiprocessing.get_context("forkserver")  # jobs are forked off a process that has imported torch
    server.set_forkserver_preload(["finetune"])
    os.environ.update({name: value for name, value in free[0].items() if name == "OMP_NUM_THREADS"})  # before that import
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the jobs end too
    running, losses, busy, free = {}, [], 0, [*free]  # running: {process: (job, its environment)}
    bar = tqdm(total=len(mine), initial=len(mine) - len(todo), unit="job", smoothing=0.05)
    try:
        while todo or running:
            while todo and free:
                job, environment = todo.pop(0), free.pop()
                process = server.Process(target=run, args=(job, environment))
                process.start()
                running[process] = job, environment
            multiprocessing.connection.wait([process.sentinel for process in running])
            for process in [p for p in running if p.exitcode is not None]:
                job, environment = running.pop(process)
                free.append(environment)
                bar.update()
                busy += process.exitcode == BUSY
                if process.exitcode not in (0, BUSY):
                    losses.append(job)
                    bar.write(f"failed: {job.folder}/error.txt: {failed(job, process.exitcode)}")
    finally:
        for process in running:
            process.terminate()
        bar.close()
    if busy:
        print(f"{busy} jobs were being run by another sweep")
    return losses


def main():
    s = configurator.load(__file__, sys.argv[1:], check)
    mine = share_of(s["part"], list(grid(s)))
    n_done = sum((job.folder / "result.json").exists() for job in mine)
    print(f"{len(mine)} jobs, {n_done} of them done before; results in {s['out_dir']}")
    if losses := run_all(mine, slots(s["jobs"])):
        sys.exit(f"{len(losses)} of {len(mine)} jobs failed; the same command tries them again")


if __name__ == "__main__":
    main()
