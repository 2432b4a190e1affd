"""Write the report on a study, or on any folder of fine-tuning results.

    python -m eval.study report RESULTS_DIR [--out=FOLDER] [--resamples=2000] [--metric=paper]

Both are the same page. A folder of results has fewer sections, because nothing is known about its pretraining runs. The
report consists of report.md, results.csv (a row per fine-tuning), comparisons.csv, and figures if matplotlib is
installed. Missing and failed runs are shown as such and never filled in. A damaged result stops the report.
"""

import itertools
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

import configurator
from data.shards import load_meta
from errors import DataError
from eval.plot import read_metrics
from eval.study import figures, stats
from eval.study.classes import classes_section
from eval.study.compare import Scores, compare, correct
from eval.study.jobs import job_folder
from eval.study.page import Page, comparison_text, differing_settings, overview, score_tables, sensitivity
from eval.study.page import stability_section, table
from eval.study.plan import folder_of, logged, results_of
from eval.study.results import METRICS, Results, fraction_label, read_results

out = ""  # the folder to write to; "" = RESULTS_DIR
metric = "main"  # main = the field's metric, or the paper's for a task that has no other; field; paper
resamples = 2000  # of the test instances, for the comparisons

LOSSES = """\
Nats per predicted token at the end of the longest budget: the mean over pretraining seeds ± half of the 95 % interval. \
The last column is the mean over the last tenth of the steps, on the same batches with the same masks."""
USAGE = "python -m eval.study report RESULTS_DIR"


def write_study(plan, resamples=2000):
    """Write OUT_DIR/report as far as the results of a study are there; return the answer and the report's path as text.

    Raises DataError: damaged results.
    """
    page, results = Page(Path(plan.cfg.out_dir, "report"), "main", resamples), read_plan_results(plan)
    curves = {name: lines for name, run in plan.runs.items() if (lines := loss_curve(plan, run))}
    page.add(f"# {Path(plan.cfg.out_dir).name}: MLM, CLM, or CLM followed by MLM?", what_was_run(plan, curves, results))
    answers = answer_section(page, plan, results)
    scores_sections(page, plan, results)
    losses_section(page, plan, curves)
    scores = Scores(results, page.metric)
    classes_section(page, scores)
    stability_section(page, scores)
    return "\n\n".join([*answers, str(page.write(results))])


def write_folder(root, folder, metric="main", resamples=2000):
    """Write the report on all results below `root` to `folder`; return tables of scores and its path. Raises DataError."""
    results = read_results(root)
    if not results.runs:
        raise DataError(f"{root}: no result.json below it. finetune.py makes one, python -m eval.study sweep many")
    page, scores = Page(folder, metric, resamples), Scores(results, metric, resamples)
    page.add("# Fine-tuning results", overview(results), "## Scores", tables := score_tables(scores))
    for axis in figures.AXES:
        page.add_lines(axis, scores)
    classes_section(page, scores)
    for variant in results.variants:
        if variant.random_weights:
            page.add("## Which tasks are sensitive to pretraining?", sensitivity(scores, variant)[1])
    if len(results.variants) > 1:
        page.add("## Comparisons of all pairs", comparison_text(page, "all pairs", compare(scores)))
    stability_section(page, scores)
    return f"{tables}\n\n{page.write(results)}"


def check(cfg):
    if cfg.resamples < 100:
        yield f"resamples={cfg.resamples}: must be at least 100"
    if cfg.metric not in ("main", *METRICS):
        yield f"metric={cfg.metric}: must be main, field or paper"
    if Path(cfg.out).is_file():
        yield f"out={cfg.out}: is a file, must be a folder"


def main(argv):
    """Run the command `report` with its arguments. Raises DataError: no results, or damaged ones."""
    if not {"--help", "-h"} & {*argv} and not (argv and Path(argv[0]).is_dir()):
        sys.exit(f"usage: {USAGE} [--key=value ...]    (RESULTS_DIR: a folder of results)")
    cfg = configurator.load(__file__, argv[not argv[0].startswith("-") :], check, USAGE)
    print(write_folder(argv[0], Path(cfg.out or argv[0]), cfg.metric, cfg.resamples))


# ----------------------------------------------------------------------------
# A study: what is there


def read_plan_results(plan):
    """Return the Results of all models of a plan, as far as they are there."""
    cfg, models = plan.cfg, {model.name: model for model in plan.models}
    points = itertools.product(models, [task for task, _ in cfg.tasks], cfg.finetune_lrs, cfg.finetune_seeds)

    def describe(variant):
        """Describe a variant. The plan knows what a continued model started from."""
        model, words = models[model_name(variant.runs[0].folder)], variant.describe() | {"from": ""}
        if model.run.base and not model.random_weights:
            words |= {"objective": f"{label_of(plan.runs[model.run.base])}, then {model.run.budget:,} MLM", "steps": ""}
        return words

    return read_results(results_of(plan), {str(job_folder(*point)) for point in points}, describe)


def model_name(folder):
    """Return the name of the model that was fine-tuned in a folder of Results."""
    return Path(folder).parts[0]


def select(results, models):
    """Return the Results of some models of a plan, labeled by what these differ in."""
    names = {model.name for model in models}
    runs = [run for run in results.runs if model_name(run.folder) in names]
    failed = {job: error for job, error in results.failed.items() if model_name(job) in names}
    return Results(results.root, runs, failed, results.describe)


def label_of(run):
    return fraction_label(run.clm / run.budget)


def models_at(plan, budget):
    """Return the models of the main comparison: those that differ in nothing but the share of CLM within a budget."""
    steps = next(steps for b, *steps in plan.cfg.splits if b == budget)
    wanted = [(plan.size, budget, clm, plan.cfg.mask_ratios[0], "", 0) for clm in steps]
    return [model for model in plan.finals if model.run.variant in wanted]


def loss_curve(plan, run):
    """Return the log of a run from step 0, with those of the runs it branched off; [] if one has not ended."""
    if logged(plan, run) < run.budget:
        return []
    before = loss_curve(plan, plan.runs[run.parent]) if run.parent else []
    return [line for line in before if line["step"] < run.start] + read_metrics(folder_of(plan, run.name))


def what_was_run(plan, curves, results):
    """List what was trained, on what, and how much of it is there."""
    cfg, (settings, config) = plan.cfg, plan.shape[plan.size]
    seeds, tuning_seeds = (", ".join(map(str, values)) for values in (cfg.seeds, cfg.finetune_seeds))
    jobs, budgets = sum(map(plan.jobs, plan.models)), " and ".join(f"{budget:,}" for budget, *_ in cfg.splits)
    lines = [
        f"pretraining: {len(curves)} of {len(plan.runs)} runs have ended; seeds {seeds}",
        f"fine-tuning: {len(results.runs)} of {jobs} jobs have a result, {len(results.failed)} failed; seeds {tuning_seeds}",
        f"budgets: {budgets} steps of {settings.global_batch_tokens:,} tokens",
        f"main model: {config.n_layer} layers, width {config.d_model}, T={config.seq_len}",
    ]
    if Path(settings.data).exists():
        tokens = load_meta(settings.data)["splits"]["train"]["tokens"]
        epochs = plan.longest * settings.global_batch_tokens / tokens
        lines.append(f"text: {tokens:,} tokens; the longest budget is {epochs:.2g} epochs")
    versions = [json.loads((folder_of(plan, name) / "config.json").read_text())["versions"] for name in curves]
    lines += sorted({", ".join(f"{k} {v}" for k, v in its.items()) for its in versions})
    tries = [run for run in plan.runs.values() if run.lr and run.size == plan.size and run.name in curves]
    for objective, key in (("CLM", "val_clm_loss"), ("MLM", "val_mlm_loss")):
        losses = {run.lr: curves[run.name][-1][key] for run in tries if (run.clm > 0) == (objective == "CLM")}
        tried = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in losses.items())
        lines += [f"{objective} loss after {cfg.lr_steps} steps at each learning rate: {tried}"] if losses else []
    random = {model.name for model in plan.random}
    pretrained = [run for run in results.runs if model_name(run.folder) not in random]
    return "\n".join([*(f"- {line}" for line in lines), *differing_settings(pretrained)])


# ----------------------------------------------------------------------------
# A study: which share of CLM is better than MLM alone?


def answer_section(page, plan, results):
    """Add the answer for each budget, the longest first; return the answers as text."""
    random = [model for model in plan.random if model.run.size == plan.size]
    judged = select(results, models_at(plan, plan.longest) + random)
    scores = Scores(judged, page.metric, page.resamples)
    included, gate = scores.tasks, "There are no results of random weights, so every task is included."
    for variant in judged.variants:
        if variant.random_weights:
            included, gate = sensitivity(scores, variant)
    included = [task for task in included if task not in judged.repeated]
    page.add("## Which share of CLM is better than MLM alone?")
    answers = []
    for budget in sorted((budget for budget, *_ in plan.cfg.splits), reverse=True):
        text, details = answer(page, plan, results, budget, included)
        page.add(f"### At {budget:,} steps", text, details)
        answers.append(f"At {budget:,} steps: {text}")
    page.add("### Which tasks are included", gate)
    return answers


def answer(page, plan, results, budget, included):
    """Return (the answer for one budget, a table of differences to MLM alone); without an answer the table is ""."""
    models = models_at(plan, budget)
    chosen = select(results, models)
    if not chosen.runs:
        return "No answer: no results yet.", ""
    if not included:
        return "No answer: no task is shown to be sensitive to pretraining.", ""
    target = f"mean of {', '.join(included)}" if len(included) > 1 else included[0]
    targets = {target: tuple(included)} | {task: (task,) for task in included}
    scores = Scores(chosen, page.metric, page.resamples, targets)
    mlm = next((variant for variant in chosen.variants if variant.clm_fraction == 0), None)
    comparisons = compare(scores, [(v, mlm) for v in chosen.variants if v is not mlm]) if mlm else []
    gains = [c for c in comparisons if c.target == target and c.units > 1]
    if not gains:
        return f"No answer yet: MLM alone and a share of CLM need two seeds in common on {target}.", ""
    correct(gains)  # apart from the single tasks: the answer rests on these alone
    correct([c for c in comparisons if c.target != target])
    page.record(f"{budget:,} steps", comparisons)
    text = recommendation(target, scores[mlm, target], gains)
    compared = {mlm.label, *(c.a.label for c in gains)}
    shares = dict.fromkeys(label_of(model.run) for model in models)
    if lacking := [share for share in shares if share not in compared]:
        text += f" Not compared yet, because results are missing: {', '.join(lacking)}."
    caption = "Difference to MLM alone, in points (bold: clearly different):"
    return text, f"{caption}\n\n{difference_table(scores.targets, comparisons)}"


def recommendation(target, level, gains):
    """Say what follows from the comparisons `gains` with MLM alone, whose score is `level`."""
    gains = sorted(gains, key=lambda c: -c.estimate)
    first, better = gains[0], [c.a.label for c in gains if c.better is c.a]
    if better:
        best_first = ", ".join(better)
        text = f"Start with CLM. Clearly better than MLM alone on {target}, best first: **{best_first}**."
    elif first.estimate <= 0:
        text = f"Stay with **MLM alone**. No share of CLM scores higher on {target}."
    else:
        ahead = f"{first.a.label} is ahead by {first.estimate:.1f} ± {first.half:.1f}"
        text = f"No share of CLM is clearly better than **MLM alone** on {target}; {ahead}."
    text += f" MLM alone scores {level}."
    reach = max(c.estimate + c.half for c in gains)
    if reach > 0 and not better:
        text += f" A gain of {reach:.1f} points is not ruled out."
    if worse := [c.a.label for c in gains if c.better is c.b]:
        text += f" Clearly worse than MLM alone: {', '.join(worse)}."
    if once := [c.a.label for c in gains if c.unit == "fine-tuning seed"]:
        text += f" Careful: one pretraining seed is behind what is said of {', '.join(once)}. Another may differ."
    return text


def difference_table(targets, comparisons):
    """Return a table of comparisons with one variant: a row for each other variant, a column for each target."""
    cells, over = defaultdict(lambda: dict.fromkeys(targets, "-")), {}
    for c in comparisons:
        cells[c.a][c.target] = f"**{c}**" if c.better else str(c)
        over.setdefault(c.a, c.over)
    return table(["model", *targets, "over"], [[v.label, *its.values(), over[v]] for v, its in cells.items()])


# ----------------------------------------------------------------------------
# A study: its other questions


def scores_sections(page, plan, results):
    """Add the scores along each axis that the study has: share of CLM, steps, mask ratio, continued steps, sizes."""
    splits = [model for budget, *_ in plan.cfg.splits for model in models_at(plan, budget)]
    once = [m for m in plan.finals if (m.run.seed, m.run.budget, m.run.base) == (plan.seed, plan.longest, "")]
    random = [model for model in plan.random if model.run.size == plan.size]
    axis_section(page, "Scores against the share of CLM", select(results, splits + random), "clm_fraction")
    if plan.inside:  # along the pure runs, where checkpoints on the way are fine-tuned
        pure = [m for m in plan.finals if m.run in (plan.pure(0), plan.pure(plan.longest))]
        axis_section(page, "Data efficiency", select(results, plan.inside + pure), "steps")
    if len(plan.cfg.mask_ratios) > 1:
        models = [m for m in once if m.run.clm in (0, plan.cfg.late_switch)]
        axis_section(page, "Mask ratio", select(results, models), "mask_ratio")
    continued_section(page, plan, results)
    if len(plan.shape) > 1:
        models = [m for m in once if m.run.clm in (0, plan.longest)]
        axis_section(page, "Sizes", select(results, models + plan.random))


def axis_section(page, title, results, axis=""):
    """Add scores along one axis (a name in figures.AXES, or "" for a table only), if there are any."""
    if results.runs:
        scores = Scores(results, page.metric)
        page.add(f"## {title}")
        page.add_lines(axis, scores)
        page.add(score_tables(scores))


def continued_section(page, plan, results):
    """Add what more MLM does for a finished decoder and a finished encoder (first pretraining seed)."""
    further = [m for m in plan.finals if m.run.base]
    bases = {m.run.base for m in further}
    results = select(results, further + [m for m in plan.finals if m.run.name in bases])
    if not further or not results.runs:
        return
    scores = Scores(results, page.metric, page.resamples)
    note = f"From the models at {plan.longest:,} steps, with a new optimizer."
    page.add("## Continued pretraining", note, score_tables(scores))
    variant_of = {model_name(run.folder): variant for variant in results.variants for run in variant.runs}
    for steps in sorted(plan.cfg.continued):
        after = {m.run.base: variant_of.get(m.name) for m in further if m.run.budget == steps}
        pair = [after[plan.pure(clm).name] for clm in (plan.longest, 0)]
        if None not in pair:
            found = comparison_text(page, f"{steps:,} steps added", compare(scores, [pair]))
            page.add(f"### After {steps:,} more steps of MLM", found)


def losses_section(page, plan, curves):
    """Add both validation losses at the longest budget, and the training losses of MLM on the same batches."""
    shares, rows = defaultdict(dict), []  # {steps of CLM: {pretraining seed: log}}
    for model in sorted(models_at(plan, plan.longest), key=lambda model: model.run.clm):
        if model.run.name in curves:
            shares[model.run.clm][model.run.seed] = curves[model.run.name]
    if not shares:
        return
    labels, alone = {clm: fraction_label(clm / plan.longest) for clm in shares}, shares.get(0, {})
    for clm, logs in shares.items():
        losses = [[log[-1][key] for log in logs.values()] for key in ("val_clm_loss", "val_mlm_loss")]
        seeds = sorted(logs.keys() & alone.keys()) if 0 < clm < plan.longest else ()
        first = max(clm, plan.longest * 9 // 10)
        excess = [mean_difference(logs[seed], alone[seed], first) for seed in seeds]
        rows.append([labels[clm], str(len(logs)), *map(loss_interval, losses), loss_interval(excess, "+")])
    page.add("## Both losses through the switch")
    page.add(*page.draw("losses", figures.draw_losses, {labels[clm]: logs for clm, logs in shares.items()}))
    header = ["model", "seeds", "validation, CLM", "validation, MLM", "training, MLM: minus that of MLM alone"]
    page.add(LOSSES, table(header, rows))


def mean_difference(log, other, first):
    """Return the mean difference of two runs' training losses after step `first`."""
    others = {line["step"]: line["loss"] for line in other if "loss" in line and line["step"] > first}
    return np.mean([line["loss"] - others[line["step"]] for line in log if line["step"] in others])


def loss_interval(values, sign=""):
    if not values:
        return "-"
    mean, half = stats.interval(values)
    return f"{mean:{sign}.3f}" + ("" if half is None else f" ± {half:.3f}")
