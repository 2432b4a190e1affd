"""The figures of a report. Those of scores are a table: what is on the x-axis, and which models make a line."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from data.objective import describe
from eval.plot import new_figure, save_figure
from eval.study.plan import flops
from eval.study.results import Results
from model import ModelConfig
from run import RESUME_MAY_CHANGE

# Okabe and Ito's colors, which color-blind readers can tell apart; the markers differ as well.
STYLES = [*zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"), "os^DvPX")]
LEVEL_STYLES = [*zip(("0.4", *(color for color, _ in STYLES[:0:-1])), itertools.cycle((":", "-.", "--")))]

# Settings of train.py that the words below are about, or that differ by design. Others may keep models apart too.
IN_WORDS = (RESUME_MAY_CHANGE - {"data"}) | set(
    "seed out_dir branch_from init_from max_steps switch_step clm_windows mask_ratio predict_from lr warmup_steps "
    "decay_steps model n_layer n_head n_kv_head d_model d_ff vocab_size rope_theta norm_eps eval_windows dtype".split()
)


# ----------------------------------------------------------------------------
# What a model is, in words and numbers. facts: what result.json says about its checkpoint


def words_of(facts):
    """Return what tells models apart, in words: {part: words}. Models of a figure's line have other parts in common."""
    words = dict.fromkeys(PARTS, "") | {"size": f"{short(facts['parameters'])} parameters"}
    if facts["untrained"]:
        return words | {"objective": "random weights"}
    phases, fraction = facts["phases"], clm_fraction(facts)
    names, last = tuple(its["phase"] for its in phases), phases[-1]
    percent = min(95, max(5, 5 * round(20 * fraction)))  # to 5 %, so that budgets share a line
    usual = {("clm",): "", ("mlm",): "", ("clm", "mlm"): ", then MLM", ("mixed",): " mixed with MLM"}
    kind = usual.get(names, f": {describe(phases)}")
    ratios = [facts["mask_ratio"]] if names[-1] == "clm" else last["mask_ratio"]
    ratios = dict.fromkeys(f"{100 * ratio:.3g}" for ratio in ratios)  # two, if it falls
    return words | {
        "objective": {0.0: "pure MLM", 1.0: "pure CLM"}.get(fraction, f"{percent} % CLM") + kind,
        "mixed": kind.replace(", then MLM", ""),
        "shift": "predicted from the position before" if last["predict_from"] == "before" else "",
        "mask": f"{' to '.join(ratios)} % masked",
        "budget": f"{short(tokens(facts))} tokens",
        "after": f"after {facts['after']}" if facts["after"] else "",
        "state": "" if facts["step"] == facts["max_steps"] else "on the way",
    }


def clm_fraction(facts):
    return facts["clm_steps"] / max(1, facts["step"])


def tokens(facts):
    return facts["step"] * facts["settings"].get("global_batch_tokens", 1)


def total_flops(facts):
    per_step = facts["settings"]["global_batch_tokens"]
    phases = [
        (its["clm_steps"], its["steps"] - its["clm_steps"], sum(its["mask_ratio"]) / 2) for its in facts["phases"]
    ]
    return per_step * sum(flops(ModelConfig(**facts["model"]), *its) for its in phases)


def short(n):
    """Return a large number in short: 1.3M, 99B."""
    unit, name = next(((u, name) for u, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")) if n >= u), (1, ""))
    return f"{n / unit:.3g}{name}" if n else "-"


def final(facts):
    """Whether pretraining has come to its end, from random weights on."""
    return not facts["untrained"] and facts["step"] == facts["max_steps"] and not facts["after"]


def masks(facts):
    return final(facts) and clm_fraction(facts) < 1


PARTS = "size objective mixed shift mask budget after state other".split()  # of words_of, and other_settings


class Figure(NamedTuple):
    """A figure of scores: a panel for each target, a line for all models that differ in nothing but `along`."""

    name: str
    x_label: str
    x: Callable  # of facts
    along: str  # parts of words_of in which the models of a line may differ, or which another part says too
    shows: Callable = final  # facts -> whether the model is in the figure
    value: Callable = Results.score
    y_label: str = "score (%)"


CLM, STEPS = "fraction of the steps that are CLM (%)", "steps of MLM added, with a new optimizer"
DEVIATION = "standard deviation in points\n(over seeds and over rates up to ten times the lowest)"
CONTINUED = Figure("continued_scores", STEPS, lambda f: f["step"], "objective budget", lambda f: bool(f["after"]))
FIGURES = (
    Figure("clm_fraction", CLM, lambda f: 100 * clm_fraction(f), "objective"),
    Figure("tokens", "tokens of pretraining", tokens, "budget mixed", lambda f: not (f["untrained"] or f["after"])),
    Figure("flops", "FLOPs of pretraining", total_flops, "budget mixed", lambda f: not (f["untrained"] or f["after"])),
    Figure("size", "parameters", lambda f: f["parameters"], "size mixed", lambda f: f["untrained"] or final(f)),
    Figure("mask_ratio", "mask ratio (%)", lambda f: 100 * f["mask_ratio"], "mask mixed", masks),
    Figure("stability", CLM, lambda f: 100 * clm_fraction(f), "objective", value=Results.deviation, y_label=DEVIATION),
    CONTINUED,
)


def lines_of(results, figure):
    """Return the lines of a figure that have more than one x: {label: [(x, model), ...]}.

    The label is what the line's models have in common and not all lines have.
    """
    facts = {label: its for label, its in results.facts.items() if its["untrained"] or its["step"]}  # not of the hub
    other, groups = other_settings(facts), defaultdict(set)
    parts = [part for part in PARTS if part not in figure.along.split()]
    for label in [label for label in results.labels if label in facts and figure.shows(facts[label])]:
        words = words_of(facts[label]) | {"other": other[label]}
        if words["objective"] == "pure CLM" and "objective" not in figure.along:
            words["mask"] = ""
        key = tuple(words[part] for part in parts)
        groups[key].add((figure.x(facts[label]), label))
        if figure is CONTINUED and facts[label]["after"] in results.labels:  # the model that it continued, at 0
            groups[key].add((0, facts[label]["after"]))
    groups = {key: sorted(its) for key, its in groups.items() if len({x for x, _ in its}) > 1}
    differ = []  # the parts in which the lines differ
    for part, words in zip(parts, zip(*groups)):
        has_none = {""} if part in ("mask", "budget") else set()  # pure CLM has no mask ratio, random weights no budget
        differ.append(len({*words} - has_none) > 1)
    names = [", ".join(its for its in itertools.compress(key, differ) if its) for key in groups]
    return {name or "other models": line for name, line in zip(names, groups.values())}


def other_settings(facts):
    """Return {label: the settings in which the models differ, but for those that words_of is about}."""
    values = {
        label: {k: str(v) for k, v in its["settings"].items() if k not in IN_WORDS} for label, its in facts.items()
    }
    names = sorted({name for its in values.values() for name in its})
    names = [name for name in names if len({its.get(name) for its in values.values()}) > 1]
    return {label: " ".join(f"{k}={its[k]}" for k in names if k in its) for label, its in values.items()}


def panels_of(results, figure):
    """Return the panels of a figure for `draw_lines`, with random weights as levels; {} if there is no line."""
    panels, lines = {}, lines_of(results, figure)
    sizes = {results.facts[label]["parameters"] for line in lines.values() for _, label in line}
    random = [label for label in results.labels if results.facts[label]["untrained"] and "size" not in figure.along]
    random = [label for label in random if results.facts[label]["parameters"] in sizes]
    for target in results.targets if lines else ():
        values = {label: figure.value(results, label, target) for label in results.labels}
        shown = {label: (its.mean, its.half or 0) for label, its in values.items() if its}
        points = [[(x, *shown[label]) for x, label in line if label in shown] for line in lines.values()]
        if any(points):
            levels = {label: shown.get(label, [math.nan])[0] for label in random}
            panels[target] = {label: [line] for label, line in zip(lines, points)}, levels
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
    for axes, (lines, levels) in zip(grid, panels.values()):
        for n, ((label, its), (color, marker)) in enumerate(zip(lines.items(), itertools.cycle(STYLES))):
            ls = "-" if n < len(STYLES) else "--"
            for i, line in enumerate(its):
                x, y, half = np.array(line).reshape(-1, 3).T
                error = np.where(half > 0, half, np.nan) if half.any() else None  # no caps at an interval of nothing
                style = dict(alpha=0.35) if i else dict(marker=marker, ms=5, markevery=len(x) // 10 + 1, label=label)
                axes.errorbar(x, y, error, color=color, ls=ls, lw=1.2, elinewidth=0.9, capsize=2, **style)
        for (label, y), (color, ls) in zip(levels.items(), itertools.cycle(LEVEL_STYLES)):
            axes.axhline(y, color=color, lw=1, ls=ls, label=label)
        shown = [*levels.values(), *(y for its in lines.values() for _, y, _ in itertools.chain(*its))]
        if not any(y < 0 for y in shown):  # only an interval or the margin reaches below 0
            axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
    places = sorted({x for lines, _ in panels.values() for its in lines.values() for x, *_ in itertools.chain(*its)})
    if places[0] > 1000:  # tokens, FLOPs and parameters
        grid[0].set_xscale("log")
        ticks, apart = places[:1], max(1.3, (places[-1] / places[0]) ** 0.2)
        for x in places:
            ticks += [x] * (x > apart * ticks[-1])
        grid[0].set_xticks(ticks, [short(x) if x < 1e15 else f"{x:.1e}".replace("e+", "e") for x in ticks])
        grid[0].set_xticks([], minor=True)
    finish(figure, path, x_label, y_label)


def make_panels(titles, entries):
    """Return (figure, [axes of each title]): three to a row (two of four), with room above for entries of a legend."""
    columns = 2 if len(titles) == 4 else min(3, len(titles))
    rows, row_height = math.ceil(len(titles) / columns), 2.3 if len(titles) > 2 else 3.2
    figure = new_figure(max(5.0, 2.7 * columns), row_height * rows + 0.5 + 0.2 * math.ceil(entries / 2))  # inches
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
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels())))
    if len(handles) > 1:
        figure.legend(handles.values(), handles, loc="outside upper center", ncols=2, fontsize=8.5)
    save_figure(figure, path)
