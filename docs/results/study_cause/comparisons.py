"""Print the scores of part A's models, and the comparisons whose models have two seeds in common.

    python docs/results/study_cause/comparisons.py

Run it in the main folder: the intervals are computed by the code of this project, from the instances in results.npz.
"""

import csv
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from statistics import mean

import numpy as np

sys.path.insert(0, ".")
from eval.study import stats

FOLDER = Path(__file__).parent
TASKS = ("conll2003", "scifact")
NAMES = {
    "mlm-80-0-20-10.2M": "80/0/20",
    "mlm-80-20-0-10.2M": "80/20/0",
    "mntp-10.2M": "MNTP",
    "mlm-10.2M": "pure MLM",
    "mlm-80-10-10-10.2M": "80/10/10",
    "clm25-mlm-10.2M": "25 % CLM, then MLM",
}
PRIMARY = (
    ("mlm-80-0-20-10.2M", "mlm-80-20-0-10.2M"),
    ("mntp-10.2M", "mlm-10.2M"),
    ("mlm-80-10-10-10.2M", "mlm-10.2M"),
    ("clm25-mlm-10.2M", "mlm-10.2M"),
    ("clm25-mlm-10.2M", "mntp-10.2M"),
)


def read_chosen():
    """Return {(model, seed, task): the rows at the rate that validation chose with the first fine-tuning seed}."""
    tried = defaultdict(list)
    with open(FOLDER / "results.csv", newline="") as file:
        for row in csv.DictReader(file):
            tried[row["model"], int(row["seed"]), row["task"]].append(row)
    chosen = {}
    for key, rows in tried.items():
        first = [row for row in rows if row["finetune_seed"] == "1"]
        best = max(first, key=lambda row: float(row["validation"]))
        chosen[key] = [row for row in rows if row["rate"] == best["rate"]]
    return chosen


def resample(chosen):
    """Return {(model, seed, task): scores (1 + resamples,)}, the mean over fine-tuning seeds: on the test set, then on
    resamples of it, which are the same for all models."""
    found = {}
    with np.load(FOLDER / "results.npz") as file:
        for task in TASKS:
            rows = [(key, row) for key, rows in chosen.items() if key[2] == task for row in rows]
            names = [
                " ".join(row[part] for part in ("model", "seed", "task", "rate", "finetune_seed")) for _, row in rows
            ]
            instances = np.stack([file[name].astype(np.float32) for name in names])
            resampled = stats.bootstrap(instances, stats.RESAMPLES, zlib.crc32(f"{task}/".encode()))
            scores = defaultdict(list)
            for (key, row), others in zip(rows, resampled.T):
                scores[key].append([float(row["test"]), *others])
            found |= {key: np.mean(values, axis=0) for key, values in scores.items()}
    return found


def slow_start(threshold=4.5):
    """Return {(model, seed): the step of the first evaluation whose MLM loss is below the threshold}."""
    found = {}
    with open(FOLDER / "losses.csv", newline="") as file:
        for row in csv.DictReader(file):
            if float(row["mlm_loss"]) < threshold:
                found.setdefault((row["model"], int(row["seed"])), int(row["step"]))
    return found


def print_scores(chosen, scores):
    """Print a line for each model and seed, then the mean of each model."""
    means, below = defaultdict(list), slow_start()
    columns = "10.2M tokens,seed,loss below 4.5 at step,last loss,CoNLL-2003 (rate),SciFact (rate),mean of both".split(
        ","
    )
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for model, seed in sorted({key[:2] for key in chosen}, key=lambda pair: (pair[1], pair[0])):
        cells = []
        for task in TASKS:
            row = chosen[model, seed, task][0]
            cells.append(f"{scores[model, seed, task][0]:.1f} ({float(row['rate']):.0e})".replace("e-0", "e-"))
        means[model].append(mean(scores[model, seed, task][0] for task in TASKS))
        loss = float(row["mlm_loss"])
        step = f"{below[model, seed]:,}"
        print(f"| {NAMES[model]} | {seed} | {step} | {loss:.3f} | {' | '.join(cells)} | {means[model][-1]:.1f} |")
    for model, values in means.items():
        center, half = stats.interval(values)
        interval = f" ± {half:.1f}" if half else ""
        print(f"{NAMES[model]}: {center:.1f}{interval}, seeds: {len(values)}")


def compare(scores, a, b):
    """Return (difference, half of its 95 % interval, p, differences by seed) of the mean of both tasks, paired by seed.

    None if the models do not have two seeds in common.
    """
    seeds = sorted(
        {seed for model, seed, _ in scores if model == a} & {seed for model, seed, _ in scores if model == b}
    )
    if len(seeds) < 2:
        return None
    rows = [np.mean([scores[a, seed, task] - scores[b, seed, task] for task in TASKS], axis=0) for seed in seeds]
    d = np.stack(rows)  # (seeds, 1 + resamples)
    return *stats.compare([(d[:, 0], np.cov(d[:, 1:]))]), dict(zip(seeds, d[:, 0]))


def print_primary(scores):
    """Print the primary comparisons. Holm's correction counts those that are not run yet with p = 1."""
    found = [compare(scores, a, b) for a, b in PRIMARY]
    corrected = stats.holm([result[2] if result else 1 for result in found])
    for (a, b), result, p_holm in zip(PRIMARY, found, corrected):
        if result:
            difference, half, p, by_seed = result
            each = ", ".join(f"{value:.1f}" for value in by_seed.values())
            print(f"{NAMES[a]} − {NAMES[b]}: {difference:.1f} ± {half:.1f}, p {p:.2g}, corrected {p_holm:.2g}; {each}")


chosen = read_chosen()
scores = resample(chosen)
print_scores(chosen, scores)
print_primary(scores)
