"""Print the tables of README.md from runs.csv, and draw slow_start.png.

python docs/results/study_dose/tables.py
"""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import correlation, mean

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
SEEDS = ("9", "10", "11")
FRACTIONS = (0, 5, 10, 20)  # percent of the chosen tokens
NEVER = 5_400  # where models stand that do not leave the slow start in 5,000 steps
OTHERS = {
    "mlm": "pure MLM",
    "mlm-80-10-10": "80/10/10",
    "mlm-80-0-20": "80/0/20: a fifth stays",
    "mlm-80-20-0": "80/20/0: a fifth becomes random tokens",
    "clm5-mlm": "5 % CLM, then MLM",
    "clm12.5-mlm": "12.5 % CLM, then MLM",
    "clm25-mlm": "25 % CLM, then MLM",
    "mntp": "MNTP",
    "mixed": "CLM and MLM mixed 1:3",
    "mixed-shift": "CLM and MNTP mixed 1:3",
}
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


def name_of(stay, random):
    """Return the row of the study with these percentages of tokens that stay and that become random."""
    return f"mlm-{100 - random - stay}-{random}-{stay}" if random or stay else "mlm"


def read():
    """Return the scores at the rate 2e-3 by (model, seed, task), and (MLM loss, slow start) by (model, seed)."""
    scores, losses = {}, {}
    with open(FOLDER / "runs.csv") as file:
        for row in csv.DictReader(file):
            if float(row["rate"]) == 2e-3:
                key = row["model"], row["seed"]
                scores[key + (row["task"],)] = float(row["test"])
                losses[key] = float(row["mlm_loss"]), int(row["slow_start"] or NEVER)
    return scores, losses


def steps(start):
    return "never" if start == NEVER else f"{start:,}"


def print_tables(scores, losses, means):
    print("| | no random tokens | 5 % | 10 % | 20 % |\n|---|---|---|---|---|")
    for stay in FRACTIONS:
        cells = [f"{stay} % stay" if stay else "no token stays"]
        for random in FRACTIONS:
            name = name_of(stay, random)
            starts = ", ".join(steps(losses[name, seed][1]) for seed in SEEDS)
            cells.append(f"{mean(means[name, seed] for seed in SEEDS):.1f} ({starts})")
        print(f"| {' | '.join(cells)} |")

    print("\n| | SciFact | CoNLL-2003 | mean | mean, seeds 9 to 11 | MLM loss | end of the slow start |")
    print("|---|---|---|---|---|---|---|")
    for model, label in OTHERS.items():
        each = [means[model, seed] for seed in SEEDS]
        tasks = (f"{mean(scores[model, seed, task] for seed in SEEDS):.1f}" for task in ("scifact", "conll2003"))
        loss = mean(losses[model, seed][0] for seed in SEEDS)
        starts = ", ".join(steps(losses[model, seed][1]) for seed in SEEDS)
        seeds = ", ".join(f"{score:.1f}" for score in each)
        print(f"| {label} | {' | '.join(tasks)} | {mean(each):.1f} | {seeds} | {loss:.2f} | {starts} |")

    keys = list(means)
    score = [means[key] for key in keys]
    print(f"\n{len(keys)} models; correlation of the mean score with")
    print(f"- the MLM loss: {correlation(score, [losses[key][0] for key in keys]):.2f}")
    print(f"- the end of the slow start: {correlation(score, [losses[key][1] for key in keys]):.2f}")
    early = [means[key] for key in keys if losses[key][1] < 1_800]
    late = [means[key] for key in keys if losses[key][1] >= 3_000]
    print(f"before step 1,800: {len(early)} models, {min(early):.1f} to {max(early):.1f}")
    print(f"from step 3,000 on: {len(late)} models, {min(late):.1f} to {max(late):.1f}")


def draw(losses, means):
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.3, 3.4), layout="constrained")
    grid = []
    for stay in FRACTIONS:
        grid.append([mean(means[name_of(stay, random), seed] for seed in SEEDS) for random in FRACTIONS])
    left.imshow(grid, cmap="Blues", vmin=35, vmax=70)
    for i, row in enumerate(grid):
        for j, score in enumerate(row):
            left.text(j, i, f"{score:.0f}", ha="center", va="center")
    left.set_xticks(range(4), [f"{x} %" for x in FRACTIONS])
    left.set_yticks(range(4), [f"{x} %" for x in FRACTIONS])
    left.set_xlabel("become random tokens")
    left.set_ylabel("stay as they are")
    left.set_title("mean score, three seeds")

    groups = defaultdict(list)
    for key in means:
        groups[kind_of(key[0])].append(key)
    for kind, color in COLORS.items():
        x = [losses[key][1] for key in groups[kind]]
        right.plot(x, [means[key] for key in groups[kind]], "o", color=color, alpha=0.8, label=kind)
    right.set_xticks([1000, 2000, 3000, 4000, NEVER], ["1,000", "2,000", "3,000", "4,000", "never"])
    right.set_xlabel("end of the slow start (step)")
    right.set_ylabel("mean score")
    right.set_title("all models, seeds 9 to 11")
    right.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        right.spines[side].set_visible(False)
    figure.savefig(FOLDER / "slow_start.png", dpi=150)


scores, losses = read()
means = {key: mean(scores[key + (task,)] for task in ("scifact", "conll2003")) for key in losses}
print_tables(scores, losses, means)
draw(losses, means)
