"""Score variants on tasks and compare them in pairs.

A variant's score on a task is at the learning rate with the best mean validation score, among the rates with the most
finished runs. A rate that lost seeds must not win on the seeds that survived. If every rate lost some, those with the
fewest losses are left. `stats.py` explains the comparison.
"""

import itertools
import math
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from errors import DataError
from eval.study import stats
from eval.study.jobs import counted
from eval.study.results import GLUE_AVERAGE, Variant
from eval.tasks import metrics


@dataclass
class Score:
    values: dict  # {unit: percent}; a unit is a pretraining seed if the variant has several, else a fine-tuning seed
    done: int  # runs ...
    expected: int  # ... of how many
    lr: float = math.nan  # of a task: the chosen learning rate
    runs: dict = field(default_factory=dict)  # of a task: {(pretraining seed, fine-tuning seed): Run} at that rate

    def __post_init__(self):
        self.mean, self.half = stats.interval([*self.values.values()])

    def __str__(self):
        text = f"{metrics.rounded(self.mean):.1f}" + (" (one seed)" if self.half is None else f" ± {self.half:.1f}")
        return text + (f" ({self.done} of {self.expected} runs)" if self.done < self.expected else "")


class Scores:
    """The scores of all variants of `results` by one metric, and what their comparisons need.

    metric: "field" or "paper". targets: {title: tasks} to score, default results.targets. resamples: of the test
    instances. Indexed by (variant, title of a target or name of a task): a Score, or None where a run is missing.
    """

    def __init__(self, results, metric, resamples=2000, targets=None):
        self.results, self.metric, self.resamples = results, metric, resamples
        self.targets = targets or {k: v for k, v in results.targets.items() if metric == "field" or k != GLUE_AVERAGE}
        self.tasks = [*dict.fromkeys(itertools.chain(*self.targets.values()))]
        self.cells, self.covariances = {}, {}
        for variant in results.variants:
            for task in self.tasks:
                self.cells[variant, task] = self.score_task(variant, task)
            for title, tasks in self.targets.items():
                if len(tasks) > 1:
                    self.cells[variant, title] = average([self[variant, task] for task in tasks])

    def __getitem__(self, key):
        return self.cells[key]

    def score_task(self, variant, task):
        """Return the Score of a variant at the learning rate that validation chooses, or None."""
        rates = self.results.grid.get((variant, task))
        if not rates:
            return None
        most = max(map(len, rates.values()))
        validation = {
            lr: np.mean([run.scores[self.metric, "validation"] for run in runs.values()])
            for lr, runs in sorted(rates.items())
            if len(runs) == most
        }
        lr = max(validation, key=validation.get)  # the lowest of equals
        by_unit = defaultdict(list)
        for (pretraining_seed, seed), run in sorted(rates[lr].items()):
            by_unit[pretraining_seed if len(variant.seeds) > 1 else seed].append(run.scores[self.metric, "test"])
        values = {unit: float(np.mean(scores)) for unit, scores in by_unit.items()}
        return Score(values, most, len(variant.seeds) * len(self.results.seeds[task]), lr, rates[lr])

    def deviation(self, runs):
        """Return how much test scores deviate among runs of one task and pretraining seed, None without two of them."""
        groups = defaultdict(list)
        for run in runs:
            groups[run.task, run.pretraining_seed].append(run.scores[self.metric, "test"])
        variances = [np.var(its, ddof=1) for its in groups.values() if len(its) > 1]
        return float(np.sqrt(np.mean(variances))) if variances else None

    def covariance(self, task):
        """Return ({run: i}, covariance (R, R) of the runs' test scores over resamples of the test instances)."""
        if task not in self.covariances:
            runs = [run for v in self.results.variants if self[v, task] for run in self[v, task].runs.values()]
            names, resampled = self.results.metrics[task][self.metric], np.zeros((self.resamples, len(runs)))
            for name in names:
                test_set = name.rpartition("/")[0]  # the metrics of one share its resamples
                seed = zlib.crc32(f"{task}/{test_set}".encode())
                instances = load_instances(self.results.root, runs, name)
                resampled += stats.bootstrap(instances, self.resamples, seed) / len(names)
            covariance = np.cov(resampled.T).reshape(len(runs), len(runs))
            self.covariances[task] = {run: i for i, run in enumerate(runs)}, covariance
        return self.covariances[task]

    def differences(self, task, units):
        """Return the mean difference of each unit's [(Run, Run), ...]: (U,), and the covariance of these: (U, U)."""
        index, covariance = self.covariance(task)
        key, contrast, difference = (self.metric, "test"), np.zeros((len(units), len(index))), np.zeros(len(units))
        for i, pairs in enumerate(units):
            for a, b in pairs:
                contrast[i, index[a]] += 1 / len(pairs)
                contrast[i, index[b]] -= 1 / len(pairs)
                difference[i] += (a.scores[key] - b.scores[key]) / len(pairs)
        return difference, contrast @ covariance @ contrast.T


def average(parts):
    """Return the mean of a variant's Scores on several tasks, unit by unit; None if one is missing."""
    units = set.intersection(*(set(part.values) for part in parts)) if all(parts) else ()
    if not units:
        return None
    values = {unit: float(np.mean([part.values[unit] for part in parts])) for unit in sorted(units)}
    return Score(values, sum(part.done for part in parts), sum(part.expected for part in parts))


@dataclass
class Comparison:
    """Variant a minus variant b on a target."""

    target: str
    a: Variant
    b: Variant
    units: int  # number of pairs
    unit: str  # "pretraining seed" or "fine-tuning seed"; "" where there is nothing to pair by
    estimate: float = math.nan
    half: float = math.nan  # the 95 % interval is estimate ± half
    p: float = math.nan
    p_holm: float = math.nan  # see `correct`

    def __str__(self):
        return f"{metrics.rounded(self.estimate):+.1f} ± {self.half:.1f}" if self.units > 1 else "-"

    @property
    def better(self):
        """The label of the variant that is clearly better; "" if they are not distinguishable."""
        return (self.a if self.estimate > 0 else self.b).label if self.p_holm < 0.05 else ""

    @property
    def over(self):
        """What the comparison rests on, in words."""
        return counted(self.units, self.unit) if self.unit else "no pretraining seed in common"


def load_instances(root, runs, name):
    """Return what a metric sums up for each test instance: (R, n, C, 2). Raises DataError: files that do not fit."""
    arrays = []
    for run in runs:
        path = root / run.folder / "instances.npz"
        try:
            with np.load(path) as file:
                array = file[name]
            if array.shape != (arrays or [array])[0].shape:
                raise ValueError(f"{name} is of another test set than that of {runs[0].folder}")
            if abs(metrics.score(array) - run.test[name]) > 0.01:
                raise ValueError(f"not the {name} of {run.test[name]} in result.json")
        except (OSError, KeyError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: {error}. The comparisons need it: make this run again") from None
        arrays.append(array)
    return np.stack(arrays)


def compare(scores, pairs=None):
    """Return the Comparisons of pairs of variants (default: all) on every target where both have a score.

    Repeated tasks are left out.
    """
    pairs = [*itertools.combinations(scores.results.variants, 2)] if pairs is None else pairs
    targets = [target for target in scores.targets if target not in scores.results.repeated]
    points = itertools.product(targets, pairs)
    return [compare_pair(scores, t, a, b) for t, (a, b) in points if scores[a, t] and scores[b, t]]


def compare_pair(scores, target, a, b):
    """Return the Comparison of variants a and b on a target, its p-value not corrected."""
    common, single = {*a.seeds} & {*b.seeds}, len(a.seeds) == len(b.seeds) == 1
    several = len(common) > 1  # pretraining seeds to pair by
    unit = "pretraining seed" if several else "fine-tuning seed" if common or single else ""
    tasks, by_task = scores.targets[target], []  # of each task {unit: [(run of a, run of b), ...]}
    for task in tasks:
        runs_a, runs_b, units = scores[a, task].runs, scores[b, task].runs, defaultdict(list)
        if single:  # whatever the two pretraining seeds
            runs_b = {(a.seeds[0], seed): run for (_, seed), run in runs_b.items()}
        for key in sorted(runs_a.keys() & runs_b.keys()):
            units[key[0] if several else key[1]].append((runs_a[key], runs_b[key]))
        by_task.append(units)
    shared = sorted(set.intersection(*map(set, by_task)))
    comparison = Comparison(target, a, b, len(shared), unit)
    if len(shared) > 1:
        parts = [scores.differences(task, [units[u] for u in shared]) for task, units in zip(tasks, by_task)]
        dependent = defaultdict(list)  # tasks that share pretraining seeds; msmarco/nq and msmarco/mldr, fine-tuning
        for task, part in zip(tasks, parts):
            dependent["" if several else task.partition("/")[0]].append(part)
        weight = len(dependent) / len(tasks)
        parts = [(weight * sum(d for d, _ in its), weight**2 * sum(c for _, c in its)) for its in dependent.values()]
        comparison.estimate, comparison.half, comparison.p = stats.compare(parts)
    return comparison


def correct(comparisons):
    """Correct the p-values of these comparisons together (Holm)."""
    tested = [c for c in comparisons if c.units > 1]
    for c, p in zip(tested, stats.holm([c.p for c in tested])):
        c.p_holm = float(p)
