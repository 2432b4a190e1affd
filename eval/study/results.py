"""Read the results of fine-tuning as one flat table, score models on tasks, and compare them in pairs.

A Row is one fine-tuning on one test set. A model is all that has one label. Each of its pretraining seeds is
fine-tuned at the learning rate with the best mean validation score on a task, among the rates with the most finished
runs: a rate that lost seeds must not win on the seeds that survived. `stats.py` explains the comparison.
"""

import json
import math
import operator
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.files import MALFORMED
from data.objective import describe
from errors import DataError
from eval.study import stats
from eval.study.jobs import error_of
from eval.study.plan import without_seed
from eval.tasks import metrics
from eval.tasks.registry import REGRESSION
from model import ModelConfig
from runtime import flops_per_token

FAMILIES = "sc", "tc", "qa", "ir"  # in the order of the tables
METRICS = "field", "paper"  # the field's is the paper's for a task that has no other
CORRELATIONS = {"matthews", *REGRESSION}  # they have another scale than the percentages of the other metrics
PER_RUN = {"task", "lr", "seed", "init_from", "out_dir", "random_weights"}  # settings that differ by design


class Row(NamedTuple):
    """One fine-tuning on one test set."""

    folder: Path  # of its files, from the folder of all results
    model: str
    pretraining_seed: int
    task: str
    family: str
    lr: float
    seed: int  # of fine-tuning
    validation: float  # percent
    test: float
    # what was fine-tuned
    pretraining: str  # in words
    untrained: bool  # random weights of this shape
    parameters: int
    step: int
    tokens: int
    flops: float
    clm_fraction: float
    mask_ratio: float
    steps_added: int  # since it began with the final weights of another model; 0 if it did not
    # how it was measured
    metrics: list
    test_set: tuple
    baselines: dict
    settings: dict
    versions: dict


def group(rows, *names):
    """Return {value of a field: [rows that have it, in their order]}; of several fields, the keys are tuples."""
    groups, key = defaultdict(list), operator.attrgetter(*names)
    for row in rows:
        groups[key(row)].append(row)
    return groups


# ----------------------------------------------------------------------------
# Reading


def read(root, metric, names=None, only=None):
    """Return (rows, failed) of all results below a folder. failed: {folder: the last line of its error.txt}.

    metric: "field" or "paper". names: {folder of a model below root: (its label, its pretraining seed, the model that
    it continued or "")}. Without it, the label is the checkpoint's name without the -seed-S that a study gives it.
    only: the folders that count, as paths from root; None = all. Raises DataError: files that are not results.
    """
    done = {path.parent for path in Path(root).rglob("result.json")}
    failed = {path.parent for path in Path(root).rglob("error.txt")} - done  # a result counts, whatever failed before
    if only is not None:
        done = {folder for folder in done if folder.relative_to(root) in only}
        failed = {folder for folder in failed if folder.relative_to(root) in only}
    errors = {folder.relative_to(root): error_of(folder / "error.txt") for folder in sorted(failed)}
    return read_rows(root, metric, sorted(done), names), errors


def read_rows(root, metric, folders, names=None):
    """Return the rows of some folders. Raises DataError for a file that is not a result."""
    rows = []
    for folder in folders:
        path = Path(folder).relative_to(root)
        try:
            result = json.loads(Path(folder, "result.json").read_bytes())
            for prefix in test_sets(result):
                rows.append(make_row(path, result, metric, prefix, names or {}))
        except MALFORMED as error:
            what = "not a result of finetune.py, or damaged; delete it or run it again"
            raise DataError(f"{folder}/result.json: {what} ({error!r})") from None
    return rows


def test_sets(result):
    """Return the prefixes of its metrics, such as "nq/": each set that a retrieval task searches is a task. Else ""."""
    names = result["main"]["paper"]
    if result["family"] != "ir":
        return [""]
    return dict.fromkeys(name[: name.rfind("/") + 1] for name in names)


def make_row(folder, result, metric, prefix, names):
    """Return the Row of a result.json for one of its test sets. prefix: of this set's metrics."""
    facts = result["checkpoint"]
    label, seed, after = names.get(folder.parts[0]) or name_of(facts)
    main = [name for name in result["main"][metric] or result["main"]["paper"] if name.startswith(prefix)]
    validation, test = result["metrics"]["validation"], result["metrics"]["test"]
    settings = {**result["settings"], **result["versions"]}
    baselines = {}
    for name, scores in result["baselines"].items():
        if scores.keys() >= {*main}:
            baselines[name] = mean([scores[metric] for metric in main])
    task, pretraining = result["task"], pretraining_of(facts, after)
    if result.get("zero_shot"):
        task += " (zero-shot)"
        validation = test | validation  # it may have none, and nothing is chosen by it
    if result.get("protocol") == "its own":
        pretraining += ", retrieval by its own protocol"
    step, per_step = int(facts["step"]), int(facts["settings"].get("global_batch_tokens", 1))
    return Row(
        folder=folder,
        model=label,
        pretraining_seed=seed,
        task=f"{task}/{prefix}".removesuffix("/"),
        family=FAMILIES[FAMILIES.index(result["family"])],
        lr=float(result["lr"]),
        seed=int(result["seed"]),
        validation=mean([validation[name] for name in main if name in validation]),
        test=mean([test[name] for name in main]),
        pretraining=pretraining,
        untrained=bool(facts["untrained"]),
        parameters=int(facts["parameters"]),
        step=step,
        tokens=step * per_step,
        flops=per_step * flops_of(facts),
        clm_fraction=facts["clm_steps"] / max(1, step),
        mask_ratio=float(facts["mask_ratio"]),
        steps_added=step if after else 0,
        metrics=main,
        test_set=(result["examples"]["test"], result["test_set"] + prefix),
        baselines=baselines,
        settings={name: value for name, value in settings.items() if name not in PER_RUN},
        versions={**result["versions"]},
    )


def name_of(facts):
    """Return (label, pretraining seed, the model that it continued or "") by what a result says about its model."""
    name, seed = without_seed(facts["name"])
    if seed is None:
        seed = int(facts["seed"])
    if facts["untrained"]:
        name = f"random-{name}"
    base = Path(facts["init_from"] or "")  # a checkpoint in the folder of its run, or a folder
    after, _ = without_seed(base.parent.name if base.suffix == ".pt" else base.name)
    return name, seed, after


def pretraining_of(facts, after):
    """Describe how a checkpoint was pretrained, in words."""
    phases = facts["phases"]
    if facts["untrained"]:
        return "random weights"
    text = describe(phases) if phases else "pretrained elsewhere"
    return f"{text}, after {after}" if after else text


def flops_of(facts):
    """Compute the FLOPs of a checkpoint's pretraining, shared steps included, for one token in each step."""
    total = 0.0
    for phase in facts["phases"]:  # a model of transformers, whose config is another, has none
        config = ModelConfig(**facts["model"])
        for its in phase["objectives"].values():
            predicted = sum(its["mask_ratio"]) / 2 or 1.0
            total += its["steps"] * flops_per_token(config, config.seq_len, its["causal"], predicted)
    return total


def mean(values):
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"the metric's values are {values}, must be finite numbers")
    return sum(values) / len(values)


# ----------------------------------------------------------------------------
# Scores and comparisons


def best(rows):
    """Return the rows at the learning rate that validation chooses; of equals, the lowest rate. rows: at all rates."""
    by_rate = group(rows, "lr")

    def finished_and_validation(rate):
        return len(by_rate[rate]), np.mean([row.validation for row in by_rate[rate]])

    return by_rate[max(sorted(by_rate), key=finished_and_validation)]


class Score(NamedTuple):
    mean: float  # percent
    half: float | None  # of its interval over pretraining seeds if the model has several, else over fine-tuning seeds
    done: int  # fine-tuning runs ...
    expected: int  # ... of how many

    def __str__(self):
        text = f"{metrics.rounded(self.mean):.1f}"
        text += " (one seed)" if self.half is None else f" ± {self.half:.1f}"
        if self.done < self.expected:
            text += f" ({self.done} of {self.expected} runs)"
        return text


@dataclass
class Comparison:
    """Model a minus model b on a target."""

    target: str
    a: str
    b: str
    units: int  # number of pairs
    unit: str  # "pretraining seed" or "fine-tuning seed"; "" where there is nothing to pair by
    estimate: float = math.nan
    half: float = math.nan  # the 95 % interval is estimate ± half
    p: float = math.nan
    p_holm: float = math.nan  # of primary comparisons

    def __str__(self):
        return f"{metrics.rounded(self.estimate):+.1f} ± {self.half:.1f}" if self.units > 1 else "-"

    @property
    def over(self):
        """What the comparison rests on, in words."""
        if not self.unit:
            return "no pretraining seed in common"
        if self.units == 2:
            return f"two {self.unit}s: give more"
        return f"{self.units} {self.unit}" + ("" if self.units == 1 else "s")


class Results:
    """Rows, and what tables and figures need of them.

    labels: the models in the order of the tables. chosen: the rows at the rates that validation chose. of: {(label,
    task): all rows}. chosen_of: {(label, task): the chosen ones}. tasks: {task: family}, ordered by family. targets:
    {title: {task: its weight}}: the mean of the families, the mean of each family over its tasks (on the scale of
    percentages), where there are several, then each task. The first is the main one. Raises DataError: a run that is
    there twice, or different test sets of a task.
    """

    def __init__(self, root, rows, failed, resamples=2000, labels=()):
        self.root, self.rows, self.failed, self.resamples = Path(root), rows, failed, resamples
        check_rows(rows)
        there = {row.model for row in rows}
        others = sorted(there - {*labels}, key=lambda label: (label.startswith("random-"), label))
        self.labels = [label for label in [*labels, *others] if label in there]
        self.tasks = {row.task: row.family for row in sorted(rows, key=lambda row: FAMILIES.index(row.family))}
        self.metrics = {row.task: row.metrics for row in rows}
        self.example = {row.model: row for row in rows}  # of what is the same for all rows of a model
        self.seeds = {label: {row.pretraining_seed for row in same} for label, same in group(rows, "model").items()}
        by_task = group(rows, "task").items()
        self.finetune_seeds = {task: {row.seed for row in same} for task, same in by_task}
        self.rates = {task: {row.lr for row in same} for task, same in by_task}
        self.baselines = {task: {} for task in self.tasks}
        for row in rows:
            self.baselines[row.task] |= row.baselines  # one run of each task has them

        self.chosen = []
        for same in group(rows, "model", "task", "pretraining_seed").values():
            self.chosen += best(same)
        self.chosen.sort(key=lambda row: (row.pretraining_seed, row.seed))
        self.of = group(rows, "model", "task")
        self.chosen_of = group(self.chosen, "model", "task")
        self.targets = self.make_targets()
        self.resampled_scores = {}

    def make_targets(self):
        families = defaultdict(list)
        for task, family in self.tasks.items():
            if CORRELATIONS.isdisjoint(self.metrics[task]):
                families[family].append(task)
        targets = {}
        if len(families) > 1:
            mean_of_families = targets["mean of families"] = {}
            for tasks in families.values():
                mean_of_families |= dict.fromkeys(tasks, 1 / len(tasks) / len(families))
        for family, tasks in families.items():
            if len(tasks) > 1:
                targets[f"{family} mean"] = dict.fromkeys(tasks, 1 / len(tasks))
        return targets | {task: {task: 1.0} for task in self.tasks}

    def score(self, label, target):
        """Return the Score of a model on a target; None if a task is missing."""
        unit = "pretraining_seed" if len(self.seeds[label]) > 1 else "seed"
        by_task, done, expected = [], 0, 0
        for task, weight in self.targets[target].items():
            rows = self.chosen_of[label, task]
            by_unit = group(rows, unit)
            by_task.append({u: weight * np.mean([row.test for row in same]) for u, same in by_unit.items()})
            done += len(rows)
            expected += len(self.seeds[label]) * len(self.finetune_seeds[task])
        units = common(by_task)
        if not units:
            return None
        average, half = stats.interval([sum(scores[unit] for scores in by_task) for unit in units])
        return Score(average, half, done, expected)

    def resampled(self, task):
        """Return {folder: scores (1 + resamples,)} of the chosen rows: on a task's test set, then on resamples of it."""
        if task not in self.resampled_scores:
            rows = [row for row in self.chosen if row.task == task]
            scores = []
            for name in self.metrics[task]:
                test_set = name.rpartition("/")[0]  # the metrics of one share its resamples
                seed = zlib.crc32(f"{task}/{test_set}".encode())
                scores.append(stats.bootstrap(load_instances(self.root, rows, name), self.resamples, seed))
            table = np.vstack([[row.test for row in rows], np.mean(scores, axis=0)])  # (1 + resamples, rows)
            self.resampled_scores[task] = {row.folder: column for row, column in zip(rows, table.T)}
        return self.resampled_scores[task]

    def pairs(self, a, b, task, match, unit):
        """Return {unit: [(row of a, row of b), ...]} of the runs on a task that agree in `match`, names of fields."""
        key, pairs = operator.attrgetter(*match), defaultdict(list)
        rows_of_b = {key(row): row for row in self.chosen_of[b, task]}
        for row in self.chosen_of[a, task]:
            if key(row) in rows_of_b:
                pairs[getattr(row, unit)].append((row, rows_of_b[key(row)]))
        return pairs

    def compare(self, a, b, target):
        """Return the Comparison of models a and b; None if one has no score."""
        if not (self.score(a, target) and self.score(b, target)):
            return None
        shared = self.seeds[a] & self.seeds[b]
        single = len(self.seeds[a]) == len(self.seeds[b]) == 1  # then their runs pair, whatever the two seeds
        unit = "pretraining_seed" if len(shared) > 1 else "seed"
        match = ["seed"] if single else ["pretraining_seed", "seed"]
        pairs = {task: self.pairs(a, b, task, match, unit) for task in self.targets[target]}
        units = common(pairs.values())
        words = {"pretraining_seed": "pretraining seed", "seed": "fine-tuning seed"}[unit]
        if not (shared or single):
            words = ""
        if len(units) < 2:
            return Comparison(target, a, b, len(units), words)

        parts = {}  # of tasks that share pretraining; the sets of a retrieval task share fine-tuning
        for task, weight in self.targets[target].items():
            scores, differences = self.resampled(task), []
            for u in units:
                of_unit = [scores[of_a.folder] - scores[of_b.folder] for of_a, of_b in pairs[task][u]]
                differences.append(weight * np.mean(of_unit, axis=0))
            d = np.array(differences)  # (units, 1 + resamples)
            part = "" if unit == "pretraining_seed" else task.partition("/")[0]
            sum_d, sum_covariance = parts.get(part, (0, 0))
            parts[part] = sum_d + d[:, 0], sum_covariance + np.cov(d[:, 1:])
        return Comparison(target, a, b, len(units), words, *stats.compare([*parts.values()]))

    def compare_all(self, pairs):
        """Return the Comparisons of pairs of models on all targets, where there are scores."""
        pairs = [pair for pair in pairs if {*pair} <= {*self.labels}]
        found = [self.compare(a, b, target) for a, b in pairs for target in self.targets]
        return [comparison for comparison in found if comparison]

    def deviation(self, label, target):
        """Return the standard deviation over fine-tuning seeds and low rates as a Score; tasks count alike.

        The low rates are those up to ten times the lowest: in arXiv 2507.00994, 1e-5 to 1e-4. None without several of
        them, or where one lacks a seed that another has.
        """
        variances = []
        for task in self.targets[target]:
            lowest = min(self.rates[task])
            low = [rate for rate in self.rates[task] if rate < 10.5 * lowest]
            if len(low) < 2 or not self.of[label, task]:
                return None
            for rows in group(self.of[label, task], "pretraining_seed").values():
                seeds = [{row.seed for row in rows if row.lr == rate} for rate in low]
                if not seeds[0] or any(at_rate != seeds[0] for at_rate in seeds):
                    return None
                variances.append(np.var([row.test for row in rows if row.lr in low], ddof=1))
        return Score(float(np.sqrt(np.mean(variances))), None, 1, 1)


def common(dicts):
    """Return the keys that all of some dicts have, sorted."""
    return sorted(set.intersection(*map(set, dicts)))


def check_rows(rows):
    """Raise DataError for a run that is there twice, and for different test sets of a task."""
    by_task = {}
    for row in rows:
        first = by_task.setdefault(row.task, row)
        if (row.test_set, row.metrics) != (first.test_set, first.metrics):
            why = "have different test sets or metrics, which cannot be compared"
            raise DataError(f"{row.task}: {first.folder} and {row.folder} {why}")
    for same in group(rows, "model", "pretraining_seed", "task", "lr", "seed").values():
        if len(same) > 1:
            why = "are the same model, task, learning rate and seed: delete one of them"
            raise DataError(f"{same[0].folder} and {same[1].folder} {why}")


def load_instances(root, rows, name):
    """Return what a metric sums up for each test instance: (R, n, C, 2). Raises DataError: damaged files."""
    arrays = []
    for row in rows:
        path = root / row.folder / "instances.npz"
        try:
            with np.load(path) as file:
                array = file[name].astype(np.float32)
            if array.ndim != 3 or array.shape[2] != 2 or not np.isfinite(array).all():
                raise ValueError(f"{name} has shape {array.shape}, must be finite numbers (n, classes, 2)")
            if arrays and array.shape != arrays[0].shape:
                raise ValueError(f"{name} has shape {array.shape}, in {rows[0].folder} {arrays[0].shape}")
        except (*MALFORMED, EOFError, MemoryError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: {error}. The comparisons need it: make this run again") from None
        arrays.append(array)
    return np.stack(arrays)
