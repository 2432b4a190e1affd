"""Print the scores of all models, and their comparisons. Draw the losses and the leads of parts A and B as leads.png.

    python docs/results/study_cause/comparisons.py

Run it in the main folder: the intervals are computed by the code of this project, from the instances in results.npz.
"""

import csv
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, ".")
from eval.study import stats

FOLDER = Path(__file__).parent
TASKS = ("conll2003", "scifact")
COLORS = {"mlm": "black", "mlm-80-10-10": "#d55e00", "clm25-mlm": "#0072b2"}
RATES = {5e-4, 1e-3, 2e-3, 4e-3}
NAMES = {
    "mlm-80-0-20": "80/0/20",
    "mlm-80-20-0": "80/20/0",
    "mntp": "MNTP",
    "mlm": "pure MLM",
    "mlm-80-10-10": "80/10/10",
    "clm25-mlm": "25 % CLM, then MLM",
}
PRIMARY = {  # by what the names of the models end in: parts A, B and C
    "10.2M": (
        ("mlm-80-0-20", "mlm-80-20-0"),
        ("mntp", "mlm"),
        ("mlm-80-10-10", "mlm"),
        ("clm25-mlm", "mlm"),
        ("clm25-mlm", "mntp"),
    ),
    "41M": (("mlm-80-10-10", "mlm"), ("clm25-mlm", "mlm")),
    "192": (("clm25-mlm", "mlm"),),
}
TITLES = {"10.2M": "10.2M tokens", "41M": "41M tokens", "192": "width 192"}


def read(name, ending):
    """Yield ((recipe, seed), row) of the models whose names end so, from a csv."""
    with open(FOLDER / name, newline="") as file:
        for row in csv.DictReader(file):
            recipe, _, model_ending = row["model"].rpartition("-")
            if model_ending == ending:
                yield (recipe, int(row["seed"])), row


def choose(models):
    """Return {(recipe, seed, task): the rows at the rate that validation chose with the first fine-tuning seed}.

    models: ((recipe, seed), row), ... Those of a model are left out until it has been fine-tuned on both tasks at the
    four rates of the design.
    """
    tried = defaultdict(list)
    for model, row in models:
        tried[(*model, row["task"])].append(row)
    chosen = {}
    for key, rows in tried.items():
        first = [row for row in rows if row["finetune_seed"] == "1"]
        best = max(first, key=lambda row: float(row["validation"]))
        if RATES <= {float(row["rate"]) for row in first}:
            chosen[key] = [row for row in rows if row["rate"] == best["rate"]]
    return {key: rows for key, rows in chosen.items() if all((*key[:2], task) in chosen for task in TASKS)}


def resample(chosen, *files):
    """Return {(recipe, seed, task): scores (1 + resamples,)}, the mean over fine-tuning seeds: on the test set, then on
    resamples of it, which are the same for all models. files: with the instances."""
    found, by_name = {}, {}
    for file in files:
        with np.load(FOLDER / file) as arrays:
            by_name |= arrays
    for task in TASKS:
        rows = [(key, row) for key, rows in chosen.items() if key[2] == task for row in rows]
        names = [" ".join(row[part] for part in ("model", "seed", "task", "rate", "finetune_seed")) for _, row in rows]
        instances = np.stack([by_name[name].astype(np.float32) for name in names])
        resampled = stats.bootstrap(instances, stats.RESAMPLES, zlib.crc32(f"{task}/".encode()))
        scores = defaultdict(list)
        for (key, row), others in zip(rows, resampled.T):
            scores[key].append([float(row["test"]), *others])
        found |= {key: np.mean(values, axis=0) for key, values in scores.items()}
    return found


def slow_start(ending, threshold=4.5):
    """Return {(recipe, seed): the step of the first evaluation whose MLM loss is below the threshold}."""
    found = {}
    for model, row in read("losses.csv", ending):
        if float(row["mlm_loss"]) < threshold:
            found.setdefault(model, int(row["step"]))
    return found


def print_scores(ending, chosen, scores):
    """Print a line for each recipe and seed, then the mean of each recipe."""
    means, below = defaultdict(list), slow_start(ending)
    columns = (TITLES[ending], "seed", "loss below 4.5 at step", "last loss", "CoNLL-2003 (rate)", "SciFact (rate)")
    print(f"| {' | '.join(columns)} | mean of both |\n|{'---|' * (len(columns) + 1)}")
    for recipe, seed in sorted({key[:2] for key in chosen}):
        cells = []
        for task in TASKS:
            row = chosen[recipe, seed, task][0]
            cells.append(f"{scores[recipe, seed, task][0]:.1f} ({float(row['rate']):.0e})".replace("e-0", "e-"))
        means[recipe].append(mean(scores[recipe, seed, task][0] for task in TASKS))
        loss = float(row["mlm_loss"])
        step = f"{below[recipe, seed]:,}"
        print(f"| {NAMES[recipe]} | {seed} | {step} | {loss:.3f} | {' | '.join(cells)} | {means[recipe][-1]:.1f} |")
    for recipe, values in means.items():
        center, half = stats.interval(values)
        interval = f" ± {half:.1f}" if half else ""
        print(f"{NAMES[recipe]}: {center:.1f}{interval}, seeds: {len(values)}")


def means_of(scores, recipe, tasks=TASKS):
    """Return {seed: the mean of the tasks (1 + resamples,)} of a recipe."""
    seeds = {seed for name, seed, _ in scores if name == recipe}
    return {seed: np.mean([scores[recipe, seed, task] for task in tasks], axis=0) for seed in seeds}


def differences(a, b):
    """Return {seed: a's value minus b's (1 + resamples,)} for the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def compare(by_seed):
    """Return (mean, half of its 95 % interval, p, value of each seed) of differences."""
    d = np.stack([*by_seed.values()])  # (seeds, 1 + resamples)
    return *stats.compare([(d[:, 0], np.cov(d[:, 1:]))]), d[:, 0]


def as_text(result):
    """Write what `compare` returns."""
    center, half, p, by_seed = result
    return f"{center:.1f} ± {half:.1f} ({', '.join(f'{value:.1f}' for value in by_seed)}), p {p:.2g}"


def print_primary(pairs, scores):
    """Print the primary comparisons, with Holm's correction."""
    found = [compare(differences(means_of(scores, a), means_of(scores, b))) for a, b in pairs]
    corrected = stats.holm([p for _, _, p, _ in found])
    for (a, b), result, p_holm in zip(pairs, found, corrected):
        print(f"{NAMES[a]} − {NAMES[b]}: {as_text(result)}, corrected {p_holm:.2g}")


def print_leads(scores):
    """Print the lead of each recipe over pure MLM: on the mean of both tasks, then on each task."""
    for recipe in sorted({recipe for recipe, _, _ in scores} - {"mlm"}):
        for tasks in (TASKS, *((task,) for task in TASKS)):
            lead = differences(means_of(scores, recipe, tasks), means_of(scores, "mlm", tasks))
            print(f"lead of {NAMES[recipe]}, {' and '.join(tasks)}: {as_text(compare(lead))}")


def earlier_leads(recipe, tokens):
    """Return the leads over pure MLM in the study of visible tokens, one for each of its seeds."""
    scores, found = defaultdict(list), {}
    with open(FOLDER.parent / "study_visible" / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        scores[row["model"], row["pretraining_seed"], row["task"], row["lr"]].append(float(row["test"]))
    for (model, seed, task, _), tests in scores.items():
        if len(tests) == 2:  # only the rate that validation chose has two fine-tuning seeds
            found[model, seed, task] = mean(tests)
    seeds = {seed for model, seed, _ in found if model == f"{recipe}-{tokens}"}
    pairs = [[(f"{name}-{tokens}", seed) for name in (recipe, "mlm")] for seed in seeds]
    return [mean(found[(*a, task)] - found[(*b, task)] for task in TASKS) for a, b in pairs]


def draw_losses(axes):
    """Draw the validation losses of the long runs, the mean of five seeds."""
    for recipe, color in COLORS.items():
        losses = defaultdict(list)
        for (name, _), row in read("losses.csv", "41M"):
            if name == recipe:
                losses[int(row["step"])].append(float(row["mlm_loss"]))
        losses = dict(sorted(losses.items()))
        axes.plot([*losses], [mean(each) for each in losses.values()], color=color, label=NAMES[recipe], linewidth=1.2)
    axes.set(ylim=(3.1, 4.6), xlabel="steps", ylabel="validation MLM loss", title="losses, 41M tokens")
    axes.legend(frameon=False, fontsize=8)


def draw_leads(axes, recipe, leads):
    """Draw the leads of a recipe over pure MLM, a dot for each seed. leads: {tokens: leads in this study}."""
    earlier = {tokens: earlier_leads(recipe, tokens) for tokens in ("10.2M", "20.9M")}
    for found, color, shift, label in (
        (earlier, "gray", 0.97, "the earlier study"),
        (leads, COLORS[recipe], 1.03, "this study"),
    ):
        points = {float(tokens[:-1]) * shift: each for tokens, each in found.items() if each}
        for x, each in points.items():
            axes.plot([x] * len(each), each, "o", color=color, alpha=0.6, markersize=4)
        axes.plot([*points], [mean(each) for each in points.values()], color=color, label=label, linewidth=1.2)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set(xscale="log", xlim=(8.5, 50), xlabel="tokens (millions)", title=f"{NAMES[recipe]}")
    axes.set_xticks([10.2, 20.9, 41], ["10.2", "20.9", "41"])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)


def draw(leads):
    """Draw leads.png. leads: {recipe: {tokens: {seed: (its lead over pure MLM, resamples of it)}}}."""
    figure = plt.figure(figsize=(10, 3.3), layout="constrained")
    left, middle = figure.add_subplot(1, 3, 1), figure.add_subplot(1, 3, 2)
    others = middle, figure.add_subplot(1, 3, 3, sharey=middle)
    draw_losses(left)
    for axes, (recipe, its_leads) in zip(others, leads.items()):
        draw_leads(axes, recipe, {tokens: [lead[0] for lead in each.values()] for tokens, each in its_leads.items()})
    others[0].set_ylabel("points ahead of pure MLM")
    for axes in (left, *others):
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FOLDER / "leads.png", dpi=130)


def report(ending):
    """Print the tables of a part. Return {recipe: {seed: (its lead over pure MLM, resamples of it)}}."""
    chosen = choose(read("results.csv", ending))
    scores = resample(chosen, "results.npz")
    print_scores(ending, chosen, scores)
    print_primary(PRIMARY[ending], scores)
    print_leads(scores)
    mlm = means_of(scores, "mlm")
    return {recipe: differences(means_of(scores, recipe), mlm) for recipe in ("clm25-mlm", "mlm-80-10-10")}


def print_change(recipe, name, after, before):
    """Print how the lead of a recipe changes, paired by seed."""
    print(f"lead of {NAMES[recipe]}, {name}: {as_text(compare(differences(after[recipe], before[recipe])))}")


if __name__ == "__main__":
    short, long, wide = report("10.2M"), report("41M"), report("192")
    for recipe in short:
        print_change(recipe, "41M − 10.2M tokens", long, short)
    print_change("clm25-mlm", "width 192 − width 128", wide, short)
    draw({recipe: {"10.2M": short[recipe], "41M": long[recipe]} for recipe in short})
