"""Run train.py and finetune.py, each job in its own process, as many at a time as the machine has room for.

A new Python spends seconds on importing torch. So jobs are forked from a server process that has imported the
libraries. Each runs its script from the first line, and no state passes from one job to the next.
"""

import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import torch

import checkpoint
from data.files import is_locked, write_json
from data.prepare import cores
from errors import progress
from run import ROOT
from runtime import resolve_auto

PLANNED_FILE = "planned.json"  # in a job's folder: the settings it was started with
LIBRARIES = ["data.prepare", "eval.sample", "eval.tasks.families", "eval.tasks.registry"]


class Job(NamedTuple):
    """A script to run. It writes to `folder`, and last the file `result`."""

    name: str
    folder: Path
    command: list  # the script and its arguments
    result: Path
    planned: dict = {}  # {script: the settings that decide what it does}


def slots(jobs, processes):
    """Return environment variables for each of the jobs that may run at the same time.

    processes: of one job. On GPUs, there are `jobs` (0 = one) per GPU, or one per `processes` GPUs if that is above 1.
    Without a GPU, there are `jobs` in all (0 = one per `processes` cores), and they share the cores.
    """
    n_gpus = torch.cuda.device_count()
    if not n_gpus:
        n = jobs or max(1, cores() // processes)
        return [{"OMP_NUM_THREADS": str(max(1, cores() // (n * processes)))}] * n
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(n_gpus)))).split(",")
    found = []
    for first in range(0, len(gpus) - processes + 1, processes):
        found.append({"CUDA_VISIBLE_DEVICES": ",".join(gpus[first : first + processes])})
    return found * (1 if processes > 1 else jobs or 1)


def start_server(environment):
    """Start the server, and return the multiprocessing context that forks processes from it."""
    if "OMP_NUM_THREADS" in environment:  # torch reads it when it is imported
        os.environ["OMP_NUM_THREADS"] = environment["OMP_NUM_THREADS"]
    context = multiprocessing.get_context("forkserver")
    folder = os.getcwd()
    context.set_forkserver_preload(LIBRARIES)
    os.chdir(ROOT)  # the server imports from the folder in which it starts; its children return to this one
    multiprocessing.forkserver.ensure_running()
    os.chdir(folder)
    return context


def code_state():
    """Return when each code file was last changed. The server has imported some; each job reads its script anew."""
    patterns = "*.py", "data/*.py", "eval/**/*.py"
    return {path: path.stat().st_mtime_ns for pattern in patterns for path in ROOT.glob(pattern)}


def run_job(job, environment, code):
    """Run a job in this process, with its output in output.txt. code: `code_state` at the start of the study."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C, the parent process ends its jobs
    output = open(job.folder / "output.txt", "ab")
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    if code != code_state():
        sys.exit("the code has changed since this study began: start it again")
    begin(job)
    os.environ.update(environment)
    sys.argv = [str(word) for word in job.command]
    runpy.run_path(sys.argv[0], run_name="__main__")


def begin(job):
    """Write planned.json to a job's folder, unless the job resumes from a checkpoint there.

    If another process has begun the same job in the meantime, the folder stays as it is.
    """
    if not checkpoint.steps(job.folder) and not is_locked(job.folder):
        for name in ("config.json", "metrics.jsonl"):  # train.py would miss the checkpoints that belong to these
            (job.folder / name).unlink(missing_ok=True)
        settings = {script: resolve_auto(settings) for script, settings in job.planned.items()}
        write_json(job.folder / PLANNED_FILE, settings)


def error_of(path):
    """Return the last line of an error.txt that says what was wrong."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    lines = [line.strip() for line in lines if line.strip() and not line.endswith("--help lists every setting.")]
    return ["no output", *lines][-1]


def run_all(jobs, slots, name):
    """Run independent jobs, one at a time in each slot. Return (name, why) for each one that failed.

    A job that has its result is not repeated. If another process runs a job, and so holds the lock of its folder, this
    waits for it. The output of a failed job is kept as error.txt. Raises OSError if a folder cannot be written.
    """
    if not jobs:
        return []
    waiting = [*jobs]
    running = {}
    failed = []
    free = [*slots]
    context = start_server(slots[0])
    code = code_state()
    bar = progress(total=len(jobs), unit="job", smoothing=0.05, desc=name)
    try:
        while waiting or running:
            for job in [*waiting] if free else ():
                if job.result.exists():
                    waiting.remove(job)
                    bar.update()
                elif free and not is_locked(job.folder):
                    waiting.remove(job)
                    job.folder.mkdir(parents=True, exist_ok=True)
                    (job.folder / "output.txt").touch()  # OSError if the folder is another user's
                    (job.folder / "error.txt").unlink(missing_ok=True)  # from an earlier try
                    slot = free.pop()
                    process = context.Process(target=run_job, args=(job, slot, code))
                    process.start()
                    running[process] = job, slot
            multiprocessing.connection.wait([process.sentinel for process in running], timeout=0.5)
            for process in [process for process in running if process.exitcode is not None]:
                job, slot = running.pop(process)
                free.append(slot)
                if job.result.exists() or is_locked(job.folder):  # another process was faster
                    waiting.insert(0, job)
                else:
                    output = job.folder / "output.txt"
                    output.touch()  # another command may have moved it
                    error = output.replace(job.folder / "error.txt")
                    why = f"{error_of(error)} ({error})"
                    failed.append((job.name, why))
                    bar.write(f"failed: {job.name}: {why}")
        return failed
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()
        bar.close()
