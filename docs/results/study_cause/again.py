"""Print the validation scores of part B's models that were trained again, at both ends of the fine-tuning grid and
between them, and how far their test scores and losses are from those of the counted models.

    python docs/results/study_cause/again.py
"""

import csv
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
RECIPES = {"mlm-41M": "pure MLM", "mlm-80-10-10-41M": "80/10/10", "clm25-mlm-41M": "25 % CLM, then MLM"}
RATES = {"conll2003": ("0.00025", "0.002", "0.008"), "scifact": ("0.00025", "0.001", "0.008")}  # ends, the middle one


def read(name):
    """Return {(model, seed, task, rate): row} of the first fine-tuning seed, from a csv."""
    with open(FOLDER / name, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["finetune_seed"] == "1"]
    return {(row["model"].removesuffix("-again"), row["seed"], row["task"], row["rate"]): row for row in rows}


if __name__ == "__main__":
    again, counted = read("again.csv"), read("results.csv")
    print("| trained again | seed | CoNLL-2003: 2.5e-4 | 2e-3 | 8e-3 | SciFact: 2.5e-4 | 1e-3 | 8e-3 |")
    print("|" + "---|" * 8)
    ends, differences = [], {"loss": [], **{task: [] for task in RATES}}
    for model, name in RECIPES.items():
        for seed in sorted({key[1] for key in again if key[0] == model}, key=int):
            cells = []
            for task, rates in RATES.items():
                low, middle, high = (again[model, seed, task, rate] for rate in rates)
                scores = [float(row["validation"]) for row in (low, middle, high)]
                cells += [f"{score:.1f}" for score in scores]
                ends.append(max(scores[0], scores[2]) > scores[1])
                before = counted[model, seed, task, middle["rate"]]
                differences[task].append(float(middle["test"]) - float(before["test"]))
            differences["loss"].append(float(middle["mlm_loss"]) - float(before["mlm_loss"]))
            print(f"| {name} | {seed} | {' | '.join(cells)} |")
    print(f"\n{sum(ends)} of {len(ends)} have a better score at an end.")
    for what, values in differences.items():
        print(f"{what}, again minus counted: mean {np.mean(values):.3f}, from {min(values):.3f} to {max(values):.3f}")
