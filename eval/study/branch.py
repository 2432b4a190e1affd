"""Can a run go on from a step of another one? Up to that step it must be the run that its own settings describe."""

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
# The study sets these settings of train.py.
PLANNED = ["seed", "out_dir", "resume", "branch_from", "keep_last", "keep_steps"]

# A run and the one that it branches off may differ in these. train.py says what follows from those of the schedule.
# What MLM hides and predicts, seq_len and rope_theta: a checkpoint's record of phases says what each step trained.
SCHEDULE = {*"max_steps warmup_steps decay_steps lr switch_step clm_windows".split()}
MAY_DIFFER = {
    *SCHEDULE,
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
    return "; ".join(
        f"{name}={value}, there {theirs[name]}"
        for name, value in ours.items()
        if name not in MAY_DIFFER and value != theirs[name]
    )


@cache
def globals_of(script):
    """Run a script as a module, and return what it defines: what comes of that follows an edit of it."""
    return runpy.run_path(str(script))


@cache
def model_of(*shape):
    """Return the Transformer of a ModelConfig, given as pairs of its fields. Its weights take no memory."""
    with weights_on_meta():
        return Transformer(ModelConfig(**dict(shape)))


class Schedule:
    """What the steps of a Run do, as `learning_rate` and `objective` of train.py say."""

    def __init__(self, run, script=TRAIN, **given):
        train = globals_of(script)
        settings = Settings(run.settings, **given)
        self.learning_rate = train["learning_rate"]
        self.objective = train["objective"]
        self.config = model_config(settings, vocab_size(settings))
        self.n_windows = max(1, settings.global_batch_tokens // self.config.seq_len)
        self.cfg = settings
        vars(settings).update(settings)  # attributes of its own, which are faster
        self.steps = range(run.start, run.max_steps)

    def trained(self, step, places=range(256)):
        """Return the learning rate of a step, rounded, as a text, and the objectives of some of its windows.

        places: which windows, of 256 that are spread evenly over the step.
        """
        n = self.n_windows
        cfg = self.cfg
        objectives = [self.objective(step, place * n // 256, n, cfg) for place in places]
        return f"{self.learning_rate(step, cfg):.8g}", objectives

    def flops(self):
        """Return the FLOPs of the run's steps. At most 125 of them and 64 windows of each stand for all.

        Windows count as not split.
        """
        transformer = model_of(*vars(self.config).items())
        steps = self.steps[:: math.ceil(len(self.steps) / 125)]
        every = math.ceil(self.n_windows / 64)
        total = 0
        for step in steps:
            groups = group_windows(self.objective, self.cfg, self.n_windows, step, every)
            total += step_flops(transformer, groups, "none")
        n_looked_at = len(steps) * math.ceil(self.n_windows / every)  # windows
        return total * len(self.steps) * self.n_windows / n_looked_at


def schedule_problems(runs, script=TRAIN):
    """Yield (name, sentence) for each of the Runs whose shared steps were not trained by its own schedule.

    It looks at the learning rate and at one window of each shared step, and at 256 windows of the last one. The parent
    is asked as if it had the run's mask_ratio and mask_proportions, which may differ.
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
    """Describe what a step does; see `Schedule.trained`."""
    windows = Counter(f"{what.name} {what.details}".strip() if what else "left out" for what in objectives)
    parts = [f"{n / windows.total():.1%} {name}" for name, n in windows.items()]
    return f"a rate of {rate} and trains {', '.join(parts)}"


def vocab_size(cfg):
    """Return the size of the vocabulary of a run's data; where they are missing, that of the demo or of Llama 3."""
    folder, *_ = draws_of(cfg.data)
    if Path(folder).exists():
        return load_meta(folder)["tokenizer"]["vocab_size"]
    return 4096 if cfg.model == "demo" else 128_256
