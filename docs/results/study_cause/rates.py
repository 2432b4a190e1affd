"""Print the test scores of part A at each rate of fine-tuning. Draw how they depend on the pretraining rate, rates.png.

    python docs/results/study_cause/rates.py

The left panel has the trials of the study of visible tokens, where recipes were pretrained at several rates.
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
RECIPES = {  # name in results.csv: name, pretraining rate
    "mlm-10.2M": ("pure MLM", 1e-3),
    "mntp-10.2M": ("MNTP", 1e-3),
    "clm25-mlm-10.2M": ("25 % CLM, then MLM", 2e-3),
    "mlm-80-10-10-10.2M": ("80/10/10", 2e-3),
    "mlm-80-0-20-10.2M": ("80/0/20", 2e-3),
    "mlm-80-20-0-10.2M": ("80/20/0", 2e-3),
}
RATES = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3)


def short(rate):
    """Write a rate as on the pages: 1e-3, 2.5e-4."""
    return f"{rate:.1e}".replace(".0e", "e").replace("e-0", "e-")


def read(path):
    with open(path, newline="") as file:
        return [*csv.DictReader(file)]


def scores_of(task):
    """Return {(recipe, rate of fine-tuning): test scores, one for each seed} of part A, first fine-tuning seed."""
    found = defaultdict(list)
    for row in read(FOLDER / "results.csv"):
        if row["task"] == task and row["model"] in RECIPES and row["finetune_seed"] == "1":
            found[row["model"], float(row["rate"])].append(float(row["test"]))
    return found


def print_table(task):
    scores = scores_of(task)
    print(f"| {task} | pretraining rate | {' | '.join(map(short, RATES))} |\n|{'---|' * (len(RATES) + 2)}")
    for recipe, (name, pretraining_rate) in RECIPES.items():
        values = [scores[recipe, rate] for rate in RATES]
        cells = " | ".join(f"{mean(each):.1f} ± {stdev(each):.1f}" for each in values)
        print(f"| {name} | {short(pretraining_rate)} | {cells} |")


def draw_trials(axes):
    """Draw what each recipe gains on SciFact from a higher rate of fine-tuning, against its pretraining rate."""
    gains = defaultdict(dict)
    for row in read(FOLDER.parent / "study_visible" / "trials.csv"):
        if row["scifact_0.003_test"]:
            gain = float(row["scifact_0.003_test"]) - float(row["scifact_0.001_test"])
            gains[row["model"]][float(row["lr"])] = gain
    for name, points in gains.items():
        axes.plot([*points], [*points.values()], "o-", label=name.replace("MLM 80", "80"), markersize=4, linewidth=1.2)
    axes.axhline(0, color="black", linewidth=0.6)
    ticks = [5e-4, 1e-3, 2e-3, 4e-3]
    axes.set(
        xscale="log", xlabel="rate of pretraining", ylabel="points", title="SciFact, fine-tuned at 3e-3 minus 1e-3"
    )
    axes.set_xticks(ticks, [*map(short, ticks)])


def draw_rates(axes):
    """Draw the SciFact scores of part A against the rate of fine-tuning."""
    scores = scores_of("scifact")
    for (recipe, (name, pretraining_rate)), marker in zip(RECIPES.items(), "osv^<>"):
        color, style = ("black", "-") if pretraining_rate == 1e-3 else ("#d55e00", "--")
        values = [mean(scores[recipe, rate]) for rate in RATES]
        label = f"{name}, {short(pretraining_rate)}"
        axes.plot(RATES, values, style, marker=marker, color=color, label=label, markersize=4, linewidth=1.2)
    axes.set(xscale="log", xlabel="rate of fine-tuning", ylabel="nDCG@10", title="SciFact, five seeds of part A")
    axes.set_xticks(RATES, [*map(short, RATES)])


print_table("conll2003")
print_table("scifact")
figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for draw, axes in zip((draw_trials, draw_rates), panels):
    draw(axes)
    axes.minorticks_off()
    axes.title.set_fontsize(10)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
figure.savefig(FOLDER / "rates.png", dpi=130)
