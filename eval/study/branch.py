"""Can a run go on from a step of another one? Up to that step it must be the run that its own settings describe."""

import itertools
import json
import shlex
import subprocess
import sys
from pathlib import Path

from data.shards import draws_of, load_meta
from errors import DataError
from eval.study.jobs import ROOT
from run import RESUME_MAY_CHANGE

TRAIN = ROOT / "train.py"
# The study sets these settings of train.py.
PLANNED = ["seed", "out_dir", "resume", "branch_from", "keep_last", "keep_steps"]

# A run and the one that it branches off may differ in these. train.py says what follows from those of the schedule.
# What MLM hides and predicts, seq_len and rope_theta: a checkpoint's record of phases says what each step trained.
MAY_DIFFER = {
    *"max_steps warmup_steps decay_steps lr switch_step clm_windows".split(),
    *"mask_ratio mask_proportions predict_from seq_len rope_theta init_from".split(),
    *PLANNED,
    *RESUME_MAY_CHANGE,
} - {"data"}


def why_not_branch(ours, theirs, step):
    """Return why a run with the settings `ours` cannot go on from step `step` of one with `theirs`; "" if it can.

    step: a text. `schedule_problems` looks at the schedule.
    """
    last = min(ours.max_steps - 1, theirs.max_steps)
    if not step.isdecimal() or not 0 < int(step) <= last:
        return f"its step must be between 1 and {last}"
    differ = [name for name, value in ours.items() if name not in MAY_DIFFER and value != theirs[name]]
    return "; ".join(f"{name}={ours[name]}, there {theirs[name]}" for name in differ)


def ask_schedules(runs, script=TRAIN):
    """Ask train.py what each step of some Runs does, so that this follows an edit of it.

    Returns {row: {"rates", "objectives" or "flops": a list with an item for each step}}. Raises DataError: the script
    fails, or the data are unusable.
    """
    args = {run.row: [f"--vocab_size={vocab_size(run.settings)}", *run.args] for run in runs}
    schedules = {}
    if not args:
        return schedules
    command = [sys.executable, script, "schedule", *map(shlex.join, args.values())]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise DataError(f"{script} schedule failed: {process.stderr.strip()}")
    for row, line in zip(args, process.stdout.splitlines()):
        schedules[row] = {}
        for what, stretches in json.loads(line).items():
            schedules[row][what] = [value for value, n_steps in stretches for _ in range(n_steps)]
    return schedules


def vocab_size(cfg):
    """Return the size of the vocabulary of a run's data; where they are missing, that of the demo or of Llama 3."""
    folder, *_ = draws_of(cfg.data)
    if Path(folder).exists():
        return load_meta(folder)["tokenizer"]["vocab_size"]
    return 4096 if cfg.model == "demo" else 128_256


def schedule_problems(runs, schedules):
    """Yield (name, sentence) for each of the Runs whose shared steps were not trained by its own schedule."""
    for run in runs:
        if not run.start:
            continue
        ours, theirs = schedules[run.row], schedules[run.parent.row]
        for step, what in itertools.product(range(run.start), ("objectives", "rates")):
            if ours[what][step] != theirs[what][step]:
                why = f"the {what} of step {step + 1} are {ours[what][step]}, there {theirs[what][step]}"
                same = f"Only the first {step} steps are the same: branch off there, or earlier"
                yield run.folder.name, f"it cannot begin with {run.parent.row}@{run.start}: {why}. {same}"
                break
