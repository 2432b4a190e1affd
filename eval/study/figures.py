"""The figures of a report: one panel for each task and family mean."""

import itertools
import json
import math
import textwrap
from collections import defaultdict

import numpy as np

from eval.plot import new_figure, save_figure
from eval.study.results import label_by_difference

# Okabe and Ito's colors, which color-blind readers can tell apart; the markers differ as well.
STYLES = [*zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"), "os^DvPX")]
AXES = {  # {name of the figure: label of its x-axis}
    "clm_fraction": "share of CLM in pretraining (% of its steps)",
    "steps": "pretraining step",
}


def lines_of(scores, axis):
    """Return the lines of a figure that have more than one x: {label: [(x, variant), ...]}.

    A line of "clm_fraction" has runs that differ in nothing else. A line of "steps" follows one pretraining run.
    """
    groups, words = defaultdict(list), {}
    for variant in scores.results.variants:
        facts, its = variant.facts, variant.describe()
        if not facts["step"] or variant.random_weights:
            continue
        if axis == "steps":
            x, along, its["steps"] = facts["step"], {"step", "clm_steps"}, f"budget {facts['max_steps']:,}"
            if 0 < variant.clm_fraction < 1:
                its["objective"] = f"CLM to step {facts['clm_steps']:,}"
        elif variant.decayed:
            x, along, its["objective"] = 100 * variant.clm_fraction, {"clm_steps", "peak_lr"}, ""
        else:
            continue
        line = json.dumps([its["objective"], {name: value for name, value in facts.items() if name not in along}])
        groups[line].append((x, variant))
        words.setdefault(line, its)
    groups = {line: sorted(places, key=lambda place: place[0]) for line, places in groups.items()}
    groups = {line: places for line, places in groups.items() if places[0][0] < places[-1][0]}
    labels = label_by_difference([words[line] for line in groups]) if len(groups) > 1 else ["pretrained"]
    labels = [f"{label} ({i})" if labels.count(label) > 1 else label for i, label in enumerate(labels, 1)]
    return dict(zip(labels, groups.values()))


def draw_lines(path, scores, lines, x_label, y_label):
    """Draw lines as `lines_of` returns them, and the scores of random weights as horizontal lines."""
    random = [variant for variant in scores.results.variants if variant.random_weights]
    figure, panels = make_panels([*scores.targets], 2.3, len(lines) + len(random))
    everywhere = [x for line in lines.values() for x, _ in line]
    if 0 < 20 * min(everywhere) < max(everywhere):  # checkpoints are closer early in pretraining
        panels[0].set_xscale("log")
    for title, axes in zip(scores.targets, panels):
        for (label, line), (color, marker) in zip(lines.items(), itertools.cycle(STYLES)):
            there = [(x, score.mean, score.half or 0) for x, variant in line if (score := scores[variant, title])]
            style = dict(color=color, marker=marker, ms=5, lw=1.2, elinewidth=0.9, capsize=2)
            axes.errorbar(*np.array(there).reshape(-1, 3).T, **style, label=label)
        for variant, ls in zip(random, itertools.cycle((":", "-.", "--"))):
            if score := scores[variant, title]:
                axes.axhline(score.mean, color="0.4", lw=1, ls=ls, label=variant.label)
    finish(figure, path, x_label, y_label)


def draw_losses(path, curves):
    """Draw both validation losses. curves: {label: [lines of metrics.jsonl]}, one for each seed; the first is not pale."""
    figure, panels = make_panels(["CLM", "MLM"], 3.2, len(curves))
    for (label, logs), (color, marker) in zip(curves.items(), itertools.cycle(STYLES)):
        for i, lines in enumerate(logs):
            style = dict(alpha=0.35) if i else dict(marker=marker, ms=3.5, label=label)
            for axes, loss in zip(panels, ("val_clm_loss", "val_mlm_loss")):
                x_and_y = zip(*((line["step"], line[loss]) for line in lines if loss in line))
                axes.plot(*x_and_y, color=color, lw=1.2, **style)
    finish(figure, path, "pretraining step", "validation loss (nats per predicted token)")


def draw_matrix(path, values, rows, columns, x_label, y_label, title=""):
    """Draw percentages (rows, columns) as a table in shades, each with its number."""
    width = 2.5 + 0.5 * len(columns)  # inches
    title = textwrap.fill(title, int(12 * width))  # characters
    figure = new_figure(width, 1.7 + 0.4 * len(rows) + 0.15 * title.count("\n"))
    figure.suptitle(title, fontsize=9)
    axes = figure.subplots()
    axes.imshow(values, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    for (i, j), value in np.ndenumerate(values):
        axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=8, color="white" if value > 60 else "black")
    finish(figure, path, x_label, y_label)


def make_panels(titles, row_height, entries):
    """Return (figure, [axes of each title]): three to a row (two of four), with room above for entries of a legend."""
    columns = 2 if len(titles) == 4 else min(3, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = new_figure(max(5.0, 2.7 * columns), row_height * rows + 0.5 + 0.2 * math.ceil(entries / 2))  # inches
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False).flat
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(grid, titles):
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, labelbottom=True)
    return figure, [*grid[: len(titles)]]


def finish(figure, path, x_label, y_label):
    """Add labels and a legend of all panels (unless it has one entry only), and write the figure."""
    figure.supxlabel(x_label, fontsize=10)
    figure.supylabel(y_label, fontsize=10)
    handles = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels())))
    if len(handles) > 1:
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=2, frameon=False, fontsize=8.5)
    save_figure(figure, path)
