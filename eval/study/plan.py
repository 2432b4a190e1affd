"""What a study consists of: runs of train.py and models to fine-tune. All of it is said by the settings.

A row of `runs` is (name, what it begins with, arguments of train.py). It begins with

- "": random weights;
- "row@step": the weights, the optimizer and the step of another row's run (train.py's branch_from);
- "row": another row's final weights, with a new optimizer and another seed (train.py's init_from).

So two rows share the steps that the table says they share. A branch that would not be the run that its own settings
describe is an error; see `why_not_branch`.
"""

import itertools
import random
import re
import shlex
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import checkpoint
import configurator
from data.shards import draws_of, load_meta
from errors import DataError, nearest
from eval.study import figures
from eval.study.jobs import ROOT
from eval.tasks.registry import find_task
from run import RESUME_MAY_CHANGE, last_logged, model_config
from runtime import PEAK_FLOPS, flops_per_token

TRAIN = ROOT / "train.py"
DEFAULTS = configurator.read_script(TRAIN)[0]
CONTINUED_SEED = 1000  # added to the seed of a run that continues final weights: other masks, another order of the data
GPU, MFU = "H100", 0.46  # for the predicted hours: docs/speed.md, with the FLOPs of whole windows

# The study sets these settings of train.py.
PLANNED = {"seed", "out_dir", "resume", "branch_from", "keep_last", "keep_steps"}
# A run and the one that it branches off may differ in these; `why_not_branch` looks at the first four itself.
MAY_DIFFER = PLANNED | (RESUME_MAY_CHANGE - {"data"}) | {"max_steps", "decay_steps", "switch_step", "clm_windows"}
MAY_DIFFER |= {"init_from", "mask_ratio", "mask_proportions", "predict_from", "seq_len", "rope_theta"}


@dataclass(eq=False)
class Run:
    """A row with one pretraining seed: a run of train.py."""

    row: str
    seed: int
    folder: Path
    args: list  # of train.py, as the row says them
    settings: dict  # of train.py
    parent: "Run | None"  # the run that it begins with ...
    start: int  # ... at this step; 0 = with its final weights

    def __post_init__(self):
        parent = self.parent
        self.max_steps = self.settings.max_steps
        self.steps = self.max_steps - self.start  # those that are not shared
        self.keep = set()  # steps whose checkpoints are kept, to branch off there or to be fine-tuned
        self.depth = parent.depth + 1 if parent else 0  # how many runs must have ended before it can begin
        self.origin = parent and parent.checkpoint(self.start)  # the path of the checkpoint that it begins with
        self.train_seed = self.seed  # the seed that train.py gets
        self.continues = ""  # the row whose final weights it, or the run that it branches off, began with
        if parent:
            self.train_seed = parent.train_seed
            self.continues = parent.continues
            if not self.start:
                self.train_seed += CONTINUED_SEED
                self.continues = parent.row

    def __str__(self):
        text = f"{self.folder.name}: {self.steps:,} steps"
        if self.parent:
            begins = f"from step {self.start:,} of" if self.start else "after"
            text += f", {begins} {self.parent.folder.name}"
        if self.keep:
            steps = [f"{step:,}" for step in sorted(self.keep)]
            text += f", keeps the checkpoints of {' '.join(steps)}"
        return text

    def under_way(self):
        """Return whether it has a checkpoint of its own to resume from."""
        return bool(checkpoint.steps(self.folder))

    def checkpoint(self, step=0):
        """Return the path of its checkpoint at a step; 0 = the last."""
        return checkpoint.path_of(self.folder, step or self.max_steps)

    def ended(self):
        """Return whether the log is at the last step. The checkpoints may be gone."""
        return last_logged(self.folder) >= self.max_steps


@dataclass(eq=False)
class Model:
    """A checkpoint to fine-tune, or random weights of its shape. label: its name in the report."""

    label: str
    seed: int  # of pretraining; 0 of a given checkpoint, whose results say it
    checkpoint: Path
    run: Run | None = None
    random_weights: bool = False

    @property
    def folder(self):
        """The folder of its results."""
        return f"{self.label}-seed-{self.seed}" if self.run else name_of(self.checkpoint)


class Plan:
    """All runs and models of a study, and what is wrong with its settings.

    runs: {(row, seed): Run}, each after those that it begins with. finals, inside, random, given: the Models at the
    end of runs, on the way there, with random weights, and given as checkpoints. results: the folder of all results.
    problems: sentences; if there are any, the rest is not complete.
    """

    def __init__(self, cfg):
        cfg = self.cfg = without_empty(cfg)
        self.runs = {}
        self.problems = []
        self.results = Path(cfg.out_dir, "results")
        self.tasks = self.read_tasks()  # {name of a data set: its arguments of finetune.py}
        rows = [row for row in cfg.runs if len(row) == 3]
        for row in {*cfg.runs} - {*rows}:
            self.problems.append(f"runs: give (name, what it begins with, arguments), not {row}")
        self.names = [name for name, _, _ in rows]
        for row in rows:
            self.add(*row)
        self.need("repeated", cfg.repeated, self.names)
        self.need("random", cfg.random, self.names)
        self.finals = [Model(run.row, run.seed, run.checkpoint(), run) for run in self.runs.values()]
        self.inside = [model for entry in cfg.also for model in self.on_the_way(entry)]
        shapes = [run for run in self.runs.values() if run.row in cfg.random]
        self.random = [Model(f"random-{run.row}", run.seed, run.checkpoint(), run, True) for run in shapes]
        self.given = [Model(without_seed(name_of(path))[0], 0, newest(path)) for path in cfg.checkpoints]
        self.models = self.finals + self.inside + self.random + self.given
        self.labels = [*dict.fromkeys(model.label for model in self.models)]
        self.need("primary", sum(cfg.primary, ()), self.labels)
        self.problems += [f"primary: give pairs of rows, got {pair}" for pair in cfg.primary if len(pair) != 2]
        self.problems += figures.problems(cfg.figures, self.labels)
        if not self.names and not self.given:
            self.problems.append("runs: give at least one row, or checkpoints")
        given = [model.folder for model in self.given]
        clashes = {name for name in given if given.count(name) > 1}
        self.problems += [f"checkpoints: two models would be called {name}: rename one" for name in sorted(clashes)]
        self.problems = [*dict.fromkeys(self.problems)]

    def words(self, where, text):
        """Return the words of a text, as a shell splits it."""
        try:
            return shlex.split(text)
        except ValueError as error:  # a quote that is not closed
            self.problems.append(f"{where}: {text!r}: {error}")
            return []

    def need(self, setting, names, known):
        """Note which of the names are not known."""
        for name in names:
            if name not in known:
                self.problems.append(f"{setting}: there is no row {name!r}.{nearest(name, known)}")

    def read_tasks(self):
        """Return {name of a data set: its arguments of finetune.py}."""
        tasks = {}
        shared = self.words("finetune", self.cfg.finetune)
        for entry in self.cfg.tasks:
            words = self.words("tasks", entry)
            if not words:
                continue
            name, *args = words
            if task_name(name) in map(task_name, tasks):
                self.problems.append(f"tasks: two are called {task_name(name)}")
            tasks[name] = [*shared, *args]
        for task in tasks:
            try:
                find_task(task)
            except DataError as error:
                self.problems.append(f"tasks: {error}")
        return tasks

    def add(self, name, begins, text):
        """Add the runs of a row, one for each of its seeds."""
        where = f"runs: {name}"
        before, at, step = begins.partition("@")
        args = self.words("train", self.cfg.train) + self.words(where, text)
        settings, problems = configurator.parse(args, DEFAULTS)
        given = {word[2:].partition("=")[0] for word in args if word.startswith("--")}
        problems += [f"{key} is set by the study" for key in sorted(given & PLANNED)]
        if begins and "init_from" in given:
            problems.append("it begins with a row, so give no init_from")
        if not re.fullmatch("(?!.*-seed-)[A-Za-z0-9._-]+", name):  # a part of file names
            problems.append("a name has letters, digits, '.', '_' and '-' only, and not -seed-")
        if self.names.count(name) > 1:
            problems.append("two rows have this name")
        above = self.names[: self.names.index(name)]
        if begins and before not in above:
            problems.append(f"it begins with {before!r}, which is no row above it.{nearest(before, above)}")
        for seed in self.cfg.seeds if not problems else ():
            if seed != self.cfg.seeds[0] and self.cfg.repeated and name not in self.cfg.repeated:
                continue
            parent = self.runs.get((before, seed))
            start = 0
            if before and not parent:
                if (before, self.cfg.seeds[0]) in self.runs:  # otherwise its own problem is noted
                    why = f"it has seed {seed}, but {before}, with which it begins, has not: see repeated"
                    problems.append(why)
                break
            if at:
                if why := why_not_branch(settings, parent.settings, step):
                    problems.append(f"it cannot begin with {begins}: {why}")
                    break
                start = int(step)
                parent.keep |= {start} - {parent.max_steps}
            folder = Path(self.cfg.out_dir, "runs", f"{name}-seed-{seed}")
            self.runs[name, seed] = Run(name, seed, folder, args, settings, parent, start)
        self.problems += [f"{where}: {problem}" for problem in problems]

    def on_the_way(self, entry):
        """Return the Models of an entry of `also`, such as "mlm@1000 2000": one for each step and each seed of the row."""
        name, _, steps = entry.partition("@")
        self.need("also", [name], self.names)
        runs, models = [run for run in self.runs.values() if run.row == name], []
        for run, step in itertools.product(runs, steps.split() or [""]):
            if not (step.isdecimal() and run.start < int(step) < run.max_steps):
                self.problems.append(f"also: {entry}: give a step between {run.start} and {run.max_steps}")
                break
            run.keep.add(int(step))
            models.append(Model(f"{name}@{step}", run.seed, run.checkpoint(int(step)), run))
        return models

    def points(self):
        """Return the fine-tuning runs as [(Model, task, rate, seed), ...]. The rate None stands for the chosen one.

        With full_grid each seed has all rates. Otherwise the first seed has all rates, and the others have that which
        did best on validation with the first: for each model, pretraining seed and task. What is scored zero-shot is
        scored once.
        """
        first, *others = self.cfg.finetune_seeds
        rest = self.cfg.rates if self.cfg.full_grid else [None]
        points = [
            *itertools.product(self.models, self.tasks, self.cfg.rates, [first]),
            *itertools.product(self.models, self.tasks, rest, others),
        ]
        zero_shot = [task for task, args in self.tasks.items() if "--max_steps=0" in args]  # once: nothing varies
        points = [point for point in points if point[1] not in zero_shot or point[2:] == (self.cfg.rates[0], first)]
        random.Random(0).shuffle(points)  # so that equal parts of them take about equally long
        return sorted(points, key=lambda point: self.cfg.finetune_seeds.index(point[3]))  # one seed of all comes first

    def waves(self):
        """Return {name: Runs or points}: what each wave consists of. Nothing in a wave depends on the rest of it.

        The waves of pretraining are the runs without a parent, then the runs that begin with those, and so on. Those
        of fine-tuning are the runs whose rate is given, then those whose rate the first ones choose.
        """
        waves = defaultdict(list)
        for run in sorted(self.runs.values(), key=lambda run: run.depth):
            waves[f"pretrain-{run.depth + 1}"].append(run)
        for point in self.points():
            waves["finetune-1" if point[2] else "finetune-2"].append(point)
        return {**waves}


def without_empty(cfg):
    """Return the settings of a study without empty names: a tuple needs an example of its type as its default."""
    empty = "", ("", ""), ("", "", ""), ("", "", "", "")
    settings = type(cfg)(cfg)
    for name, value in cfg.items():
        if isinstance(value, tuple):
            settings[name] = tuple(item for item in value if item not in empty)
    return settings


def why_not_branch(ours, theirs, step):
    """Return why a run with the settings `ours` cannot go on from step `step` of one with `theirs`; "" if it can.

    Up to that step both must have the same data and learning rates, and the same windows must be CLM. What MLM hides
    and predicts, seq_len and rope_theta may change: a checkpoint's record of phases says what each step trained.
    """
    if not step.isdecimal() or not 0 < int(step) < ours.max_steps or int(step) > theirs.max_steps:
        return f"its step must be between 1 and {min(ours.max_steps - 1, theirs.max_steps)}"
    differ = []
    for name, value in ours.items():
        if name not in MAY_DIFFER and value != theirs[name]:
            differ.append(f"{name}={value}, there {theirs[name]}")
    if differ:
        return "; ".join(differ)
    step = int(step)
    both = ours, theirs
    if ours.max_steps != theirs.max_steps or ours.decay_steps != theirs.decay_steps:
        if step > (first := min(cfg.max_steps - cfg.decay_steps for cfg in both)):
            return f"the learning rates are the same only up to step {first}, where one of the two begins to decay"
    for moment in sorted({0, ours.switch_step, theirs.switch_step}):
        wanted, trained = (1.0 if moment < cfg.switch_step else cfg.clm_windows for cfg in both)
        if moment < step and wanted != trained:
            return f"at step {moment} it trains CLM in {wanted:.0%} of the windows, there it is {trained:.0%}"
    return ""


def task_name(task):
    """Return the name of a data set, which may be given as a task file."""
    return Path(task).stem if task.endswith(".py") else task


def newest(path):
    """Return the newest checkpoint of a run's folder, or `path` itself if it is not one. Only names are read."""
    steps = checkpoint.steps(path)
    return checkpoint.path_of(path, steps[-1]) if steps else Path(path)


def name_of(path):
    """Return a given checkpoint's name: its folder and its step, or the name of a model folder, as in result.json."""
    path = newest(path).resolve()
    return f"{path.parent.name}-{path.stem.removeprefix('ckpt-')}" if path.suffix == ".pt" else path.name


def without_seed(name):
    """Return the name of a checkpoint without the -seed-S that a study gives it, and S or None."""
    found = re.search(r"-seed-(\d+)", name)
    if not found:
        return name, None
    return name.replace(found[0], ""), int(found[1])


# ----------------------------------------------------------------------------
# A plan as text


def describe(plan):
    """Return the plan as text: its runs, then the amount of everything. Raises DataError: unusable data."""
    runs, lines = plan.runs.values(), []
    if runs:
        compute = sum(map(flops_of, runs))
        hours = compute / (PEAK_FLOPS[GPU] * MFU) / 3600
        tokens = sum(run.steps * run.settings.global_batch_tokens for run in runs)
        lines = [
            *map(str, runs),
            "",
            f"tokens of pretraining {tokens:,}",
            f"FLOPs of pretraining {compute:.2g}",
            f"GPU-hours of pretraining {hours:,.0f} (predicted for one {GPU} at {MFU:.0%} of its peak)",
            f"steps trained {sum(run.steps for run in runs)}",
            f"steps shared {sum(run.start for run in runs)}",
            "",
        ]
    lines += [f"wave {name}: {len(items)} jobs" for name, items in plan.waves().items()]
    lines.append("")
    per_model = len(plan.points()) // len(plan.models)
    if plan.random:
        lines.append(f"fine-tuning runs of random weights {per_model * len(plan.random)}")
    if plan.given:
        lines.append(f"fine-tuning runs of given checkpoints {per_model * len(plan.given)}")
    pretrained = plan.finals + plan.inside
    lines += [f"final models {len(plan.finals)}", f"intermediate models {len(plan.inside)}"]
    return "\n".join([*lines, f"fine-tuning runs {per_model * len(pretrained)}"])


def flops_of(run):
    """Compute the FLOPs that a run will need, from its start on. Raises DataError: unusable data."""
    cfg = run.settings
    vocab_size = 4096 if cfg.model == "demo" else 128_256  # the embedded tokenizer's; Llama 3's
    folder, *_ = draws_of(cfg.data)
    if Path(folder).exists():
        vocab_size = load_meta(folder)["tokenizer"]["vocab_size"]
    pure = min(run.steps, max(0, cfg.switch_step - run.start))  # steps of pure CLM
    clm = pure + cfg.clm_windows * (run.steps - pure)
    ratio = (cfg.mask_ratio[0] + cfg.mask_ratio[-1]) / 2
    config = model_config(cfg, vocab_size)
    return cfg.global_batch_tokens * flops(config, clm, run.steps - clm, ratio)


def flops(config, clm_steps, mlm_steps, mask_ratio):
    """Compute the FLOPs of some steps, with whole windows and one token in each step. mask_ratio: its mean."""
    of_clm = flops_per_token(config, config.seq_len, True, 1.0)
    of_mlm = flops_per_token(config, config.seq_len, False, mask_ratio)
    return clm_steps * of_clm + mlm_steps * of_mlm
