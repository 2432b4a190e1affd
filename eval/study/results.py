"""Read the results below a folder, check them and group them into variants.

A *variant* is what a report compares: all checkpoints that are equal in everything but their pretraining seed.
"""

import json
import math
import os
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from errors import DataError

FAMILIES = {
    "sc": "Sequence classification",
    "tc": "Token classification",
    "qa": "Question answering",
    "ir": "Retrieval",
}
METRICS = ("field", "paper")  # and "main": the field's metric, or the paper's for a task that has no other
# The facts of a checkpoint. Those in which the variants of a report differ make up their labels.
FACTS = "parameters model max_steps step clm_steps mask_ratio init_from untrained peak_lr recipe".split()
PER_RUN = {"task", "lr", "seed", "init_from", "out_dir"}  # settings that differ between the runs of a task by design


@dataclass(slots=True)
class Run:
    """One fine-tuning: the contents of a result.json."""

    folder: str  # relative to the folder of all results
    task: str
    family: str
    lr: float
    seed: int  # of fine-tuning
    pretraining_seed: int
    checkpoint: str  # its facts, seed and name, as JSON
    metrics: dict  # {"field": [names], "paper": [names], "main": [names]}
    scores: dict  # {("field", "validation"): score in percent, ...}
    test: dict  # {name of a metric: score in percent}
    baselines: dict  # {(baseline, "field"): score on the test set in percent, ...}
    test_set: tuple  # number of examples and checksum
    settings: str  # without PER_RUN, and the versions of libraries, as JSON


@dataclass
class Variant:
    """Checkpoints that differ in nothing but their pretraining seed."""

    facts: dict
    names: list  # of the checkpoints
    seeds: list  # of pretraining
    label: str = ""

    @property
    def clm_fraction(self):
        """The fraction of its steps that were CLM."""
        return self.facts["clm_steps"] / self.facts["step"] if self.facts["step"] else 0.0

    @property
    def decayed(self):
        """Whether the learning rate has come to its end."""
        return self.facts["step"] == self.facts["max_steps"]

    @property
    def random_weights(self):
        return self.facts["untrained"]

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

    def mean_by_unit(self, runs, metric):
        """Return {unit: mean test score} of {(pretraining seed, fine-tuning seed): Run}.

        The unit is a pretraining seed for a variant that has several, a fine-tuning seed otherwise.
        """
        values = defaultdict(list)
        for (pretraining_seed, seed), run in sorted(runs.items()):
            values[pretraining_seed if len(self.seeds) > 1 else seed].append(run.scores[metric, "test"])
        return {unit: float(np.mean(v)) for unit, v in values.items()}


class Results:
    """The fine-tunings that a report is about, grouped by variant, task and learning rate.

    variants: every Variant, in the order of the tables. variant_of: {run.checkpoint: number of its variant}.
    tasks: {task: family}, ordered by family.
    targets: {title: tasks} to report on: each task, and the mean of each family that has several tasks.
    grid: {(variant number, task): {lr: {(pretraining seed, fine-tuning seed): Run}}}.
    lrs, seeds: {task: set} over all jobs, failed ones included.
    baselines: {task: {(baseline, metric): percent}}. failed: {folder: last line of its error.txt}.
    Raises DataError: a run that is there twice, two different test sets of a task.
    """

    def __init__(self, root, runs, failed):
        self.root, self.runs, self.failed = Path(root), runs, failed
        self.variants, self.variant_of = make_variants(runs)
        tasks = {run.task: run.family for run in runs}
        self.tasks = dict(sorted(tasks.items(), key=lambda item: ([*FAMILIES].index(item[1]), item[0])))
        self.targets = {}
        for family in dict.fromkeys(self.tasks.values()):
            group = tuple(task for task in self.tasks if self.tasks[task] == family)
            self.targets |= {f"{family} mean": group} if len(group) > 1 else {}
            self.targets |= {task: (task,) for task in group}
        self.grid, self.lrs, self.seeds = defaultdict(dict), defaultdict(set), defaultdict(set)
        self.baselines = {task: {} for task in self.tasks}
        first = {}
        for run in runs:
            key, seeds = (self.variant_of[run.checkpoint], run.task), (run.pretraining_seed, run.seed)
            other = self.grid[key].setdefault(run.lr, {}).setdefault(seeds, run)
            check_fits(run, other, first.setdefault(run.task, run))
            self.lrs[run.task].add(run.lr)
            self.seeds[run.task].add(run.seed)
            self.baselines[run.task] |= run.baselines  # one run of each task has them
        for job in map(Path, failed):  # .../checkpoint/task/lr-<lr>_seed-<seed>
            match = re.fullmatch(r"lr-([\d.]+(?:e[+-]?\d+)?)_seed-(\d+)", job.name)
            if match and job.parent.name in self.tasks:
                self.lrs[job.parent.name].add(float(match[1]))
                self.seeds[job.parent.name].add(int(match[2]))

    def select(self, names):
        """Return the Results of the checkpoints whose folders have these names; None if there is no run of theirs."""
        runs = [run for run in self.runs if Path(run.folder).parts[0] in names]
        failed = {job: error for job, error in self.failed.items() if Path(job).parts[0] in names}
        return Results(self.root, runs, failed) if runs else None


def check_fits(run, other, like):
    """Raise DataError if `other` is a second run of the same point, or `like` is on another test set."""
    if run is not other:
        differ = ", ".join(differences([run, other])) or "none"
        why = f"the same pretraining, task, learning rate and seed twice:\n  {other.folder}\n  {run.folder}\n"
        raise DataError(f"{why}Settings that differ: {differ}. Delete one, or report them from two folders.")
    if (run.test_set, run.metrics) != (like.test_set, like.metrics):
        lines = [f"  {r.folder}: {r.test_set[0]} examples, checksum {r.test_set[1]}, {r.metrics}" for r in (like, run)]
        raise DataError("\n".join([f"{run.task}: two test sets, which cannot be compared:", *lines]))


# ----------------------------------------------------------------------------
# Reading


def read_results(root, only=None):
    """Return the Results below a folder; only: the job folders that count, as paths from root, None = all."""
    there = {os.path.relpath(folder, root): names for folder, _, names in os.walk(root)}
    jobs = [job for job in sorted(there) if only is None or job in only]
    runs, failed = read_runs(root, [Path(root, job) for job in jobs if "result.json" in there[job]]), {}
    for job in jobs:
        if "error.txt" in there[job] and "result.json" not in there[job]:
            lines = Path(root, job, "error.txt").read_text(encoding="utf-8", errors="replace").split("\n")
            failed[job] = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return Results(root, runs, failed)


def read_runs(root, folders):
    """Return the Run of each folder. Raises DataError that names every file which is not a result."""
    runs, damaged = [], []
    for folder in folders:
        path = Path(folder, "result.json")
        try:
            runs.append(read_run(os.path.relpath(folder, root), json.loads(path.read_bytes())))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            damaged.append(f"{path}: " + (f"lacks {error}" if isinstance(error, KeyError) else f"{error}"))
    if damaged:
        advice = "not results of finetune.py, or damaged; delete these folders or make their runs again:"
        raise DataError("\n  ".join([advice, *damaged]))
    if not runs:
        raise DataError(f"{root}: no result.json below it. finetune.py makes one, python -m eval.study sweep many")
    return runs


def read_run(folder, r):
    """Return the Run of a parsed result.json."""
    if r["family"] not in FAMILIES:
        raise ValueError(f"family {r['family']!r} is none of {', '.join(FAMILIES)}")
    c, validation, test = r["checkpoint"], r["metrics"]["validation"], r["metrics"]["test"]
    metrics = {**r["main"], "main": r["main"]["field"] or r["main"]["paper"]}
    scores, baselines = {}, {}
    for metric, names in metrics.items():
        if not names:  # retrieval among judged documents only has no metric of the field
            continue
        # Of several retrieval sets, those without a validation part do not count in the choice of a learning rate.
        scores[metric, "validation"] = mean([validation[name] for name in names if name in validation])
        scores[metric, "test"] = mean([test[name] for name in names])
        for baseline, values in r["baselines"].items():
            if all(name in values for name in names):
                baselines[baseline, metric] = mean([values[name] for name in names])
    settings = {k: v for k, v in {**r["settings"], **r["versions"]}.items() if k not in PER_RUN}
    checkpoint = {k: c[k] for k in (*FACTS, "seed", "name")}
    return Run(
        folder=folder,
        task=r["task"],
        family=r["family"],
        lr=float(r["lr"]),
        seed=int(r["seed"]),
        pretraining_seed=c["seed"],
        checkpoint=sys.intern(json.dumps(checkpoint, sort_keys=True)),
        metrics=metrics,
        scores=scores,
        test=test,
        baselines=baselines,
        test_set=(r["examples"]["test"], r["test_set"]),
        settings=sys.intern(json.dumps(settings, sort_keys=True)),
    )


def mean(values):
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"the main metric's values are {values}, must be finite numbers")
    return sum(values) / len(values)


def differences(runs):
    """Return {setting: its values} where the settings of these runs differ."""
    kinds = [json.loads(s) for s in dict.fromkeys(run.settings for run in runs)]
    values = {name: sorted({str(kind.get(name)) for kind in kinds}) for kind in kinds for name in kind}
    return {name: values[name] for name in sorted(values) if len(values[name]) > 1}


# ----------------------------------------------------------------------------
# Variants and their labels


def make_variants(runs):
    """Return (the variants of these runs in order, {run.checkpoint: number of its variant})."""
    groups = defaultdict(list)
    for text in sorted({run.checkpoint for run in runs}):
        c = json.loads(text)
        # A run that continues another checkpoint has a path to it, which differs between pretraining seeds as well.
        facts = {**{k: c[k] for k in FACTS}, "init_from": without_seed(c["init_from"] or "")}
        groups[json.dumps(facts)].append((text, c))
    variants = []  # of (Variant, its checkpoints as in run.checkpoint)
    for facts, checkpoints in groups.items():
        parts = defaultdict(list)
        same_seed = len({c["seed"] for _, c in checkpoints}) < len(checkpoints)  # no fact tells them apart: go by name
        for text, c in checkpoints:
            parts[without_seed(c["name"]) if same_seed else ""].append((text, c))
        for part in parts.values():
            names, seeds = {c["name"] for _, c in part}, {c["seed"] for _, c in part}
            variants.append((Variant(json.loads(facts), sorted(names), sorted(seeds)), [text for text, _ in part]))
    labels = label_by_difference([variant.describe() for variant, _ in variants])
    for (variant, _), label in zip(variants, labels):
        names = "/".join(dict.fromkeys(map(without_seed, variant.names)))
        variant.label = label if label and labels.count(label) == 1 else f"{label} ({names})" if label else names
    variants.sort(key=lambda item: order(item[0]))
    return [variant for variant, _ in variants], {text: i for i, (_, texts) in enumerate(variants) for text in texts}


def fraction_label(fraction):
    """Return "MLM only", "50% CLM" or "CLM only"."""
    return {0: "MLM only", 1: "CLM only"}.get(fraction, f"{100 * fraction:.3g}% CLM")


def without_seed(name):
    """Return a name such as mlm-seed-2 without its seed: mlm."""
    return re.sub(r"[-_.]?seed[-_=]?\d+", "", name)


def label_by_difference(descriptions):
    """Return a label for each {fact: words}, of the facts in which they differ; "" does not count as a value."""
    differ = [k for k in descriptions[0] if len({d[k] for d in descriptions} - {""}) > 1]
    return [", ".join(d[k] for k in differ if d[k]) for d in descriptions]


def order(variant):
    f = variant.facts
    numbers = (f["parameters"], f["max_steps"] or 0, f["step"] or 0, variant.clm_fraction, f["mask_ratio"] or 0)
    return variant.random_weights, numbers, variant.label
