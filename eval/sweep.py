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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import checkpoint
import configurator
from eval.tasks import EMBEDDED, TASKS

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
    return f"{path.resolve().parent.name}-{path.stem.removeprefix('ckpt-')}" if path.suffix == ".pt" else path.resolve().name


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
            name, file = exact[path]
            folder = Path(s["out_dir"], name, task, f"lr-{lr:g}_seed-{seed}")
            first = (seed, lr, path) == (s["seeds"][0], s["lrs"][0], s["checkpoints"][0])
            words = [f"--task={task}", f"--init_from={file}", f"--lr={lr}", f"--seed={seed}", f"--out_dir={folder}",
                     f"--baseline={first}"]  # the baselines of a task once  # fmt: skip
            yield Job(folder, [*given, *words])


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


def main():
    s = configurator.load(__file__, sys.argv[1:], check)
    i, n = map(int, s["part"].split("/"))
    mine = list(grid(s))[i - 1 :: n]
    todo = [job for job in mine if not (job.folder / "result.json").exists()]
    print(f"{len(mine)} jobs, {len(mine) - len(todo)} of them done before; results in {s['out_dir']}")

    server = multiprocessing.get_context("forkserver")  # jobs are forked off a process that has imported torch
    server.set_forkserver_preload(["finetune"])
    n_gpus, cores = torch.cuda.device_count(), len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    if n_gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(n_gpus)))
        slots = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in visible.split(",")] * (s["jobs"] or 1)
    else:
        slots = [{}] * (s["jobs"] or cores)
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores // len(slots)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the jobs end too
    running, losses, busy = {}, [], 0  # running: {process: (job, slot)}
    bar = tqdm(total=len(mine), initial=len(mine) - len(todo), unit="job", smoothing=0.05)
    try:
        while todo or running:
            while todo and slots:
                job, slot = todo.pop(0), slots.pop()
                process = server.Process(target=run, args=(job, slot))
                process.start()
                running[process] = job, slot
            multiprocessing.connection.wait([process.sentinel for process in running])
            for process in [p for p in running if p.exitcode is not None]:
                job, slot = running.pop(process)
                slots.append(slot)
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
    if losses:
        sys.exit(f"{len(losses)} of {len(mine)} jobs failed; the same command tries them again")


if __name__ == "__main__":
    main()
