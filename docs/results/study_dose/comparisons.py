"""Print the tables of the test with five new seeds.

    python docs/results/study_dose/comparisons.py

Run it in the main folder: the intervals are computed by the code of this project, from the instances beside this file.
"""

import csv
import math
import sys
import zlib
from pathlib import Path
from statistics import mean

import numpy as np

sys.path.insert(0, ".")
from eval.study import stats

FOLDER = Path(__file__).parent
TASKS = ("scifact", "conll2003")
NAMES = {
    "mlm": "pure MLM",
    "mlm-1e-3": "pure MLM, pretraining rate 1e-3",
    "mlm-80-10-10": "80/10/10",
    "mlm-80-0-20": "80/0/20: a fifth stays",
    "mlm-80-20-0": "80/20/0: a fifth becomes random tokens",
    "clm25-mlm": "25 % CLM, then MLM",
    "mntp": "MNTP",
}
TEST = (
    ("mlm-80-0-20", "mlm-80-20-0"),
    ("mntp", "mlm"),
    ("mlm-80-10-10", "mlm"),
    ("clm25-mlm", "mlm"),
    ("clm25-mlm", "mntp"),
)


class Study:
    """The fine-tunings that validation chose, and their scores on resamples of the test sets.

    rows: {(model, seed, task): the line of the table}. scores: the same keys, (1 + resamples,) each.
    """

    def __init__(self, name):
        self.rows = {}
        with open(FOLDER / f"{name}.csv") as file:
            for row in csv.DictReader(file):
                key = row["model"], row["seed"], row["task"]
                if key not in self.rows or float(row["validation"]) > float(self.rows[key]["validation"]):
                    self.rows[key] = row
        self.models = list(dict.fromkeys(model for model, _, _ in self.rows))
        self.seeds = sorted({seed for _, seed, _ in self.rows})
        self.scores = {}
        with np.load(FOLDER / f"{name}.npz") as file:
            for task in TASKS:
                keys = [key for key in self.rows if key[2] == task]
                arrays = np.stack([file[" ".join(key)].astype(np.float32) for key in keys])
                resampled = stats.bootstrap(arrays, stats.RESAMPLES, zlib.crc32(f"{task}/".encode()))
                for key, scores in zip(keys, resampled.T):
                    self.scores[key] = np.array([float(self.rows[key]["test"]), *scores])

    def values(self, model, column, task="scifact"):
        return [float(self.rows[model, seed, task][column] or math.inf) for seed in self.seeds]

    def mean_scores(self, model):
        """Return the mean test score of both tasks for each seed."""
        return np.mean([self.values(model, "test", task) for task in TASKS], axis=0)

    def validation(self, model):
        """Return the mean validation score of both tasks over all seeds."""
        return mean(mean(self.values(model, "validation", task)) for task in TASKS)

    def compare(self, a, b):
        """Return (difference, half of its 95 % interval, p) of the mean of both tasks, paired by seed."""
        d = []
        for seed in self.seeds:
            d.append(np.mean([self.scores[a, seed, task] - self.scores[b, seed, task] for task in TASKS], axis=0))
        d = np.stack(d)
        return stats.compare([(d[:, 0], np.cov(d[:, 1:]))])


def with_interval(values):
    center, half = stats.interval(values)
    return f"{center:.1f} ± {half:.1f}"


def print_scores(study):
    print(f"seeds {', '.join(study.seeds)}")
    print("| | SciFact | CoNLL-2003 | mean | of each seed | MLM loss | end of the slow start |")
    print("|---|---|---|---|---|---|---|")
    for model in study.models:
        means = study.mean_scores(model)
        cells = [with_interval(study.values(model, "test", task)) for task in TASKS]
        cells += [with_interval(means), ", ".join(f"{score:.1f}" for score in means)]
        cells.append(f"{mean(study.values(model, 'mlm_loss')):.2f}")
        cells.append(", ".join("never" if s == math.inf else f"{s:,.0f}" for s in study.values(model, "slow_start")))
        print(f"| {NAMES.get(model, model)} | {' | '.join(cells)} |")


def print_primary(study, pairs):
    found = [study.compare(a, b) for a, b in pairs]
    corrected = stats.holm([p for _, _, p in found])
    print("| | difference | p | corrected p |\n|---|---|---|---|")
    for (a, b), (difference, half, p), p_holm in zip(pairs, found, corrected):
        print(f"| {a} − {b} | {difference:.1f} ± {half:.1f} | {p:.2g} | {p_holm:.2g} |")


def print_rates(study):
    for model in study.models:
        rates = {task: study.values(model, "rate", task) for task in TASKS}
        print(f"{model}: mean validation {study.validation(model):.2f}, rates of fine-tuning {rates}")


test = Study("test")
pure = max(("mlm", "mlm-1e-3"), key=test.validation)
print(f"pure MLM is {pure}")
print_scores(test)
print_rates(test)
print_primary(test, [(a, pure if b == "mlm" else b) for a, b in TEST])
