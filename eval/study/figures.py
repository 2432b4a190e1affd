"""The figures of eval/report.py: small multiples, a panel for each task and family mean."""

import itertools
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from eval.study.results import label_by_difference

# Okabe and Ito's colours, which colour-blind readers can tell apart; the markers differ as well.
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"), ("#56B4E9", "P"),
          ("#000000", "X"))  # fmt: skip
NAMES = ("share", "step", "mask", "lr")


def available():
    """Whether matplotlib is there; it then draws into files only."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    return True


def draw(study, scores, column, metric, out):
    """Writes those figures that have more than one value on their axis: their paths; [] without matplotlib.

    scores: {(number of the arm, target): Score or None}, by the metric of `column`, which the axes call `metric`.
    """
    paths = {name: Path(out, f"{name}-{column}.png") for name in NAMES}
    for path in paths.values():  # of an earlier report, on other results
        path.unlink(missing_ok=True)
    if not available():
        return []
    levels = {arm.label: {title: scores[a, title].mean for title in study.targets if scores[a, title]}
              for a, arm in enumerate(study.arms) if arm.facts["untrained"]}  # fmt: skip
    lines = {"share": arm_lines(study, scores, by_share), "mask": arm_lines(study, scores, by_mask),
             "step": arm_lines(study, scores, by_step) or arm_lines(study, scores, by_budget)}  # fmt: skip
    labels = {"share": "share of CLM in pretraining (% of its steps)", "mask": "masked tokens in pretraining (%)",
              "step": "pretraining step (hollow: learning rate not yet decayed)"}  # fmt: skip
    for name in labels:
        if lines[name]:
            draw_lines(paths[name], [*study.targets], lines[name], levels, labels[name], f"score ({metric})")
    if any(len(rates) > 1 for rates in study.grid.values()):
        draw_rates(paths["lr"], study, scores, column, f"score on test ({metric})")
    return [path for path in paths.values() if path.exists()]


# ----------------------------------------------------------------------------
# Lines: which arms belong to one. Each function gives, of an arm: its place on the axis, a key that the arms of a
# line share, and {fact: words} for the line's label; None where the arm is no part of the figure.


def by_share(arm):
    return (100 * arm.share, key(arm, "clm_steps", "peak_lr"), {**arm.words(), "objective": ""}) if arm.decayed else None


def by_mask(arm):
    if arm.share == 1:
        return None
    return 100 * arm.facts["mask_ratio"], key(arm, "mask_ratio"), {**arm.words(), "mask": ""}


def by_step(arm):
    """A line along one pretraining."""
    f, words = arm.facts, arm.words()
    objective = words["objective"] if arm.share in (0, 1) else f"CLM to step {f['clm_steps']}"
    words |= {"objective": objective, "steps": f"budget {f['max_steps']}"}
    return f["step"], key(arm, "step", "clm_steps") + objective, words


def by_budget(arm):
    """A line through the ends of budgets with the same share of CLM."""
    f = arm.facts
    same = key(arm, "step", "clm_steps", "max_steps", "peak_lr") + f"{arm.share}"
    return (f["step"], same, {**arm.words(), "steps": ""}) if arm.decayed else None


def key(arm, *without):
    return json.dumps({fact: value for fact, value in arm.facts.items() if fact not in without})


def arm_lines(study, scores, choose):
    """{label: {target: [(x, mean, half of the interval, decayed), ...]}} of the lines with more than one x."""
    groups = defaultdict(list)
    for a, arm in enumerate(study.arms):
        if arm.facts["step"] and not arm.facts["untrained"]:
            if chosen := choose(arm):
                groups[chosen[1]].append((chosen[0], a, chosen[2]))
    groups = [sorted(group, key=lambda item: item[:2]) for group in groups.values() if len({x for x, *_ in group}) > 1]
    labels = label_by_difference([group[0][2] for group in groups]) if len(groups) > 1 else ["pretrained"]
    labels = [f"{label} ({i})" if labels.count(label) > 1 else label for i, label in enumerate(labels, 1)]
    return {label: {title: [(x, scores[a, title].mean, scores[a, title].half or 0, study.arms[a].decayed)
                            for x, a, _ in group if scores[a, title]] for title in study.targets}
            for label, group in zip(labels, groups)}  # fmt: skip


# ----------------------------------------------------------------------------
# Drawing


def grid_of(titles, row_height, labels, **options):
    """A figure with a panel per title, three to a row (of four two), and room for a legend of these labels.

    Returns (figure, {title: axes}, columns of the legend).
    """
    import matplotlib.pyplot as plt

    columns = 2 if len(titles) == 4 else min(3, len(titles))
    rows = math.ceil(len(titles) / columns)
    width = max(5.0, 2.7 * columns)  # inches
    legend_columns = max(1, int(width / (0.5 + 0.075 * max(map(len, labels)))))
    height = row_height * rows + 0.5 + 0.2 * math.ceil(len(labels) / legend_columns)
    figure, grid = plt.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False, **options)
    for axes in grid.flat[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(grid.flat, titles):
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, labelbottom=True)
    return figure, dict(zip(titles, grid.flat)), legend_columns


def finish(figure, path, x_label, y_label, handles, legend_columns):
    import matplotlib.pyplot as plt

    figure.supxlabel(x_label, fontsize=10)
    figure.supylabel(y_label, fontsize=10)
    if len(handles) > 1:
        figure.legend(handles=handles, loc="outside upper center", ncols=legend_columns, frameon=False, fontsize=8.5)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_lines(path, titles, lines, levels, x_label, y_label):
    """lines: as arm_lines gives them. levels: {label: {target: score}}, horizontal lines."""
    figure, panels, legend_columns = grid_of(titles, 2.3, [*lines, *levels], sharex=True)
    everywhere = sorted({x for line in lines.values() for points in line.values() for x, *_ in points})
    first, last, axes = everywhere[0], everywhere[-1], panels[titles[0]]
    log = first > 0 and last > 20 * first  # checkpoints of one pretraining: closer at its start
    if log:
        axes.set_xscale("log")
    elif min(np.diff(everywhere)) > 0.15 * (last - first):  # room for a number at each
        axes.set_xticks(everywhere, [f"{round(x, 1):g}" for x in everywhere])
    else:
        axes.locator_params(axis="x", nbins=5)
    handles = []
    for i, (label, line) in enumerate(lines.items()):
        colour, marker = STYLES[i % len(STYLES)]
        style = dict(color=colour, marker=marker, ms=5, lw=1.2, ls=("-", "--", ":")[i // len(STYLES) % 3])
        for title, points in line.items():
            x, mean, half, decayed = np.array(points).reshape(-1, 4).T
            aside = 0.012 * (i - (len(lines) - 1) / 2)  # of the width: two intervals do not hide each other
            x = x * (last / first) ** aside if log else x + (last - first) * aside
            panels[title].errorbar(x, mean, half, **style, elinewidth=0.9, capsize=2)
            hollow = decayed == 0
            panels[title].plot(x[hollow], mean[hollow], color=colour, marker=marker, ms=5, ls="", mfc="white", zorder=3)
        handles += panels[titles[0]].plot([], [], **style, label=label)
    for i, (label, level) in enumerate(levels.items()):
        style = dict(color="0.4", lw=1, ls=(":", "-.", "--")[i % 3])
        for title in level:
            panels[title].axhline(level[title], **style)
        handles += panels[titles[0]].plot([], [], **style, label=label)
    finish(figure, path, x_label, y_label, handles, legend_columns)


def draw_losses(path, curves):
    """Both validation losses of pretraining runs, in nats per predicted token. curves: {label: {seed: lines of its log}};
    the first seed is drawn, the others lightly."""
    figure, panels, legend_columns = grid_of(["CLM", "MLM"], 3.2, [*curves], sharex=True)
    handles = []
    for (label, by_seed), (colour, marker) in zip(curves.items(), itertools.cycle(STYLES)):
        for i, lines in enumerate(by_seed.values()):
            evaluated = [line for line in lines if "val_clm_loss" in line]
            for title, axes in panels.items():
                points = [(line["step"], line[f"val_{title.lower()}_loss"]) for line in evaluated]
                axes.plot(
                    *zip(*points),
                    color=colour,
                    marker=marker if i == 0 else "",
                    ms=3.5,
                    lw=1.2,
                    alpha=1 if i == 0 else 0.35,
                )
        handles += panels["CLM"].plot([], [], color=colour, marker=marker, ms=4, lw=1.2, label=label)
    finish(figure, path, "pretraining step", "validation loss (nats per predicted token)", handles, legend_columns)


def draw_rates(path, study, scores, column, x_label):
    """A row per arm: at each learning rate the mean over seeds, as a dot, and the range of all of them."""
    import matplotlib.pyplot as plt

    rates = sorted({lr for its in study.lrs.values() for lr in its})
    labels = [*(f"lr {lr:g}" for lr in rates), "chosen on validation"]
    figure, panels, legend_columns = grid_of([*study.tasks], 0.5 + 0.26 * len(study.arms), labels, sharey=True)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(rates)))
    for (task, axes), (i, lr) in itertools.product(panels.items(), enumerate(rates)):
        tests = {a: [run.scores[column, "test"] for run in runs.values()] for a in range(len(study.arms))
                 if scores[a, task] and (runs := study.grid.get((a, task), {}).get(lr))}  # fmt: skip
        y = np.array([*tests]) + 0.6 * (i / max(1, len(rates) - 1) - 0.5)
        mean = np.array([np.mean(values) for values in tests.values()])
        chosen = np.array([scores[a, task].lr == lr for a in tests], bool)
        axes.hlines(y, [*map(min, tests.values())], [*map(max, tests.values())], color=colours[i], lw=1.2)
        axes.plot(mean, y, "o", color=colours[i], ms=3.5)
        axes.plot(mean[chosen], y[chosen], "o", color=colours[i], ms=5.5, mec="black")
    axes = next(iter(panels.values()))
    axes.set(ylim=(len(study.arms) - 0.4, -0.6), yticks=range(len(study.arms)))
    axes.set_yticklabels([arm.label for arm in study.arms])
    handles = [axes.plot([], [], "o-", color=c, ms=4, lw=1.2, label=label)[0] for c, label in zip(colours, labels)]
    handles += axes.plot([], [], "o", color="white", mec="black", ms=5.5, label=labels[-1])
    finish(figure, path, x_label, "", handles, legend_columns)
