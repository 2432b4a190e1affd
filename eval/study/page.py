"""The page of a report: its tables, and the sections that the report on a study and on a folder have in common."""

import csv
import itertools
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from eval.study import figures
from eval.study.compare import compare_with_random
from eval.study.results import FAMILIES, METRICS, differences

MAX_COLUMNS = 5  # of a table of scores with all families; more targets get a table for each family
MAX_ROWS = 300  # comparisons in report.md; if there are more, it lists those that are clearly different
HOW = """\
A score is the mean over seeds ± half of its 95 % interval (Student's t). The seeds are pretraining seeds if a model has \
several and fine-tuning seeds otherwise. An interval over fine-tuning seeds says nothing about another pretraining. The \
learning rate of fine-tuning is chosen on validation data alone, for each model and task, among the rates with the most \
finished runs. A family's score is the mean over its tasks, seed by seed.

A comparison pairs the runs of two models by seed and their answers by test instance. Its 95 % interval counts two kinds \
of chance: the seeds, and the sample of test instances ({resamples} resamples). Two models are called clearly different \
if p is below 0.05 after Holm's correction for multiple comparisons. {corrected} The intervals are not corrected."""


class Page:
    """A report in the making. Its files replace those of an earlier report on other results."""

    def __init__(self, folder, metric, resamples):
        self.folder, self.metric, self.resamples = Path(folder), metric, resamples
        self.parts, self.comparisons = [], []  # blocks of Markdown, rows of comparisons.csv
        self.metric_label = "the metric of each task" if metric == "main" else f"the {metric}'s metric"
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (*figures.AXES, "continued", "losses", "learning_rates"):
            Path(folder, f"{name}.png").unlink(missing_ok=True)

    def add(self, *blocks):
        self.parts += [block for block in blocks if block]

    def draw(self, name, draw, *args):
        if figures.available():
            draw(self.folder / f"{name}.png", *args)
            self.add(f"![{name.replace('_', ' ')}]({name}.png)")

    def draw_lines(self, name, scores, lines, x_label):
        """Draw lines if they have more than one place on the x-axis."""
        if len({point[0] for line in lines.values() for points in line.values() for point in points}) > 1:
            self.draw(name, figures.draw_lines, scores, lines, x_label, f"score (%, {self.metric_label})")

    def record(self, question, variants, comparisons):
        """Keep comparisons for comparisons.csv."""
        for c in comparisons:
            better = "" if c.better is None else variants[c.better].label
            interval = [c.estimate, c.estimate - c.half, c.estimate + c.half]
            names = [variants[c.a].label, variants[c.b].label]
            self.comparisons.append([question, c.target, *names, *interval, c.p, c.p_holm, c.units, c.unit, better])

    def write(self, results, corrected):
        """Write the page and its tables; return its path. corrected: a sentence on what p-values are corrected over."""
        if not figures.available():
            self.add("There are no figures, because matplotlib is not installed.")
        self.add("## How to read the numbers", HOW.format(resamples=self.resamples, corrected=corrected))
        header = ["question", "target", "model_a", "model_b", "difference", "low_95", "high_95", "p", "p_holm"]
        write_csv(self.folder / "comparisons.csv", [*header, "units", "unit", "better"], self.comparisons)
        if results:
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
        if isinstance(cell, float):
            return "" if math.isnan(cell) else f"{cell:.6g}"
        return "" if cell is None else cell

    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *([*map(text, row)] for row in rows)])


def write_results(results, path):
    columns = [*itertools.product(METRICS, ("validation", "test"))]
    header = ["folder", "status", "model", "pretraining_seed", "task", "family", "lr", "seed"]
    header += [*map("_".join, columns), "error"]
    rows = []
    for r in results.runs:
        label = results.variants[results.variant_of[r.checkpoint]].label
        scores = [r.scores.get(column) for column in columns]
        rows.append([r.folder, "done", label, r.pretraining_seed, r.task, r.family, r.lr, r.seed, *scores, ""])
    rows += [[job, "failed", *[""] * (len(header) - 3), error] for job, error in results.failed.items()]
    write_csv(path, header, rows)


# ----------------------------------------------------------------------------
# Sections that every report has


def overview(results):
    """Describe what was read from a folder: the models, and what a reader must know about their runs."""
    header, rows = ["model", "checkpoints", "pretraining seeds", "parameters"], []
    for v in results.variants:
        rows.append([v.label, ", ".join(v.names), ", ".join(map(str, v.seeds)), f"{v.facts['parameters']:,}"])
    text = f"{len(results.runs)} results, {len(results.failed)} failed jobs."
    return "\n\n".join([text, table(header, rows), *differing_settings(results.runs)])


def differing_settings(runs):
    """List the settings of fine-tuning that differ between the runs of a task by accident."""
    lines = []
    for task in sorted({run.task for run in runs}):
        for name, values in differences([run for run in runs if run.task == task]).items():
            lines.append(f"- Careful: the runs of {task} differ in `{name}`: {', '.join(values)}")
    return lines


def score_tables(scores, baselines=False):
    """Return a table of scores, a row per variant, the baselines below; or one for each family if there are many tasks."""
    results, families = scores.results, defaultdict(list)
    metrics = {run.task: f"{run.task} ({', '.join(run.metrics[scores.metric]) or '-'})" for run in results.runs}
    for title, tasks in scores.targets.items():
        families[FAMILIES[results.tasks[tasks[0]]] if len(scores.targets) > MAX_COLUMNS else "model"].append(title)
    tables = []
    for name, titles in families.items():
        rows = [[v.label, *(str(scores[a, t] or "-") for t in titles)] for a, v in enumerate(results.variants)]
        rows += baseline_rows(scores, titles) if baselines else []
        tables.append(table([name, *(metrics.get(title, title) for title in titles)], rows))
    return "\n\n".join(tables)


def baseline_rows(scores, titles):
    """Return a row for each baseline that has a score on any of these targets."""
    known, rows = scores.results.baselines, []
    for name in dict.fromkeys(name for its in known.values() for name, _ in its):
        values = [[known[task].get((name, scores.metric)) for task in scores.targets[title]] for title in titles]
        if any(None not in its for its in values):
            rows.append([f"*{name}*", *("-" if None in its else f"{np.mean(its):.1f}" for its in values)])
    return rows


def sensitivity(scores, random, resamples):
    """Return (the tasks on which pretraining is shown to beat random weights, a table of all tasks as text).

    random: the number of the variant with random weights; only models of its size count.
    """
    rows, included = [], []
    for task in scores.tasks:
        verdict, cells = "not known: needs two fine-tuning seeds that all models have, random weights too", ["-", "-"]
        if tests := compare_with_random(scores, random, task, resamples):
            (mean, half), best = tests["mean"], max(tests, key=lambda label: tests[label][0] - tests[label][1])
            cells = [f"{mean:+.1f} ± {half:.1f}", f"{best}: {tests[best][0]:+.1f} ± {tests[best][1]:.1f}"]
            verdict = "no: random weights are better" if mean + half < -1e-6 else "not shown: no interval is above 0"
            if tests[best][0] - tests[best][1] > 1e-6:
                verdict = "yes"
                included.append(task)
        rows.append([task, str(scores[random, task] or "-"), *cells, verdict])
    header = ["task", "random weights", "pretrained, mean", "pretrained, clearest", "does pretraining matter"]
    note = (
        "How much better pretrained models are than random weights with the same fine-tuning: their mean, and the one "
        "whose interval begins highest, the mean counted among them. (One pretraining seed, paired by fine-tuning seed, "
        "95 % intervals, not corrected.) If no interval is above 0, the task cannot tell objectives apart at this scale. "
        "One interval is enough, because a task on which a single objective pays must count. About one in ten of the "
        "insensitive tasks is therefore included by chance, which adds noise to the mean and no bias."
    )
    return included, f"{note}\n\n{table(header, rows)}"


def comparison_text(page, question, scores, comparisons):
    """Return what was found in comparisons that were corrected together: a summary and a table."""
    labels = [variant.label for variant in scores.results.variants]
    clear, rows = [c for c in comparisons if c.better is not None], []
    page.record(question, scores.results.variants, comparisons)
    text = f"Corrected together: {sum(c.units > 1 for c in comparisons)} comparisons. Clearly different: {len(clear)}."
    if any(c.unit == "fine-tuning seed" for c in comparisons):
        text += " Intervals over fine-tuning seeds do not include the noise of pretraining."
    if len(comparisons) > MAX_ROWS:
        text += " Only clear differences are listed; all comparisons are in comparisons.csv."
    for c in comparisons if len(comparisons) <= MAX_ROWS else clear:
        p_values = [f"{p:.2g}" if p >= 0.001 else "< 0.001" for p in (c.p, c.p_holm)]
        cells = [str(c), *p_values] if c.units > 1 else ["-", "-", "-"]
        rows.append([c.target, labels[c.a], labels[c.b], *cells, c.over, "" if c.better is None else labels[c.better]])
    header = ["task", "A", "B", "A minus B", "p", "corrected p", "over", "clearly better"]
    return f"{text}\n\n{table(header, rows)}" if rows else text


def stability_section(page, scores, whole_grid=True):
    """Add what changes with the seed and the learning rate of fine-tuning, and which jobs failed.

    whole_grid: whether every learning rate was to be tried with every seed.
    """
    results, rows = scores.results, []
    for task, (a, variant) in itertools.product(scores.tasks, enumerate(results.variants)):
        rates = results.grid.get((a, task), {})
        expected = len(results.lrs[task]) * len(results.seeds[task]) * len(variant.seeds)
        count = f"{sum(map(len, rates.values()))}" + f" of {expected}" * whole_grid
        cells = spread(scores, rates, scores[a, task]) if scores[a, task] else ["-"] * 4
        rows.append([task, variant.label, *cells, count])
    note = (
        "In points: the standard deviation over fine-tuning seeds at the chosen learning rate, and how far apart the means "
        "at the tried learning rates are, over the seeds at which all were tried. Then how many runs score no better than "
        "the majority class, and how many finished."
    )
    header = ["task", "model", "best lr", "sd over seeds", "range over lr", "at majority", "runs"]
    page.add("## Stability of fine-tuning", note)
    if any(len(rates) > 1 for rates in results.grid.values()):
        page.draw("learning_rates", figures.draw_learning_rates, scores, f"test score (%, {page.metric_label})")
    errors = [f"- `{job}`: {error}" for job, error in results.failed.items()]
    more = [f"- {len(errors) - 50} more, in results.csv"] if len(errors) > 50 else []
    page.add(table(header, rows), "## Failed jobs" if errors else "", "\n".join(errors[:50] + more))


def spread(scores, rates, chosen):
    """Return cells: the chosen rate, the deviation over seeds, the range over rates, the runs at the majority's score."""
    key, by_pretraining = (scores.metric, "test"), defaultdict(list)
    for (pretraining_seed, _), run in chosen.runs.items():
        by_pretraining[pretraining_seed].append(run.scores[key])
    variances = [np.var(values, ddof=1) for values in by_pretraining.values() if len(values) > 1]
    deviation = f"{np.sqrt(np.mean(variances)):.2f}" if variances else "-"
    tried_at_all = set.intersection(*map(set, rates.values()))
    means = [np.mean([runs[seeds].scores[key] for seeds in tried_at_all]) for runs in rates.values() if tried_at_all]
    majority = scores.results.baselines[run.task].get(("majority", scores.metric))
    tests = [run.scores[key] for runs in rates.values() for run in runs.values()]
    trivial = "-" if majority is None else str(sum(test < majority + 1e-6 for test in tests))
    return [f"{chosen.lr:g}", deviation, f"{np.ptp(means):.1f}" if len(means) > 1 else "-", trivial]
