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
RATES = "The learning rates of fine-tuning that validation chose, of all pretraining seeds:"
LOSS_KEYS = "val_clm_loss", "val_mlm_loss"
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
those of the encoder, without the output head."""


# ----------------------------------------------------------------------------
# The page


def write(plan, root, folder, resamples=2000):
    """Write report.md and all that belongs to it; return the answer and the report's path as text.

    plan: of a study, as far as its results are there; one without models means all results below `root`. resamples: of
    the test instances, for the comparisons. Raises DataError: damaged results, or none in a bare folder.
    """
    cfg = plan.cfg
    results = read_results(plan, root, resamples)
    if not (plan.models or results.rows):
        raise DataError(f"{root}: no result.json below it. finetune.py makes one, python -m eval.study sweep many")
    folder.mkdir(parents=True, exist_ok=True)
    curves = {}
    for key, run in plan.runs.items():
        if curve := loss_curve(run):
            curves[key] = curve
    compared, answers = answer_section(results, cfg.primary)
    blocks = [
        f"# {Path(cfg.out_dir).name}",
        *overview(results, plan, curves),
        *answers,
        *scores_section(results),
        *comparisons_section(folder, results, compared),
        *losses_section(folder, curves),
        *figures_section(folder, results, curves, cfg.figures),
    ]
    if results.failed:
        lines = grouped((f"`{job}`", error) for job, error in results.failed.items())
        blocks += ["## Failed runs of fine-tuning", "\n".join(f"- {line}" for line in lines)]
    blocks += ["## How to read the numbers", HOW.format(resamples=results.resamples)]
    write_results(results, folder / "results.csv")
    path = folder / "report.md"
    path.write_text("\n\n".join(block for block in blocks if block) + "\n", encoding="utf-8")
    summary = answers[1:] or [score_table(results)]
    return "\n\n".join([*summary, str(path)])


def read_results(plan, root, resamples):
    """Return the Results of a plan, or of all that is below `root` if it has no models."""
    names, only = {}, None
    for model in plan.models:
        if model.run:
            names[model.folder] = model.label, model.seed, model.run.continues
    if plan.models:
        points = itertools.product(plan.models, plan.tasks, plan.cfg.rates, plan.cfg.finetune_seeds)
        only = {job_folder(*point) for point in points}
    rows, failed = read(root, plan.cfg.metrics, names, only)
    return Results(root, rows, failed, resamples, plan.labels)


def table(header, rows):
    """Return a Markdown table whose columns also line up in a terminal; "" without rows."""
    if not rows:
        return ""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = []
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append(f"| {' | '.join(cells)} |")
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def write_csv(path, header, rows):
    """Write a table with six digits; a cell that is None or not a number stays empty."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow(map(cell_text, row))


def cell_text(cell):
    if not isinstance(cell, float):
        return cell
    return "" if math.isnan(cell) else f"{cell:.6g}"


def write_results(results, path):
    """Write results.csv, a row per fine-tuning and task. Those at the chosen learning rate have the model's score."""
    chosen = {(row.folder, row.task) for row in results.chosen}
    first = "model pretraining_seed task family lr seed validation test".split()
    last = "parameters step tokens clm_fraction mask_ratio".split()
    lines = []
    for row in sorted(results.rows, key=lambda row: (str(row.folder), row.task)):
        score = results.score(row.model, row.task) if (row.folder, row.task) in chosen else ""
        values = [getattr(row, name) for name in first]
        lines.append([row.folder, "done", *values, score, *(getattr(row, name) for name in last), ""])
    for folder, error in results.failed.items():
        lines.append([folder, "failed", *[""] * len(first + last), "", error])
    write_csv(path, ["folder", "status", *first, "score", *last, "error"], lines)


# ----------------------------------------------------------------------------
# What was run


def overview(results, plan, curves):
    """Say what was trained, how much of it is there, and what each model is."""
    lines = []
    if plan.models:
        lines += progress_of(plan, curves)
    n = len({row.folder for row in results.rows})
    lines.append(f"{n} results, {len(results.failed)} failed")
    lines += sorted({", ".join(f"{name} {value}" for name, value in row.versions.items()) for row in results.rows})
    values = defaultdict(set)
    for row in results.rows:
        for name, value in row.settings.items():
            values[row.task, name].add(str(value))
    for (task, name), found in sorted(values.items()):
        if len(found) > 1:
            lines.append(f"Careful: the runs of {task} differ in `{name}`: {', '.join(sorted(found))}")

    models = []
    for label in results.labels:
        row, seeds = results.example[label], ", ".join(map(str, sorted(results.seeds[label])))
        tokens = 0 if row.untrained else row.tokens
        models.append([label, row.pretraining, figures.short(row.parameters), figures.short(tokens), seeds])
    header = ["model", "pretraining", "parameters", "tokens", "seeds"]
    return "\n".join(f"- {line}" for line in lines), table(header, models)


def progress_of(plan, curves):
    """Return a line on the runs of pretraining, and one on those of fine-tuning."""
    cfg = plan.cfg
    untrained = [row for row, seed in plan.runs if (row, seed) not in curves]
    todo = [point[0].label for point in plan.points() if not has_result(plan, point)]
    grid = "all rates with every seed" if cfg.full_grid else "all rates with the first seed, then the chosen one"
    seeds = ", ".join(map(str, cfg.finetune_seeds))
    rates = ", ".join(f"{rate:g}" for rate in cfg.rates)
    return [
        f"pretraining: {count(len(plan.runs), untrained)}",
        f"fine-tuning: {count(len(plan.points()), todo)}; seeds {seeds}, rates {rates} ({grid})",
    ]


def count(n, missing):
    """Say how many of n runs are there, and of which models some are missing. missing: the name of each one's model."""
    text = f"{n - len(missing)} of {n} runs are there"
    if missing:
        names = ", ".join(f"{k} of {name}" for name, k in sorted(Counter(missing).items()))
        text += f" (missing: {names})"
    return text


# ----------------------------------------------------------------------------
# The answer


def answer_section(results, primary):
    """Return (the primary comparisons on all targets, blocks): a sentence and a row of a table for each of them."""
    if not primary:
        return [], []
    target = next(iter(results.targets), "mean of families")
    compared = results.compare_all(primary)
    tested = {(c.a, c.b): c for c in compared if c.target == target and c.units > 1}
    not_run = len(primary) - len(tested)
    p_values = [c.p for c in tested.values()] + [1] * not_run
    for c, p in zip(tested.values(), stats.holm(p_values)):
        c.p_holm = float(p)
    sentences, rows = [], []
    for a, b in primary:
        c = tested.get((a, b))
        if not c:
            sentences.append(NOT_RUN.format(a, b))
            continue
        sentences.append(answer(c))
        scores = [str(results.score(label, target)) for label in (a, b)]
        p_values = [f"{p:.2g}" if p >= 0.001 else "< 0.001" for p in (c.p, c.p_holm)]
        rows.append([a, b, *scores, str(c), *p_values, c.over])
    header = ["A", "B", "score of A", "score of B", "A minus B", "p", "corrected p", "over"]
    intro = ANSWER.format(target=f"the {target}" if "mean" in target else target)
    answers = "\n".join(f"- {sentence}" for sentence in sentences)
    return compared, ["## The answer", intro, answers, table(header, rows)]


def answer(comparison):
    """Say in a sentence which of two models is better."""
    c = comparison
    if c.p_holm >= 0.05:
        text = OPEN.format(c.a, c.b, c)
    else:
        better, worse = (c.a, c.b) if c.estimate > 0 else (c.b, c.a)
        text = SETTLED.format(better, worse, f"{abs(c.estimate):.1f} ± {c.half:.1f}")
    if c.unit == "fine-tuning seed":
        text += " It rests on one pretraining seed each: another may differ."
    return text


# ----------------------------------------------------------------------------
# Scores and comparisons


def scores_section(results):
    """Return the table of scores, and that of the learning rates at which they were reached."""
    if not results.rows:
        return []
    rates = []
    for label in results.labels:
        cells = []
        for task in results.tasks:
            chosen = {row.lr for row in results.chosen_of[label, task]}
            cells.append(", ".join(f"{rate:g}" for rate in sorted(chosen)) or "-")
        rates.append([label, *cells])
    return ["## Scores", score_table(results), RATES, table(["model", *results.tasks], rates)]


def score_table(results):
    """Return a table of scores: a column per target, baselines in its last rows."""
    baselines = dict.fromkeys(itertools.chain(*results.baselines.values()))
    columns = {"model": [*results.labels, *(f"*{name}*" for name in baselines)]}
    for target, weights in results.targets.items():
        cells = [str(results.score(label, target) or "-") for label in results.labels]
        for baseline in baselines:
            values = [results.baselines[task].get(baseline) for task in weights]
            cells.append("-" if None in values else f"{rounded(np.dot(values, [*weights.values()])):.1f}")
        names = dict.fromkeys(name.rpartition("/")[2] for task in weights for name in results.metrics[task])
        title = f"{target} ({', '.join(names)})" if len(names) < 3 else target
        columns[title] = cells
    return table([*columns], [*zip(*columns.values())])


def comparisons_section(folder, results, compared):
    """Write comparisons.csv and return a table of differences. compared: the primary comparisons, on all targets."""
    primary = {(c.a, c.b) for c in compared}
    others = []
    for a, b in itertools.combinations(results.labels, 2):
        if (a, b) not in primary and (b, a) not in primary:
            others.append((a, b))
    rows, shown = [], defaultdict(dict)
    for c in compared + results.compare_all(others):
        is_primary = (c.a, c.b) in primary
        interval = [c.estimate, c.estimate - c.half, c.estimate + c.half]
        rows.append([is_primary, c.target, c.a, c.b, *interval, c.p, c.p_holm, c.units, c.unit])
        if is_primary or len(others) <= MAX_ROWS:
            shown[c.a, c.b] |= {c.target: str(c), "over": c.over}
    header = "primary target model_a model_b difference low_95 high_95 p p_holm units unit".split()
    write_csv(folder / "comparisons.csv", header, rows)
    if not shown:
        return []
    columns = [*results.targets, "over"]
    lines = [[*pair, *(cells.get(column, "-") for column in columns)] for pair, cells in shown.items()]
    return ["## Comparisons", DESCRIPTION, table(["A", "B", *columns], lines)]


# ----------------------------------------------------------------------------
# Losses and figures


def loss_curve(run, last=None):
    """Return the log of a run from step 0, with those of the runs it branched off; [] if it ends before `last`.

    last: None is the end of the run. A parent may have been stopped where its branch begins.
    """
    before = []
    if run.start:
        before = loss_curve(run.parent, run.start - run.settings.log_interval)
        if not before:
            return []
    if last_logged(run.folder) < (run.max_steps if last is None else last):
        return []
    log = read_metrics(run.folder)
    for line in log:
        if "val_mntp_loss" in line:  # the same masks, predicted from the position before
            line["val_mlm_loss"] = line["val_mntp_loss"]
        check_line(line, run.folder)
    return [line for line in before if line["step"] < run.start] + log


def check_line(line, folder):
    """Raise DataError if a line of a log has a validation loss that is no number, or one without tokens."""
    if LOSS_KEYS[0] in line:
        for key in ("tokens", *LOSS_KEYS):
            if not isinstance(line.get(key), (int, float)):
                step = f"{folder}/metrics.jsonl, step {line['step']}"
                raise DataError(f"{step}: {key} is {line.get(key)!r}, must be a number; mend or delete this line")


def losses_section(folder, curves):
    """Write losses.csv and return both validation losses of each row. curves: {(row, seed): log}."""
    if not curves:
        return []
    lines = []
    for key, curve in curves.items():
        for line in curve:
            if LOSS_KEYS[0] in line:
                lines.append([*key, line["step"], line["tokens"], *map(line.get, LOSS_KEYS)])
    write_csv(folder / "losses.csv", ["model", "pretraining_seed", "step", "tokens", *LOSS_KEYS], lines)
    rows = []
    for name, logs in logs_of(curves).items():
        rows.append([name, str(len(logs)), *(last_losses(logs, key) for key in LOSS_KEYS)])
    return ["## Losses", LOSSES, table(["model", "seeds", "CLM loss", "MLM loss"], rows)]


def logs_of(curves):
    """Return {row: [its log for each seed]}."""
    logs = defaultdict(list)
    for (name, _), curve in curves.items():
        logs[name].append(curve)
    return logs


def last_losses(logs, key):
    """Return the mean of the losses that end these logs, and its interval, as text."""
    values = [log[-1][key] for log in logs if key in log[-1]]
    if not values:
        return "-"
    mean, half = stats.interval(values)
    return f"{mean:.3f}" if half is None else f"{mean:.3f} ± {half:.3f}"


def figures_section(folder, results, curves, entries):
    """Draw the figures of the settings, and return the blocks that show them."""
    if not find_spec("matplotlib"):
        return ["There are no figures, because matplotlib is not installed."]
    drawn = figures.draw(folder, entries, results, logs_of(curves))
    images = [f"![{what}]({name})" for name, what in drawn.items()]
    return ["## Figures", *images] if images else []
