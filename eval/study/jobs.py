"""Run fine-tuning jobs: each a process of its own, as many at a time as the machine has room for.

A process of its own would spend seconds on importing torch. So all jobs are forked off a server process that has
imported the libraries. Each then runs finetune.py from its first line, and nothing of one job reaches the next.
"""

import contextlib
import fcntl
import io
import multiprocessing
import multiprocessing.connection
import os
import re
import runpy
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
FINETUNE = ROOT / "finetune.py"
LIBRARIES = ["data.prepare", "eval.sample", "eval.tasks.baselines", "eval.tasks.families", "eval.tasks.registry"]


class Job(NamedTuple):
    folder: Path
    args: list  # of finetune.py


def job_folder(name, task, lr, seed):
    """Return the folder of a fine-tuning job, relative to that of all results. name: of its checkpoint."""
    return Path(name, task, f"lr-{lr:g}_seed-{seed}")


def make_job(results, name, path, task, lr, seed, args, baseline):
    """Return the Job that fine-tunes the checkpoint at `path`.

    args: further arguments of finetune.py. baseline: whether to score the task's baselines too. They are the same for
    all jobs of a task, so one is enough.
    """
    folder = results / job_folder(name, task, lr, seed)
    point = [f"--task={task}", f"--init_from={path}", f"--lr={lr}", f"--seed={seed}"]
    return Job(folder, [*args, *point, f"--out_dir={folder}", f"--baseline={baseline}"])


def part_of(part, items):
    """Return a part of a list: of "3/100", every hundredth item from the third on."""
    i, n = map(int, part.split("/"))
    return items[i - 1 :: n]


def is_part(text):
    numbers = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    return bool(numbers) and int(numbers[1]) <= int(numbers[2])


def slots(jobs, processes=0):
    """Return the environment variables of each job that may run at the same time.

    On GPUs: `jobs` (0 = one) on each, or one on every `processes` of them. Without a GPU: `jobs` in all (0 = one for
    each core, or for every `processes` cores), each with its part of the cores.
    """
    n_gpus, group = torch.cuda.device_count(), max(1, processes)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if not n_gpus:
        n = jobs or max(1, cores // group)
        return [{"OMP_NUM_THREADS": str(max(1, cores // (n * group)))}] * n
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(n_gpus)))).split(",")
    groups = [",".join(gpus[i : i + group]) for i in range(0, n_gpus - group + 1, group)]
    return [{"CUDA_VISIBLE_DEVICES": group} for group in groups] * (1 if processes else jobs or 1)


def lock(folder):
    """Return a file descriptor that locks a folder until all its copies are closed; None if it is locked already."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def start_server(environment):
    """Return the multiprocessing context that forks processes off a server with the libraries imported."""
    if "OMP_NUM_THREADS" in environment:  # torch reads it at its import
        os.environ["OMP_NUM_THREADS"] = environment["OMP_NUM_THREADS"]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    return context


def run_script(script, args, environment):
    """In a process of its own: run a script as `python script args` does."""
    os.environ.update(environment)
    sys.argv = [str(script), *args]
    runpy.run_path(str(script), run_name="__main__")


def run_job(job, environment):
    """In a process of its own: run a job. Its output stays in its folder until it has succeeded."""
    os.setpgrp()  # Ctrl-C is for the parent process, which ends its jobs itself
    if lock(job.folder) is None or (job.folder / "result.json").exists():  # the lock is held until this process ends
        return
    output = job.folder / "output.txt"
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    run_script(FINETUNE, job.args, environment)
    output.unlink()
    (job.folder / "error.txt").unlink(missing_ok=True)  # of an earlier try


def keep_error(job, exit_code):
    """Keep what a failed job printed as error.txt, and return its last line."""
    output, error = job.folder / "output.txt", job.folder / "error.txt"
    with contextlib.suppress(FileNotFoundError):  # it failed before it printed anything
        os.replace(output, error)
    lines = error.read_text(errors="replace").split("\n") if error.exists() else []
    return next((line for line in reversed(lines) if line.strip()), f"no output, exit code {exit_code}")


def run_all(jobs, free):
    """Run the jobs that have no result yet, one at a time in each of the slots `free`. Return those that failed."""
    todo = [job for job in jobs if not (job.folder / "result.json").exists()]
    context, running, failed, free = start_server(free[0]), {}, [], [*free]
    bar = tqdm(total=len(jobs), initial=len(jobs) - len(todo), unit="job", smoothing=0.05)
    try:
        while todo or running:
            while todo and free:
                job, environment = todo.pop(0), free.pop()
                process = context.Process(target=run_job, args=(job, environment))
                process.start()
                running[process] = job, environment
            multiprocessing.connection.wait([process.sentinel for process in running])
            for process in [process for process in running if process.exitcode is not None]:
                job, environment = running.pop(process)
                free.append(environment)
                bar.update()
                if process.exitcode:
                    failed.append(job)
                    bar.write(f"failed: {job.folder}/error.txt: {keep_error(job, process.exitcode)}")
    finally:
        for process in running:
            process.terminate()
        bar.close()
    if elsewhere := sum(not (job.folder / "result.json").exists() for job in jobs if job not in failed):
        print(f"{elsewhere} jobs were being run by another process")
    return failed


def find_problems(script, args, environment):
    """In a process of its own: return what a script's --check finds wrong with its settings, a sentence each."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as text:
        try:
            run_script(script, [*args, "--check"], environment)
        except SystemExit as end:
            if end.code == 0:
                return []
            print(end.code, file=sys.stderr)
    sentences = re.findall(r"^ +\d+\. (.*)", text.getvalue(), re.MULTILINE)
    return sentences or text.getvalue().splitlines()[-1:]


def check_all(commands, free):
    """Check the settings of scripts before any work, as many at a time as there are slots in `free`.

    commands: (script, args, environment variables) of each. Returns a list of sentences for each.
    """
    with start_server(free[0]).Pool(len(free)) as pool:
        return pool.starmap(find_problems, commands, chunksize=1)
