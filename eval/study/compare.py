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


@dataclass
class Score:
    values: dict  # {unit: percent}, see Variant.mean_by_unit
    done: int  # runs, or seeds of a family ...
    expected: int  # ... of how many
    several: bool  # whether the units are pretraining seeds
    lr: float = math.nan  # of a task: the chosen learning rate
    runs: dict = field(default_factory=dict)  # of a task: {(pretraining seed, fine-tuning seed): Run} at that rate

    def __post_init__(self):
        self.mean, self.half = stats.interval([*self.values.values()])

    def __str__(self):
        text = f"{self.mean:.1f}" + ("" if self.half is None else f" ± {self.half:.1f}")
        if self.done < self.expected:
            return f"{text} ({self.done} of {self.expected} {'runs' if self.several else 'seeds'})"
        return text + " (one seed)" * (self.half is None)


class Scores:
    """The scores of all variants of `results` by one metric.

    metric: "field", "paper" or "main". targets: {title: tasks} to score, default results.targets.
    Indexed by (variant number, title of a target or name of a task): a Score, or None where a run is missing.
    """

    def __init__(self, results, metric, targets=None):
        self.results, self.metric, self.targets = results, metric, targets or results.targets
        self.tasks = [*dict.fromkeys(task for tasks in self.targets.values() for task in tasks)]
        self.cells = {}
        for a in range(len(results.variants)):
            self.cells |= {(a, task): self.score_task(a, task) for task in self.tasks}
            several = {title: tasks for title, tasks in self.targets.items() if len(tasks) > 1}
            self.cells |= {(a, title): self.average(a, tasks) for title, tasks in several.items()}

    def __getitem__(self, key):
        return self.cells[key]

    def score_task(self, a, task):
        """Return the Score of variant number a at the learning rate that validation chooses, or None."""
        rates, variant = self.results.grid.get((a, task)), self.results.variants[a]
        if not rates or any(
            (self.metric, "test") not in run.scores for runs in rates.values() for run in runs.values()
        ):
            return None
        most, key = max(map(len, rates.values())), (self.metric, "validation")
        complete = {lr: runs.values() for lr, runs in sorted(rates.items()) if len(runs) == most}
        validation = {lr: np.mean([run.scores[key] for run in runs]) for lr, runs in complete.items()}
        lr = max(validation, key=validation.get)  # the lowest of equals
        expected, several = len(variant.seeds) * len(self.results.seeds[task]), len(variant.seeds) > 1
        return Score(variant.mean_by_unit(rates[lr], self.metric), most, expected, several, lr, rates[lr])

    def average(self, a, tasks):
        """Return the Score of variant number a on the mean of several tasks, unit by unit, or None."""
        parts = [self[a, task] for task in tasks]
        units = set.intersection(*(set(part.values) for part in parts)) if all(parts) else ()
        if not units:
            return None
        values = {unit: float(np.mean([part.values[unit] for part in parts])) for unit in sorted(units)}
        done, expected = sum(part.done for part in parts), sum(part.expected for part in parts)
        if not parts[0].several:
            done, expected = len(units), len(set.union(*(self.results.seeds[task] for task in tasks)))
        return Score(values, done, expected, parts[0].several)


@dataclass(eq=False)
class Comparison:
    target: str
    a: int  # variant numbers
    b: int
    units: int  # number of pairs
    unit: str  # "pretraining seed" or "fine-tuning seed"; "" where there is nothing to pair by
    estimate: float = math.nan  # score of a minus score of b
    half: float = math.nan  # the 95 % interval is estimate ± half
    p: float = math.nan
    p_holm: float = math.nan

    def __str__(self):
        return f"{self.estimate:+.1f} ± {self.half:.1f}" if self.units > 1 else "-"

    @property
    def better(self):
        """The number of the variant that is clearly better; None if they are not distinguishable."""
        return (self.a if self.estimate > 0 else self.b) if self.p_holm < 0.05 else None

    @property
    def over(self):
        """What the comparison rests on, in words."""
        if not self.unit:
            return "no pretraining seed in common"
        return f"{self.units} {self.unit}{'s' * (self.units > 1)}" + " in common" * (self.units < 2)


class TaskScores:
    """The test scores of R runs on a task, with their covariance over resamples of the test instances."""

    def __init__(self, scores, task, runs, resamples):
        self.index, self.key = {run.folder: i for i, run in enumerate(runs)}, (scores.metric, "test")
        names, resampled = runs[0].metrics[scores.metric], np.zeros((resamples, len(runs)))
        for name in names:
            retrieval_set = name.rpartition("/")[0]  # the metrics of one share its resamples
            seed = zlib.crc32(f"{task}/{retrieval_set}".encode())
            resampled += stats.bootstrap(load_instances(scores.results.root, runs, name), resamples, seed) / len(names)
        self.covariance = np.cov(resampled.T).reshape(len(runs), len(runs))

    def differences(self, pairs):
        """Return the mean difference of each unit's [(Run, Run), ...]: (U,), and the covariance of these: (U, U)."""
        contrast, difference = np.zeros((len(pairs), len(self.index))), np.zeros(len(pairs))  # (U, R), (U,)
        for i, of_unit in enumerate(pairs):
            for one, other in of_unit:
                contrast[i, self.index[one.folder]] += 1 / len(of_unit)
                contrast[i, self.index[other.folder]] -= 1 / len(of_unit)
                difference[i] += (one.scores[self.key] - other.scores[self.key]) / len(of_unit)
        return difference, contrast @ self.covariance @ contrast.T


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
            if abs(stats.ratio_score(array.sum(0, dtype=np.float64)) - run.test[name]) > 0.01:
                raise ValueError(f"not the {name} of {run.test[name]} in result.json")
        except (OSError, KeyError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: {error}. The comparisons need it: make this run again") from None
        arrays.append(array)
    return np.stack(arrays)


def pair_runs(variant_a, variant_b, runs_a, runs_b):
    """Return the runs at which two variants meet on a task: ({unit: [(run of a, run of b), ...]}, what a unit is)."""
    common = set(variant_a.seeds) & set(variant_b.seeds)
    if len(variant_a.seeds) == len(variant_b.seeds) == 1:  # by fine-tuning seed, whatever the two pretraining seeds
        runs_b = {(variant_a.seeds[0], seed): run for (_, seed), run in runs_b.items()}
        common = set(variant_a.seeds)
    units = defaultdict(list)
    for key in sorted(runs_a.keys() & runs_b.keys()):
        units[key[0] if len(common) > 1 else key[1]].append((runs_a[key], runs_b[key]))
    return units, "pretraining seed" if len(common) > 1 else "fine-tuning seed" if common else ""


def compare(scores, resamples, pairs=None):
    """Return the Comparisons of pairs of variant numbers (default: all) on every target where both have a score.

    resamples: of the test instances. The p-values are corrected together.
    """
    pairs = [*itertools.combinations(range(len(scores.results.variants)), 2)] if pairs is None else pairs
    involved, task_scores = sorted({a for pair in pairs for a in pair}), {}
    for task in scores.tasks:
        if runs := [run for a in involved if scores[a, task] for run in scores[a, task].runs.values()]:
            task_scores[task] = TaskScores(scores, task, runs, resamples)
    found = [
        compare_pair(scores, task_scores, title, a, b)
        for title, (a, b) in itertools.product(scores.targets, pairs)
        if scores[a, title] and scores[b, title]
    ]
    correct(found)
    return found


def compare_pair(scores, task_scores, title, a, b):
    """Return the Comparison of variants number a and b on a target, its p-value not corrected."""
    tasks, one, other = scores.targets[title], scores.results.variants[a], scores.results.variants[b]
    by_task = [pair_runs(one, other, scores[a, task].runs, scores[b, task].runs) for task in tasks]
    common = sorted(set.intersection(*(set(units) for units, _ in by_task)))
    comparison = Comparison(title, a, b, len(common), by_task[0][1])
    if len(common) < 2:
        return comparison
    parts = [task_scores[task].differences([units[u] for u in common]) for task, (units, _) in zip(tasks, by_task)]
    if comparison.unit == "pretraining seed":  # which the tasks share: their parts are not independent
        n = len(parts)
        parts = [(sum(d for d, _ in parts) / n, sum(c for _, c in parts) / n**2)]
    comparison.estimate, comparison.half, comparison.p = stats.compare(parts)
    return comparison


def correct(comparisons):
    """Correct the p-values of these comparisons together (Holm)."""
    tested = [c for c in comparisons if c.units > 1]
    for c, p in zip(tested, stats.holm([c.p for c in tested])):
        c.p_holm = float(p)


def compare_with_random(scores, random, task, resamples):
    """Compare variants with one of random weights and the same size, over fine-tuning seeds that all of them have.

    Return {label: (estimate, half of its 95 % interval)} for each variant and for their "mean". The runs are those of
    the pretraining seed that gave the random weights their shape. Empty if fewer than two seeds are common to all.
    """
    variants, runs = scores.results.variants, {}
    for a, variant in enumerate(variants):
        if scores[a, task] and variant.facts["parameters"] == variants[random].facts["parameters"]:
            first = variants[random].seeds[0] if len(variant.seeds) > 1 else variant.seeds[0]
            its = {seed: run for (pretraining, seed), run in scores[a, task].runs.items() if pretraining == first}
            runs |= {a: its} if its and (a == random or not variant.random_weights) else {}
    seeds = sorted(set.intersection(*map(set, runs.values()))) if runs else ()
    if len(seeds) < 2 or len(runs) < 2 or random not in runs:
        return {}
    task_scores = TaskScores(scores, task, [its[seed] for its in runs.values() for seed in seeds], resamples)
    pretrained, found = [a for a in runs if a != random], {}
    for label, group in {"mean": pretrained, **{variants[a].label: [a] for a in pretrained}}.items():
        pairs = [[(runs[a][seed], runs[random][seed]) for a in group] for seed in seeds]
        found[label] = stats.compare([task_scores.differences(pairs)])[:2]
    return found
