"""Draw slow_start.png from runs.csv: the grid of seed 9 as a map, and the scores of all models over the slow start.

python docs/results/study_dose/figure.py
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
NEVER = 5_400  # where models stand that do not leave the slow start in 5,000 steps
COLORS = {
    "pure MLM": "#d55e00",
    "tokens become random": "#e69f00",
    "tokens stay": "#009e73",
    "both": "#56b4e9",
    "with CLM": "#0072b2",
    "MNTP": "#cc79a7",
}


def kind_of(model):
    """Return the key of COLORS for the name of a row of the study."""
    if model in ("mlm", "mntp"):
        return {"mlm": "pure MLM", "mntp": "MNTP"}[model]
    if not model.startswith("mlm-"):
        return "with CLM"
    _, _, random, stay = model.split("-")
    if random == "0":
        return "tokens stay"
    return "tokens become random" if stay == "0" else "both"


def main():
    tests, starts = defaultdict(list), {}
    with open(FOLDER / "runs.csv") as file:
        for row in csv.DictReader(file):
            if float(row["rate"]) == 2e-3:
                key = row["model"], row["seed"]
                tests[key].append(float(row["test"]))
                starts[key] = int(row["slow_start"] or NEVER)
    scores = {key: mean(values) for key, values in tests.items()}

    figure, (left, right) = plt.subplots(1, 2, figsize=(8.3, 3.4), layout="constrained")
    fractions = (0, 5, 10, 20)
    grid = []
    for stay in fractions:
        row = []
        for random in fractions:
            name = f"mlm-{100 - random - stay}-{random}-{stay}" if random or stay else "mlm"
            row.append(scores[name, "9"])
        grid.append(row)
    left.imshow(grid, cmap="Blues", vmin=35, vmax=70)
    for i, row in enumerate(grid):
        for j, score in enumerate(row):
            left.text(j, i, f"{score:.0f}", ha="center", va="center")
    left.set_xticks(range(4), [f"{x} %" for x in fractions])
    left.set_yticks(range(4), [f"{x} %" for x in fractions])
    left.set_xlabel("become random tokens")
    left.set_ylabel("stay as they are")
    left.set_title("mean score, seed 9")

    for kind, color in COLORS.items():
        keys = [key for key in scores if kind_of(key[0]) == kind]
        right.plot(
            [starts[key] for key in keys], [scores[key] for key in keys], "o", color=color, alpha=0.8, label=kind
        )
    right.set_xticks([1000, 2000, 3000, 4000, NEVER], ["1,000", "2,000", "3,000", "4,000", "never"])
    right.set_xlabel("end of the slow start (step)")
    right.set_ylabel("mean score")
    right.set_title("all models, seeds 9 to 11")
    right.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        right.spines[side].set_visible(False)
    figure.savefig(FOLDER / "slow_start.png", dpi=150)


main()
