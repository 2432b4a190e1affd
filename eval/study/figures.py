"""The figures of a report: one panel for each task and family mean."""

import itertools
import json
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from eval.plot import new_figure, save_figure
from eval.study.compare import Score
from eval.study.results import fraction_label, label_by_difference

# Okabe and Ito's colors, which color-blind readers can tell apart; the markers differ as well.
STYLES = [*zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"), "os^DvPX")]
LEVEL_STYLES = [*zip(("0.4", *(color for color, _ in STYLES[:0:-1])), itertools.cycle((":", "-.", "--")))]


class Axis(NamedTuple):
    """The x-axis of a figure of scores."""

    name: str  # of the figure
    label: str
    along: str  # the facts of checkpoints that may differ along a line
    place: Callable  # Variant -> (its x, {fact: words} that the label of its line has in place of the variant's own)
    shows: Callable = lambda v: v.decayed and not v.random_weights  # Variant -> whether it may be on a line


def at_step(v):
    """The `place` of a checkpoint in its run. What began with CLM is another line than CLM alone."""
    split = {"objective": f"CLM to step {v.facts['clm_steps']:,.0f}"} if v.split else {}
    return v.facts["step"], {"steps": f"budget {v.facts['max_steps']:,}{v.after}", **split}


def flops_axis(flops):
    """Return the Axis of FLOPs of pretraining. flops: {name of a checkpoint: its FLOPs}."""

    def place(v):
        share = np.clip(round(20 * v.clm_fraction), 1, 19) / 20  # to 5 %
        words = {"objective": f"about {fraction_label(share)}"} if v.split else {}
        return flops[v.names[0]], {"steps": "", **words}

    return Axis("flops", "FLOPs of pretraining", "step max_steps clm_steps", place)


SHARE = "share of CLM in pretraining (% of its steps)"
CLM_FRACTION = Axis("clm_fraction", SHARE, "clm_steps peak_lr", lambda v: (100 * v.clm_fraction, {"objective": ""}))
STEPS = Axis("steps", "pretraining step", "step clm_steps", at_step, lambda v: not v.random_weights)
MASK_RATIO = Axis(
    "mask_ratio",
    "mask ratio (%)",
    "mask_ratio",
    lambda v: (100 * v.facts["mask_ratio"], {"mask": ""}),
    lambda v: v.decayed and not v.random_weights and v.clm_fraction < 1,  # CLM alone masks nothing
)
SIZE = Axis(
    "size",
    "parameters (millions)",
    "parameters model recipe peak_lr",
    lambda v: (v.facts["parameters"] / 1e6, {"size": ""}),
    lambda v: v.decayed,
)


def lines_of(scores, axis):
    """Return the lines of a figure that have more than one x: {label: [(x, variant), ...]}.

    The runs of a line differ in nothing but `axis.along`; of "steps", a line follows one pretraining run.
    """
    groups = defaultdict(list)
    for variant in (v for v in scores.results.variants if v.facts["step"] and axis.shows(v)):
        x, words = axis.place(variant)
        words = variant.describe() | words
        same = {name: value for name, value in variant.facts.items() if name not in axis.along.split()}
        groups[json.dumps([words["objective"], same])].append((x, variant, words))
    lines = [sorted(places, key=lambda place: place[0]) for places in groups.values()]
    lines = [line for line in lines if line[0][0] < line[-1][0]]
    labels = label_by_difference([line[0][2] for line in lines]) if len(lines) > 1 else ["pretrained"]
    labels = [f"{label} ({i})" if labels.count(label) > 1 else label for i, label in enumerate(labels, 1)]
    return {label: [(x, variant) for x, variant, _ in line] for label, line in zip(labels, lines)}


def deviation(scores, variant, title):
    """Return the standard deviation over seeds and low rates of fine-tuning as a Score; tasks count alike.

    The low rates are those up to ten times the lowest: in arXiv 2507.00994, 1e-5 to 1e-4. None without several of
    them, or where one lacks a seed that another has.
    """
    runs, results = [], scores.results
    for task in scores.targets[title]:
        rates = results.grid.get((variant, task), {})
        low = [rates.get(lr, {}) for lr in results.lrs[task] if lr < 10.5 * min(results.lrs[task])]
        if len(low) < 2 or not low[0] or any(its.keys() != low[0].keys() for its in low):
            return None
        runs += [run for its in low for run in its.values()]
    return Score({"all": scores.deviation(runs)}, 1, 1)


def panels_of(scores, axis, value=lambda scores, *key: scores[key]):
    """Return the panels of a figure along an axis as `draw_lines` takes them; {} if there is no line.

    value: (scores, variant, title of a target) -> the Score that is shown, or None. Levels: random weights of its sizes.
    """
    panels, lines, variants = {}, lines_of(scores, axis), scores.results.variants
    sizes = {v.facts["parameters"] for line in lines.values() for _, v in line if axis is not SIZE}
    flat = [v for v in variants if v.random_weights and v.facts["parameters"] in sizes]
    for title in scores.targets if lines else ():
        shown = {v: (its.mean, its.half or 0) for v in variants if (its := value(scores, v, title))}
        points = [[(x, *shown[v]) for x, v in line if v in shown] for line in lines.values()]
        if any(points):
            levels = {v.label: shown.get(v, [math.nan])[0] for v in flat}
            panels[title] = {label: [line] for label, line in zip(lines, points)}, levels
    return panels


def loss_lines(logs, key):
    """Return the lines of a panel of losses. logs: {label: [lines of metrics.jsonl, of each of its runs]}."""

    def points(log):
        return [(line["step"], line[key], 0) for line in log if key in line]

    return {label: [*map(points, its)] for label, its in logs.items()}


def draw_lines(path, panels, x_label, y_label, log=True):
    """Draw a panel for each {title: (lines, levels)}. log: whether the x-axis may be logarithmic.

    lines: {label: [[(x, y, half of the interval), ...], ...]}; those after the first with a label are pale. levels:
    {label: y} of horizontal lines. All panels have the same labels.
    """
    entries = max(len(lines) + len(levels) for lines, levels in panels.values())
    figure, grid = make_panels([*panels], 2.3 if len(panels) > 2 else 3.2, entries)
    for axes, (lines, levels) in zip(grid, panels.values()):
        for (label, its), (color, marker) in zip(lines.items(), itertools.cycle(STYLES)):
            for i, line in enumerate(its):
                x, y, half = np.array(line).reshape(-1, 3).T
                error = np.where(half > 0, half, np.nan) if half.any() else None  # no caps at an interval of nothing
                style = dict(alpha=0.35) if i else dict(marker=marker, ms=5, markevery=len(x) // 10 + 1, label=label)
                axes.errorbar(x, y, error, color=color, lw=1.2, elinewidth=0.9, capsize=2, **style)
        for (label, y), (color, ls) in zip(levels.items(), itertools.cycle(LEVEL_STYLES)):
            axes.axhline(y, color=color, lw=1, ls=ls, label=label)
        shown = [*levels.values(), *(y for its in lines.values() for _, y, _ in itertools.chain(*its))]
        if not any(y < 0 for y in shown):  # only an interval or the margin reaches below 0
            axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
    low, high = grid[0].dataLim.intervalx
    if log and 0 < 20 * low < high:  # checkpoints are closer early in pretraining
        grid[0].set_xscale("log")
    finish(figure, path, x_label, y_label)


def draw_differences(path, comparisons, x_label):
    """Draw a panel for each target of comparisons with one variant: a row for each other variant, with its interval."""
    targets, labels = ([*dict.fromkeys(its)] for its in zip(*((c.target, c.a.label) for c in comparisons)))
    figure, grid = make_panels([textwrap.fill(target, 26) for target in targets], 0.7 + 0.25 * len(labels), 0, "y")
    for axes, target in zip(grid, targets):
        axes.axvline(0, color="0.6", lw=1)
        for c in (c for c in comparisons if c.target == target and c.units > 1):
            style = dict(fmt="o", ms=5, mfc=None if c.better else "white", color=STYLES[0][0], capsize=2)
            axes.errorbar(c.estimate, labels.index(c.a.label), xerr=c.half, **style)
    grid[0].set_yticks(range(len(labels)), labels)
    grid[0].set_ylim(len(labels) - 0.5, -0.5)  # the first row at the top
    finish(figure, path, x_label, "")


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


def make_panels(titles, row_height, entries, shared="x"):
    """Return (figure, [axes of each title]): three to a row (two of four), with room above for entries of a legend.

    shared: the axis that all panels have in common, "x" or "y".
    """
    columns = 2 if len(titles) == 4 else min(3, len(titles))
    rows = math.ceil(len(titles) / columns)
    figure = new_figure(max(5.0, 2.7 * columns), row_height * rows + 0.5 + 0.2 * math.ceil(entries / 2))  # inches
    grid = figure.subplots(rows, columns, sharex=shared == "x", sharey=shared == "y", squeeze=False).flat
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
