"""The figures of a report: one panel for each task and family mean."""

import itertools
import json
import math
from collections import defaultdict

import numpy as np

from eval.study.results import label_by_difference

# Okabe and Ito's colors, which color-blind readers can tell apart; the markers differ as well.
STYLES = [*zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"), "os^DvPX")]


def available():
    """Whether matplotlib is installed; if so, make it draw into files only."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    return True


# ----------------------------------------------------------------------------
# Lines: which variants share one. Each function below returns, of a pretrained variant: its x, a key that the variants
# of a line share, and {fact: words} for the line's label. It returns None if the variant is no part of the figure.


def by_clm_fraction(variant):
    if not variant.decayed:
        return None
    return 100 * variant.clm_fraction, key(variant, "clm_steps", "peak_lr"), variant.describe() | {"objective": ""}


def by_mask_ratio(variant):
    if variant.clm_fraction == 1:
        return None
    return 100 * variant.facts["mask_ratio"], key(variant, "mask_ratio"), variant.describe() | {"mask": ""}


def by_step(variant):
    """A line follows one pretraining run."""
    f, words = variant.facts, variant.describe()
    objective = words["objective"] if variant.clm_fraction in (0, 1) else f"CLM to step {f['clm_steps']:,}"
    words |= {"objective": objective, "steps": f"budget {f['max_steps']:,}"}
    return f["step"], key(variant, "step", "clm_steps") + objective, words


def by_budget(variant):
    """A line connects the ends of budgets with the same fraction of CLM."""
    if not variant.decayed:
        return None
    same = key(variant, "step", "clm_steps", "max_steps", "peak_lr") + f"{variant.clm_fraction}"
    return variant.facts["step"], same, variant.describe() | {"steps": ""}


STEPS = "pretraining step (hollow: learning rate not yet decayed)"
AXES = {  # {name of the figure: (how to choose the lines, label of the x-axis)}
    "clm_fraction": (by_clm_fraction, "share of CLM in pretraining (% of its steps)"),
    "steps": (by_step, STEPS),
    "budgets": (by_budget, STEPS),
    "mask_ratio": (by_mask_ratio, "masked tokens in pretraining (%)"),
}


def key(variant, *without):
    return json.dumps({fact: value for fact, value in variant.facts.items() if fact not in without})


def lines_of(scores, choose):
    """Return {label: {target: [(x, mean, half of the interval, decayed), ...]}} of the lines with more than one x."""
    groups, variants = defaultdict(list), scores.results.variants
    for a, variant in enumerate(variants):
        if variant.facts["step"] and not variant.random_weights and (chosen := choose(variant)):
            x, line, words = chosen
            groups[line].append((x, a, words))
    groups = [sorted(group, key=lambda item: item[:2]) for group in groups.values() if len({x for x, *_ in group}) > 1]
    labels = label_by_difference([group[0][2] for group in groups]) if len(groups) > 1 else ["pretrained"]
    labels = [f"{label} ({i})" if labels.count(label) > 1 else label for i, label in enumerate(labels, 1)]
    return {label: points(scores, [(x, a) for x, a, _ in group]) for label, group in zip(labels, groups)}


def points(scores, variants):
    """Return one line through [(x, variant number), ...]: {target: [(x, mean, half of the interval, decayed), ...]}."""
    decayed = [variant.decayed for variant in scores.results.variants]
    return {
        title: [(x, s.mean, s.half or 0, decayed[a]) for x, a in variants if (s := scores[a, title])]
        for title in scores.targets
    }


# ----------------------------------------------------------------------------
# Drawing


def make_panels(titles, row_height, labels, **options):
    """Return (figure, {title: axes}): three panels to a row (two of four), with room above for a legend of `labels`."""
    import matplotlib.pyplot as plt

    columns = 2 if len(titles) == 4 else min(3, len(titles))
    rows, width = math.ceil(len(titles) / columns), max(5.0, 2.7 * columns)  # inches
    height = row_height * rows + 0.5 + 0.2 * math.ceil(len(labels) / legend_columns(width, labels))
    figure, grid = plt.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False, **options)
    for axes in grid.flat[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(grid.flat, titles):
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, labelbottom=True)
    return figure, dict(zip(titles, grid.flat))


def legend_columns(width, labels):
    return max(1, int(width / (0.5 + 0.075 * max(map(len, labels)))))


def save(figure, path, x_label, y_label, handles):
    """Add labels and a legend (unless it has one entry only), and write the figure."""
    import matplotlib.pyplot as plt

    figure.supxlabel(x_label, fontsize=10)
    figure.supylabel(y_label, fontsize=10)
    if len(handles) > 1:
        ncols = legend_columns(figure.get_figwidth(), [handle.get_label() for handle in handles])
        figure.legend(handles=handles, loc="outside upper center", ncols=ncols, frameon=False, fontsize=8.5)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_lines(path, scores, lines, x_label, y_label):
    """Draw lines as `lines_of` returns them, and the scores of random weights as horizontal lines."""
    variants = [(a, variant.label) for a, variant in enumerate(scores.results.variants) if variant.random_weights]
    levels = {label: {t: scores[a, t].mean for t in scores.targets if scores[a, t]} for a, label in variants}
    figure, panels = make_panels([*scores.targets], 2.3, [*lines, *levels], sharex=True)
    everywhere = sorted({point[0] for line in lines.values() for points in line.values() for point in points})
    log = set_x_axis(panels.values(), everywhere)
    first, last, axes, handles = everywhere[0], everywhere[-1], next(iter(panels.values())), []
    for i, (label, line) in enumerate(lines.items()):
        color, marker = STYLES[i % len(STYLES)]
        style = dict(color=color, marker=marker, ms=5, lw=1.2, ls=("-", "--", ":")[i // len(STYLES) % 3])
        for title, its_points in line.items():
            x, mean, half, decayed = np.array(its_points).reshape(-1, 4).T
            shift = 0.012 * (i - (len(lines) - 1) / 2)  # of the width, so that two intervals do not hide each other
            x = x * (last / first) ** shift if log else x + (last - first) * shift
            panels[title].errorbar(x, mean, half, **style, elinewidth=0.9, capsize=2)
            hollow = decayed == 0
            panels[title].plot(x[hollow], mean[hollow], color=color, marker=marker, ms=5, ls="", mfc="white", zorder=3)
        handles += axes.plot([], [], **style, label=label)
    for (label, level), ls in zip(levels.items(), itertools.cycle((":", "-.", "--"))):
        for title in level:
            panels[title].axhline(level[title], color="0.4", lw=1, ls=ls)
        handles += axes.plot([], [], color="0.4", lw=1, ls=ls, label=label)
    save(figure, path, x_label, y_label, handles)


def set_x_axis(panels, everywhere):
    """Scale the shared x-axis and place its ticks for values at `everywhere`; return whether it is logarithmic."""
    first, last, axes = everywhere[0], everywhere[-1], next(iter(panels))
    log = first > 0 and last > 20 * first  # checkpoints of one pretraining: closer at its start
    if log:
        axes.set_xscale("log")
    elif min(np.diff(everywhere)) > 0.15 * (last - first):  # room for a number at each
        axes.set_xticks(everywhere, [f"{round(x, 1):g}" for x in everywhere])
    else:
        axes.locator_params(axis="x", nbins=5)
    return log


def draw_losses(path, curves):
    """Draw both validation losses. curves: {label: {seed: lines of metrics.jsonl}}; all seeds but the first are pale."""
    figure, panels = make_panels(["CLM", "MLM"], 3.2, [*curves], sharex=True)
    handles = []
    for (label, by_seed), (color, marker) in zip(curves.items(), itertools.cycle(STYLES)):
        for i, lines in enumerate(by_seed.values()):
            style = dict(marker="", alpha=0.35) if i else dict(marker=marker, ms=3.5)
            for title, axes in panels.items():
                loss = f"val_{title.lower()}_loss"
                x_and_y = zip(*((line["step"], line[loss]) for line in lines if loss in line))
                axes.plot(*x_and_y, color=color, lw=1.2, **style)
        handles += panels["CLM"].plot([], [], color=color, marker=marker, ms=4, lw=1.2, label=label)
    save(figure, path, "pretraining step", "validation loss (nats per predicted token)", handles)


def draw_learning_rates(path, scores, x_label):
    """Draw a row per variant: at each learning rate the mean test score over runs, as a dot, and the range of all."""
    import matplotlib.pyplot as plt

    results, count = scores.results, len(scores.results.variants)
    rates = sorted({lr for its in results.lrs.values() for lr in its})
    labels = [*(f"lr {lr:g}" for lr in rates), "chosen on validation data"]
    figure, panels = make_panels(scores.tasks, 0.5 + 0.26 * count, labels, sharey=True)
    colors, handles = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(rates))), []
    for (task, axes), (i, lr) in itertools.product(panels.items(), enumerate(rates)):
        chosen = {a: scores[a, task].lr for a in range(count) if scores[a, task]}
        runs = {a: results.grid[a, task][lr].values() for a in chosen if lr in results.grid[a, task]}
        tests = [[run.scores[scores.metric, "test"] for run in its] for its in runs.values()]
        y = np.array([*runs]) + 0.45 * (i / max(1, len(rates) - 1) - 0.5)
        mean, best = np.array([*map(np.mean, tests)]), np.array([chosen[a] == lr for a in runs], bool)
        axes.hlines(y, [*map(min, tests)], [*map(max, tests)], color=colors[i], lw=1.2)
        axes.plot(mean, y, "o", color=colors[i], ms=3.5)
        axes.plot(mean[best], y[best], "o", color=colors[i], ms=5.5, mec="black")
    axes = next(iter(panels.values()))
    axes.set(ylim=(count - 0.4, -0.6), yticks=range(count), yticklabels=[v.label for v in results.variants])
    for color, label in zip(colors, labels):
        handles += axes.plot([], [], "o-", color=color, ms=4, lw=1.2, label=label)
    handles += axes.plot([], [], "o", color="white", mec="black", ms=5.5, label=labels[-1])
    save(figure, path, x_label, "", handles)
