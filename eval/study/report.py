"""Write the report on a study, or on any folder of fine-tuning results. Both are the same page.

The report consists of report.md, results.csv (a row per fine-tuning), comparisons.csv (all pairs), losses.csv (by
pretraining seed), and figures if matplotlib is installed. It needs no checkpoint: result.json and instances.npz of each
fine-tuning and metrics.jsonl of each run are enough. Missing and failed runs are shown as such and never filled in. A
damaged result stops the report.
"""

import csv
import itertools
import math
from collections import Counter, defaultdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from data.objective import describe
from errors import DataError
from eval.study import figures, stats
from eval.study.results import Results, read
from eval.study.run import grouped, has_result, job_folder
from eval.tasks.metrics import rounded
from run import last_logged, read_metrics

MAX_ROWS = 40  # pairs of models in report.md; comparisons.csv has all
ANSWER = """\
The comparisons that the settings name as primary, on {target}. Their p-values are corrected together (Holm), \
also for those that are not run yet. A difference is decided if the corrected p is below 0.05."""
SETTLED = "**{0} is better than {1}**, by {2} points."
OPEN = "**Not decided: {0} or {1}.** The difference is {2} points."
NOT_RUN = "**Not run yet: {0} or {1}.** This takes results of both on all tasks, with two seeds in common."
DESCRIPTION = """\
Differences in points with 95 % intervals, primary pairs first, if any. These are description: the intervals are not \
corrected for their number, so about one in twenty excludes 0 by chance. comparisons.csv has all pairs on all targets."""
LOSSES = """\
Nats per predicted token on the validation set, at the end: the mean over pretraining seeds ± half of the 95 % \
interval. The MLM loss is at the mask ratio, and from the position, that the model was trained with."""
HOW = """\
A score is the mean over seeds ± half of its 95 % interval (Student's t). The seeds are pretraining seeds if a model \
has several. An interval over fine-tuning seeds says nothing about another pretraining. Each pretraining seed has the \
rate of fine-tuning that is best on validation data, for each task, among the rates with the most finished runs. A \
family's score is the mean over its tasks, without those that are measured by a correlation, and the mean of families \
counts each family alike. A comparison pairs the runs of two models by seed and their answers by test instance. Its \
interval counts the chance in the seeds and in the sample of test instances ({resamples} resamples). Parameters are \
those of the encoder, without the output head. Legends round the fraction of CLM to 5 %."""


# ----------------------------------------------------------------------------
# The page


def write(plan, root, folder, resamples=2000):
    """Write report.md and all that belongs to it; return the answer and the report's path as text.

    plan: of a study, as far as its results are there; one without models means all results below `root`. resamples: of
    the test instances, for the comparisons. Raises DataError: damaged results, or none in a bare folder.
    """
    cfg, names = plan.cfg, {m.folder: (m.label, m.seed, m.run.continues) for m in plan.models if m.run}
    points = itertools.product(plan.models, plan.tasks, cfg.rates, cfg.finetune_seeds)
    only = {job_folder(*point) for point in points} if plan.models else None
    results = Results(root, *read(root, cfg.metrics, names, only), resamples, plan.labels)
    if not (plan.models or results.rows):
        raise DataError(f"{root}: no result.json below it. finetune.py makes one, python -m eval.study sweep many")
    folder.mkdir(parents=True, exist_ok=True)
    curves = {key: curve for key, run in plan.runs.items() if (curve := loss_curve(run))}
    compared, answers = answer_section(results, cfg.primary)
    blocks = [
        f"# {Path(cfg.out_dir).name}",
        *overview(results, plan, curves),
        *answers,
        *scores_section(folder, results),
        *comparisons_section(folder, results, compared),
        *losses_section(folder, curves, plan),
    ]
    if results.failed:
        lines = grouped((f"`{job}`", error) for job, error in results.failed.items())
        blocks += ["## Failed runs of fine-tuning", "\n".join(f"- {line}" for line in lines)]
    if not find_spec("matplotlib"):
        blocks.append("There are no figures, because matplotlib is not installed.")
    blocks += ["## How to read the numbers", HOW.format(resamples=results.resamples)]
    write_results(results, folder / "results.csv")
    path = folder / "report.md"
    path.write_text("\n\n".join(block for block in blocks if block) + "\n", encoding="utf-8")
    return "\n\n".join([*(answers[1:] or [score_table(results)]), str(path)])


def table(header, rows):
    """Return a Markdown table whose columns also line up in a terminal; "" without rows."""
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def drawn(folder, name, alt, panels, x_label, y_label):
    """Draw a figure; return the block that shows it, [] if matplotlib is missing."""
    if not find_spec("matplotlib"):
        return []
    figures.draw_lines(folder / f"{name}.png", panels, x_label, y_label)
    return [f"![{alt}]({name}.png)"]


def write_csv(path, header, rows):
    """Write a table with six digits; a cell that is None or not a number stays empty."""

    def text(cell):
        return ("" if math.isnan(cell) else f"{cell:.6g}") if isinstance(cell, float) else cell

    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *([*map(text, row)] for row in rows)])


def write_results(results, path):
    """Write results.csv, a row per fine-tuning and task. Those at the chosen learning rate have the model's score."""
    chosen = {id(row) for its in results.chosen.values() for row in its.values()}
    header = "folder status model pretraining_seed task family lr seed validation test score".split()
    header += ["parameters", "step", "tokens", "clm_fraction", "mask_ratio", "error"]
    rows = []
    for row in sorted(results.rows, key=lambda row: (str(row["folder"]), row["task"])):
        facts, score = row["facts"], results.score(row["model"], row["task"]) if id(row) in chosen else ""
        of_model = facts["parameters"], facts["step"], figures.tokens(facts), figures.clm_fraction(facts)
        rows.append([row["folder"], "done", *(row[k] for k in header[2:10]), score, *of_model, facts["mask_ratio"], ""])
    rows += [[job, "failed", *[""] * (len(header) - 3), error] for job, error in results.failed.items()]
    write_csv(path, header, rows)


# ----------------------------------------------------------------------------
# What was run


def overview(results, plan, curves):
    """Say what was trained, how much of it is there, and what each model is."""
    lines, values = [], defaultdict(set)
    if plan.models:
        cfg, todo = plan.cfg, [point[0].label for point in plan.points() if not has_result(plan, point)]
        grid = "all rates with every seed" if cfg.full_grid else "all rates with the first seed, then the chosen one"
        seeds, rates = ", ".join(map(str, cfg.finetune_seeds)), ", ".join(f"{rate:g}" for rate in cfg.rates)
        lines = [
            f"pretraining: {count(len(plan.runs), [row for row, seed in plan.runs if (row, seed) not in curves])}",
            f"fine-tuning: {count(len(plan.points()), todo)}; seeds {seeds}, rates {rates} ({grid})",
        ]
    n = len({row["folder"] for row in results.rows})
    lines.append(f"{n} results, {len(results.failed)} failed")
    lines += sorted({", ".join(f"{k} {v}" for k, v in row["versions"].items()) for row in results.rows})
    for row in results.rows:
        for name, value in row["settings"].items():
            values[f"the runs of {row['task']} differ in `{name}`"].add(str(value))
    lines += [f"Careful: {what}: {', '.join(sorted(its))}" for what, its in sorted(values.items()) if len(its) > 1]
    rows = []
    for label in results.labels:
        facts, seeds = results.facts[label], ", ".join(map(str, sorted(results.seeds[label])))
        what = describe(facts["phases"]) if facts["phases"] else "pretrained elsewhere"
        shown = facts["settings"].get("mask_proportions", (1, 0, 0))
        if shown[0] != 1 and facts["phases"][-1]["phase"] != "clm":
            what += f", with {'/'.join(f'{100 * part:.3g}' for part in shown)} masking"
        what += f", after {facts['after']}" * bool(facts["after"])
        what = "random weights" if facts["untrained"] else what
        tokens = 0 if facts["untrained"] else figures.tokens(facts)
        rows.append([label, what, *map(figures.short, (facts["parameters"], tokens)), seeds])
    models = table(["model", "pretraining", "parameters", "tokens", "seeds"], rows)
    return "\n".join(f"- {line}" for line in lines), models


def count(n, missing):
    """Say how many of n runs are there, and of which models some are missing. missing: the name of each one's model."""
    names = ", ".join(f"{k} of {name}" for name, k in sorted(Counter(missing).items()))
    return f"{n - len(missing)} of {n} runs are there" + f" (missing: {names})" * bool(missing)


# ----------------------------------------------------------------------------
# The answer


def answer_section(results, primary):
    """Return (the primary comparisons on all targets, blocks): a sentence and a row of a table for each of them."""
    if not primary:
        return [], []
    target = next(iter(results.targets), "mean of families")
    compared = results.compare_all(primary)
    tested = {(c.a, c.b): c for c in compared if c.target == target and c.units > 1}
    p_values = [c.p for c in tested.values()] + [1] * (len(primary) - len(tested))  # 1: not run yet
    for c, p in zip(tested.values(), stats.holm(p_values)):
        c.p_holm = float(p)
    sentences, rows = [], []
    for a, b in primary:
        if not (c := tested.get((a, b))):
            sentences.append(NOT_RUN.format(a, b))
            continue
        rows.append([a, b, str(results.score(a, target)), str(results.score(b, target)), str(c)])
        rows[-1] += [f"{p:.2g}" if p >= 0.001 else "< 0.001" for p in (c.p, c.p_holm)] + [c.over]
        if c.p_holm < 0.05:
            better = (a, b) if c.estimate > 0 else (b, a)
            text = SETTLED.format(*better, f"{abs(c.estimate):.1f} ± {c.half:.1f}")
        else:
            text = OPEN.format(a, b, c)
        once = " It rests on one pretraining seed each: another may differ." * (c.unit == "fine-tuning seed")
        sentences.append(text + once)
    header = ["A", "B", "score of A", "score of B", "A minus B", "p", "corrected p", "over"]
    text = "\n".join(f"- {sentence}" for sentence in sentences)
    intro = ANSWER.format(target="the " * ("mean" in target) + target)
    return compared, ["## The answer", intro, text, table(header, rows)]


# ----------------------------------------------------------------------------
# Scores and comparisons


def scores_section(folder, results):
    """Return figures of the scores, and their table."""
    if not results.rows:
        return []
    blocks = ["## Scores"]
    for figure in figures.FIGURES:
        if panels := figures.panels_of(results, figure):
            alt = f"{figure.y_label.splitlines()[0]} over {figure.x_label}"
            blocks += drawn(folder, figure.name, alt, panels, figure.x_label, figure.y_label)
    return [*blocks, score_table(results)]


def score_table(results):
    """Return a table of scores: a column per target, baselines in its last rows."""
    baselines = dict.fromkeys(itertools.chain(*results.baselines.values()))
    columns = {"model": [*results.labels, *(f"*{name}*" for name in baselines)]}
    for target, weights in results.targets.items():
        names = dict.fromkeys(name.rpartition("/")[2] for task in weights for name in results.metrics[task])
        cells = [str(results.score(label, target) or "-") for label in results.labels]
        for baseline in baselines:
            values = [results.baselines[task].get(baseline) for task in weights]
            cells.append("-" if None in values else f"{rounded(np.dot(values, [*weights.values()])):.1f}")
        columns[f"{target} ({', '.join(names)})" if len(names) < 3 else target] = cells
    return table([*columns], [*zip(*columns.values())])


def comparisons_section(folder, results, compared):
    """Write comparisons.csv and return a table of differences. compared: the primary comparisons, on all targets."""
    pairs, rows, shown = {(c.a, c.b) for c in compared}, [], defaultdict(dict)
    others = [pair for pair in itertools.combinations(results.labels, 2) if not pairs & {pair, pair[::-1]}]
    for c in compared + results.compare_all(others):
        interval = [c.estimate, c.estimate - c.half, c.estimate + c.half, c.p, c.p_holm]
        rows.append([(c.a, c.b) in pairs, c.target, c.a, c.b, *interval, c.units, c.unit])
        if (c.a, c.b) in pairs or len(others) <= MAX_ROWS:
            shown[c.a, c.b] |= {c.target: str(c), "over": c.over}
    header = "primary target model_a model_b difference low_95 high_95 p p_holm units unit".split()
    write_csv(folder / "comparisons.csv", header, rows)
    header = ["A", "B", *results.targets, "over"]
    lines = [[*pair, *(its.get(k, "-") for k in header[2:])] for pair, its in shown.items()]
    return ["## Comparisons", DESCRIPTION, table(header, lines)] if lines else []


# ----------------------------------------------------------------------------
# Losses


def loss_curve(run, last=None):
    """Return the log of a run from step 0, with those of the runs it branched off; [] if it ends before `last`.

    last: None is the end of the run. A parent may have been stopped where its branch begins.
    """
    before = loss_curve(run.parent, run.start - run.settings.log_interval) if run.start else []
    if last_logged(run.folder) < (run.max_steps if last is None else last) or (run.start and not before):
        return []
    return [line for line in before if line["step"] < run.start] + read_metrics(run.folder)


def losses_section(folder, curves, plan):
    """Write losses.csv and return both validation losses of each row. curves: {(row, seed): log}."""
    if not curves:
        return []
    keys, logs = ("val_clm_loss", "val_mlm_loss"), defaultdict(list)
    for (name, _), curve in curves.items():
        logs[name].append(curve)
    lines = [(key, line) for key, curve in curves.items() for line in curve if keys[0] in line]
    rows = [[*key, line["step"], line["tokens"], *map(line.get, keys)] for key, line in lines]
    write_csv(folder / "losses.csv", ["model", "pretraining_seed", "step", "tokens", *keys], rows)
    named = [name for name in dict.fromkeys(sum(plan.cfg.primary, ())) if name in logs] or [*logs]
    shown = {name: logs[name] for name in named[: len(figures.STYLES)]}
    panels = {key[4:7].upper(): ({n: loss_lines(its, key) for n, its in shown.items()}, {}) for key in keys}
    labels = "pretraining step", "validation loss (nats per predicted token)"
    figure = drawn(folder, "losses", "validation losses over pretraining", panels, *labels)
    after = defaultdict(list)  # the curves of continued pretraining
    for (name, seed), curve in sorted(curves.items(), key=lambda item: -item[1][-1]["step"]):  # the longest first
        if base := plan.runs[name, seed].continues:
            after[f"after {base}"] += loss_lines([curve], keys[1])
    if after:
        title = "continued pretraining (pale: other budgets and seeds)"
        labels = figures.STEPS, "validation MLM loss\n(nats per predicted token)"
        figure += drawn(folder, "continued_loss", title, {title: (after, {})}, *labels)
    rows = [[name, str(len(its)), *(last_losses(its, key) for key in keys)] for name, its in logs.items()]
    return ["## Losses", *figure, LOSSES, table(["model", "seeds", "CLM loss", "MLM loss"], rows)]


def loss_lines(logs, key):
    return [[(line["step"], line[key], 0) for line in log if key in line] for log in logs]


def last_losses(logs, key):
    """Return the mean of the losses that end these logs, and its interval, as text."""
    values = [log[-1][key] for log in logs if key in log[-1]]
    if not values:
        return "-"
    mean, half = stats.interval(values)
    return f"{mean:.3f}" + ("" if half is None else f" ± {half:.3f}")
