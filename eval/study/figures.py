"""The figures of a report. The study's setting `figures` says which models make a line and what it is called."""

import itertools
import math
from collections import defaultdict

from eval.plot import new_figure

# Okabe and Ito's colors, which color-blind readers can tell apart. Markers differ too, then dashes.
COLORS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"
STYLES = [(color, marker, dashes) for dashes in ("-", "--") for color, marker in zip(COLORS, "os^DvPX")]

# {kind of figure: label of the y-axis}
KINDS = {
    "scores": "score (%)",
    "stability": "standard deviation in points\n(over seeds and over rates up to ten times the lowest)",
    "losses": "validation loss (nats per predicted token)",
}
# {what can be on the x-axis, a field of a row of results: its label}. `losses` allows only LOSS_AXES.
AXES = {
    "clm_fraction": "fraction of the steps that are CLM",
    "mask_ratio": "mask ratio",
    "parameters": "parameters",
    "flops": "FLOPs of pretraining",
    "tokens": "tokens of pretraining",
    "step": "step of pretraining",
    "steps_added": "steps of MLM added, with a new optimizer",
}
LOSS_AXES = ["step", "steps_added"]
LOSSES = {"CLM": "val_clm_loss", "MLM": "val_mlm_loss"}


def draw(folder, entries, results, logs):
    """Draw all figures into a folder. Return {file name: title}.

    entries: the setting `figures`. results: a Results. logs: {(label, seed): lines of metrics.jsonl}.
    """
    figures = defaultdict(lambda: defaultdict(dict))  # {(kind, x): {title of a panel: {name of a line: its curves}}}
    for kinds, axes, models, name in entries:
        for kind, x in itertools.product(kinds.split(), axes.split()):
            if kind == "losses":
                panels = loss_curves(models.split(), logs)
            else:
                panels = score_curves(kind, x, models.split(), results)
            for title, curves in panels.items():
                if any(curves):
                    figures[kind, x][title][name] = curves
    drawn = {}
    for (kind, x), panels in figures.items():
        file = f"{kind}_{x}.png"
        draw_lines(folder / file, panels, AXES[x], KINDS[kind])
        drawn[file] = f"{kind} over {AXES[x]}"
    return drawn


def score_curves(kind, x, models, results):
    """Return {target: [curve]} for one line. A curve is a list of (x, y, half of the interval).

    With one model, x is NaN, and the line is horizontal.
    """
    value = results.score if kind == "scores" else results.deviation
    curves = {}
    for target in results.targets:
        points = []
        for model in models:
            if score := value(model, target):
                place = getattr(results.example[model], x) if len(models) > 1 else math.nan
                points.append((place, score.mean, score.half or 0))
        curves[target] = [sorted(points)]
    return curves


def loss_curves(models, logs):
    """Return {name of the loss: curves} for one line, with a curve for each model and seed."""
    curves = defaultdict(list)
    for (label, _), log in logs.items():
        if label in models:
            for title, key in LOSSES.items():
                curves[title].append([(line["step"], line[key], 0) for line in log if key in line])
    return curves


def draw_lines(path, panels, x_label, y_label):
    """Draw the panels {title: {name of a line: curves}}, three in a row; see `score_curves`."""
    names = [*dict.fromkeys(name for lines in panels.values() for name in lines)]
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(max(5.0, 2.7 * columns), 2.7 * rows + 0.5 + 0.1 * len(names))  # room for the legend
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    for axes in grid[len(panels) :]:
        axes.remove()
    ticks, places, handles = (), [], {}
    for axes, (title, lines) in zip(grid, panels.items()):
        axes.set_title(title)
        axes.tick_params(labelsize=8, labelbottom=True)
        for name, curves in lines.items():
            color, marker, dashes = STYLES[names.index(name) % len(STYLES)]
            style = dict(color=color, lw=1.2, label=name)
            for points in filter(None, curves):
                x, y, half = zip(*points)
                if math.isnan(x[0]):
                    handles[name] = axes.axhline(*y, ls=":", **style)
                    continue
                ticks = ticks or x  # the first curve's
                places += x
                marks = dict(marker=marker, ms=5, elinewidth=0.9, capsize=2) if len(x) < 20 else {}
                handles[name] = axes.errorbar(x, y, half if any(half) else None, ls=dashes, **style, **marks)
    if min(places, default=0) > 1000:  # tokens, FLOPs and parameters, unless one is 0
        axes.set_xscale("log")
        axes.set_xticks(ticks, map(short, ticks))
        axes.set_xticks([], minor=True)
    figure.supxlabel(x_label)
    figure.supylabel(y_label, fontsize=10)
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=2, fontsize=8.5)
    figure.savefig(path, dpi=150)


def short(n):
    """Abbreviate a number: 1.3M, 99B, 4.5e+18."""
    for power, name in enumerate(("", *"KMBT")):
        if n < 999.5 * 1000**power:
            return f"{n / 1000**power:.3g}{name}"
    return f"{n:.3g}"
