"""The figures of a report. Which models make a line, and what its name is, is a table in the study's settings."""

import itertools
import math
from collections import defaultdict

import numpy as np

from errors import nearest
from eval.plot import new_figure, save_figure

# Okabe and Ito's colors, which color-blind readers can tell apart; the markers differ as well.
STYLES = [*zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"), "os^DvPX")]
LEVEL_STYLES = [*zip(("0.4", *(color for color, _ in STYLES[:0:-1])), itertools.cycle((":", "-.", "--")))]

# The kinds of figures, with the label of the y-axis.
KINDS = {
    "scores": "score (%)",
    "stability": "standard deviation in points\n(over seeds and over rates up to ten times the lowest)",
    "losses": "validation loss (nats per predicted token)",
}
# What can be on the x-axis, with its label. They are fields of a Row; `losses` has the last three.
AXES = {
    "clm_fraction": "fraction of the steps that are CLM",
    "mask_ratio": "mask ratio",
    "parameters": "parameters",
    "flops": "FLOPs of pretraining",
    "tokens": "tokens of pretraining",
    "step": "step of pretraining",
    "steps_added": "steps of MLM added, with a new optimizer",
}
LOSS_AXES = ["tokens", "step", "steps_added"]
LOSSES = {"CLM": "val_clm_loss", "MLM": "val_mlm_loss"}


def problems(entries, labels):
    """Yield what is wrong with the entries of the setting `figures`. labels: the models that there are."""
    for entry in entries:
        if len(entry) != 4:
            yield f"figures: give (kinds, x, models of a line, its name), not {entry}"
            continue
        kinds, axes, models, name = entry
        axes_of_all = LOSS_AXES if "losses" in kinds.split() else AXES
        for word, known in ((kinds, KINDS), (axes, axes_of_all), (models, labels)):
            for unknown in {*word.split()} - {*known}:
                yield f"figures: {name}: there is no {unknown!r}.{nearest(unknown, known)}"


def draw(folder, entries, results, logs):
    """Draw all figures into a folder. Return {file name: what it shows}.

    entries: of the setting `figures`. results: a Results. logs: {label: [the lines of metrics.jsonl, for each seed]}.
    """
    figures = defaultdict(list)
    for kinds, axes, models, name in entries:
        for figure in itertools.product(kinds.split(), axes.split()):
            figures[figure].append((models.split(), name))
    drawn = {}
    for (kind, x), lines in figures.items():
        panels = loss_panels(logs, x, lines) if kind == "losses" else score_panels(results, kind, x, lines)
        if panels:
            draw_lines(folder / f"{kind}_{x}.png", panels, AXES[x], KINDS[kind])
            drawn[f"{kind}_{x}.png"] = f"{KINDS[kind].splitlines()[0]} over {AXES[x]}"
    return drawn


def score_panels(results, kind, x, lines):
    """Return the panels of a figure for `draw_lines`. A line with one model becomes a horizontal line."""
    value, panels = {"scores": results.score, "stability": results.deviation}[kind], {}
    for target in results.targets:
        curves, levels = {}, {}
        for models, name in lines:
            points = []
            for model in models:
                score = value(model, target) if model in results.labels else None
                if score:
                    points.append((getattr(results.example[model], x), score.mean, score.half or 0))
            if len(models) > 1:
                curves[name] = [sorted(points)]
            else:
                levels[name] = points[0][1] if points else math.nan
        if any(points for (points,) in curves.values()):
            panels[target] = curves, levels
    return panels


def loss_panels(logs, x, lines):
    """Return a panel for each validation loss. A line has a curve for each model and seed."""
    key, panels = "tokens" if x == "tokens" else "step", {}
    for title, loss in LOSSES.items():
        curves = {}
        for models, name in lines:
            of_line = [log for model in models for log in logs.get(model, [])]
            curves[name] = [[(line[key], line[loss], 0) for line in log if loss in line] for log in of_line]
        if any(map(any, curves.values())):
            panels[title] = curves, {}
    return panels


# ----------------------------------------------------------------------------
# Drawing


def draw_lines(path, panels, x_label, y_label):
    """Draw a panel for each {title: (lines, levels)}.

    lines: {label: [[(x, y, half of the interval), ...], ...]}; those after the first with a label are pale. levels:
    {label: y} of horizontal lines. All panels have the same labels.
    """
    entries = max(len(lines) + len(levels) for lines, levels in panels.values())
    figure, grid = make_panels([*panels], entries)
    places = set()
    for axes, (lines, levels) in zip(grid, panels.values()):
        lowest = min([y for y in levels.values() if y == y], default=0)
        for number, (label, curves) in enumerate(lines.items()):
            for i, points in enumerate(curves):
                draw_line(axes, points, label if i == 0 else "", number)
                places |= {x for x, _, _ in points}
                lowest = min([lowest, *(y for _, y, _ in points)])
        for (label, y), (color, dashes) in zip(levels.items(), itertools.cycle(LEVEL_STYLES)):
            axes.axhline(y, color=color, lw=1, ls=dashes, label=label)
        if lowest >= 0:  # only an interval or the margin reaches below 0
            axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
    if min(places) > 1000:  # tokens, FLOPs and parameters
        set_log_scale(grid[0], sorted(places))
    finish(figure, path, x_label, y_label)


def draw_line(axes, points, label, number):
    """Draw a curve with its intervals; without a label, pale. number: of its style."""
    color, marker = STYLES[number % len(STYLES)]
    dashes = "-" if number < len(STYLES) else "--"
    style = dict(color=color, ls=dashes, lw=1.2, elinewidth=0.9, capsize=2)
    if label:
        style |= dict(marker=marker, ms=5, markevery=len(points) // 10 + 1, label=label)
    else:
        style |= dict(alpha=0.35)
    x, y, half = np.array(points).reshape(-1, 3).T
    error = np.where(half > 0, half, np.nan) if half.any() else None  # no caps at an interval of nothing
    axes.errorbar(x, y, error, **style)


def set_log_scale(axes, places):
    """Make the x-axis logarithmic, with ticks at those of the ascending places that are far enough apart."""
    axes.set_xscale("log")
    apart = max(1.3, (places[-1] / places[0]) ** 0.2)
    ticks = places[:1]
    for x in places:
        if x > apart * ticks[-1]:
            ticks.append(x)
    labels = [short(x) if x < 1e15 else f"{x:.1e}".replace("e+", "e") for x in ticks]
    axes.set_xticks(ticks, labels)
    axes.set_xticks([], minor=True)


def short(n):
    """Return a large number in short: 1.3M, 99B."""
    if not n:
        return "-"
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if n >= unit:
            return f"{n / unit:.3g}{name}"
    return f"{n:.3g}"


def make_panels(titles, entries):
    """Return (figure, [axes of each title]): three to a row (two of four), with room above for entries of a legend."""
    columns = 2 if len(titles) == 4 else min(3, len(titles))
    rows = math.ceil(len(titles) / columns)
    row_height = 2.3 if len(titles) > 2 else 3.2  # inches
    legend = 0.5 + 0.2 * math.ceil(entries / 2)
    figure = new_figure(max(5.0, 2.7 * columns), row_height * rows + legend)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False).flat
    for axes in grid[len(titles) :]:
        axes.set_visible(False)
    for axes, title in zip(grid, titles):
        axes.set_title(title, fontsize=10)
        axes.tick_params(labelsize=8, labelbottom=True)
    return figure, [*grid[: len(titles)]]


def finish(figure, path, x_label, y_label):
    """Add labels and a legend of all panels (unless it has one entry only), and write the figure."""
    figure.supxlabel(x_label, fontsize=10)
    figure.supylabel(y_label, fontsize=10)
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles[label] = handle
    if len(handles) > 1:
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=2, fontsize=8.5)
    save_figure(figure, path)
