"""Check that a run may branch off another: up to that step, its own settings must describe the same training."""

import math
import runpy
from collections import Counter
from functools import cache
from pathlib import Path

from configurator import Settings
from data.flops import step_flops
from data.objective import group_windows
from data.shards import draws_of, load_meta
from eval.study.jobs import ROOT
from model import ModelConfig, Transformer
from run import RESUME_MAY_CHANGE, model_config
from runtime import weights_on_meta

TRAIN = ROOT / "train.py"
# Settings of train.py that the study sets.
PLANNED = ["seed", "out_dir", "resume", "branch_from", "keep_last", "keep_steps"]

# A run and the one it branches off may differ in these. `schedule_problems` compares what follows from SCHEDULE. What
# MLM hides and predicts, seq_len and rope_theta may change, because a checkpoint records what each step trained.
SCHEDULE = {*"max_steps warmup_steps decay_steps lr switch_step clm_windows".split()}
MAY_DIFFER = {
    *SCHEDULE,
    *"mask_ratio mask_proportions predict_from seq_len rope_theta init_from".split(),
    *PLANNED,
    *RESUME_MAY_CHANGE,
} - {"data"}


def why_not_branch(ours, theirs, step):
    """Return why a run with the settings `ours` cannot branch off one with `theirs` at a step; "" if it can.

    step: as text. The schedule is not compared here, but in `schedule_problems`.
    """
    last = min(ours.max_steps - 1, theirs.max_steps)
    if not step.isdecimal() or not 0 < int(step) <= last:
        return f"its step must be between 1 and {last}"
    return "; ".join(
        f"{name}={value}, there {theirs[name]}"
        for name, value in ours.items()
        if name not in MAY_DIFFER and value != theirs[name]
    )


@cache
def globals_of(script):
    """Run a script as a module and return its globals, so that edits of the script are followed."""
    return runpy.run_path(str(script))


@cache
def model_of(*shape):
    """Return a Transformer whose weights take no memory. shape: (name, value) for each field of ModelConfig."""
    with weights_on_meta():
        return Transformer(ModelConfig(**dict(shape)))


class Schedule:
    """What each step of a Run trains, by `learning_rate` and `objective` of train.py."""

    def __init__(self, run, script=TRAIN, **given):
        train = globals_of(script)
        settings = Settings(run.settings, **given)
        self.learning_rate = train["learning_rate"]
        self.objective = train["objective"]
        self.config = model_config(settings, vocab_size(settings))
        self.n_windows = max(1, settings.global_batch_tokens // self.config.seq_len)
        self.cfg = settings
        vars(settings).update(settings)  # real attributes are faster
        self.steps = range(run.start, run.max_steps)

    def trained(self, step, places=range(256)):
        """Return the learning rate of a step, as rounded text, and the objectives of some of its windows.

        places: which of 256 windows, spread evenly over the step.
        """
        n = self.n_windows
        cfg = self.cfg
        objectives = [self.objective(step, place * n // 256, n, cfg) for place in places]
        return f"{self.learning_rate(step, cfg):.8g}", objectives

    def flops(self):
        """Estimate the FLOPs of the run from at most 125 steps and 64 windows of each; windows are not split."""
        transformer = model_of(*vars(self.config).items())
        steps = self.steps[:: math.ceil(len(self.steps) / 125)]
        every = math.ceil(self.n_windows / 64)
        total = 0
        for step in steps:
            groups = group_windows(self.objective, self.cfg, self.n_windows, step, every)
            total += step_flops(transformer, groups, "none")
        n_looked_at = len(steps) * math.ceil(self.n_windows / every)  # number of windows
        return total * len(self.steps) * self.n_windows / n_looked_at


def schedule_problems(runs, script=TRAIN):
    """Yield (name, sentence) for each Run whose parent trained the shared steps by another schedule.

    For each shared step, this compares the learning rate and the objective of one window, for the last one that of 256
    windows. mask_ratio and mask_proportions may differ, so the parent is given those of the run.
    """
    for run in runs:
        if not run.start:
            continue
        masks = {name: run.settings[name] for name in ("mask_ratio", "mask_proportions")}
        ours = Schedule(run, script)
        theirs = Schedule(run.parent, script, **masks)
        for step in range(run.start):
            place = step * 159 % 256  # 159/256 is near the golden ratio, so few steps already cover the batch well
            if ours.trained(step, [place]) != theirs.trained(step, [place]):
                break
        now = ours.trained(step)
        then = theirs.trained(step)
        if now != then:
            yield run.folder.name, (
                f"it cannot begin with {run.parent.row}@{run.start}: step {step + 1} has {in_words(*now)}, there "
                f"{in_words(*then)}. At most the first {step} steps are the same: branch off there, or earlier"
            )


def in_words(rate, objectives):
    """Return what a step trains as text, from the results of `Schedule.trained`."""
    windows = Counter(f"{what.name} {what.details}".strip() if what else "left out" for what in objectives)
    parts = [f"{n / windows.total():.1%} {name}" for name, n in windows.items()]
    return f"a rate of {rate} and trains {', '.join(parts)}"


def vocab_size(cfg):
    """Return the vocabulary size of a run's data; without data, that of the demo or of Llama 3."""
    folder, *_ = draws_of(cfg.data)
    if Path(folder).exists():
        return load_meta(folder)["tokenizer"]["vocab_size"]
    return 4096 if cfg.model == "demo" else 128_256
