"""Print what the models of parts A and B that a CPU trained again show.

    python docs/results/study_cause/again.py

First the long runs: their validation scores at both ends of the fine-tuning grid and between them, and how far their
test scores and losses are from those of the counted models. Then part A's comparisons with models from a CPU only.
"""

import csv
import re
from collections import defaultdict

import numpy as np
from comparisons import FOLDER, NAMES, PRIMARY, choose, print_primary, resample

RATES = {"conll2003": ("0.00025", "0.002", "0.008"), "scifact": ("0.00025", "0.001", "0.008")}  # ends, the middle one
LONG = {f"{recipe}-41M": NAMES[recipe] for recipe in ("mlm", "mlm-80-10-10", "clm25-mlm")}


def read(*names):
    """Return the rows of csv files."""
    rows = []
    for name in names:
        with open(FOLDER / name, newline="") as file:
            rows += csv.DictReader(file)
    return rows


def by_run(rows):
    """Return {(model, seed, task, rate): row} of the first fine-tuning seed."""
    rows = [row for row in rows if row["finetune_seed"] == "1"]
    return {(row["model"].removesuffix("-again"), row["seed"], row["task"], row["rate"]): row for row in rows}


def print_ends():
    """Print the validation scores of the long runs at three rates, and what differs from the counted models."""
    again, counted = by_run(read("again.csv")), by_run(read("results.csv"))
    print("| trained again | seed | CoNLL-2003: 2.5e-4 | 2e-3 | 8e-3 | SciFact: 2.5e-4 | 1e-3 | 8e-3 |")
    print("|" + "---|" * 8)
    ends, differences = [], defaultdict(list)  # differences: by what differs, and by that of a recipe
    for model, name in LONG.items():
        for seed in sorted({key[1] for key in again if key[0] == model}, key=int):
            cells = []
            for task, rates in RATES.items():
                low, middle, high = (again[model, seed, task, rate] for rate in rates)
                scores = [float(row["validation"]) for row in (low, middle, high)]
                cells += [f"{score:.1f}" for score in scores]
                ends.append(max(scores[0], scores[2]) > scores[1])
                before = counted[model, seed, task, middle["rate"]]
                for what in (task, f"mean of both, {name}"):
                    differences[what].append(float(middle["test"]) - float(before["test"]))
            differences["loss"].append(float(middle["mlm_loss"]) - float(before["mlm_loss"]))
            print(f"| {name} | {seed} | {' | '.join(cells)} |")
    print(f"\n{sum(ends)} of {len(ends)} have a better score at an end.")
    for what, values in differences.items():
        print(f"{what}, again minus counted: mean {np.mean(values):.3f}, from {min(values):.3f} to {max(values):.3f}")


def trained_on_a_cpu(rows):
    """Yield ((recipe, seed), row) of the models of 10.2M tokens that a CPU trained, whatever their name adds."""
    for row in rows:
        match = re.fullmatch("(.+?)(-cpu)?-10.2M(-again)?", row["model"])
        if match and match[1] in NAMES and row["pretrained_on"] == "x86_64":
            yield (match[1], int(row["seed"])), row


def print_lower_rate(seed="9"):
    """Print 80/10/10 after 41M tokens at a pretraining rate of 1e-3, then the counted model of this seed, at 2e-3."""
    for file, model in ("again.csv", "mlm-80-10-10-1e-3-41M-again"), ("results.csv", "mlm-80-10-10-41M"):
        rows, tests = [row for row in read(file) if (row["model"], row["seed"]) == (model, seed)], []
        for task in RATES:
            tried = [row for row in rows if row["task"] == task]
            best = max((row for row in tried if row["finetune_seed"] == "1"), key=lambda row: float(row["validation"]))
            tests.append(np.mean([float(row["test"]) for row in tried if row["rate"] == best["rate"]]))
            print(f"{model}, {task}: {tests[-1]:.1f} at {best['rate']}")
        print(f"{model}: mean {np.mean(tests):.1f}, loss {rows[0]['mlm_loss']}")


if __name__ == "__main__":
    print_ends()
    names = "results", "checks", "again"
    chosen = choose(trained_on_a_cpu(read(*(f"{name}.csv" for name in names))))
    scores = resample(chosen, *(f"{name}.npz" for name in names))
    for recipe, seed in sorted({key[:2] for key in chosen}):
        each = [scores[recipe, seed, task][0] for task in RATES]
        print(f"{NAMES[recipe]}, seed {seed}: {each[0]:.1f}, {each[1]:.1f}, mean {np.mean(each):.1f}")
    print_primary(PRIMARY["10.2M"], scores)
    print_lower_rate()
