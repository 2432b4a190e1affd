"""What a study consists of: runs of train.py and models to fine-tune. All of it is said by the settings.

A row of `runs` is (name, what it begins with, arguments of train.py). It begins with

- "": random weights;
- "row@step": the weights, the optimizer and the step of another row's run (train.py's branch_from);
- "row": another row's final weights, with a new optimizer and another seed (train.py's init_from).

So two rows share the steps that the table says they share. A branch that would not be the run that its own settings
describe is an error; see `branch.py`.
"""

import itertools
import random
import re
import shlex
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import checkpoint
import configurator
from data.flops import PEAK_FLOPS
from errors import DataError, nearest
from eval.study import figures
from eval.study.branch import PLANNED, TRAIN, Schedule, why_not_branch
from eval.study.jobs import ROOT
from eval.tasks.registry import find_task
from run import CHOICES, LIMITS

FINETUNE = ROOT / "finetune.py"
DEFAULTS = configurator.read_script(TRAIN)[0]
FINETUNE_DEFAULTS = configurator.read_script(FINETUNE)[0]
SEED = re.compile(r"-seed-(\d+)")  # in the names of a study's runs
CONTINUED_SEED = 1000  # added to the seed of a run that continues final weights: other masks, another order of the data
OWN = "init_from random_weights lr seed out_dir".split()  # settings of finetune.py that a study gives itself
FORMS = {  # of the entries of some settings
    "runs": "(name, what it begins with, arguments)",
    "primary": "(model, model)",
    "figures": "(kinds, x, models of a line, its name)",
}
MFU = 0.46  # of an H100, for the predicted hours: docs/speed.md, with the FLOPs of whole windows


class Run:
    """A row with one pretraining seed: a run of train.py.

    args, settings: of train.py, as the row says them. parent: the Run that it begins with, at the step `start`; 0 =
    with its final weights.
    """

    def __init__(self, row, seed, folder, args, settings, parent, start):
        self.row, self.seed, self.folder, self.args, self.settings = row, seed, folder, args, settings
        self.parent = parent
        self.start = start
        self.max_steps = settings.max_steps
        self.steps = self.max_steps - start  # those that are not shared
        self.keep = set()  # steps whose checkpoints are kept, to branch off there or to be fine-tuned
        self.depth = 0  # how many runs must have ended before it can begin
        self.origin = None  # the path of the checkpoint that it begins with
        self.train_seed = seed  # the seed that train.py gets
        self.continues = base_of(settings.init_from)  # what it, or the run that it branches off, began with, by name
        if parent:
            parent.keep |= {start} - {0, parent.max_steps}
            self.depth = parent.depth + 1
            self.origin = parent.checkpoint(start)
            self.train_seed = parent.train_seed if start else parent.train_seed + CONTINUED_SEED
            self.continues = parent.continues if start else parent.row

    def __str__(self):
        text = f"{self.folder.name}: {self.steps:,} steps"
        if self.parent:
            begins = f"from step {self.start:,} of" if self.start else "after"
            text += f", {begins} {self.parent.folder.name}"
        return text

    def checkpoint(self, step=0):
        """Return the path of its checkpoint at a step; 0 = the last."""
        return checkpoint.path_of(self.folder, step or self.max_steps)


class Model(NamedTuple):
    """A checkpoint to fine-tune, or random weights of its shape."""

    kind: str  # "final", "intermediate", "random" or "given"
    folder: str  # of its results
    checkpoint: Path
    run: Run = None

    @property
    def label(self):
        """Its name in the report, which the pretraining seeds of one model share."""
        return SEED.sub("", self.folder, 1)


class PlannedTask(NamedTuple):
    """A data set that every model is fine-tuned on."""

    args: list  # of finetune.py
    settings: configurator.Settings  # that these arguments make


class Plan:
    """All runs and models of a study, and what is wrong with its settings.

    runs: {(row, seed): Run}, each after those that it begins with. models: the Models to fine-tune. labels: theirs,
    each once. tasks: {name of a data set: PlannedTask}. results: the folder of all results. problems:
    sentences; if there are any, the rest is not complete.
    """

    def __init__(self, cfg):
        cfg = self.cfg = configurator.Settings(cfg)
        for name, value in cfg.items():
            if isinstance(value, tuple):  # its default has an example of its type, which is empty: it is left out
                cfg[name] = tuple(item for item in value if str(item).strip("(,' )"))
        self.problems = []
        self.results = Path(cfg.out_dir, "results")
        for setting, entry, problem in misformed(cfg):
            self.problems.append(problem)
            cfg[setting] = tuple(other for other in cfg[setting] if other != entry)
        self.tasks = {}
        for entry in cfg.tasks:
            self.add_task(*self.words("tasks", entry))
        self.names = []
        self.runs = {}
        for row in cfg.runs:
            self.add_row(*row)
        self.models = [*self.list_models()]
        self.labels = [*dict.fromkeys(model.label for model in self.models)]
        self.need("random", cfg.random, self.names)
        self.need("primary", sum(cfg.primary, ()), self.labels)
        for kinds, axes, models, name in cfg.figures:
            known = (figures.LOSS_AXES, self.names) if "losses" in kinds.split() else (figures.AXES, self.labels)
            for words, names in zip((kinds, axes, models), (figures.KINDS, *known)):
                self.need(f"figures: {name}", words.split(), names)
        if not cfg.runs and not cfg.checkpoints:
            self.problems.append("runs: give at least one row, or checkpoints")
        for folder, n in Counter(model.folder for model in self.models).items():
            if n > 1:
                self.problems.append(f"checkpoints: two models would be called {folder}: rename one")

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
                self.problems.append(f"{setting}: there is no {name!r}.{nearest(name, known)}")

    def add_task(self, name="", *args):
        """Add a data set, given by its name or as a task file, with its own arguments of finetune.py."""
        args = [*self.words("finetune", self.cfg.finetune), *args, f"--task={name}"]
        settings, _ = configurator.parse(args, FINETUNE_DEFAULTS)
        for origin, key, _ in configurator.assignments(args, FINETUNE_DEFAULTS, []):
            if key in OWN:
                self.problems.append(f"tasks: {name}: {key} is set by the study, not by {origin}")
        try:
            task = find_task(name, settings.tasks_dir, settings.max_steps == 0)
        except DataError as error:
            self.problems.append(f"tasks: {error}")
            return
        if task.name in self.tasks:
            self.problems.append(f"tasks: two are called {task.name}")
        self.tasks[task.name] = PlannedTask(args, settings)

    def add_row(self, name, begins, text):
        """Add the runs of a row, one for each of its seeds."""
        where = f"runs: {name}"
        before, at, step = begins.partition("@")
        args = self.words("train", self.cfg.train) + self.words(where, text)
        settings, problems = configurator.parse(args, DEFAULTS)
        problems += configurator.value_problems(settings, LIMITS, CHOICES)
        given = {word.partition("=")[0] for word in args}
        for key in PLANNED + ["init_from"] if begins else PLANNED:
            if f"--{key}" in given:
                problems.append(f"{key} is set by the study")
        if not re.fullmatch("(?!.*-seed-)[A-Za-z0-9._-]+", name):  # a part of file names
            problems.append("a name has letters, digits, '.', '_' and '-' only, and not -seed-")
        if name in self.names:
            problems.append("two rows have this name")
        if begins and before not in self.names:
            problems.append(f"it begins with {before!r}, which is no row above it.{nearest(before, self.names)}")
        self.names.append(name)
        for seed in [] if problems else self.cfg.seeds:
            parent = self.runs.get((before, seed))
            if before and not parent:  # what is wrong with that row is told there
                break
            if parent and settings.model == "origin":  # it has the shape of what the first run began with
                settings["init_from"] = parent.settings.init_from
            if at and (why := why_not_branch(settings, parent.settings, step)):
                problems.append(f"it cannot begin with {begins}: {why}")
            else:
                folder = Path(self.cfg.out_dir, "runs", f"{name}-seed-{seed}")
                self.runs[name, seed] = Run(name, seed, folder, args, settings, parent, int(step or 0))
        self.problems += [f"{where}: {problem}" for problem in problems]

    def list_models(self):
        """Yield the Models: at the end of runs, on the way there, with random weights, and given as checkpoints."""
        runs = self.runs.values()
        for run in runs:
            yield Model("final", run.folder.name, run.checkpoint(), run)
        for entry in self.cfg.also:  # such as "mlm@1000 2000": two Models for each seed of the row
            name, _, steps = entry.partition("@")
            self.need("also", [name], self.names)
            for run, step in itertools.product(runs, steps.split(" ")):
                if run.row != name:
                    continue
                if step.isdecimal() and run.start < int(step) < run.max_steps:
                    run.keep.add(int(step))
                    yield Model("intermediate", f"{name}@{step}-seed-{run.seed}", run.checkpoint(int(step)), run)
                else:
                    self.problems.append(f"also: {entry}: give a step after {run.start} and before {run.max_steps}")
        for run in runs:
            if run.row in self.cfg.random:
                yield Model("random", f"random-{run.folder.name}", run.checkpoint(), run)
        for path in self.cfg.checkpoints:
            steps = checkpoint.steps(path)  # only names are read
            path = checkpoint.path_of(path, steps[-1]) if steps else Path(path)
            yield Model("given", checkpoint.label(path), path)

    def points(self):
        """Return the fine-tuning runs as [(Model, task, rate, seed), ...]. The rate None stands for the chosen one.

        With full_grid each seed has all rates. Otherwise the first seed has all rates, and the others have that which
        did best on validation with the first: for each model, pretraining seed and task. What is scored zero-shot is
        scored once.
        """
        cfg = self.cfg
        points = []
        for seed in cfg.finetune_seeds:
            first = seed == cfg.finetune_seeds[0]
            of_seed = []
            for task, planned in self.tasks.items():
                rates = cfg.rates if cfg.full_grid or first else [None]
                if planned.settings.max_steps == 0:
                    rates = cfg.rates[:first]
                of_seed += itertools.product(self.models, [task], rates, [seed])
            random.Random(0).shuffle(of_seed)  # so that equal parts of them take about equally long
            points += of_seed
        return points

    def waves(self):
        """Return {name: Runs or points}: what each wave consists of. Nothing in a wave depends on the rest of it.

        The waves of pretraining are the runs without a parent, then the runs that begin with those, and so on. Those
        of fine-tuning are the runs whose rate is given, then those whose rate the first ones choose.
        """
        waves = defaultdict(list)
        for run in self.runs.values():
            waves[f"pretrain-{run.depth + 1}"].append(run)
        for point in self.points():
            waves["finetune-1" if point[2] else "finetune-2"].append(point)
        return waves


def misformed(cfg):
    """Yield (setting, entry, what is wrong with it) for the entries with too few or too many items."""
    for setting, form in FORMS.items():
        for entry in cfg[setting]:
            if len(entry) != form.count(",") + 1:
                yield setting, entry, f"{setting}: give {form}, not {entry}"


def base_of(init_from):
    """Return the name of the run, or of the model of the hub, that a setting init_from names; "" if it is empty."""
    return SEED.sub("", Path(re.sub(r"/[^/]*\.pt$", "", init_from)).name, 1)


# ----------------------------------------------------------------------------
# A plan as text


def describe(plan):
    """Return the plan as text: its runs, then the amount of everything."""
    runs = plan.runs.values()
    lines = []
    if runs:
        flops = sum(Schedule(run).flops() for run in runs)
        hours = flops / PEAK_FLOPS["H100"] / MFU / 3600
        lines = [
            *map(str, runs),
            "",
            f"FLOPs of pretraining {flops:.2g}",
            f"GPU-hours of pretraining {hours:,.0f} (predicted for one H100 at {MFU:.0%} of its peak)",
            f"steps trained {sum(run.steps for run in runs)}",
            f"steps shared {sum(run.start for run in runs)}",
            "",
        ]
    lines += [*(f"wave {name}: {len(items)} jobs" for name, items in plan.waves().items()), ""]
    models = Counter(model.kind for model in plan.models)
    points = Counter(model.kind for model, *_ in plan.points())
    lines += [f"{kind} models {models[kind]}, fine-tuning runs {points[kind]}" for kind in models]
    return "\n".join(lines)
