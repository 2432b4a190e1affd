"""Draw differences.png from comparisons.csv, both beside this file.

Run in the main folder:

    python docs/results/study_objectives/figure.py
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
LABELS = {
    "25 % CLM": "25 % CLM, then MLM",
    "MNTP after 25 % CLM": "25 % CLM, then MNTP",
    "mixed 1:3": "CLM in 25 % of the windows",
    "mixed 1:1": "CLM in 50 % of the windows",
    "CLM only": "pure CLM",
    "mask 40 to 10 %": "MLM, 40 to 10 % hidden",
}
PANELS = {"mean of conll2003, scifact": "mean of both", "conll2003": "CoNLL-2003", "scifact": "SciFact"}

with open(FOLDER / "comparisons.csv") as file:
    rows = list(csv.DictReader(file))
figure, axes = plt.subplots(1, 3, figsize=(8.3, 2.7), sharey=True, layout="constrained")
for axis, (target, title) in zip(axes, PANELS.items()):
    for y, model in enumerate(LABELS):
        row = next(row for row in rows if (row["target"], row["model_a"]) == (target, model))
        low, middle, high = (float(row[column]) for column in ("low_95", "difference", "high_95"))
        face = "#0072B2" if float(row["p_holm"]) < 0.05 else "white"
        axis.plot([low, high], [-y, -y], color="#0072B2")
        axis.plot(middle, -y, "o", color="#0072B2", markerfacecolor=face)
    axis.axvline(0, color="gray")
    axis.set_title(title, fontsize=11)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(left=False)
axes[0].set_yticks([-y for y in range(len(LABELS))], list(LABELS.values()), fontsize=11)
axes[1].set_xlabel("difference to pure MLM (points)", fontsize=11)
figure.savefig(FOLDER / "differences.png", dpi=150)
