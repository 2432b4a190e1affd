"""Print what follows from the tables beside this file, and draw all figures.

Run in the main folder:

    python docs/results/study_visible/tables.py
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

FOLDER = Path(__file__).parent
SEEDS = ("4", "5", "6", "7", "8")
RATES = ("0.001", "0.002", "0.003")
TASKS = {"conll2003": "CoNLL-2003", "scifact": "SciFact"}
MODELS = {
    "mlm-10.2M": ("pure MLM, 10.2M", "#D55E00"),
    "mlm-20.9M": ("pure MLM, 20.9M", "#D55E00"),
    "mlm-32-10.2M": ("pure MLM, 32 % hidden, 10.2M", "#E69F00"),
    "mlm-80-10-10-10.2M": ("MLM 80/10/10, 10.2M", "#009E73"),
    "clm25-mlm-10.2M": ("25 % CLM, then MLM, 10.2M", "#0072B2"),
    "clm25-mlm-20.9M": ("25 % CLM, then MLM, 20.9M", "#0072B2"),
    "mixed-shift-10.2M": ("mixed 1:3 with the shift, 10.2M", "#CC79A7"),
    "mixed-shift-20.9M": ("mixed 1:3 with the shift, 20.9M", "#CC79A7"),
}
FOUR = ("mlm-10.2M", "mlm-80-10-10-10.2M", "clm25-mlm-10.2M", "mixed-shift-10.2M")
T_975 = 2.776  # Student's t of five seeds


def read(name):
    with open(FOLDER / name) as file:
        return list(csv.DictReader(file))


def interval(values):
    return f"{np.mean(values):.2f} ± {T_975 * np.std(values, ddof=1) / len(values) ** 0.5:.2f}"


def chosen_scores(table):
    """Return {(model, seed): mean test score over tasks at the chosen rate, which has two fine-tuning seeds}."""
    scores = {}
    for model in MODELS:
        for seed in SEEDS:
            its = [row for row in table if row["model"] == model and row["pretraining_seed"] == seed]
            tasks = []
            if not its:  # MLM with 32 % hidden has no short fine-tuning
                continue
            for task in TASKS:
                rows = [row for row in its if row["task"] == task]
                rate = next((row["lr"] for row in rows if row["seed"] == "2"), None)
                tasks.append(np.mean([float(row["test"]) for row in rows if row["lr"] == rate]))
            scores[model, seed] = np.mean(tasks)
    return scores


results = read("results.csv")
test = {}  # of the first fine-tuning seed, which has every rate
for row in results:
    if row["seed"] == "1":
        test[row["model"], row["task"], row["pretraining_seed"], row["lr"]] = float(row["test"])

print("Leads over pure MLM at one rate of fine-tuning for all")
for model, other in (
    ("clm25-mlm-10.2M", "mlm-10.2M"),
    ("mlm-80-10-10-10.2M", "mlm-10.2M"),
    ("mixed-shift-10.2M", "mlm-10.2M"),
    ("clm25-mlm-20.9M", "mlm-20.9M"),
    ("mixed-shift-20.9M", "mlm-20.9M"),
):
    for rate in RATES:
        leads = {task: [test[model, task, s, rate] - test[other, task, s, rate] for s in SEEDS] for task in TASKS}
        mean = np.mean(list(leads.values()), axis=0)
        print(f"{MODELS[model][0]} at {rate}: mean {interval(mean)};", {task: interval(leads[task]) for task in TASKS})

print("\nStandard deviation of the test score over the three rates of fine-tuning")
spread = {}
for model in MODELS:
    for task in TASKS:
        of_seeds = [[test[model, task, seed, rate] for rate in RATES] for seed in SEEDS]
        spread[model, task] = np.std(of_seeds, axis=1, ddof=1)
    print(MODELS[model][0], {task: interval(spread[model, task]) for task in TASKS})

print("\nCorrelations with the mean score")
scores = chosen_scores(results)
mechanism = [row for row in read("mechanism.csv") if row["model"] in FOUR]
for models in (FOUR, FOUR[1:]):
    rows = [row for row in mechanism if row["model"] in models]
    for column in ("own_token", "part_of_speech", "same_masks_mlm_loss"):
        x = np.array([float(row[column]) for row in rows])
        y = np.array([scores[row["model"], row["pretraining_seed"]] for row in rows])
        between = np.corrcoef(x, y)[0, 1]
        for model in models:
            its = [row["model"] == model for row in rows]
            x[its] -= x[its].mean()
            y[its] -= y[its].mean()
        within = np.corrcoef(x, y)[0, 1]
        print(f"{len(rows)} models, {column}: {between:.2f}, within recipes {within:.2f}")

rows = [row for row in mechanism if row["model"] == "mlm-10.2M"]
loss = np.array([float(row["same_masks_mlm_loss"]) for row in rows])
score = np.array([scores["mlm-10.2M", row["pretraining_seed"]] for row in rows])
slope, start = np.polyfit(loss, score, 1)
residual = np.sum((score - slope * loss - start) ** 2) / 3
error = (residual / np.sum((loss - loss.mean()) ** 2)) ** 0.5
print(f"\nPure MLM: {slope:.0f} points per nat, standard error {error:.0f}, 95 % interval ± {3.182 * error:.0f}")


def bare(axis):
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(left=False)


figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True, layout="constrained")
for axis, task in zip(axes, TASKS):
    for y, (model, (label, color)) in enumerate(MODELS.items()):
        axis.plot(spread[model, task], [-y] * 5, "o", color=color, alpha=0.6)
    axis.set(xlabel=f"{TASKS[task]} (points)", xlim=(0, None))
    bare(axis)
axes[0].set_yticks([-y for y in range(len(MODELS))], [label for label, _ in MODELS.values()])
figure.savefig(FOLDER / "stability.png", dpi=90)

# The README shows models.png 830 pixels wide, so a point is 1.4 pixels there.
ROWS = {
    "mlm": "pure MLM, 40 % hidden",
    "mlm-32": "pure MLM, 32 % hidden",
    "mlm-80-10-10": "MLM 80/10/10",
    "clm25-mlm": "25 % CLM, then MLM",
    "mixed-shift": "CLM in 25 % of the windows",
}
protocols = {"results.csv": "long fine-tuning", "short_results.csv": "fine-tuning a quarter as long"}
figure, axes = plt.subplots(1, 2, figsize=(8.3, 3.3), sharey=True, layout="constrained")
for axis, (name, title) in zip(axes, protocols.items()):
    scores = chosen_scores(read(name))
    for y, recipe in enumerate(ROWS):
        color = MODELS[f"{recipe}-10.2M"][1]
        for budget, filled, height in (("10.2M", False, 0.16), ("20.9M", True, -0.16)):
            points = [score for (model, _), score in scores.items() if model == f"{recipe}-{budget}"]
            face = color if filled else "white"
            axis.plot(points, [height - y] * len(points), "o", color=color, markerfacecolor=face, markersize=7)
            if points:
                axis.plot([np.mean(points)] * 2, [height - y - 0.15, height - y + 0.15], color="0.15", linewidth=1.5)
    if not any(model.startswith("mlm-32") for model, _ in scores):
        axis.text(
            0.99,
            -list(ROWS).index("mlm-32"),
            "not run",
            transform=axis.get_yaxis_transform(),
            ha="right",
            va="center",
            color="0.4",
            fontsize=10,
        )
    axis.set_title(title, fontsize=11)
    axis.set_xlabel("mean score (%)", fontsize=11)
    axis.grid(axis="x", color="0.9")
    axis.set_axisbelow(True)
    bare(axis)
axes[0].set_yticks([-y for y in range(len(ROWS))], list(ROWS.values()), fontsize=11)
axes[0].set_ylim(0.5 - len(ROWS), 0.5)
for label, face in (("10.2M tokens", "white"), ("20.9M tokens", "0.4")):
    axes[0].plot([], [], "o", color="0.4", markerfacecolor=face, markersize=7, label=label)
axes[0].plot([], [], "|", color="0.15", markersize=12, markeredgewidth=1.5, label="mean")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False, fontsize=11)
figure.savefig(FOLDER / "models.png", dpi=200)

PROBES = {
    "own_token": "token itself (%)",
    "previous_token": "previous token (%)",
    "next_token": "next token (%)",
    "part_of_speech": "part of speech (%)",
    "effective_dimension": "effective dimension",
}
trials = read("trials.csv")
random = next(row for row in trials if row["model"] == "random weights")
figure, axes = plt.subplots(1, 5, figsize=(11, 2.2), sharey=True, layout="constrained")
for axis, (column, label) in zip(axes, PROBES.items()):
    for y, model in enumerate(FOUR):
        values = [float(row[column]) for row in mechanism if row["model"] == model]
        axis.plot(values, [-y] * len(values), "o", color=MODELS[model][1], alpha=0.6)
    axis.axvline(float(random[column]), color="gray", linestyle=":", label="random weights")
    axis.set(xlabel=label, ylim=(-3.5, 0.5), xlim=(0, 50 if column == "effective_dimension" else 102))
    bare(axis)
axes[0].set_yticks([-y for y in range(len(FOUR))], [MODELS[model][0].removesuffix(", 10.2M") for model in FOUR])
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", frameon=False)
figure.savefig(FOLDER / "mechanism.png", dpi=90)

PANELS = {
    "own_token": "token itself read\n(accuracy, %)",
    "part_of_speech": "part of speech read\n(accuracy, %)",
    "same_masks_mlm_loss": "MLM loss, same masks\n(nats)",
    "scifact": "SciFact, fine-tuned\n(validation nDCG@10, %)",
}
RECIPES = {"MLM": "mlm", "MLM, 32 % hidden": "mlm-32", "MLM 80/10/10": "mlm-80-10-10"}
RECIPES |= {"25 % CLM, then MLM": "clm25-mlm", "mixed 1:3 with the shift": "mixed-shift"}
trials = [row for row in trials if row["lr"]]
for row in trials:
    row["scifact"] = max(float(row[f"scifact_{rate}_validation"] or "nan") for rate in ("0.001", "0.003"))
figure, axes = plt.subplots(1, 4, figsize=(11, 3.2), layout="constrained")
for axis, (column, label) in zip(axes, PANELS.items()):
    for (name, model), marker in zip(RECIPES.items(), "osD^v"):
        text, color = MODELS[f"{model}-10.2M"]
        points = [(float(row["lr"]), float(row[column])) for row in trials if row["model"] == name]
        axis.plot(*zip(*points), marker=marker, color=color, label=text.removesuffix(", 10.2M"))
    axis.set(xscale="log", ylabel=label, xlabel="learning rate of pretraining")
    axis.set_xticks([5e-4, 1e-3, 2e-3, 4e-3], ["5e-4", "1e-3", "2e-3", "4e-3"])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False)
figure.savefig(FOLDER / "trials.png", dpi=90)
