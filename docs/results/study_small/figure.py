"""Draw budgets.png beside this file from ../lesson/study.csv.

Run in the main folder:

    python docs/results/study_small/figure.py
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
PANELS = "tagging (CoNLL-2003)", "retrieval (SciFact)"
LINES = {
    "0": ("pure MLM", "#D55E00"),
    "25": ("25 % CLM, then MLM", "#0072B2"),
    "50": ("50 % CLM, then MLM", "0.5"),
    "100": ("pure CLM", "#CC79A7"),
}

with open(FOLDER.parent / "lesson" / "study.csv") as file:
    rows = list(csv.DictReader(file))
figure, axes = plt.subplots(1, 2, figsize=(8.3, 3.3), layout="constrained")
for axis, task in zip(axes, PANELS):
    for i, (percent, (label, color)) in enumerate(LINES.items()):
        its = [row for row in rows if (row["family"], row["clm_percent"]) == (task, percent)]
        its = [row for row in its if float(row["tokens_billions"]) > 0]
        tokens = [float(row["tokens_billions"]) * 1000 * 1.02 ** (i - 1.5) for row in its]  # side by side
        error = [float(row["half_interval"]) for row in its]
        axis.errorbar(tokens, [float(row["score"]) for row in its], error, marker="o", color=color, label=label)
    random = next(row for row in rows if row["family"] == task and float(row["tokens_billions"]) == 0)
    axis.axhline(float(random["score"]), color="gray", linestyle=":", label="random weights")
    axis.set(xscale="log")
    axis.set_title(task, fontsize=11)
    axis.set_xlabel("tokens of pretraining (millions)", fontsize=11)
    axis.set_xticks([2.46, 5.32, 10.24, 20.89], ["2.5", "5.3", "10.2", "20.9"])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("score (%)", fontsize=11)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=11)
figure.savefig(FOLDER / "budgets.png", dpi=150)
