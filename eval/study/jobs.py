"""Run train.py and finetune.py: each job a process of its own, as many at a time as the machine has room for.

A new Python would spend seconds on importing torch. So all jobs are forked off a server process that has imported the
libraries. Each then runs its script from the first line, and nothing of one job reaches the next.
"""

import contextlib
import io
import itertools
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import random
import re
import runpy
import signal
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import torch

import configurator
from data.files import is_locked
from errors import DataError, progress
from eval.tasks.registry import find_task, missing

ROOT = Path(__file__).resolve().parents[2]
FINETUNE = ROOT / "finetune.py"
LIBRARIES = ["data.prepare", "eval.sample", "eval.tasks.baselines", "eval.tasks.families", "eval.tasks.registry"]


class Job(NamedTuple):
    """A script to run in a folder, which leaves the file `result`."""

    folder: Path
    command: list  # the script, or the name of a module, and its arguments
    result: Path


def job_folder(name, task, lr, seed):
    """Return the folder of a fine-tuning job, relative to that of all results. name: of its checkpoint."""
    return Path(name, task_name(task), f"lr-{lr:g}_seed-{seed}")


def task_name(task):
    """Return the name of a data set, which may be given as a task file."""
    return Path(task).stem if task.endswith(".py") else task


def finetuning(results, name, path, task, lr, seed, args, baseline):
    """Return the Job that fine-tunes the checkpoint at `path` with further arguments of finetune.py.

    baseline: whether to score the task's baselines too. They do not depend on the job, so one job of a task is enough.
    """
    folder = results / job_folder(name, task, lr, seed)
    point = [f"--task={task}", f"--init_from={path}", f"--lr={lr}", f"--seed={seed}", f"--out_dir={folder}"]
    return Job(folder, [FINETUNE, *args, *point, f"--baseline={baseline}"], folder / "result.json")


def grid(models, tasks, lrs, seeds):
    """Return every (model, task, learning rate, seed), ordered by seed, so that a table of one seed is there first.

    Within a seed they are shuffled, so that equal parts of the grid take about equally long.
    """
    points = []
    for seed in seeds:
        of_seed = list(itertools.product(models, tasks, lrs, [seed]))
        random.Random(seed).shuffle(of_seed)
        points += of_seed
    return points


def check_lists(cfg, optional=()):
    """Yield what is wrong with the lists in the settings of a study or a sweep, a sentence each."""
    for name, values in cfg.items():
        if isinstance(values, tuple):
            keys = [value[0] if isinstance(value, tuple) else value for value in values]
            if not keys and name not in optional:
                yield f"{name}: give at least one"
            yield from (f"{name}: {key} is given twice" for key in dict.fromkeys(keys) if keys.count(key) > 1)
            if name == "tasks":
                names = [task_name(key) for key in dict.fromkeys(keys)]
                yield from (f"tasks: two are called {key}" for key in {*names} if names.count(key) > 1)
                for key in keys:
                    try:
                        find_task(key)
                    except DataError as error:
                        yield f"tasks: {error}"


def is_part(text):
    numbers = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    return bool(numbers) and int(numbers[1]) <= int(numbers[2])


def part_of(part, items):
    """Return a part of a list: of "3/100", every hundredth item from the third on."""
    i, n = map(int, part.split("/"))
    return items[i - 1 :: n]


def slots(jobs, processes=0):
    """Return the environment variables of each job that may run at the same time.

    On GPUs: `jobs` (0 = one) on each, or one on every `processes` of them. Without a GPU: `jobs` in all (0 = one for
    each core, or for every `processes` cores), each with its part of the cores.
    """
    n_gpus, group = torch.cuda.device_count(), max(1, processes)
    if not n_gpus:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        n = jobs or max(1, cores // group)
        return [{"OMP_NUM_THREADS": str(max(1, cores // (n * group)))}] * n
    gpus = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(n_gpus)))).split(",")
    groups = [",".join(gpus[i : i + group]) for i in range(0, n_gpus - group + 1, group)]
    return [{"CUDA_VISIBLE_DEVICES": group} for group in groups] * (1 if processes else jobs or 1)


def start_server(environment):
    """Return the multiprocessing context that forks processes off a server with the libraries imported."""
    if "OMP_NUM_THREADS" in environment:  # torch reads it at its import
        os.environ["OMP_NUM_THREADS"] = environment["OMP_NUM_THREADS"]
    context, folder = multiprocessing.get_context("forkserver"), os.getcwd()
    context.set_forkserver_preload(LIBRARIES)
    os.chdir(ROOT)  # the server imports from the folder in which it starts; its children return to this one
    multiprocessing.forkserver.ensure_running()
    os.chdir(folder)
    return context


def run_script(command, environment):
    """In a process of its own: run a script, or a module by its name, as `python script args` does."""
    os.environ.update(environment)
    sys.argv = [str(word) for word in command]
    if sys.argv[0].endswith(".py"):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def run_job(job, environment):
    """In a process of its own: run a job, with its output in output.txt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process, which ends its jobs itself
    job.folder.mkdir(parents=True, exist_ok=True)
    file = os.open(job.folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    run_script(job.command, environment)


def sentences_of(text):
    """Return what a script that failed says is wrong: its settings, a sentence each, or the error that ended it."""
    _, settings, numbered = text.rpartition("in the settings; nothing was started.\n")
    if settings:
        return re.findall(r"^ +\d+\. (.*)", numbered, re.MULTILINE)
    _, trace, end = text.replace("\r", "\n").rpartition("Traceback (most recent call last):\n")
    lines = re.findall(r"^\S.*(?:(?<=:)\n.*)?", end, re.MULTILINE)  # with the first item after "missing:"
    return [" ".join(lines[0 if trace else -1].split()) if lines else "no output"]


def error_of(path):
    """Return what an error.txt says is wrong, as one line."""
    return "; ".join(sentences_of(path.read_text(encoding="utf-8", errors="replace")))


def keep_error(job):
    """Keep what a failed job printed as error.txt. Return its path and what is wrong."""
    output, error = job.folder / "output.txt", job.folder / "error.txt"
    output.touch()  # it may have failed before it printed anything
    os.replace(output, error)
    return f"{error}: {error_of(error)}"


def run_all(items, job_of, slots, name):
    """Run jobs, one at a time in each slot. Return the items whose jobs failed, and those whose jobs could not start.

    job_of: returns the Job of an item, or None as long as it cannot start. A job that has its result is not repeated. One
    that another process is running, which holds the lock of its folder, is waited for.
    """
    waiting, running, failed, free = [*items], {}, [], [*slots]
    bar = progress(total=len(items), unit="job", smoothing=0.05, desc=name, disable=not items)
    context = start_server(slots[0])
    try:
        while True:
            locked = 0
            for item in [*waiting]:
                if not free:
                    break
                job = job_of(item)
                if job and is_locked(job.folder):
                    locked += 1
                elif job:
                    waiting.remove(item)
                    if job.result.exists():
                        bar.update()
                    else:
                        (job.folder / "error.txt").unlink(missing_ok=True)  # of an earlier try
                        process = context.Process(target=run_job, args=(job, free[-1]))
                        process.start()
                        running[process] = item, job, free.pop()
            if not running and not locked:
                return failed, waiting
            bar.set_postfix_str(f"{locked} in other processes" if locked else "", refresh=False)
            multiprocessing.connection.wait([process.sentinel for process in running], timeout=0.5)
            for process in [process for process in running if process.exitcode is not None]:
                item, job, slot = running.pop(process)
                free.append(slot)
                if job.result.exists():
                    bar.update()
                elif is_locked(job.folder):  # another process was faster
                    waiting.append(item)
                else:
                    failed.append(item)
                    bar.write(f"failed: {keep_error(job)}")
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()
        bar.close()


def find_problems(command, environment):
    """In a process of its own: return what a script's --check finds wrong with its settings, a sentence each."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as text:
        try:
            run_script([*command, "--check"], environment)
        except SystemExit as end:
            if end.code == 0:
                return []
            print(end.code, file=sys.stderr)
    return sentences_of(text.getvalue())


def check_all(commands, free):
    """Check the settings of scripts before any work, as many at a time as there are slots in `free`.

    commands: (script and arguments, environment variables) of each. Returns a list of sentences for each.
    """
    with start_server(free[0]).Pool(len(free)) as pool:
        return pool.starmap(find_problems, commands, chunksize=1)


def problems(commands, free, environment):
    """Yield (name, sentence) for each thing that stands in the way of jobs, before any of them does work.

    Lets each script check its settings, and looks for the files of the tasks. commands: (name, [script, arguments]).
    """
    for name, (script, *args) in commands:
        if script == FINETUNE:
            cfg, _ = configurator.parse(args, configurator.read_script(FINETUNE)[0])
            if absent := missing(find_task(cfg.task, folder=cfg.tasks_dir)):
                yield name, absent
    checked = check_all([(command, environment) for _, command in commands], free) if commands else []
    for (name, _), sentences in zip(commands, checked):
        yield from ((name, sentence) for sentence in sentences)


def grouped(pairs):
    """Return a line for each sentence of (name, sentence), with the first of its names and how many more there are."""
    names = defaultdict(dict)
    for name, sentence in pairs:
        names[sentence][name] = None
    return [f"{name}{f' and {len(rest)} more' * bool(rest)}: {why}" for why, (name, *rest) in names.items()]


def counted(n, noun):
    return f"{n:,} {noun}{'s' * (n != 1)}"
