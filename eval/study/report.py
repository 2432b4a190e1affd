"""Write the report on a study, or on any folder of fine-tuning results.

The report consists of report.md, results.csv (a row per fine-tuning), comparisons.csv (all pairs) and figures. It needs
no checkpoints, only result.json and instances.npz of each fine-tuning and metrics.jsonl of each run. Missing and failed
runs are shown as such and never filled in. A damaged result stops the report.
"""

import csv
import itertools
from collections import defaultdict
from pathlib import Path

from errors import DataError
from eval.study import figures, stats
from eval.study.results import Results, Score, group, read
from eval.study.run import grouped, has_result, job_folder
from eval.tasks.metrics import mean_score
from run import RESUME_MAY_CHANGE, SOURCES, read_metrics

# The columns of results.csv and comparisons.csv.
RESULTS = (
    "folder model pretraining_seed task family lr seed validation test chosen parameters step tokens clm_fraction "
    "mask_ratio"
).split()
COMPARISONS = "primary target model_a model_b difference low_95 high_95 p p_holm units unit".split()
PER_RUN = {"task", "lr", "seed", "init_from", "out_dir", "random_weights"}  # settings that differ by design
PER_SEED = RESUME_MAY_CHANGE | {"seed", "init_from", "branch_from"}  # the same for pretraining
ANSWER = """\
The comparisons that the settings name as primary, on the target *{}*. Their p-values are corrected together (Holm), \
including those that are not run yet. A difference is decided if the corrected p is below 0.05."""
OPEN = "**Open: {0} or {1}.** The answer needs results of both on all tasks, with two seeds in common."
DESCRIPTION = """\
Differences in points with 95 % intervals, only of the primary pairs if there are any. They are descriptive: the \
intervals are not corrected for their number, so about one in twenty excludes 0 by chance. comparisons.csv has all \
pairs."""
RATES = """\
The fine-tuning rates that validation chose, over all pretraining seeds. A star marks an end of the grid: a better \
rate may lie beyond it."""
ABOUT_LOSSES = """\
Final validation losses in nats per predicted token: the mean over pretraining seeds ± half of the 95 % interval. The \
masks hide 40 % of the tokens; MNTP predicts them from the position before. Compare only models with the same data, \
seq_len and eval_windows."""
HOW = """\
A score is the mean over seeds ± half of its 95 % interval (Student's t). The seeds are pretraining seeds if a model \
has several. An interval over fine-tuning seeds says nothing about another pretraining. For each pretraining seed and \
task, the fine-tuning rate is the best one on validation data among the rates with the most finished runs. A family's \
score is the mean over its tasks, except zero-shot tasks and those measured by a correlation. The mean of families \
weights each family equally. A comparison pairs the runs of two models by seed and their answers by test instance. Its \
interval covers the chance in the seeds and in the sample of test instances ({} resamples). Parameters are those of \
pretraining, with the output head, as train.py counts them."""


# ----------------------------------------------------------------------------
# The page


def write(plan):
    """Write OUT_DIR/report/. Return a short text: what was run, the answer or the scores, and the page's path.

    plan: the study's; results may be missing. A Plan without models stands for all results below OUT_DIR. Raises
    DataError if a result is damaged, or such a folder has none.
    """
    cfg = plan.cfg
    results = read_results(plan)
    if not (plan.models or results.rows):
        raise DataError(
            f"{results.root}: no result.json below it. finetune.py writes one, python -m eval.study sweep many"
        )
    for name in {*sum(cfg.primary, ())} - {*results.labels, *plan.labels}:
        raise DataError(f"primary: there is no {name!r}. The models are {', '.join(results.labels)}")
    folder = Path(cfg.out_dir, "report")
    folder.mkdir(parents=True, exist_ok=True)
    logs = {key: log for key, run in plan.runs.items() if (log := whole_log(run, run.max_steps))}
    compared = compare_all(results, cfg.primary)
    write_csv(folder / "results.csv", RESULTS, map(vars, results.rows))
    write_csv(folder / "comparisons.csv", COMPARISONS, map(vars, compared))
    scores = score_table(results)
    answers = []
    if cfg.primary:
        answers = [ANSWER.format(results.main_target), answer_list(compared, cfg.primary)]
    about, models = overview(results, plan, logs)
    page = [f"# {Path(cfg.out_dir).name}", about, models]
    if answers:
        page += ["## The answer", *answers]
    if scores:
        page += ["## Scores", scores, RATES, rate_table(results)]
    if compared:
        page += ["## Comparisons", DESCRIPTION, comparison_table(results, compared)]
    if losses := loss_table(logs):
        page += ["## Losses", ABOUT_LOSSES, losses]
    if drawn := figures.draw(folder, cfg.figures, results, logs):
        page += ["## Figures", *(f"![{what}]({name})" for name, what in drawn.items())]
    if results.failed:
        failed = ((f"`{job}`", error) for job, error in results.failed.items())
        page += ["## Failed runs of fine-tuning", bullets(grouped(failed))]
    page += ["## How to read the numbers", HOW.format(stats.RESAMPLES)]
    path = folder / "report.md"
    path.write_text("\n\n".join(filter(None, page)) + "\n", encoding="utf-8")
    return "\n\n".join([about, *(answers or [scores]), str(path)])


def read_results(plan):
    """Return the Results of a plan, or of all that is below OUT_DIR if it has no models."""
    root = plan.results
    cfg = plan.cfg
    names = {model.folder: (model.label, model.run.seed, model.run.continues) for model in plan.models if model.run}
    points = itertools.product(plan.models, plan.tasks, cfg.rates, cfg.finetune_seeds)
    folders = {root / job_folder(*point) for point in points}
    if not plan.models:
        root = Path(cfg.out_dir)
        folders = {path.parent for name in ("result.json", "error.txt") for path in root.rglob(name)}
    return Results(root, *read(root, folders, cfg.metrics, names), plan.labels)


def table(header, rows):
    """Return a Markdown table with aligned columns; "" without rows. Empty cells are shown as -."""
    if not rows:
        return ""
    cells = [[str(cell or "-") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells)]
    lines = header, ["-" * n for n in widths], *cells
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in lines)


def bullets(lines):
    """Return lines as a list in Markdown."""
    return "\n".join(f"- {line}" for line in lines)


def write_csv(path, columns, rows):
    """Write a table, numbers with six digits. rows: dicts; None and missing values become empty cells."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: f"{x:.6g}" if isinstance(x, float) else x for name, x in row.items()})


# ----------------------------------------------------------------------------
# What was run


def overview(results, plan, logs):
    """Return two texts: a list of how much is done and what differs between runs, and a table of the models."""
    lines = []
    if plan.models:
        done = [has_result(plan, point) for point in plan.points()]
        if plan.runs:
            lines.append(f"pretraining: {len(logs)} of {len(plan.runs)} runs are there")
        lines.append(f"fine-tuning: {sum(done)} of {len(done)} runs are there")
        for name in SOURCES:  # each run keeps a copy
            copies = {path.read_bytes() for run in plan.runs.values() for path in run.folder.glob(f"source/{name}")}
            if len(copies) > 1:
                lines.append(f"Careful: the runs of pretraining differ in `{name}`, see source/ in their folders")
    lines += sorted({", ".join(map(" ".join, row.result["versions"].items())) for row in results.rows})
    for task, rows in results.by_task.items():
        lines += differences(task, [row.result["settings"] for row in rows], PER_RUN)
    for label, rows in group(results.rows, "model").items():
        settings = []
        for row in rows:
            its = row.result["checkpoint"]
            settings.append(its["settings"] | {"data_fingerprint": its.get("data"), "revision": its.get("revision")})
        lines += differences(label, settings, PER_SEED)
    models = []
    for label in results.labels:
        row = results.example[label]
        seeds = ", ".join(map(str, sorted(results.seeds[label])))
        models.append([label, row.pretraining, figures.short(row.parameters), figures.short(row.tokens), seeds])
    return bullets(lines), table(["model", "pretraining", "parameters", "tokens", "seeds"], models)


def differences(what, records, by_design):
    """Yield a sentence for each field in which the records (dicts) of a task or model differ, except `by_design`."""
    for name in sorted(set().union(*records) - by_design):
        found = sorted({str(record.get(name)) for record in records})
        if len(found) > 1:
            yield f"Careful: the runs of {what} differ in `{name}`: {', '.join(found)}"


# ----------------------------------------------------------------------------
# The answer


def compare_all(results, primary):
    """Return the Comparisons of all pairs of models on all targets that both have scores for, primary pairs first.

    p_holm of the primary pairs on the main target also counts those that are not run yet.
    """
    pairs = [*primary]
    for a, b in itertools.combinations(results.labels, 2):
        if (a, b) not in primary and (b, a) not in primary:
            pairs.append((a, b))
    compared = []
    for pair, target in itertools.product(pairs, results.targets):
        if c := results.compare(*pair, target):
            c.primary = pair in primary
            compared.append(c)
    main = [c for c in compared if c.primary and c.target == results.main_target and c.units > 1]
    p_values = [c.p for c in main] + [1] * (len(primary) - len(main))
    for c, p in zip(main, stats.holm(p_values)):
        c.p_holm = float(p)
    return compared


def answer_list(compared, primary):
    """Return a list that says for each primary pair which model is better."""
    answers = {pair: OPEN.format(*pair) for pair in primary}
    for c in compared:
        if c.p_holm is None:
            continue
        a = c.model_a
        b = c.model_b
        better, worse = (a, b) if c.difference > 0 else (b, a)
        text = f"**{better} is better than {worse}.**" if c.p_holm < 0.05 else f"**Not decided: {a} or {b}.**"
        text += f" {a} minus {b} is {c} points (p = {c.p:.2g}, corrected {c.p_holm:.2g}; {c.over})."
        if c.unit == "fine-tuning seed":
            text += " It rests on one pretraining seed each: another may differ."
        answers[a, b] = text
    return bullets(answers.values())


# ----------------------------------------------------------------------------
# Tables


def score_table(results):
    """Return a table of scores with a column per target. The baselines are in the last rows."""
    titles = {}
    baselines = defaultdict(dict)
    for task, rows in results.by_task.items():
        titles[task] = f"{task} ({', '.join(name.rpartition('/')[2] for name in rows[0].metrics)})"
        for name, scores in rows[0].result["baselines"].items():  # equal in all rows
            if scores.keys() >= {*rows[0].metrics}:
                baselines[f"*{name}*"][task] = Score(mean_score(scores, rows[0].metrics))
    lines = [[label, *(results.score(label, target) for target in results.targets)] for label in results.labels]
    lines += [[name, *map(scores.get, results.targets)] for name, scores in baselines.items()]
    return table(["model", *(titles.get(target, target) for target in results.targets)], lines)


def rate_table(results):
    """Return a table of the fine-tuning rates that validation chose."""
    lines = []
    for label in results.labels:
        cells = [label]
        for task, rows in results.by_task.items():
            grid = sorted({row.lr for row in rows})
            ends = {grid[0], grid[-1]} if len(grid) > 1 else ()  # a single rate is no choice
            chosen = sorted({row.lr for row in results.chosen[label, task]})
            cells.append(", ".join(f"{rate:g}" + "*" * (rate in ends) for rate in chosen))
        lines.append(cells)
    return table(["model", *results.by_task], lines)


def comparison_table(results, compared):
    """Return a table of the differences of primary pairs, or of all pairs if none is primary."""
    shown = [c for c in compared if c.primary] or compared
    lines = []
    for pair, same in group(shown, "model_a", "model_b").items():
        by_target = {c.target: c for c in same}
        lines.append([*pair, *map(by_target.get, results.targets), min(same, key=lambda c: c.units).over])
    return table(["A", "B", *results.targets, "over"], lines)


def loss_table(logs):
    """Return a table of both final validation losses of each row. logs: {(row, seed): log}."""
    ends = defaultdict(list)  # {row: the last line of each seed's log}
    for (row, _), log in logs.items():
        ends[row].append(log[-1])
    rows = []
    for row, lines in ends.items():
        losses = [[line[key] for line in lines if key in line] for key in figures.LOSSES.values()]
        rows.append([row, *(values and Score(*stats.interval(values), digits=3) for values in losses)])
    return table(["model", *figures.LOSSES], rows)


# ----------------------------------------------------------------------------
# Logs


def whole_log(run, last):
    """Return a run's log from step 0, with the shared steps from its parents; [] if it ends before step `last`.

    A parent's log may end at its last line before the branch, because the parent may have been stopped there.
    """
    log = read_metrics(run.folder)
    if not log or log[-1]["step"] < last:
        return []
    for line in log:
        if "val_mntp_loss" in line:  # the same masks, so it shares the column
            line["val_mlm_loss"] = line["val_mntp_loss"]
    if run.start:
        before = whole_log(run.parent, run.start - run.settings.log_interval)
        return before and [line for line in before if line["step"] < run.start] + log
    return log
