"""The page of a report: its tables, and the sections that the report on a study and on a folder have in common."""

import csv
import itertools
import math
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from eval.study import figures
from eval.study.compare import Scores, compare, correct
from eval.study.jobs import counted
from eval.study.results import GLUE_AVERAGE, METRICS
from eval.tasks.metrics import rounded
from eval.tasks.registry import GLUE

MAX_ROWS = 300  # comparisons in report.md; if there are more, it lists those that are clearly different
SENSITIVITY = """\
Each pretrained model minus random weights with the same fine-tuning (one pretraining seed, paired by fine-tuning seed, \
95 % intervals, not corrected). A task is included if one of its intervals is above 0, because a task on which a single \
objective pays must count. By chance each model includes about 2.5 % of the insensitive tasks (one side of a 95 % interval), \
which adds noise to the mean and no bias."""
STABILITY = """\
At the chosen learning rate: the standard deviation over fine-tuning seeds in points, and the finished runs."""
STABILITY_FIGURE = (
    "The figure also counts the learning rate: it is over seeds and all rates up to ten times the lowest."
)
DEVIATION = "standard deviation in points\n(over seeds and over rates up to ten times the lowest)"
GLUE_MEDIANS = """\
The GLUE average is the mean of the eight tasks by the field's metrics, correlations included. Here is GLUE as most papers \
report it: each task's median over the seeds, and the average of these medians."""
HOW = """\
A score is the mean over seeds ± half of its 95 % interval (Student's t). The seeds are pretraining seeds if a model has \
several. An interval over fine-tuning seeds says nothing about another pretraining. The learning rate of fine-tuning is \
chosen on validation data alone, for each model, task and metric, among the rates with the most finished runs. A task \
with several metrics has their mean as its score. A family's score is the mean over its tasks, seed by seed, without \
those that are measured by a correlation. If a task has two columns, the first is by the field's metric, the second by \
that of arXiv 2507.00994. Everything but the scores is by the {metric}'s metrics.

A comparison pairs the runs of two models by seed and their answers by test instance. Its 95 % interval counts the \
chance in the seeds and in the sample of test instances ({resamples} resamples). Two models are clearly different if p is \
below 0.05 after Holm's correction for all comparisons of a table. The intervals are not corrected."""


class Page:
    """A report in the making."""

    def __init__(self, folder, metric, resamples):
        self.folder, self.metric, self.resamples = Path(folder), metric, resamples
        self.parts, self.comparisons = [], []  # blocks of Markdown, rows of comparisons.csv
        self.folder.mkdir(parents=True, exist_ok=True)

    def add(self, *blocks):
        self.parts += [block for block in blocks if block]

    def draw(self, name, draw, *args, note=""):
        """Add a figure and a note on it, unless matplotlib is missing."""
        if find_spec("matplotlib"):
            draw(self.folder / f"{name}.png", *args)
            self.add(note, f"![{name.replace('_', ' ')}]({name}.png)")

    def draw_lines(self, axis, scores):
        """Add a figure of the scores along a figures.Axis, if it has more than one place."""
        if panels := figures.panels_of(scores, axis):
            self.draw(axis.name, figures.draw_lines, panels, axis.label, f"score (%, the {self.metric}'s metrics)")

    def correct(self, question, comparisons):
        """Correct the p-values of comparisons together, and keep the comparisons for comparisons.csv."""
        correct(comparisons)
        for c in comparisons:
            row = [question, c.target, c.a.label, c.b.label, c.estimate, c.estimate - c.half, c.estimate + c.half]
            self.comparisons.append([*row, c.p, c.p_holm, c.units, c.unit, c.better])

    def write(self, results):
        """Write the page and its tables; return its path."""
        if not find_spec("matplotlib"):
            self.add("There are no figures, because matplotlib is not installed.")
        self.add("## How to read the numbers", HOW.format(metric=self.metric, resamples=self.resamples))
        header = ["question", "target", "model_a", "model_b", "difference", "low_95", "high_95", "p", "p_holm"]
        write_csv(self.folder / "comparisons.csv", [*header, "units", "unit", "better"], self.comparisons)
        write_results(results, self.folder / "results.csv")
        path = self.folder / "report.md"
        path.write_text("\n\n".join(self.parts) + "\n", encoding="utf-8")
        return path


def table(header, rows):
    """Return a Markdown table whose columns also line up in a terminal."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def write_csv(path, header, rows):
    """Write a table with six digits; a cell that is None or not a number stays empty."""

    def text(cell):
        return ("" if math.isnan(cell) else f"{cell:.6g}") if isinstance(cell, float) else cell

    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *([*map(text, row)] for row in rows)])


def write_results(results, path):
    """Write results.csv, a row per fine-tuning and task. Those at the chosen learning rate have the model's score."""
    columns, by_metric = [*itertools.product(METRICS, ("validation", "test"))], [Scores(results, m) for m in METRICS]
    header = ["folder", "status", "model", "pretraining_seed", "task", "family", "lr", "seed"]
    header += [*map("_".join, columns), *(f"{metric}_score" for metric in METRICS), "error"]
    rows = []
    for variant in results.variants:
        for r in variant.runs:
            facts = [r.folder, "done", variant.label, r.pretraining_seed, r.task, r.family, r.lr, r.seed]
            scores = [scores[variant, r.task] for scores in by_metric]
            scores = [str(score) if r in score.runs.values() else "" for score in scores]
            rows.append([*facts, *map(r.scores.get, columns), *scores, ""])
    rows.sort(key=lambda row: row[0])
    rows += [[job, "failed", *[""] * (len(header) - 3), error] for job, error in results.failed.items()]
    write_csv(path, header, rows)


# ----------------------------------------------------------------------------
# Sections that every report has


def overview(results):
    """Describe what was read from a folder: the models, and what a reader must know about their runs."""
    header, rows = ["model", "checkpoints", "pretraining seeds", "parameters"], []
    for v in results.variants:
        seeds = "-" if v.elsewhere else ", ".join(map(str, v.seeds))
        rows.append([v.label, ", ".join(v.names), seeds, f"{v.facts['parameters']:,}"])
    n = len({run.folder for run in results.runs})
    text = f"{counted(n, 'result')}, {counted(len(results.failed), 'failed job')}."
    return "\n\n".join([text, table(header, rows), *differing_settings(results.runs)])


def differing_settings(runs):
    """List the settings of fine-tuning that differ between the runs of a task by accident."""
    values = defaultdict(set)
    for run in runs:
        for name, value in run.settings.items():
            values[f"the runs of {run.task} differ in `{name}`"].add(str(value))
    return [f"- Careful: {what}: {', '.join(sorted(its))}" for what, its in sorted(values.items()) if len(its) > 1]


def score_table(results):
    """Return a table of scores, a column per target and metric, baselines in its last rows; and GLUE's medians."""
    by_metric = [Scores(results, metric) for metric in METRICS]
    baselines = dict.fromkeys(name for its in results.baselines.values() for name, _ in its)
    columns = {"model": [*(v.label for v in results.variants), *(f"*{name}*" for name in baselines)]}
    for title, scores in itertools.product(results.targets, by_metric):
        if title in scores.targets:
            columns |= score_column(scores, title, baselines)
    texts = [table([*columns], [*zip(*columns.values())])]
    if GLUE_AVERAGE in results.targets:
        texts += [GLUE_MEDIANS, glue_table(by_metric[0])]
    for task, other in results.repeated.items():
        texts.append(f"Careful: {task} has the same test set as {other}, so it is left out of means and comparisons.")
    return "\n\n".join(texts)


def score_column(scores, title, baselines):
    """Return {header: cells of all variants and baselines}. The header names the metrics, if they are one or two."""
    results, tasks, names = scores.results, scores.targets[title], {}
    for task in tasks:
        prefix = task.partition("/")[2] + "/"
        names |= {name.removeprefix(prefix): None for name in results.metrics[task][scores.metric]}
    cells = [str(scores[variant, title] or "-") for variant in results.variants]
    for baseline in baselines:
        values = [results.baselines[task].get((baseline, scores.metric)) for task in tasks]
        cells.append("-" if None in values else f"{rounded(np.mean(values)):.1f}")
    return {f"{title} ({', '.join(names) if len(names) < 3 else f'{scores.metric} metrics'})": cells}


def glue_table(scores):
    """Return a table of medians: a row per variant with all tasks of GLUE, a column per task, and their average."""
    rows = []
    for variant in scores.results.variants:
        if all(its := [scores[variant, task] for task in GLUE]):
            medians = [np.median([run.scores["field", "test"] for run in score.runs.values()]) for score in its]
            rows.append([variant.label, *(f"{rounded(median):.1f}" for median in [*medians, np.mean(medians)])])
    return table(["model", *GLUE, "average"], rows)


def difference_table(comparisons):
    """Return a table of comparisons with one variant: a row for each other variant, a column per target."""
    targets, rows = [*dict.fromkeys(c.target for c in comparisons)], defaultdict(dict)
    for c in comparisons:
        rows[c.a][c.target] = f"**{c}**" if c.better else str(c)
        rows[c.a].setdefault("over", c.over)
    header = [*targets, "over"]
    return table(["model", *header], [[v.label, *(its.get(k, "-") for k in header)] for v, its in rows.items()])


def sensitivity(scores, random):
    """Return (the tasks on which a model is shown to beat random weights of its size, a table of all differences)."""
    size = random.facts["parameters"]
    models = [v for v in scores.results.variants if not v.random_weights and v.facts["parameters"] == size]
    comparisons = compare(scores, [(variant, random) for variant in models])
    above = {c.target for c in comparisons if c.estimate - c.half > 1e-6}
    included = [task for task in scores.tasks if task in above]
    return included, difference_table(comparisons)


def comparison_text(page, question, comparisons):
    """Correct comparisons together; return what was found: a summary and a table."""
    page.correct(question, comparisons)
    clear, rows = [c for c in comparisons if c.better], []
    n = sum(c.units > 1 for c in comparisons)
    text = f"Corrected together: {counted(n, 'comparison')}. Clearly different: {len(clear)}."
    if any(c.unit == "fine-tuning seed" for c in comparisons):
        text += " Intervals over fine-tuning seeds do not include the noise of pretraining."
    if len(comparisons) > MAX_ROWS:
        text += " Only clear differences are listed; all comparisons are in comparisons.csv."
        comparisons = clear
    for c in comparisons:
        p = "-" if math.isnan(c.p_holm) else f"{c.p_holm:.2g}" if c.p_holm >= 0.001 else "< 0.001"
        rows.append([c.target, c.a.label, c.b.label, str(c), p, c.over, c.better])
    header = ["task", "A", "B", "A minus B", "corrected p", "over", "clearly better"]
    return f"{text}\n\n{table(header, rows)}"


def stability_section(page, scores, shown=None):
    """Add how much scores change with the seed of fine-tuning. shown: the Scores of those that are in the figure."""
    rows = []
    for task, variant in itertools.product(scores.tasks, scores.results.variants):
        if score := scores[variant, task]:
            deviation = scores.deviation(score.runs.values())
            deviation = "-" if deviation is None else f"{deviation:.2f}"
            rows.append([task, variant.label, f"{score.lr:g}", deviation, f"{score.done} of {score.expected}"])
    if rows:
        header = ["task", "model", "lr", "sd over seeds", "runs"]
        page.add("## Stability of fine-tuning", STABILITY, table(header, rows))
    axis = figures.CLM_FRACTION
    if panels := shown and figures.panels_of(shown, axis, figures.deviation):
        page.draw("stability", figures.draw_lines, panels, axis.label, DEVIATION, note=STABILITY_FIGURE)
