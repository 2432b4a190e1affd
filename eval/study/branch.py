"""Can a run go on from a step of another one? Up to that step it must be the run that its own settings describe."""

import itertools
import math
import runpy
from pathlib import Path
from types import SimpleNamespace

from data.objective import by_objective
from data.shards import draws_of, load_meta
from eval.study.jobs import ROOT
from run import RESUME_MAY_CHANGE, model_config
from runtime import step_flops

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


def schedules_of(runs, script=TRAIN):
    """Return what the steps of some Runs do: {row: {"rates", "objectives" or "flops": a list, an item for each step}}.

    It calls `learning_rate` and `objective` of train.py, so it follows an edit of them.
    """
    train = runpy.run_path(str(script))
    schedules = {}
    for run in runs:
        if run.row not in schedules:
            schedules[run.row] = schedule_of(run.settings, train["learning_rate"], train["objective"])
    return schedules


def schedule_of(settings, learning_rate, objective):
    """Return the schedule of a run with these settings, see `schedules_of`.

    `flops` are of a step whose windows are not split. Four windows of each step are looked at, and 64 where these
    change, evenly spread.
    """
    config = model_config(settings, vocab_size(settings))
    n_windows = settings.global_batch_tokens // config.seq_len
    cfg = SimpleNamespace(**settings)  # faster
    steps = range(cfg.max_steps)
    rates = [f"{learning_rate(step, cfg):.8g}" for step in steps]
    objectives, flops = [], []
    coarse, fine = math.ceil(n_windows / 4), math.ceil(n_windows / 64)  # one in so many windows is looked at

    def trained(step):
        return [objective(step, window, n_windows, cfg) for window in range(0, n_windows, coarse)]

    for _, same in itertools.groupby(steps, trained):
        same = list(same)
        groups = by_objective(objective, cfg, n_windows, same[0], fine)
        n = sum(map(len, groups.values()))
        fractions = sorted(f"{len(windows) / n:.0%} {kind.name}" for kind, windows in groups.items())
        objectives += [", ".join(fractions)] * len(same)
        flops += [step_flops(config, groups, "none") * n_windows / math.ceil(n_windows / fine)] * len(same)
    return {"rates": rates, "objectives": objectives, "flops": flops}


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
