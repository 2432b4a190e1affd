"""Read the results of fine-tuning, score models on tasks, and compare them in pairs.

A row is a dict about one fine-tuning on one test set: what results.csv has of it, and what scores and comparisons
need. A model is all that has one label. Each of its pretraining seeds is fine-tuned at the learning rate with the best
mean validation score on a task, among the rates with the most finished runs: a rate that lost seeds must not win on
the seeds that survived. `stats.py` explains the comparison.
"""

import json
import math
import re
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from errors import DataError
from eval.study import stats
from eval.study.jobs import error_of
from eval.tasks import metrics
from eval.tasks.registry import REGRESSION

FAMILIES = "sc", "tc", "qa", "ir"  # in the order of the tables
METRICS = "field", "paper"  # the field's is the paper's for a task that has no other
CORRELATIONS = {"matthews", *REGRESSION}  # they have another scale than the percentages of the other metrics
FACTS = "name seed step max_steps clm_steps mask_ratio init_from untrained parameters model phases settings".split()
PER_RUN = {"task", "lr", "seed", "init_from", "out_dir", "random_weights"}  # settings that differ by design


def read(root, metric, names=None, only=None):
    """Return (rows, failed) of all results below a folder. failed: {folder: the last line of its error.txt}.

    metric: "field" or "paper". names: {folder of a model below root: (its label, its pretraining seed, the model that
    it continued or "")}. Without it, the label is the checkpoint's name without the -seed-S that a study gives it.
    only: the folders that count, as paths from root; None = all. Raises DataError: files that are not results.
    """
    paths = [path for name in ("error.txt", "result.json") for path in Path(root).rglob(name)]
    last = {path.parent: path for path in paths}  # a result counts, whatever failed before it
    last = {folder: path for folder, path in sorted(last.items()) if only is None or folder.relative_to(root) in only}
    rows = read_rows(root, metric, [folder for folder, path in last.items() if path.name == "result.json"], names)
    failed = {folder.relative_to(root): error_of(path) for folder, path in last.items() if path.name == "error.txt"}
    return rows, failed


def read_rows(root, metric, folders, names=None):
    """Return the rows of some folders. Raises DataError for a file that is not a result."""
    rows = []
    for folder in folders:
        try:
            result = json.loads(Path(folder, "result.json").read_bytes())
            names_of_metrics = result["main"]["paper"]
            is_ir = result["family"] == "ir"  # each of the sets that it searches is a task, such as msmarco/nq
            prefixes = dict.fromkeys(name[: name.rfind("/") + 1] if is_ir else "" for name in names_of_metrics)
            path = Path(folder).relative_to(root)
            rows += [make_row(path, result, metric, prefix, names or {}) for prefix in prefixes]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            what = "not a result of finetune.py, or damaged; delete it or run it again"
            raise DataError(f"{folder}/result.json: {what} ({error!r})") from None
    return rows


def make_row(folder, result, metric, prefix, names):
    """Return the row of a result.json. prefix: of the metrics of one of several test sets, such as "nq/"."""
    facts = {name: result["checkpoint"][name] for name in FACTS}
    validation, test = result["metrics"]["validation"], result["metrics"]["test"]
    name, seed = without_seed(facts["name"])
    label, seed = "random-" * facts["untrained"] + name, facts["seed"] if seed is None else seed
    base = Path(facts["init_from"] or "")  # what it continued: a checkpoint in the folder of its run, or a folder
    after, _ = without_seed(base.parent.name if base.suffix == ".pt" else base.name)
    label, seed, after = names.get(folder.parts[0], (label, seed, after))
    main = [name for name in result["main"][metric] or result["main"]["paper"] if name.startswith(prefix)]
    settings, baselines = {**result["settings"], **result["versions"]}, result["baselines"]
    return dict(
        folder=folder,
        model=label,
        pretraining_seed=seed,
        task=f"{result['task']}/{prefix}".removesuffix("/"),
        family=result["family"],
        lr=float(result["lr"]),
        seed=int(result["seed"]),
        facts=facts | {"after": after},
        test_set=(result["examples"]["test"], result["test_set"] + prefix),
        settings={k: v for k, v in settings.items() if k not in PER_RUN},
        versions=result["versions"],
        metrics=main,
        validation=mean([validation[name] for name in main if name in validation]),
        test=mean([test[name] for name in main]),
        baselines={k: mean([v[name] for name in main]) for k, v in baselines.items() if v.keys() >= {*main}},
    )


def without_seed(name):
    """Return the name of a checkpoint without the -seed-S that a study gives it, and S or None."""
    found = re.search(r"-seed-(\d+)", name)
    return (name.replace(found[0], ""), int(found[1])) if found else (name, None)


def mean(values):
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"the metric's values are {values}, must be finite numbers")
    return sum(values) / len(values)


def best(by_rate):
    """Return {fine-tuning seed: row} at the rate that validation chooses. by_rate: {rate: {fine-tuning seed: row}}."""
    validation = {rate: np.mean([row["validation"] for row in by_rate[rate].values()]) for rate in by_rate}
    return by_rate[max(sorted(by_rate), key=lambda rate: (len(by_rate[rate]), validation[rate]))]


class Score(NamedTuple):
    mean: float  # percent
    half: float | None  # of its interval over pretraining seeds if the model has several, else over fine-tuning seeds
    done: int  # fine-tuning runs ...
    expected: int  # ... of how many

    def __str__(self):
        text = f"{metrics.rounded(self.mean):.1f}" + (" (one seed)" if self.half is None else f" ± {self.half:.1f}")
        return text + (f" ({self.done} of {self.expected} runs)" if self.done < self.expected else "")


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
        return f"{self.units} {self.unit}{'s' * (self.units != 1)}" if self.unit else "no pretraining seed in common"


class Results:
    """Rows, and what tables and figures need of them.

    labels: the models in the order of the tables. facts: {label: what result.json says about its checkpoint}. tasks:
    {task: family}, ordered by family. targets: {title: {task: its weight}}: the mean of the families, the mean of each
    family over its tasks (on the scale of percentages), where there are several, then each task. The first is the main
    one. grid: {(label, task): {pretraining seed: {rate: {fine-tuning seed: row}}}}. chosen: {(label, task):
    {(pretraining seed, fine-tuning seed): row at the rate that was chosen}}. Raises DataError: a run that is there
    twice, or different test sets of a task.
    """

    def __init__(self, root, rows, failed, resamples=2000, labels=()):
        self.root, self.rows, self.failed, self.resamples = Path(root), rows, failed, resamples
        there = {row["model"] for row in rows}
        others = sorted(there - {*labels}, key=lambda label: (label.startswith("random-"), label))
        self.labels = [label for label in [*labels, *others] if label in there]
        self.tasks = {row["task"]: row["family"] for row in sorted(rows, key=lambda r: FAMILIES.index(r["family"]))}
        self.facts = {row["model"]: row["facts"] for row in rows}
        self.seeds, self.finetune_seeds, self.rates = defaultdict(set), defaultdict(set), defaultdict(set)
        self.grid = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
        self.baselines, self.metrics, example = defaultdict(dict), {}, {}
        for row in rows:
            label, task, like = row["model"], row["task"], example.setdefault(row["task"], row)
            if (row["test_set"], row["metrics"]) != (like["test_set"], like["metrics"]):
                why = "have different test sets or metrics, which cannot be compared"
                raise DataError(f"{task}: {like['folder']} and {row['folder']} {why}")
            of_rate = self.grid[label, task][row["pretraining_seed"]][row["lr"]]
            if (other := of_rate.setdefault(row["seed"], row)) is not row:
                why = "are the same model, task, learning rate and seed: delete one of them"
                raise DataError(f"{other['folder']} and {row['folder']} {why}")
            self.seeds[label].add(row["pretraining_seed"])
            self.finetune_seeds[task].add(row["seed"])
            self.rates[task].add(row["lr"])
            self.baselines[task] |= row["baselines"]  # one run of each task has them
            self.metrics[task] = row["metrics"]
        self.chosen = defaultdict(dict)
        for key, by_seed in self.grid.items():
            for pretraining_seed, by_rate in by_seed.items():
                self.chosen[key] |= {(pretraining_seed, seed): row for seed, row in best(by_rate).items()}
        self.targets, self.resampled_scores = self.make_targets(), {}

    def make_targets(self):
        families, means = defaultdict(list), {}
        for task, family in self.tasks.items():
            if CORRELATIONS.isdisjoint(self.metrics[task]):
                families[family].append(task)
        if len(families) > 1:
            means["mean of families"] = {t: 1 / len(its) / len(families) for its in families.values() for t in its}
        for family, its in families.items():
            if len(its) > 1:
                means[f"{family} mean"] = dict.fromkeys(its, 1 / len(its))
        return means | {task: {task: 1.0} for task in self.tasks}

    def score(self, label, target):
        """Return the Score of a model on a target; None if a task is missing."""
        values, done, expected, several = [], 0, 0, len(self.seeds[label]) > 1
        for task, weight in self.targets[target].items():
            by_unit, rows = defaultdict(list), self.chosen[label, task]
            for (pretraining_seed, seed), row in sorted(rows.items()):
                by_unit[pretraining_seed if several else seed].append(row["test"])
            values.append({unit: weight * np.mean(scores) for unit, scores in by_unit.items()})
            done, expected = done + len(rows), expected + len(self.seeds[label]) * len(self.finetune_seeds[task])
        units = sorted(set.intersection(*map(set, values)))
        return Score(*stats.interval([sum(its[u] for its in values) for u in units]), done, expected) if units else None

    def resampled(self, task):
        """Return {folder: test scores (1 + resamples,)} of all chosen rows: on a task's test set, then on resamples of it."""
        if task not in self.resampled_scores:
            rows, scores = [row for label in self.labels for row in self.chosen[label, task].values()], []
            for name in self.metrics[task]:
                test_set = name.rpartition("/")[0]  # the metrics of one share its resamples
                seed = zlib.crc32(f"{task}/{test_set}".encode())
                scores.append(stats.bootstrap(load_instances(self.root, rows, name), self.resamples, seed))
            columns = np.vstack([[row["test"] for row in rows], np.mean(scores, axis=0)]).T
            self.resampled_scores[task] = dict(zip((row["folder"] for row in rows), columns))
        return self.resampled_scores[task]

    def compare(self, a, b, target):
        """Return the Comparison of models a and b; None if one has no score."""
        if not (self.score(a, target) and self.score(b, target)):
            return None
        common, single = self.seeds[a] & self.seeds[b], len(self.seeds[a]) == len(self.seeds[b]) == 1
        several = len(common) > 1  # pretraining seeds to pair by
        unit = "pretraining seed" if several else "fine-tuning seed" if common or single else ""
        by_task = {}  # {task: {unit: [(row of a, row of b), ...]}}
        for task in self.targets[target]:
            rows_a, rows_b, by_task[task] = self.chosen[a, task], self.chosen[b, task], defaultdict(list)
            if single:  # whatever the two pretraining seeds
                rows_b = {(*self.seeds[a], seed): row for (_, seed), row in rows_b.items()}
            for key in sorted(rows_a.keys() & rows_b.keys()):
                by_task[task][key[0] if several else key[1]].append((rows_a[key], rows_b[key]))
        units = sorted(set.intersection(*map(set, by_task.values())))
        if len(units) < 2:
            return Comparison(target, a, b, len(units), unit)
        parts = defaultdict(list)  # tasks that share pretraining; the sets of a retrieval task share fine-tuning
        for task, weight in self.targets[target].items():
            scores, pairs = self.resampled(task), [by_task[task][u] for u in units]
            d = [np.mean([scores[x["folder"]] - scores[y["folder"]] for x, y in its], axis=0) for its in pairs]
            d = weight * np.array(d)  # (units, 1 + resamples)
            parts["" if several else task.partition("/")[0]].append((d[:, 0], np.cov(d[:, 1:])))
        sums = [tuple(map(sum, zip(*its))) for its in parts.values()]
        return Comparison(target, a, b, len(units), unit, *stats.compare(sums))

    def compare_all(self, pairs):
        """Return the Comparisons of pairs of models on all targets, where there are scores."""
        found = [self.compare(a, b, target) for a, b in pairs for target in self.targets]
        return [comparison for comparison in found if comparison]

    def deviation(self, label, target):
        """Return the standard deviation over fine-tuning seeds and low rates as a Score; tasks count alike.

        The low rates are those up to ten times the lowest: in arXiv 2507.00994, 1e-5 to 1e-4. None without several of
        them, or where one lacks a seed that another has.
        """
        variances = []
        for task in self.targets[target]:
            low = [rate for rate in sorted(self.rates[task]) if rate < 10.5 * min(self.rates[task])]
            for by_rate in self.grid.get((label, task), {0: {}}).values():
                runs = [by_rate.get(rate, {}) for rate in low]
                if len(low) < 2 or not runs[0] or any(its.keys() != runs[0].keys() for its in runs):
                    return None
                variances.append(np.var([row["test"] for its in runs for row in its.values()], ddof=1))
        return Score(float(np.sqrt(np.mean(variances))), None, 1, 1)


def load_instances(root, rows, name):
    """Return what a metric sums up for each test instance: (R, n, C, 2). Raises DataError: damaged files."""
    arrays = []
    try:
        for row in rows:
            path = root / row["folder"] / "instances.npz"
            with np.load(path) as file:
                arrays.append(file[name])
        return np.stack(arrays)
    except (OSError, KeyError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: {error}. The comparisons need it: make this run again") from None
