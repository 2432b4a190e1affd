"""What a study consists of: runs of train.py and models to fine-tune, as its settings say.

A row of `runs` is (name, what it begins with, arguments of train.py). It begins with

- "": random weights;
- "row@step": the weights, the optimizer and the step of another row's run (train.py's branch_from);
- "row": another row's final weights, with a new optimizer and another seed (train.py's init_from).

So two rows share exactly the steps that the table says. A branch is an error if its own settings describe another
training of the shared steps; see `branch.py`.
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
CONTINUED_SEED = 1000  # added to the seed of a run that begins with final weights: new masks and data order
OWN = "init_from random_weights lr seed out_dir".split()  # settings of finetune.py that the study sets
FORMS = {  # the form of an entry in these settings
    "runs": "(name, what it begins with, arguments)",
    "primary": "(model, model)",
    "figures": "(kinds, x, models of a line, its name)",
}
MFU = 0.46  # on an H100, to predict hours: from docs/speed.md, with the FLOPs of whole windows


class Run:
    """A row with one pretraining seed: a run of train.py.

    args, settings: the row's arguments of train.py, and the settings they make. parent: the Run that it begins with, if
    any. start: the step of the parent where it branches off; 0 = with the parent's final weights.
    """

    def __init__(self, row, seed, folder, args, settings, parent, start):
        self.row, self.seed, self.folder, self.args, self.settings = row, seed, folder, args, settings
        self.parent = parent
        self.start = start
        self.max_steps = settings.max_steps
        self.steps = self.max_steps - start  # steps that are not shared
        self.keep = set()  # steps whose checkpoints are kept, to branch off or to fine-tune
        self.depth = 0  # the number of its ancestors
        self.origin = None  # the path of the checkpoint that it begins with
        self.train_seed = seed  # the seed that train.py gets
        self.continues = base_of(settings.init_from)  # the model whose final weights it, or its parent, began with
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
        """Return the path of the run's checkpoint at a step; 0 = the last."""
        return checkpoint.path_of(self.folder, step or self.max_steps)


class Model(NamedTuple):
    """A checkpoint to fine-tune, or random weights of its shape."""

    kind: str  # "final", "intermediate", "random" or "given"
    folder: str  # the name of the folder with its results
    checkpoint: Path
    run: Run = None

    @property
    def label(self):
        """The name in the report, the same for all pretraining seeds."""
        return SEED.sub("", self.folder, 1)


class PlannedTask(NamedTuple):
    """A data set that every model is fine-tuned on."""

    args: list  # arguments of finetune.py
    settings: configurator.Settings  # the settings they make


class Plan:
    """All runs and models of a study, and the problems with its settings.

    runs: {(row, seed): Run}, parents first. models: the Models to fine-tune. labels: the Models' labels, each once.
    tasks: {name of a data set: PlannedTask}. results: the folder of all results. problems: sentences; if there are any,
    the rest may be incomplete.
    """

    def __init__(self, cfg):
        cfg = self.cfg = configurator.Settings(cfg)
        for name, value in cfg.items():
            if isinstance(value, tuple):  # defaults have an empty entry that shows the type: drop it
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
        """Add a problem for each name that is not known."""
        for name in names:
            if name not in known:
                self.problems.append(f"{setting}: there is no {name!r}.{nearest(name, known)}")

    def add_task(self, name="", *args):
        """Add a data set. name: a task or a task file. args: more arguments of finetune.py."""
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
            if before and not parent:  # that row's own problem is reported
                break
            if parent and settings.model == "origin":  # the shape comes from the model that the first run began with
                settings["init_from"] = parent.settings.init_from
            if at and (why := why_not_branch(settings, parent.settings, step)):
                problems.append(f"it cannot begin with {begins}: {why}")
            else:
                folder = Path(self.cfg.out_dir, "runs", f"{name}-seed-{seed}")
                self.runs[name, seed] = Run(name, seed, folder, args, settings, parent, int(step or 0))
        self.problems += [f"{where}: {problem}" for problem in problems]

    def list_models(self):
        """Yield the Models: final, intermediate, with random weights, and given as checkpoints."""
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
            steps = checkpoint.steps(path)  # reads file names only
            path = checkpoint.path_of(path, steps[-1]) if steps else Path(path)
            yield Model("given", checkpoint.label(path), path)

    def points(self):
        """Return the fine-tuning runs as [(Model, task, rate, seed), ...]. A rate of None is yet to be chosen.

        With full_grid, each seed tries all rates. Otherwise only the first seed does. The others use the rate that was
        best on validation, for each model, pretraining seed and task. Zero-shot scoring is done once.
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
            random.Random(0).shuffle(of_seed)  # so that the parts of a wave take about equally long
            points += of_seed
        return points

    def waves(self):
        """Return {name: Runs or points of each wave}. The items of a wave do not depend on each other.

        The first wave of pretraining has the runs without a parent, the next those that begin with them, and so on. The
        first wave of fine-tuning has given rates, and it chooses the rates of the second.
        """
        waves = defaultdict(list)
        for run in self.runs.values():
            waves[f"pretrain-{run.depth + 1}"].append(run)
        for point in self.points():
            waves["finetune-1" if point[2] else "finetune-2"].append(point)
        return waves


def misformed(cfg):
    """Yield (setting, entry, problem) for each entry with too few or too many items."""
    for setting, form in FORMS.items():
        for entry in cfg[setting]:
            if len(entry) != form.count(",") + 1:
                yield setting, entry, f"{setting}: give {form}, not {entry}"


def base_of(init_from):
    """Return the name of the run or hub model in a setting init_from, without its seed; "" if it is empty."""
    return SEED.sub("", Path(re.sub(r"/[^/]*\.pt$", "", init_from)).name, 1)


# ----------------------------------------------------------------------------
# A plan as text


def describe(plan):
    """Return the plan as text: each run, then totals."""
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
