"""Print the tables of the test with five new seeds, of longer training and of a longer decay, and draw leads.png.

    python docs/results/study_dose/comparisons.py

Run it in the main folder: the intervals are computed by the code of this project, from the instances beside this file.
"""

import csv
import math
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

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
    "mlm-20k": "pure MLM",
    "mntp-20k": "MNTP",
    "clm25-mlm-20k": "25 % CLM, then MLM",
    "mlm-10k": "pure MLM, 10,000 steps",
    "mntp-10k": "MNTP, 10,000 steps",
    "mlm-decay-2000": "pure MLM",
    "mntp-decay-2000": "MNTP",
    "clm25-mlm-decay-2000": "25 % CLM, then MLM",
}
TEST = (
    ("mlm-80-0-20", "mlm-80-20-0"),
    ("mntp", "mlm"),
    ("mlm-80-10-10", "mlm"),
    ("clm25-mlm", "mlm"),
    ("clm25-mlm", "mntp"),
)
LONG = (("mntp-20k", "mlm-20k"), ("clm25-mlm-20k", "mlm-20k"))
DESIGNED = (2e-3, 4e-3)  # rates of fine-tuning
EXTENDED = (*DESIGNED, 8e-3)  # tagging has one more


class Study:
    """The fine-tunings that validation chose among those with some rates, and their scores on resamples of the tests.

    rows: {(model, seed, task): the line of the table}. scores: the same keys, (1 + resamples,) each.
    """

    def __init__(self, name, rates):
        self.rows = {}
        with open(FOLDER / f"{name}.csv") as file:
            for row in csv.DictReader(file):
                key = row["model"], row["seed"], row["task"]
                better = key not in self.rows or float(row["validation"]) > float(self.rows[key]["validation"])
                if better and float(row["rate"]) in rates:
                    self.rows[key] = row
        self.models = list(dict.fromkeys(model for model, _, _ in self.rows))
        self.seeds = sorted({seed for _, seed, _ in self.rows})
        self.scores = {}
        with np.load(FOLDER / f"{name}.npz") as file:
            for task in TASKS:
                keys = [key for key in self.rows if key[2] == task]
                names = [" ".join([*key, self.rows[key]["rate"]]) for key in keys]
                arrays = np.stack([file[name].astype(np.float32) for name in names])
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


def leads(study, a, b):
    """Return {seed: the mean score of model a minus that of b}."""
    return dict(zip(study.seeds, study.mean_scores(a) - study.mean_scores(b)))


def leads_by_step(test, long, pure):
    """Return {recipe: {step: its leads over pure MLM}}."""
    mntp = {5_000: leads(test, "mntp", pure), 10_000: leads(long, "mntp-10k", "mlm-10k"), 20_000: leads(long, *LONG[0])}
    clm = {5_000: leads(test, "clm25-mlm", pure), 20_000: leads(long, *LONG[1])}
    return {"MNTP": mntp, "25 % CLM, then MLM": clm}


def print_leads(by_step):
    """Print the leads of each recipe and their change, paired by seed."""
    for name, found in by_step.items():
        first, *_, last = found.values()
        change = with_interval([last[seed] - first[seed] for seed in last])
        shown = [with_interval([*each.values()]) for each in found.values()]
        print(f"{name}: leads {shown}, change of the lead {change}")


def leads_of_width_128(model, tokens):
    """Return the lead over pure MLM of each seed in the study of visible tokens, whose tables have two seeds at the
    rate that validation chose, and one at the others."""
    with open(FOLDER.parent / "study_visible" / "results.csv") as file:
        rows = list(csv.DictReader(file))
    scores = defaultdict(list)
    for row in rows:
        if row["seed"] == "2":
            same = [r for r in rows if all(r[k] == row[k] for k in ("model", "pretraining_seed", "task", "lr"))]
            scores[row["model"], row["pretraining_seed"]].append(mean(float(r["test"]) for r in same))
    pure = f"mlm-{tokens}"
    return [mean(scores[f"{model}-{tokens}", s]) - mean(scores[m, s]) for m, s in scores if m == pure]


def draw(by_step):
    """Draw the leads over pure MLM: a dot for each seed, a line through the means. by_step: of `leads_by_step`."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.3, 3.4), layout="constrained", sharey=True)
    wide = {5_000: leads_of_width_128("clm25-mlm", "10.2M"), 10_200: leads_of_width_128("clm25-mlm", "20.9M")}
    for (name, found), shift, color in zip(by_step.items(), (-120, 120), ("#cc79a7", "#0072b2")):
        draw_leads(left, {step: [*each.values()] for step, each in found.items()}, shift, color, name)
    draw_leads(right, wide, 0, "#0072b2", "25 % CLM, then MLM")
    left.set_title("width 64, 512 tokens a step", fontsize=10)
    right.set_title("width 128, 2,048 tokens a step", fontsize=10)
    left.set_ylabel("points ahead of pure MLM")
    left.legend(frameon=False)
    for axes in left, right:
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_xticks([5_000, 10_000, 20_000], ["5,000", "10,000", "20,000"])
        axes.set_xlim(4_000, 21_000)
        axes.set_xlabel("steps")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(FOLDER / "leads.png", dpi=150)


def draw_leads(axes, points, shift, color, label):
    for step, each in points.items():
        axes.plot([step + shift] * len(each), each, "o", color=color, alpha=0.6, markersize=5)
    axes.plot([step + shift for step in points], [mean(each) for each in points.values()], color=color, label=label)


for rates in DESIGNED, EXTENDED:
    test, long = Study("test", rates), Study("long", rates)
    pure = max(("mlm", "mlm-1e-3"), key=test.validation)
    print(f"fine-tuned at {rates}; pure MLM is {pure}")
    for study, pairs in (test, [(a, pure if b == "mlm" else b) for a, b in TEST]), (long, LONG):
        print_scores(study)
        print_rates(study)
        print_primary(study, pairs)
    by_step = leads_by_step(test, long, pure)
    print_leads(by_step)
draw(by_step)
decay = Study("decay", EXTENDED)
print_scores(decay)
print_rates(decay)
for name in "mntp", "clm25-mlm":
    short, longer = leads(test, name, pure), leads(decay, f"{name}-decay-2000", "mlm-decay-2000")
    each = [f"{longer[seed]:.1f} (before {short[seed]:.1f})" for seed in longer]
    print(f"{name}: leads with the longer decay {', '.join(each)}")
