"""Read the results below a folder, check them and group them into variants.

A *variant* is what a report compares: all checkpoints that are equal in everything but their pretraining seed.
"""

import json
import math
import re
from collections import defaultdict
from pathlib import Path

from errors import DataError

FAMILIES = dict(sc="Sequence classification", tc="Token classification", qa="Question answering", ir="Retrieval")
METRICS = ("field", "paper")  # and "main": the field's metric, or the paper's for a task that has no other
# The facts of a checkpoint. Those in which the variants of a report differ make up their labels.
FACTS = "parameters model max_steps step clm_steps mask_ratio init_from untrained peak_lr recipe".split()
PER_RUN = {"task", "lr", "seed", "init_from", "out_dir"}  # settings that differ between the runs of a task by design


class Run:
    """One fine-tuning: the contents `r` of the result.json in a folder."""

    def __init__(self, folder, r):
        checkpoint, validation, test = r["checkpoint"], r["metrics"]["validation"], r["metrics"]["test"]
        self.folder = folder  # relative to the folder of all results
        self.task, self.family, self.lr, self.seed = r["task"], r["family"], float(r["lr"]), int(r["seed"])
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family!r} is none of {', '.join(FAMILIES)}")
        self.name, self.pretraining_seed = checkpoint["name"], checkpoint["seed"]
        # A run that continues another checkpoint has a path to it, which differs between pretraining seeds as well.
        self.facts = {k: checkpoint[k] for k in FACTS} | {"init_from": without_seed(checkpoint["init_from"] or "")}
        self.test = test  # {name of a metric: score in percent}
        self.test_set = r["examples"]["test"], r["test_set"]  # number of examples and checksum
        self.settings = {k: v for k, v in {**r["settings"], **r["versions"]}.items() if k not in PER_RUN}
        self.metrics = {**r["main"], "main": r["main"]["field"] or r["main"]["paper"]}  # {"field": [names], ...}
        self.scores = {}  # {("field", "validation"): percent, ...}
        self.baselines = {}  # {(baseline, "field"): percent on the test set, ...}
        for metric, names in self.metrics.items():
            if not names:  # retrieval among judged documents only has no metric of the field
                continue
            # Of several retrieval sets, those without a validation part do not count in the choice of a learning rate.
            self.scores[metric, "validation"] = mean([validation[name] for name in names if name in validation])
            self.scores[metric, "test"] = mean([test[name] for name in names])
            for baseline, values in r["baselines"].items():
                if values.keys() >= set(names):
                    self.baselines[baseline, metric] = mean([values[name] for name in names])


class Variant:
    """Checkpoints that differ in nothing but their pretraining seed, and their runs."""

    def __init__(self, runs):
        self.runs, self.facts, self.label = runs, runs[0].facts, ""
        self.names = sorted({run.name for run in runs})  # of the checkpoints
        self.seeds = sorted({run.pretraining_seed for run in runs})
        self.random_weights = self.facts["untrained"]
        self.decayed = self.facts["step"] == self.facts["max_steps"]  # whether the learning rate has come to its end
        self.clm_fraction = self.facts["clm_steps"] / self.facts["step"] if self.facts["step"] else 0.0  # of its steps

    def describe(self):
        """Return {fact: words}; a fact that does not apply is ""."""
        f, n = self.facts, self.facts["parameters"]
        size = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.{int(n < 1e7)}f}M"
        words = {"objective": "randomly initialized", "mask": "", "steps": "", "from": "", "size": size}
        if self.random_weights:
            return words
        if not f["step"]:  # pretrained elsewhere
            return words | {"objective": "/".join(self.names)}
        words["objective"] = fraction_label(self.clm_fraction)
        words["mask"] = f"mask {100 * f['mask_ratio']:.3g}%" if self.clm_fraction < 1 else ""
        words["steps"] = f"{f['step']:,} steps" if self.decayed else f"step {f['step']:,} of {f['max_steps']:,}"
        words["from"] = f"from {f['init_from'] or 'scratch'}"
        return words


class Results:
    """The fine-tunings that a report is about, grouped by variant, task and learning rate.

    variants: every Variant, in the order of the tables. tasks: {task: family}, ordered by family.
    targets: {title: tasks} to report on: each task, and the mean of each family that has several tasks.
    repeated: {task: another one with the same test set}, which counts in means in its place.
    grid: {(variant, task): {lr: {(pretraining seed, fine-tuning seed): Run}}}.
    seeds: {task: fine-tuning seeds} of all jobs, failed ones included. failed: {folder: last line of its error.txt}.
    metrics, baselines: {task: Run.metrics}, {task: Run.baselines}. describe: see Variant.describe; labels are made of it.
    Raises DataError: a run that is there twice, two different test sets of a task.
    """

    def __init__(self, root, runs, failed, describe=Variant.describe):
        self.root, self.runs, self.failed, self.describe = Path(root), runs, failed, describe
        self.variants = make_variants(runs, describe)
        families = [*FAMILIES]
        tasks = {(families.index(run.family), run.task) for run in runs}
        self.tasks = {task: families[number] for number, task in sorted(tasks)}
        test_sets, self.targets = {run.task: run.test_set for run in runs}, {}
        first_with = {test_sets[task]: task for task in reversed(self.tasks)}
        self.repeated = {task: first_with[test_sets[task]] for task in self.tasks if task not in first_with.values()}
        for family in dict.fromkeys(self.tasks.values()):
            group = tuple(task for task in self.tasks if self.tasks[task] == family)
            counted = tuple(task for task in group if task not in self.repeated)
            self.targets |= {f"{family} mean": counted} if len(counted) > 1 else {}
            self.targets |= {task: (task,) for task in group}
        self.grid, self.seeds, self.baselines = defaultdict(dict), defaultdict(set), {task: {} for task in self.tasks}
        for variant in self.variants:
            for run in variant.runs:
                its = self.grid[variant, run.task].setdefault(run.lr, {})
                if other := its.get(seeds := (run.pretraining_seed, run.seed)):
                    differ = ", ".join(differences([run, other])) or "no setting"
                    why = f"the same pretraining, task, learning rate and seed twice; they differ in {differ}"
                    raise DataError(f"{why}:\n  {other.folder}\n  {run.folder}\nDelete one of them.")
                its[seeds] = run
        first = {}
        for run in runs:
            like = first.setdefault(run.task, run)
            if (run.test_set, run.metrics) != (like.test_set, like.metrics):
                lines = [f"  {r.folder}: {r.test_set[0]} examples, checksum {r.test_set[1]}" for r in (like, run)]
                raise DataError("\n".join([f"{run.task}: two test sets, which cannot be compared:", *lines]))
            self.seeds[run.task].add(run.seed)
            self.baselines[run.task] |= run.baselines  # one run of each task has them
        self.metrics = {task: run.metrics for task, run in first.items()}
        for job in map(Path, failed):  # .../checkpoint/task/lr-<lr>_seed-<seed>
            if match := re.search(r"_seed-(\d+)$", job.name):
                self.seeds[job.parent.name].add(int(match[1]))


def read_results(root, only=None, describe=Variant.describe):
    """Return the Results below a folder; only: the job folders that count, as paths from root, None = all."""
    folders = {name: {path.parent for path in Path(root).rglob(name)} for name in ("result.json", "error.txt")}
    jobs = {str(folder.relative_to(root)) for folder in set.union(*folders.values())}
    done, failed = [], {}
    for job in sorted(jobs if only is None else jobs & only):
        folder = Path(root, job)
        if folder in folders["result.json"]:
            done.append(folder)
        else:
            lines = (folder / "error.txt").read_text(encoding="utf-8", errors="replace").split("\n")
            failed[job] = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return Results(root, read_runs(root, done), failed, describe)


def read_runs(root, folders):
    """Return the Run of each folder. Raises DataError that names every file which is not a result."""
    runs, damaged = [], []
    for folder in folders:
        path = Path(folder, "result.json")
        try:
            runs.append(Run(str(Path(folder).relative_to(root)), json.loads(path.read_bytes())))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            damaged.append(f"{path}: " + (f"lacks {error}" if isinstance(error, KeyError) else f"{error}"))
    if damaged:
        advice = "not results of finetune.py, or damaged; delete these folders or make their runs again:"
        raise DataError("\n  ".join([advice, *damaged]))
    return runs


def mean(values):
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"the main metric's values are {values}, must be finite numbers")
    return sum(values) / len(values)


def differences(runs):
    """Return {setting: its values} where the settings of these runs differ."""
    names = sorted({name for run in runs for name in run.settings})
    values = {name: sorted({str(run.settings.get(name)) for run in runs}) for name in names}
    return {name: its for name, its in values.items() if len(its) > 1}


# ----------------------------------------------------------------------------
# Variants and their labels


def make_variants(runs, describe):
    """Return the labeled variants of these runs, in the order of the tables."""
    groups = defaultdict(list)
    for run in runs:  # of models pretrained elsewhere only the name is known
        elsewhere = not run.facts["step"] and not run.facts["untrained"]
        groups[json.dumps([run.facts, run.name if elsewhere else ""])].append(run)
    variants = [Variant(group) for group in groups.values()]
    labels = label_by_difference([describe(variant) for variant in variants])
    for variant, label in zip(variants, labels):
        names = "/".join(dict.fromkeys(map(without_seed, variant.names)))
        variant.label = label if label and labels.count(label) == 1 else f"{label} ({names})" if label else names
    return sorted(variants, key=order)


def order(variant):
    f, steps = variant.facts, [variant.facts[k] or 0 for k in ("max_steps", "step")]
    numbers = f["parameters"], f["init_from"] != "", *steps, variant.clm_fraction, f["mask_ratio"] or 0
    return variant.random_weights, numbers, variant.label


def label_by_difference(descriptions):
    """Return a label for each {fact: words}, of the facts in which they differ; "" does not count as a value."""
    differ = [k for k in next(iter(descriptions), {}) if len({d[k] for d in descriptions} - {""}) > 1]
    return [", ".join(d[k] for k in differ if d[k]) for d in descriptions]


def fraction_label(fraction):
    """Return "MLM only", "50% CLM" or "CLM only"."""
    return {0: "MLM only", 1: "CLM only"}.get(fraction, f"{100 * fraction:.3g}% CLM")


def without_seed(name):
    """Return a name such as mlm-seed-2 without its seed: mlm."""
    return re.sub(r"[-_.]?seed[-_=]?\d+", "", name)
