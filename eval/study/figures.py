"""The figures of a report: one panel for each task and family mean."""

import itertools
import json
import math
from collections import defaultdict

import numpy as np

from eval.plot import new_figure, save_figure
from eval.study.results import label_by_difference

# Okabe and Ito's colors, which color-blind readers can tell apart; the markers differ as well.
STYLES = [*zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"), "os^DvPX")]
AXES = {  # {name of the figure: label of its x-axis}
    "clm_fraction": "share of CLM in pretraining (% of its steps)",
    "steps": "pretraining step (hollow: learning rate not yet decayed)",
    "mask_ratio": "masked tokens in pretraining (%)",
}


def place(variant, axis):
    """Return a variant's place in a figure: (x, what it shares with its line, {fact: words} for the line's label).

    None if it is no part of the figure. A line of "steps" follows one pretraining run.
    """
    facts, words = variant.facts, variant.describe()
    match axis:
        case "clm_fraction" if variant.decayed:
            x, along, words["objective"] = 100 * variant.clm_fraction, ("clm_steps", "peak_lr"), ""
        case "mask_ratio" if variant.clm_fraction < 1:
            x, along, words["mask"] = 100 * facts["mask_ratio"], ("mask_ratio",), ""
        case "steps":
            x, along, words["steps"] = facts["step"], ("step", "clm_steps"), f"budget {facts['max_steps']:,}"
            if 0 < variant.clm_fraction < 1:
                words["objective"] = f"CLM to step {facts['clm_steps']:,}"
        case _:
            return None
    same = {fact: value for fact, value in facts.items() if fact not in along}
    return x, json.dumps([same, words["objective"]]), words


def lines_of(scores, axis):
    """Return the lines of a figure that have more than one x: {label: [(x, variant), ...]}."""
    groups = defaultdict(list)
    for variant in scores.results.variants:
        if variant.facts["step"] and not variant.random_weights and (found := place(variant, axis)):
            x, line, words = found
            groups[line].append((x, variant, words))
    groups = [sorted(group, key=lambda item: item[0]) for group in groups.values() if len({x for x, *_ in group}) > 1]
    labels = label_by_difference([group[0][2] for group in groups]) if len(groups) > 1 else ["pretrained"]
    labels = [f"{label} ({i})" if labels.count(label) > 1 else label for i, label in enumerate(labels, 1)]
    return {label: [(x, variant) for x, variant, _ in group] for label, group in zip(labels, groups)}


def draw_lines(path, scores, lines, x_label, y_label):
    """Draw lines as `lines_of` returns them, and the scores of random weights as horizontal lines."""
    levels = [variant for variant in scores.results.variants if variant.random_weights]
    figure, panels = make_panels([*scores.targets], 2.3, len(lines) + len(levels))
    everywhere = [x for line in lines.values() for x, _ in line]
    low, high = min(everywhere), max(everywhere)
    log = low > 0 and high > 20 * low  # checkpoints are closer early in pretraining
    panels[0].set_xscale("log" if log else "linear")
    for title, axes in zip(scores.targets, panels):
        for i, (label, line) in enumerate(lines.items()):
            there = [(x, variant, scores[variant, title]) for x, variant in line if scores[variant, title]]
            x, mean, half = np.array([(x, s.mean, s.half or 0) for x, _, s in there]).reshape(-1, 3).T
            color, marker = STYLES[i % len(STYLES)]
            style = dict(color=color, marker=marker, ms=5, lw=1.2, ls=("-", "--", ":")[i // len(STYLES) % 3])
            shift = 0.012 * (i - (len(lines) - 1) / 2)  # of the width, so that two intervals do not hide each other
            x = x * (high / low) ** shift if log else x + (high - low) * shift
            axes.errorbar(x, mean, half, **style, elinewidth=0.9, capsize=2, label=label)
            hollow = np.array([not variant.decayed for _, variant, _ in there], bool)
            axes.plot(x[hollow], mean[hollow], **style | dict(ls="", mfc="white"), zorder=3)
        for variant, ls in zip(levels, itertools.cycle((":", "-.", "--"))):
            if score := scores[variant, title]:
                axes.axhline(score.mean, color="0.4", lw=1, ls=ls, label=variant.label)
    finish(figure, path, x_label, y_label)


def draw_losses(path, curves):
    """Draw both validation losses. curves: {label: {seed: lines of metrics.jsonl}}; all seeds but the first are pale."""
    figure, panels = make_panels(["CLM", "MLM"], 3.2, len(curves))
    for (label, by_seed), (color, marker) in zip(curves.items(), itertools.cycle(STYLES)):
        for i, lines in enumerate(by_seed.values()):
            style = dict(alpha=0.35) if i else dict(marker=marker, ms=3.5, label=label)
            for axes, loss in zip(panels, ("val_clm_loss", "val_mlm_loss")):
                x_and_y = zip(*((line["step"], line[loss]) for line in lines if loss in line))
                axes.plot(*x_and_y, color=color, lw=1.2, **style)
    finish(figure, path, "pretraining step", "validation loss (nats per predicted token)")


def draw_matrix(path, values, rows, columns, x_label, y_label):
    """Draw percentages (rows, columns) as a table in shades, each with its number."""
    figure = new_figure(2.5 + 0.5 * len(columns), 1.5 + 0.4 * len(rows))  # inches
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
