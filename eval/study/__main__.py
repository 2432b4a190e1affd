"""A study: should this encoder be pretrained with MLM, CLM, or CLM and then MLM? One settings file, one command.

    python eval/study.py config/study_demo.py            # all that is missing, then the page, OUT_DIR/report/page.md
    python eval/study.py config/study_paper.py --plan    # what it would do; needs no data
    python eval/study.py config/study_paper.py --slurm   # job scripts for a cluster, in OUT_DIR/slurm

A study is runs of train.py, then jobs of finetune.py, then a page by eval/page.py. Runs share what they can: two runs
with the same size and seed that do the same up to some step are trained once up to it, the second one branches off.
Killed at any moment, the same command goes on. OUT_DIR holds runs/, results/ (of the fine-tunings), report/. The
checkpoints of a run may be deleted; it is trained again only if something still to do begins with one of them.
"""

import fcntl
import itertools
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from tqdm import tqdm

import checkpoint
import configurator
from data.prepare import EMBEDDED_FOLDER, prepare_embedded
from errors import DataError
from eval.study import page, results as arms, sweep
from eval.study.plan import FINETUNE, TRAIN, Plan, folder_of, logged, results_of, tell
from eval.plot import read_metrics
from eval.tasks.registry import EMBEDDED, TASKS, in_folder, missing

# --- pretraining ---
train = ""  # words for train.py that all runs share: config files, --key=value
sizes = (("demo", ""),)  # (name, further words for train.py); the first has the splits, the rest the pure objectives
splits = ((650, 0, 325, 650),)  # each a budget in steps, then the steps of CLM that its models begin with
mask_ratios = (0.4,)  # the first is that of all models; the others, of every size, of MLM alone on the longest budget
late_switch = 0  # steps of CLM, on the longest budget, after which MLM follows at each of these ratios; 0 = none
continued = ()  # steps of MLM that the pure models of the longest budget get on top, with a new optimizer
continue_words = ""  # further words for train.py in those
intermediate = ()  # steps of the two pure runs on the longest budget at which they are fine-tuned too
seeds = (1,)  # of pretraining; all but the first only repeat the splits with these
repeated = ()  # steps of CLM, on every budget that has them; empty = all splits
lrs = (0.0,)  # peak learning rate, 0 = that of train; of several, each objective has the best in a short run of it alone
lr_steps = 0  # how long those runs are
processes = 1  # of a run, under torchrun; on GPUs one each
# --- fine-tuning ---
tasks = (("embedded-tc", ""),)  # (data set by name, further words for finetune.py)
finetune = ""  # words for finetune.py that all jobs share
finetune_lrs = (1e-3, 3e-3)  # peak learning rates
finetune_seeds = (1, 2, 3)
choose_once = False  # an arm's rate on a task is chosen on the first seeds of pretraining and fine-tuning alone
untrained = True  # also fine-tune random weights, of each size
# --- where and how ---
out_dir = "out/study"
jobs = 0  # runs or fine-tunings at a time: on each GPU fine-tunings; without a GPU in all. 0 = one a GPU, one a core
plan = False  # print what there is to do, and stop
slurm = False  # write job scripts instead of running, and stop
only = ""  # one part of it, for a cluster: the name of a run, finetune:3/100, or report


def check(s):
    """What does not fit in the settings s, a sentence each."""
    for name in ("sizes", "splits", "mask_ratios", "seeds", "lrs", "tasks", "finetune_lrs", "finetune_seeds"):
        if not s[name]:
            yield f"{name}: give at least one"
    if not all(s[name] for name in ("sizes", "splits", "mask_ratios", "seeds", "lrs", "tasks")):
        return
    for name in ("sizes", "tasks"):
        for pair in s[name]:
            if len(pair) != 2:
                yield f"{name}: each is (name, words), got {pair}"
    for name in [name for name, value in s.items() if isinstance(value, tuple)]:
        keys = [value[0] if isinstance(value, tuple) else value for value in s[name]]  # names of pairs, budgets of splits
        if twice := [key for key in dict.fromkeys(keys) if keys.count(key) > 1]:
            yield f"{name}: {twice[0]} is given twice"
    for task in (pair[0] for pair in s["tasks"]):
        if task not in (*TASKS, *EMBEDDED):
            yield f"tasks: no data set is called {task}: python eval/tasks.py lists them"
    for budget, *switches in s["splits"]:
        if not switches or budget < 1 or any(not 0 <= steps <= budget for steps in switches):
            yield f"splits: {(budget, *switches)}: give a budget, then steps of CLM between 0 and it"
    longest, *switches = max(s["splits"])
    pure, several = {0, longest} <= set(switches), len(s["lrs"]) > 1
    for name, needs in (("continued", s["continued"]), ("intermediate", s["intermediate"]), ("lrs", several)):
        if needs and not pure:
            yield f"{name}: needs both pure objectives, 0 and {longest} steps of CLM, in the split of {longest} steps"
    if several != (s["lr_steps"] > 0) or (several and min(s["lrs"]) <= 0):
        yield f"lr_steps={s['lr_steps']}: is for the choice between several lrs above 0, got {s['lrs']}"
    if not 0 <= s["late_switch"] < longest:
        yield f"late_switch={s['late_switch']}: must be within the budget of {longest} steps"
    if wrong := set(s["repeated"]) - {clm for _, *steps in s["splits"] for clm in steps}:
        yield f"repeated: {min(wrong)} is none of the steps of CLM in splits"
    if wrong := [step for step in s["intermediate"] if not 0 < step < longest]:
        yield f"intermediate: {wrong[0]} is not within the budget of {longest} steps"
    if wrong := [ratio for ratio in s["mask_ratios"] if not 0 < ratio < 1]:
        yield f"mask_ratios: {wrong[0]} is not above 0 and below 1"
    for name, low in (("processes", 1), ("jobs", 0)):
        if s[name] < low:
            yield f"{name}={s[name]}: must be at least {low}"


# ----------------------------------------------------------------------------
# Pretraining


def done(p, run):
    return checkpoint.path_of(folder_of(p, run.name), run.budget).exists()


def to_train(p):
    """The names of the runs that have not ended, and of those whose checkpoint is gone that a run or a fine-tuning still
    to do begins with."""
    needed, names = {checkpoint_of(p, model) for model, *point in sum(rounds(p), []) if not has_result(p, model, *point)}, set()
    for run in reversed(p.runs.values()):  # each before those that it begins with
        its = {checkpoint.path_of(folder_of(p, run.name), step) for step in (*run.keep, run.budget)}
        gone = not all(path.exists() for path in its & needed)
        if not done(p, run) and (gone or logged(p, run) < run.budget):
            names.add(run.name)
            needed |= {path for _, path in [begins_with(p, run)] if path and not under_way(p, run)}
    return names


def under_way(p, run):
    """Whether a run has a checkpoint of its own to go on from."""
    return bool(checkpoint.steps(folder_of(p, run.name)))


def chosen_lr(p, size, causal):
    """The peak learning rate whose short run ended with the lowest validation loss. One that diverged has lost. None before
    all of them have ended, and where all diverged."""
    ends = {0: p.s["lrs"][0]} if len(p.s["lrs"]) == 1 else {}
    for run in p.runs.values():
        if run.lr and run.size == size and (run.clm > 0) == causal:
            if logged(p, run) < run.budget and not diverged(p, run):
                return None
            loss = "val_clm_loss" if causal else "val_mlm_loss"
            ends[math.inf if diverged(p, run) else read_metrics(folder_of(p, run.name))[-1][loss]] = run.lr
    return None if min(ends) == math.inf else ends[min(ends)]


def diverged(p, run):
    """Whether a run that was to try a learning rate stopped at a loss that is not finite."""
    output = folder_of(p, run.name) / "output.txt"
    return (
        run.lr > 0
        and logged(p, run) < run.budget
        and output.exists()
        and "Stopped before the update" in output.read_text(errors="replace")
    )


def begins_with(p, run):
    """The checkpoint that a run begins with, as (setting of train.py, path); ("", None) from scratch."""
    if run.parent:
        return "branch_from", checkpoint.path_of(folder_of(p, run.parent), run.start)
    return ("init_from", checkpoint.path_of(folder_of(p, run.base), p.longest)) if run.base else ("", None)


def command(p, run):
    """What starts or resumes a run; None while what it begins with, or its learning rate, is not there yet."""
    (how, path), lr = begins_with(p, run), run.lr or chosen_lr(p, run.size, causal=run.start < run.clm)
    if lr is None or (path and not path.exists() and not under_way(p, run)):
        return None
    n = p.s["processes"]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={n}"] if n > 1 else []
    start = [f"--{how}={path}"] if path else []
    return [sys.executable, *launcher, TRAIN, *words_for(p, run, lr), *start]


def words_for(p, run, lr):
    """A run's settings for train.py, but for what it begins with."""
    warmup, decay = p.schedule(run)
    return [*p.words(run.size, [f"--lr={lr}"] * (lr > 0), continues=bool(run.base)), f"--max_steps={run.budget}",
            f"--switch_step={run.clm}", f"--mask_ratio={run.mask}", f"--seed={run.seed}", f"--warmup_steps={warmup}",
            f"--decay_steps={decay}", f"--out_dir={folder_of(p, run.name)}", "--keep_last=1",
            f"--keep_steps={','.join(map(str, run.keep))}", "--resume=True"]  # fmt: skip


def lock(folder):
    """An open file that keeps others off a folder until it is closed everywhere; None where another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = open(folder / "lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    return file


def pretrain(p, runs):
    """Does those of the runs that are to be trained, as many at a time as there is room for; returns what failed."""
    free = sweep.slots(p.s["jobs"], p.s["processes"])
    names = to_train(p)
    due, running, elsewhere, failed = [run for run in runs if run.name in names], {}, set(), []  # {process: (run, slot)}
    total, ended = (
        sum(run.budget - run.start for run in runs),
        sum(run.budget - run.start for run in runs if run not in due),
    )
    bar = tqdm(total=total, initial=ended, unit="step", desc="pretraining", disable=not due,
               mininterval=0.5 if sys.stderr.isatty() else 20)  # fmt: skip
    try:
        while due or running:
            for run in [*due]:
                words, folder = command(p, run), folder_of(p, run.name)
                if done(p, run) or diverged(p, run):  # the first: by another process
                    due.remove(run)
                    ended += run.budget - run.start
                elif words and len(free) > len(elsewhere):  # what runs elsewhere has a device as well
                    if not (held := lock(folder)):
                        if run.name not in elsewhere:
                            bar.write(f"{run.name}: another process is at it; waiting for its end")
                        elsewhere.add(run.name)
                        continue
                    elsewhere.discard(run.name)
                    due.remove(run)
                    slot = free.pop()
                    with open(folder / "output.txt", "w") as log:  # the lock stays as long as the run does
                        process = subprocess.Popen(
                            words, env=os.environ | slot, stdout=log, stderr=log, pass_fds=[held.fileno()]
                        )
                    held.close()
                    running[process] = run, slot
                    bar.write(f"{run.name}: steps {run.start} to {run.budget}")
            elsewhere &= {run.name for run in due}
            if not running and not elsewhere:
                break
            time.sleep(0.5)
            for process in [process for process in running if process.poll() is not None]:
                run, slot = running.pop(process)
                free.append(slot)
                if done(p, run) or diverged(p, run):
                    ended += run.budget - run.start
                    bar.write(
                        f"{run.name}: diverged, its learning rate is out" if diverged(p, run) else f"{run.name}: done"
                    )
                    continue
                output = folder_of(p, run.name) / "output.txt"
                failed.append(f"{run.name} ({output})")
                bar.write(
                    f"failed: {run.name}; the end of {output}:\n"
                    + "\n".join(output.read_text(errors="replace").splitlines()[-5:])
                )
            bar.update(ended + sum(max(0, logged(p, run) - run.start) for run, _ in running.values()) - bar.n)
    finally:
        for process in running:  # each saves where it is
            process.terminate()
        for process in running:
            process.wait()
        bar.close()
    return failed + [f"{run.name} ({why_not(p, run)})" for run in due]


def why_not(p, run):
    """Why a run could not begin."""
    _, path = begins_with(p, run)
    if path is None or path.exists():
        return "no learning rate is chosen: the runs that try one failed, or all of them diverged"
    before = p.runs[run.parent or run.base]
    if done(p, before):
        return f"{before.name} is done and has not kept step {path.stem.removeprefix('ckpt-')}: delete its folder to have it again"
    return f"{path} is not there"


# ----------------------------------------------------------------------------
# Fine-tuning


def rounds(p):
    """The fine-tunings as two lists of (model, task, rate, seed), seed by seed, shuffled within one so that equal parts of
    a list take about equally long. With choose_once those of the second list are at the rate that the first chooses."""
    s, lists = p.s, ([], [])
    for seed in s["finetune_seeds"]:
        models = p.models
        if s["choose_once"]:
            models = [model for model in models if model.run.seed == p.seed] if seed == s["finetune_seeds"][0] else []
            lists[1].append([*itertools.product(p.models, s["tasks"], [None], [seed])])
        lists[0].append([*itertools.product(models, s["tasks"], s["finetune_lrs"], [seed])])
        for of_seed in (its[-1] for its in lists if its):
            random.Random(seed).shuffle(of_seed)
    return [sum(its, []) for its in lists]


def best_rate(p, model, task):
    """The rate at which a model's arm did best on validation, with the first seeds; None before all have been tried, and
    where all have failed."""
    run, s = model.run, p.s
    twin = next(m for m in p.models if (m.run.size, m.run.budget, m.run.clm, m.run.mask, m.run.base, m.step, m.untrained)
                == (run.size, run.budget, run.clm, run.mask, run.base, model.step, model.untrained))  # fmt: skip
    folders = [make_job(p, twin, task, lr, s["finetune_seeds"][0]).folder for lr in s["finetune_lrs"]]
    there = [folder for folder in folders if (folder / "result.json").exists()]
    if not there or not all(folder in there or (folder / "error.txt").exists() for folder in folders):
        return None
    results = arms.read_runs(results_of(p), there)
    return max(results, key=lambda result: (result.scores["main", "validation"], -result.lr)).lr


def checkpoint_of(p, model):
    """Also of an untrained one, which takes its shape and tokenizer from there."""
    return checkpoint.path_of(folder_of(p, model.run.name), model.step or model.run.budget)


def make_job(p, model, task, lr, seed):
    s, (name, words) = p.s, task
    words = shlex.split(f"{s['finetune']} {words}") + ["--random_weights=True"] * model.untrained
    first = (model, lr, seed) == (p.models[0], s["finetune_lrs"][0], s["finetune_seeds"][0])
    return sweep.make_job(results_of(p), model.name, checkpoint_of(p, model), name, lr, seed, words, baseline=first)


def has_result(p, model, task, lr, seed):
    """Whether a fine-tuning is done. lr: None for the rate that is chosen, or as long as none is, for any of them."""
    lr = lr or best_rate(p, model, task)
    rates = [lr] if lr else p.s["finetune_lrs"]
    return any((make_job(p, model, task, lr, seed).folder / "result.json").exists() for lr in rates)


def finetune_all(p, part="1/1"):
    """Runs one of N equal parts of the fine-tunings; returns what failed."""
    free, failed = sweep.slots(p.s["jobs"]), []
    for number, points in enumerate(rounds(p), 1):
        jobs = []
        for model, task, lr, seed in sweep.share_of(part, points):
            lr = lr or best_rate(p, model, task)
            if lr and (checkpoint_of(p, model).exists() or has_result(p, model, task, lr, seed)):
                jobs.append(make_job(p, model, task, lr, seed))
            else:
                failed.append(f"{model.name} on {task[0]}, seed {seed}, for lack of {'a checkpoint' if lr else 'a rate'}")
        if jobs:
            print(f"fine-tuning, round {number}: {len(jobs)} jobs")
            failed += [str(job.folder) for job in sweep.run_all(jobs, free)]
    return failed


# ----------------------------------------------------------------------------
# The command


def problems(p, what):
    """What stands in the way of one part of the study, or of all of it (""), a sentence each."""
    if what in ("", *p.runs):
        if 0 < (n := torch.cuda.device_count()) < p.s["processes"]:
            yield f"processes={p.s['processes']}: this machine has {n} GPUs"
        os.environ["WORLD_SIZE"] = str(p.s["processes"])  # for train.py's check
        for run in [run for run in p.runs.values() if what in ("", run.name)]:
            words = command(p, run)
            if words:
                words = words[words.index(TRAIN) + 1 :]
            else:  # what cannot begin yet: as in a new folder, for what it will be resumed with is not known
                words = [*words_for(p, run, p.s["lrs"][0]), f"--out_dir={folder_of(p, run.name)}/new"]
            yield from (f"{run.name}: {sentence}" for sentence in training.check(configurator.load(TRAIN, words)))
        del os.environ["WORLD_SIZE"]
    for task, words in p.s["tasks"] if what in ("", "finetune") else ():
        folder = configurator.load(FINETUNE, shlex.split(f"{p.s['finetune']} {words}"))["tasks_dir"]
        if task in TASKS and (why := missing(task, in_folder(TASKS[task], folder))):
            if not (TASKS[task].hub and find_spec("datasets")):
                yield why


SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --nodes=1 --ntasks=1 --gpus-per-node={gpus} --cpus-per-task={cpus}
#SBATCH --time=24:00:00 --signal=B:TERM@300
#SBATCH --output={folder}/{name}-%a.txt
cd {here}
{body}
"""


def write_scripts(p, words):
    """Job scripts in OUT_DIR/slurm: an array for the runs of each depth of the tree, one for the fine-tunings, the page;
    and submit.sh, which submits them one after the other. Returns its path."""
    folder, python = Path(p.s["out_dir"], "slurm"), shlex.join([sys.executable, os.path.abspath(__file__), *words])
    depth, scripts = {}, []  # scripts: (name, how many, the bash lines)
    searching = any(run.lr for run in p.runs.values())
    for run in p.runs.values():
        before = run.parent or run.base
        depth[run.name] = 0 if run.lr else depth[before] + 1 if before else int(searching)
    for level in range(max(depth.values()) + 1):
        names = [name for name in depth if depth[name] == level]
        scripts.append((f"runs-{level}", len(names), p.s["processes"],
                        f"names=({' '.join(names)})\nexec {python} --only=${{names[$SLURM_ARRAY_TASK_ID]}}"))  # fmt: skip
    n = min(100, len(rounds(p)[0]))
    for i in range(2 if p.s["choose_once"] else 1):
        scripts.append((f"finetune-{i}", n, 1, f"exec {python} --only=finetune:$((SLURM_ARRAY_TASK_ID + 1))/{n}"))
    scripts.append(("report", 1, 0, f"exec {python} --only=report"))
    folder.mkdir(parents=True, exist_ok=True)
    submit = ["#!/bin/bash", "# Each array waits for the end of the one before. If anything was cut short or failed, run this",
              "# again: what is done stays done.", "set -e"]  # fmt: skip
    for i, (name, n, gpus, body) in enumerate(scripts):
        text = SCRIPT.format(
            name=name, last=n - 1, gpus=gpus, cpus=8 * max(1, gpus), folder=folder, here=Path.cwd(), body=body
        )
        (folder / f"{name}.sbatch").write_text(text)
        submit.append(f"id=$(sbatch --parsable{' --dependency=afterany:$id' * (i > 0)} {folder}/{name}.sbatch)")
    (folder / "submit.sh").write_text("\n".join(submit) + "\n")
    return folder / "submit.sh"


def main():
    words = [f"{word}=True" if word in ("--plan", "--slurm") else word for word in sys.argv[1:]]
    s = configurator.load(__file__, words, check)
    try:
        study(Plan(s), words)
    except DataError as error:
        sys.exit(str(error))


def study(p, words):
    what, _, part = p.s["only"].partition(":")
    numbers = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", part or "1/1")
    fits = numbers and int(numbers[1]) <= int(numbers[2]) and (what == "finetune") == bool(part)
    if not fits or what not in ("", "finetune", "report", *p.runs):
        sys.exit(f"only={p.s['only']}: is none of its runs, nor finetune:I/N, nor report. --plan lists the runs")
    if p.s["plan"]:
        return print(tell(p))
    if p.s["slurm"]:
        return print(write_scripts(p, [word for word in words if word != "--slurm=True"]))
    if not what:
        print(tell(p))
    its_data = {settings["data"] for settings, _ in p.shape.values()}
    if what in ("", *p.runs) and EMBEDDED_FOLDER in its_data and not Path(EMBEDDED_FOLDER).exists():
        prepare_embedded()  # before several runs do it
    if found := list(problems(p, what)):
        sys.exit("\n".join(["nothing was started:", *found]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended too
    failed = []
    if what in ("", *p.runs):
        failed += pretrain(p, [run for run in p.runs.values() if what in ("", run.name)])
    if what in ("", "finetune"):
        failed += finetune_all(p, part or "1/1")
    if what in ("", "report"):
        print(page.write(p))
    if failed:
        sys.exit(
            "\n".join([f"{len(failed)} parts failed or could not begin; the same command tries them again:", *failed[:20]])
        )


if __name__ == "__main__":
    main()
