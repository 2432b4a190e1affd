"""Read the results of fine-tuning as one flat table, score models on tasks, and compare them in pairs.

A row is one fine-tuning on one test set; see `make_row`. Rows with the same label are one model. For each pretraining
seed and task, only the learning rate with the best mean validation score counts, chosen among the rates with the most
finished runs: a rate must not win because bad seeds failed. `stats.py` explains the comparison.
"""

import json
import zlib
from collections import defaultdict
from dataclasses import dataclass
from operator import attrgetter
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
METRICS = "field", "paper"  # "field" is the paper's metric if a task has no other
CORRELATIONS = {"matthews", *REGRESSION}  # not averaged with percentages
UNITS = {"seed": "fine-tuning seed", "pretraining_seed": "pretraining seed"}  # what an interval is over: field of a row
NOTES = {1: " (one seed)", 2: " (two seeds: give more)"}  # beside an interval over so few seeds


def group(rows, *names):
    """Group rows by a field: {value: [rows in order]}. With several fields, the keys are tuples."""
    groups = defaultdict(list)
    key = attrgetter(*names)
    for row in rows:
        groups[key(row)].append(row)
    return groups


# ----------------------------------------------------------------------------
# Reading


def read(root, folders, metric, names):
    """Return (rows, failed) from some folders below root. failed: {folder: the last line of its error.txt}.

    metric: "field" or "paper". names: {a model's folder below root: (label, pretraining seed, the model that it
    continued or "")}. If a folder is not in it, the label is the checkpoint's name without -seed-S. A retrieval task
    has a row for each set that it searches. Raises DataError if a file is no result.
    """
    rows = []
    failed = {}
    for folder in sorted(folders):
        path = folder.relative_to(root)
        file = folder / "result.json"
        if file.exists():  # it counts, even if an earlier try failed
            with refuse_malformed(f"{file}: not a result of finetune.py, or damaged; delete it or run it again"):
                result = json.loads(file.read_bytes())
                test_sets = dict.fromkeys(name.rpartition("/")[0] for name in result["main"]["paper"])
                rows += [make_row(path, result, metric, test_set, names) for test_set in test_sets]
        elif (folder / "error.txt").exists():
            failed[path] = error_of(folder / "error.txt")
    return rows, failed


def make_row(folder, result, metric, test_set, names):
    """Return the row of a fine-tuning on one test set. test_set: its name, such as "nq"; "" if there is only one."""
    facts = result["checkpoint"]
    task = result["task"]
    label, seed, after = names.get(str(folder).partition("/")[0]) or name_of(facts)
    main = [name for name in metrics.main_of(result["main"], metric) if name.rpartition("/")[0] == test_set]
    validation = result["metrics"]["validation"]
    test = result["metrics"]["test"]
    if result.get("zero_shot"):
        task += " (zero-shot)"
        validation = test | validation  # may be missing, and is not used to choose
    pretraining = describe(facts["phases"]) or "pretrained elsewhere"
    if after:
        pretraining += f", after {after}"
    if facts["untrained"]:  # random weights of a checkpoint's shape
        pretraining = "random weights"
        facts = facts | dict(step=0, tokens=0, flops=0, clm_steps=0, mask_ratio=0)
    parameters = facts["parameters"]
    shape = facts["model"]
    if not shape.get("tie_embeddings", True):  # a model of transformers has no such field
        parameters += shape["vocab_size"] * shape["d_model"]
    return SimpleNamespace(
        folder=folder,  # where its files are, relative to the folder of all results
        model=label,
        pretraining_seed=seed,
        task=f"{task}/{test_set}" if test_set else task,
        family=result["family"],
        lr=result["lr"],
        seed=result["seed"],  # of fine-tuning
        metrics=main,  # names of the metrics whose mean is the score, in percent
        validation=metrics.mean_score(validation, main),
        test=metrics.mean_score(test, main),
        # what was fine-tuned
        pretraining=pretraining,  # as text
        parameters=parameters,  # of pretraining, with the output head
        step=facts["step"],
        tokens=facts["tokens"],
        flops=facts["flops"],
        clm_fraction=facts["clm_steps"] / max(1, facts["step"]),
        mask_ratio=facts["mask_ratio"],
        steps_added=facts["step"] if after else 0,  # steps after the final weights of another model
        chosen=False,  # whether validation chose its rate
        scores=None,  # (1 + resamples,): on the test set, then on resamples of it; see `Results.resample`
        result=result,
    )


def name_of(facts):
    """Return (label, pretraining seed, the model that it continued or ""). facts: `checkpoint` of a result.json."""
    seed = SEED.search(facts["name"])
    name = "random-" * facts["untrained"] + SEED.sub("", facts["name"], 1)
    return name, int(seed[1] if seed else facts["seed"]), base_of(facts["init_from"])


# ----------------------------------------------------------------------------
# Scores and comparisons


def best(rows):
    """Return those of the rows whose learning rate is best on validation; in a tie, the lowest rate."""
    by_rate = group(sorted(rows, key=lambda row: row.lr), "lr")
    return max(by_rate.values(), key=lambda same: (len(same), np.mean([row.validation for row in same])))


class Score(NamedTuple):
    mean: float  # percent
    half: float = None  # half of the interval over pretraining seeds, or over fine-tuning seeds if there is only one
    note: str = ""  # about missing runs and seeds
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
    difference: float = None  # None if there are fewer than two pairs
    low_95: float = None
    high_95: float = None
    p: float = None
    primary: bool = False
    p_holm: float = None  # only for primary comparisons on the main target

    def __str__(self):
        if self.units < 2:
            return "-"
        return f"{metrics.rounded(self.difference):+.1f} ± {self.high_95 - self.difference:.1f}"

    @property
    def over(self):
        """How many pairs of seeds the comparison rests on, as text."""
        return f"{self.units} {self.unit}s in common" + ": give more" * (self.units < 3)


class Results:
    """Rows (see `make_row`), and what tables and figures need from them.

    labels: the models in the order of the tables. example: {label: a row}. seeds: {label: its pretraining seeds}.
    by_task: {task: rows}, ordered by family. chosen: {(label, task): the rows at the rates that validation chose}.
    targets: {title: {task: its weight}}. First come the mean of the families and the means of families with several
    tasks, without zero-shot tasks and correlations, then each task. main_target: the first mean, or else the first task
    that means may include. Raises DataError if a run is there twice, or the test sets of a task differ.
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
        families = defaultdict(list)  # {family: its tasks that means include}
        for task, (row, *_) in self.by_task.items():
            if CORRELATIONS.isdisjoint(row.metrics) and not row.result.get("zero_shot"):
                families[row.family].append(task)
        means = {}
        over_all = {}  # {task: its weight in the mean of families}
        for family, tasks in families.items():
            over_all |= dict.fromkeys(tasks, 1 / len(tasks) / len(families))
            if len(tasks) > 1:
                means[f"{family} mean"] = dict.fromkeys(tasks, 1 / len(tasks))
        if len(families) > 1:
            means = {"mean of families": over_all, **means}
        self.main_target = [*means, *over_all, *self.by_task, "mean of families"][0]
        self.targets = means | {task: {task: 1.0} for task in self.by_task}

    def score(self, label, target):
        """Return the Score of a model on a target; None if a task is missing."""
        unit = unit_of(self.seeds[label])
        by_task = []
        done = expected = 0
        for task, weight in self.targets[target].items():
            rows = self.chosen[label, task]
            of_unit = group(rows, unit).items()
            by_task.append({value: weight * np.mean([row.test for row in same]) for value, same in of_unit})
            done += len(rows)
            expected += len(self.seeds[label]) * len(group(self.by_task[task], "seed"))
        units = common(by_task)
        if not units:
            return None
        note = NOTES.get(len(units), "")
        if done < expected:
            note = f" ({done} of {expected} runs)"
        return Score(*stats.interval([sum(scores[unit] for scores in by_task) for unit in units]), note)

    def pairs(self, a, b, task, unit):
        """Return {unit: [(row of model a, row of b), ...]} for the runs whose seeds both models have.

        If each model has one pretraining seed, these may differ, and only the fine-tuning seeds must match.
        """
        seeds = attrgetter("pretraining_seed", "seed")
        if len(self.seeds[a]) == len(self.seeds[b]) == 1:
            seeds = attrgetter("seed")
        of_b = {seeds(row): row for row in self.chosen[b, task]}
        found = defaultdict(list)
        for row in self.chosen[a, task]:
            if seeds(row) in of_b:
                found[getattr(row, unit)].append((row, of_b[seeds(row)]))
        return found

    def compare(self, a, b, target):
        """Return the Comparison of models a and b; None if one has no score. Raises DataError if files are damaged."""
        if not (self.score(a, target) and self.score(b, target)):
            return None
        unit = unit_of(self.seeds[a] & self.seeds[b])
        pairs = {task: self.pairs(a, b, task, unit) for task in self.targets[target]}
        units = common(pairs.values())
        comparison = Comparison(target, a, b, len(units), UNITS[unit])
        if len(units) < 2:
            return comparison
        # Sum what is not independent: tasks share pretraining seeds, the sets of a retrieval task share fine-tuning.
        differences = defaultdict(float)
        covariances = defaultdict(float)
        for task, weight in self.targets[target].items():
            self.resample(task)
            part = "all" if unit == "pretraining_seed" else task.partition("/")[0]
            own = [[row.scores - of_b.scores for row, of_b in pairs[task][value]] for value in units]
            by_unit = weight * np.stack([np.mean(gaps, axis=0) for gaps in own])  # (units, 1 + resamples)
            differences[part] += by_unit[:, 0]
            covariances[part] += np.cov(by_unit[:, 1:])
        estimate, half, comparison.p = stats.compare([*zip(differences.values(), covariances.values())])
        comparison.difference, comparison.low_95, comparison.high_95 = estimate, estimate - half, estimate + half
        return comparison

    def resample(self, task):
        """Set `scores` of a task's chosen rows. Raises DataError if files are damaged."""
        rows = [row for row in self.by_task[task] if row.chosen]
        if rows[0].scores is not None:
            return
        by_metric = []
        for name in rows[0].metrics:
            # Metrics of the same test set share their resamples.
            seed = zlib.crc32(f"{task}/{name.rpartition('/')[0]}".encode())
            by_metric.append(stats.bootstrap(self.instances(rows, name), stats.RESAMPLES, seed))
        for row, resampled in zip(rows, np.mean(by_metric, axis=0).T):
            row.scores = np.array([row.test, *resampled])

    def instances(self, rows, metric):
        """Return a metric's instances of each row, (rows, n, C, 2). Raises DataError if a file is damaged."""
        arrays = []
        for row in rows:
            path = self.root / row.folder / "instances.npz"
            try:
                with np.load(path) as file:
                    array = file[metric].astype(np.float32)
                if arrays and array.shape != arrays[0].shape:
                    raise ValueError(f"{metric} has shape {array.shape}, in {rows[0].folder} {arrays[0].shape}")
            except Exception as error:  # NumPy and zipfile raise many kinds for damaged files
                raise DataError(f"{path}: {error}. The comparisons need it: do this run again") from None
            arrays.append(array)
        return np.stack(arrays)

    def deviation(self, label, target):
        """Return a Score: the standard deviation over fine-tuning seeds and low rates, from the mean variance of tasks.

        Low rates are up to ten times the lowest: in arXiv 2507.00994, 1e-5 to 1e-4. None unless all seeds have all.
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


def unit_of(pretraining_seeds):
    """Return what an interval is over: pretraining seeds if there are several, else fine-tuning seeds."""
    return "pretraining_seed" if len(pretraining_seeds) > 1 else "seed"


def common(dicts):
    """Return the keys that all dicts share, sorted."""
    return sorted(set.intersection(*map(set, dicts)))


def check_rows(rows):
    """Raise DataError if a run is there twice, or the test sets of a task differ."""
    for task, (first, *others) in group(rows, "task").items():
        for row in others:
            if (row.result["test_set"], row.metrics) != (first.result["test_set"], first.metrics):
                raise DataError(
                    f"{task}: {first.folder} and {row.folder} have different test sets or metrics, which cannot be "
                    "compared"
                )
    for first, *others in group(rows, "model", "pretraining_seed", "task", "lr", "seed").values():
        if others:
            raise DataError(
                f"{first.folder} and {others[0].folder} are the same model, task, learning rate and seed: delete one "
                "of them"
            )
