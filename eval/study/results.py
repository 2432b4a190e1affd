"""Read the results of fine-tuning as one flat table, score models on tasks, and compare them in pairs.

A row is one fine-tuning on one test set; see `make_row`. A model is all that has one label. Each of its pretraining
seeds is fine-tuned at the learning rate with the best mean validation score on a task, among the rates with the most
finished runs: a rate that lost seeds must not win on the seeds that survived. `stats.py` explains the comparison.
"""

import json
import operator
import zlib
from collections import defaultdict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from data.files import refuse_malformed
from data.objective import describe
from errors import DataError
from eval.study import stats
from eval.study.jobs import error_of
from eval.study.plan import SEED, base_of
from eval.tasks import metrics
from eval.tasks.registry import REGRESSION

FAMILIES = "sc", "tc", "qa", "ir"  # in the order of the tables
METRICS = "field", "paper"  # the field's is the paper's for a task that has no other
CORRELATIONS = {"matthews", *REGRESSION}  # they have another scale than the percentages of the other metrics
UNITS = ("seed", "fine-tuning seed"), ("pretraining_seed", "pretraining seed")  # of an interval: a field, its name
NOTES = {1: " (one seed)", 2: " (two seeds: give more)"}  # on an interval over so few


def group(rows, *names):
    """Return {value of a field: [rows that have it, in their order]}; of several fields, the keys are tuples."""
    groups, key = defaultdict(list), operator.attrgetter(*names)
    for row in rows:
        groups[key(row)].append(row)
    return groups


# ----------------------------------------------------------------------------
# Reading


def read(root, folders, metric, names):
    """Return (rows, failed) of some folders below root. failed: {folder: the last line of its error.txt}.

    metric: "field" or "paper". names: {folder of a model below root: (its label, its pretraining seed, the model that
    it continued or "")}. Where it is missing, the label is the checkpoint's name without the -seed-S that a study gives
    it. A retrieval task has a row for each set that it searches. Raises DataError: files that are not results.
    """
    rows, failed = [], {}
    for folder in sorted(folders):
        path, file = folder.relative_to(root), folder / "result.json"
        if file.exists():  # it counts, whatever failed before
            damaged = f"{file}: not a result of finetune.py, or damaged; delete it or run it again"
            with refuse_malformed(damaged):
                result = json.loads(file.read_bytes())
                sets = dict.fromkeys(name[: name.rfind("/") + 1] for name in result["main"]["paper"])
                rows += [make_row(path, result, metric, prefix, names) for prefix in sets]
        elif (folder / "error.txt").exists():
            failed[path] = error_of(folder / "error.txt")
    return rows, failed


def make_row(folder, result, metric, prefix, names):
    """Return one fine-tuning on one test set. prefix: of this set's metrics, such as "nq/"."""
    facts = result["checkpoint"]
    label, seed, after = names.get(folder.parts[0]) or name_of(facts)
    main = [name for name in metrics.main_of(result["main"], metric) if name.startswith(prefix)]
    validation, test = result["metrics"]["validation"], result["metrics"]["test"]
    task, pretraining = result["task"], describe(facts["phases"]) or "pretrained elsewhere"
    if after:
        pretraining += f", after {after}"
    if facts["untrained"]:  # random weights of a checkpoint's shape: no steps, no tokens
        pretraining = "random weights"
        facts = facts | dict.fromkeys(("step", "tokens", "flops", "clm_steps", "mask_ratio"), 0)
    if result.get("zero_shot"):
        task += " (zero-shot)"
        validation = test | validation  # it may have none, and nothing is chosen by it
    if result.get("protocol") == "its own":
        pretraining += ", retrieval by its own protocol"
    shape, step, head = facts["model"], facts["step"], 0
    if not shape.get("tie_embeddings", True):  # a model of transformers has no such field
        head = shape["vocab_size"] * shape["d_model"]
    return SimpleNamespace(
        folder=folder,  # of its files, from the folder of all results
        model=label,
        pretraining_seed=seed,
        task=f"{task}/{prefix}".removesuffix("/"),
        family=result["family"],
        lr=result["lr"],
        seed=result["seed"],  # of fine-tuning
        metrics=main,  # the names of those whose mean is the score, in percent
        validation=metrics.mean_score(validation, main),
        test=metrics.mean_score(test, main),
        # what was fine-tuned
        pretraining=pretraining,  # in words
        parameters=facts["parameters"] + head,  # of pretraining, with the output head
        step=step,
        tokens=facts["tokens"],
        flops=facts["flops"],
        clm_fraction=facts["clm_steps"] / max(1, step),
        mask_ratio=facts["mask_ratio"],
        steps_added=step if after else 0,  # since it began with the final weights of another model
        chosen=False,  # whether it has the rate that validation chose
        result=result,
    )


def name_of(facts):
    """Return (label, pretraining seed, the model that it continued or "") by what a result says about its model."""
    seed = SEED.search(facts["name"])
    name = "random-" * facts["untrained"] + SEED.sub("", facts["name"], 1)
    return name, int(seed[1] if seed else facts["seed"]), base_of(facts["init_from"])


# ----------------------------------------------------------------------------
# Scores and comparisons


def best(rows):
    """Return the rows at the learning rate that validation chooses; of equals, the lowest rate. rows: at all rates."""
    by_rate = group(sorted(rows, key=lambda row: row.lr), "lr")
    return max(by_rate.values(), key=lambda same: (len(same), np.mean([row.validation for row in same])))


class Score(NamedTuple):
    mean: float  # percent
    half: float = None  # of its interval, over pretraining seeds if the model has several, else fine-tuning seeds
    note: str = ""  # on missing runs and seeds
    digits: int = 1

    def __str__(self):
        interval = "" if self.half is None else f" ± {self.half:.{self.digits}f}"
        return f"{metrics.rounded(self.mean, self.digits):.{self.digits}f}{interval}{self.note}"


@dataclass
class Comparison:
    """Model a minus model b on a target. The fields are columns of comparisons.csv."""

    target: str
    model_a: str
    model_b: str
    units: int  # number of pairs
    unit: str  # "pretraining seed" or "fine-tuning seed"
    difference: float = None  # None where there are less than two pairs
    low_95: float = None
    high_95: float = None
    p: float = None
    primary: bool = False
    p_holm: float = None  # of primary comparisons on the main target

    def __str__(self):
        if self.units < 2:
            return "-"
        return f"{metrics.rounded(self.difference):+.1f} ± {self.high_95 - self.difference:.1f}"

    @property
    def over(self):
        """What the comparison rests on, in words."""
        return f"{self.units} {self.unit}s in common" + ": give more" * (self.units < 3)


class Results:
    """Rows (see `make_row`), and what tables and figures need of them.

    labels: the models in the order of the tables. example: {label: a row}. seeds: {label: its pretraining seeds}.
    by_task: {task: rows}, ordered by family. chosen: {(label, task): the rows at the rates that validation chose}.
    targets: {title: {task: its weight}}: the mean of the families, the mean of each family over its tasks (on the scale
    of percentages), where there are several, then each task. The first is the `main_target`. Raises DataError: a run
    that is there twice, different test sets of a task.
    """

    def __init__(self, root, rows, failed, labels):
        self.root, self.rows, self.failed = root, rows, failed
        check_rows(rows)
        of_model = group(rows, "model")
        self.labels = [label for label in dict.fromkeys([*labels, *sorted(of_model)]) if label in of_model]
        self.example = {label: same[-1] for label, same in of_model.items()}
        self.seeds = defaultdict(set)
        for row in rows:
            self.seeds[row.model].add(row.pretraining_seed)
        self.by_task = group(sorted(rows, key=lambda row: FAMILIES.index(row.family)), "task")
        for same in group(rows, "model", "task", "pretraining_seed").values():
            for row in best(same):
                row.chosen = True
        self.chosen = group([row for row in rows if row.chosen], "model", "task")
        self.targets = self.make_targets()
        self.main_target = next(iter(self.targets), "mean of families")

    def make_targets(self):
        one_row = [rows[0] for rows in self.by_task.values()]
        families = group([row for row in one_row if CORRELATIONS.isdisjoint(row.metrics)], "family")
        over_all, means = {}, {}
        for family, rows in families.items():
            for row in rows:
                over_all[row.task] = 1 / len(rows) / len(families)
            if len(rows) > 1:
                means[f"{family} mean"] = {row.task: 1 / len(rows) for row in rows}
        if len(families) > 1:
            means = {"mean of families": over_all, **means}
        return means | {task: {task: 1.0} for task in self.by_task}

    def score(self, label, target):
        """Return the Score of a model on a target; None if a task is missing."""
        unit, _ = UNITS[len(self.seeds[label]) > 1]
        by_task, done, expected = [], 0, 0
        for task, weight in self.targets[target].items():
            rows = self.chosen[label, task]
            by_task.append({u: weight * np.mean([row.test for row in same]) for u, same in group(rows, unit).items()})
            done += len(rows)
            expected += len(self.seeds[label]) * len({row.seed for row in self.by_task[task]})
        units = common(by_task)
        if not units:
            return None
        note = NOTES.get(len(units), "")
        if done < expected:
            note = f" ({done} of {expected} runs)"
        return Score(*stats.interval([sum(scores[unit] for scores in by_task) for unit in units]), note)

    def pairs(self, a, b, task, unit):
        """Return {unit: [(row of model a, row of b), ...]}, of the runs whose seeds both have.

        Two models with one pretraining each pair by the seed of fine-tuning, whatever the other two seeds are.
        """
        both = ["pretraining_seed", "seed"]
        single = len(self.seeds[a]) == len(self.seeds[b]) == 1
        seeds = operator.attrgetter(*both[single:])
        of_b = {seeds(row): row for row in self.chosen[b, task]}
        found = defaultdict(list)
        for row in self.chosen[a, task]:
            if seeds(row) in of_b:
                found[getattr(row, unit)].append((row, of_b[seeds(row)]))
        return found

    def compare(self, a, b, target):
        """Return the Comparison of models a and b; None if one has no score. Raises DataError: damaged instances."""
        if not (self.score(a, target) and self.score(b, target)):
            return None
        unit, words = UNITS[len(self.seeds[a] & self.seeds[b]) > 1]
        by_task = {task: self.pairs(a, b, task, unit) for task in self.targets[target]}
        units = common(by_task.values())
        comparison = Comparison(target, a, b, len(units), words)
        if len(units) > 1:
            parts = {}  # of tasks that share pretraining; the sets of a retrieval task share fine-tuning
            for task, weight in self.targets[target].items():
                add_scores(self.root, task, [row for row in self.by_task[task] if row.chosen])
                d = [np.mean([x.scores - y.scores for x, y in by_task[task][u]], axis=0) for u in units]
                d = weight * np.stack(d)  # (units, 1 + resamples)
                part = task.partition("/")[0] if unit == "seed" else ""
                sum_d, sum_covariance = parts.get(part, (0, 0))
                parts[part] = sum_d + d[:, 0], sum_covariance + np.cov(d[:, 1:])
            d, half, comparison.p = stats.compare([*parts.values()])
            comparison.difference, comparison.low_95, comparison.high_95 = d, d - half, d + half
        return comparison

    def deviation(self, label, target):
        """Return the standard deviation over fine-tuning seeds and low rates as a Score; tasks count alike.

        The low rates are those up to ten times the lowest: in arXiv 2507.00994, 1e-5 to 1e-4. None unless all seeds
        have all of them.
        """
        variances = []
        for task in self.targets[target]:
            rows = self.by_task[task]
            limit = 10.5 * min(row.lr for row in rows)
            low = [row for row in rows if row.lr < limit]
            n_runs = len(group(low, "lr")) * len(group(rows, "seed"))
            own = group([row for row in low if row.model == label], "pretraining_seed")
            for seed in self.seeds[label]:
                if len(own[seed]) < max(2, n_runs):
                    return None
                variances.append(np.var([row.test for row in own[seed]], ddof=1))
        return Score(float(np.sqrt(np.mean(variances)))) if variances else None


def common(dicts):
    """Return the keys that all of some dicts have, sorted."""
    return sorted(set.intersection(*map(set, dicts)))


def check_rows(rows):
    """Raise DataError for a run that is there twice, and for different test sets of a task."""
    for task, (first, *others) in group(rows, "task").items():
        for row in others:
            if (row.result["test_set"], row.metrics) != (first.result["test_set"], first.metrics):
                why = "have different test sets or metrics, which cannot be compared"
                raise DataError(f"{task}: {first.folder} and {row.folder} {why}")
    for first, *others in group(rows, "model", "pretraining_seed", "task", "lr", "seed").values():
        if others:
            why = "are the same model, task, learning rate and seed: delete one of them"
            raise DataError(f"{first.folder} and {others[0].folder} {why}")


def add_scores(root, task, rows):
    """Give the chosen rows of a task their `scores` (1 + resamples,): on its test set, then on resamples of it.

    Rows that have them keep them. Raises DataError: damaged files.
    """
    if hasattr(rows[0], "scores"):
        return
    scores = []
    for name in rows[0].metrics:
        arrays = []  # what the metric sums up for each test instance: (n, C, 2) of each row
        for row in rows:
            path = root / row.folder / "instances.npz"
            try:
                with np.load(path) as file:
                    array = file[name].astype(np.float32)
                if arrays and array.shape != arrays[0].shape:
                    raise ValueError(f"{name} has shape {array.shape}, in {rows[0].folder} {arrays[0].shape}")
            except Exception as error:  # NumPy and zipfile raise many kinds of a damaged file
                raise DataError(f"{path}: {error}. The comparisons need it: make this run again") from None
            arrays.append(array)
        test_set = name.rpartition("/")[0]  # the metrics of one share its resamples
        seed = zlib.crc32(f"{task}/{test_set}".encode())
        scores.append(stats.bootstrap(np.stack(arrays), stats.RESAMPLES, seed))
    for row, resampled in zip(rows, np.mean(scores, axis=0).T):
        row.scores = np.array([row.test, *resampled])
