"""Can a run go on from a step of another one? Up to that step it must be the run that its own settings describe."""

import itertools
import json
import shlex
import subprocess
import sys

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


def schedule_problems(runs, script=TRAIN):
    """Yield (name, sentence) for each of the Runs whose shared steps were not trained by its own schedule.

    The script says the learning rate and the objectives of each step, so that this follows an edit of it. Raises
    DataError: the script fails.
    """
    branches = [*{run.row: run for run in runs if run.start}.values()]  # one seed of each
    if not branches:
        return
    texts = {run.row: shlex.join(run.args) for branch in branches for run in (branch, branch.parent)}
    command = [sys.executable, script, "schedule", *texts.values()]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise DataError(f"{script} schedule failed: {process.stderr.strip()}")
    schedules = dict(zip(texts, map(json.loads, process.stdout.splitlines())))
    for run in branches:
        if why := first_difference(schedules[run.row], schedules[run.parent.row], run.start):
            yield run.folder.name, f"it cannot begin with {run.parent.row}@{run.start}: {why}"


def first_difference(ours, theirs, steps):
    """Return in which of some steps two schedules differ first, in a sentence that says what to do; "" if in none.

    A schedule is a line of `train.py schedule`, read from JSON: {"rates": [[rate, n_steps], ...], "objectives":
    [[{name: n_windows}, n_steps], ...]}.
    """
    found = []
    for what in ("rates", "objectives"):
        both = zip(each_step(ours[what]), each_step(theirs[what]))
        for step, (here, there) in enumerate(itertools.islice(both, steps)):
            if here != there:
                found.append((step, f"the {what} of step {step + 1} are {here}, there {there}"))
                break
    if not found:
        return ""
    step, why = min(found)
    return f"{why}. Only the first {step} steps are the same: branch off there, or earlier"


def each_step(stretches):
    """Yield what each step has as text, such as "25% clm, 75% mlm". stretches: [(value, number of steps), ...]."""
    for value, n in stretches:
        if isinstance(value, dict):
            windows = sum(value.values())
            text = ", ".join(f"{value[name] / windows:.0%} {name}" for name in sorted(value))
        else:
            text = f"{value:.8g}"
        yield from itertools.repeat(text, n)
