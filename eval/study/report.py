"""Write the report on a study, or on any folder of fine-tuning results.

    python -m eval.study report RESULTS_DIR [--out=FOLDER] [--resamples=2000] [--metric=paper]

Both are the same page. A folder of results has fewer sections, because nothing is known about its pretraining runs. The
report consists of report.md, results.csv (a row per fine-tuning), comparisons.csv, and figures if matplotlib is
installed. Missing and failed runs are shown as such and never filled in. A damaged result stops the report.
"""

import itertools
import sys
from collections import defaultdict
from pathlib import Path

import configurator
from checkpoint import read_metrics
from data.shards import load_meta
from errors import DataError
from eval.study import costs, figures, stats
from eval.study.classes import classes_section
from eval.study.compare import Scores, compare
from eval.study.jobs import counted, grouped, job_folder
from eval.study.page import SENSITIVITY, Page, comparison_text, difference_table, differing_settings, overview
from eval.study.page import score_table, sensitivity, stability_section, table
from eval.study.results import METRICS, Results, fraction_label, read_results
from eval.study.run import has_result

out = ""  # the folder to write to; "" = RESULTS_DIR
metric = "field"  # field = the usual metric of each task, or the paper's for a task that has no other; paper
resamples = 2000  # of the test instances, for the comparisons

LOSSES = """\
Nats per predicted token at the end of the longest budget: the mean over pretraining seeds ± half of the 95 % interval."""
OWN_MASKS = """ \
Each variant predicts masked tokens from the position, and at the first mask ratio, that it was trained with."""
DIFFERENCE = "difference to MLM alone, in points"
DIFFERENCES = "Means and 95 % intervals. Those with a filled point are clearly different from MLM alone."
LOSS = "validation loss (nats per predicted token)"
USAGE = "python -m eval.study report RESULTS_DIR"


def write_study(plan, resamples=2000):
    """Write OUT_DIR/report as far as the results of a study are there; return the answer and the report's path as text.

    Raises DataError: damaged results.
    """
    page, results = Page(Path(plan.cfg.out_dir, "report"), plan.cfg.metrics, resamples), read_plan_results(plan)
    curves = {name: lines for name, run in plan.runs.items() if (lines := loss_curve(run))}
    page.add(f"# {Path(plan.cfg.out_dir).name}: MLM, CLM, or CLM followed by MLM?", what_was_run(plan, curves, results))
    answers = answer_section(page, plan, results)
    shown = scores_section(page, plan, results)
    continued_section(page, plan, results)
    continued_loss_section(page, plan, curves)
    losses_section(page, plan, curves)
    last_sections(page, Scores(results, page.metric), shown)
    return "\n\n".join([*answers, str(page.write(results))])


def write_folder(root, folder, metric="field", resamples=2000):
    """Write the report on all results below `root` to `folder`; return the scores and its path. Raises DataError."""
    results = read_results(root)
    if not results.runs:
        raise DataError(f"{root}: no result.json below it. finetune.py makes one, python -m eval.study sweep many")
    page, scores = Page(folder, metric, resamples), Scores(results, metric, resamples)
    page.add(f"# Fine-tuning results: the {metric}'s metrics decide", overview(results), "## Scores")
    for axis in (figures.CLM_FRACTION, figures.STEPS, figures.MASK_RATIO):
        page.draw_lines(axis, scores)
    page.add(scores_text := score_table(results))
    if random := [variant for variant in results.variants if variant.random_weights]:
        tables = [sensitivity(scores, variant)[1] for variant in random]
        page.add("## Which tasks are sensitive to pretraining?", SENSITIVITY, *tables)
    if len(results.variants) > 1:
        page.add("## Comparisons of all pairs", comparison_text(page, "all pairs", compare(scores)))
    last_sections(page, scores)
    return f"{scores_text}\n\n{page.write(results)}"


def last_sections(page, scores, shown=None):
    """Add classes, stability and failed jobs. shown: the Scores of those models whose stability has a figure."""
    for task in scores.tasks:
        classes_section(page, scores, task)
    stability_section(page, scores, shown)
    if failed := [(f"`{job}`", error) for job, error in scores.results.failed.items()]:
        page.add("## Failed jobs", "\n".join(f"- {line}" for line in grouped(failed)))


def check(cfg):
    yield from configurator.outside_limits(cfg, choices={"metric": METRICS})
    if cfg.resamples < 100:
        yield f"resamples={cfg.resamples}: must be at least 100"


def main(argv):
    """Run the command `report` with its arguments. Raises DataError: no results, or damaged ones."""
    root = argv[0] if argv else ""
    if root not in ("--help", "-h") and not Path(root or "-").is_dir():
        sys.exit(f"usage: {USAGE} [--key=value ...]    (RESULTS_DIR: a folder of results)")
    cfg = configurator.load(__file__, argv if root.startswith("-") else argv[1:], check, USAGE)
    print(write_folder(root, Path(cfg.out or root), cfg.metric, cfg.resamples))


# ----------------------------------------------------------------------------
# A study: what is there


def read_plan_results(plan):
    """Return the Results of all models of a plan, as far as they are there."""
    cfg, models, tasks = plan.cfg, [model.name for model in plan.models], [task for task, _ in plan.cfg.tasks]
    points = itertools.product(models, tasks, cfg.finetune_lrs, cfg.finetune_seeds)
    names = {model.name: plan.named[model.run.size][0] for model in plan.finals if model.run.size in plan.named}
    return read_results(plan.results, {str(job_folder(*point)) for point in points}, names)


def scores_of(models, page, results, targets=None):
    """Return the Scores of some models of a plan, labeled by what these differ in."""
    names = {model.name for model in models}
    runs = [run for run in results.runs if Path(run.folder).parts[0] in names]
    return Scores(Results(results.root, runs, {}), page.metric, page.resamples, targets)


def label_of(plan, run):
    return plan.named[run.size][0] if run.size in plan.named else fraction_label(run.clm / run.budget)


def models_at(plan, budget):
    """Return the models of the main comparison: the shares of CLM within a budget, and the variants of the longest one."""
    steps = next(steps for b, *steps in plan.cfg.splits if b == budget)
    wanted = [(plan.size, budget, clm, plan.cfg.mask_ratios[0], None, 0) for clm in steps]
    variants = [model for model in plan.finals if model.run.size in plan.named and model.run.budget == budget]
    return [model for model in plan.finals if model.run.variant in wanted] + variants


def loss_curve(run):
    """Return the log of a run from step 0, with those of the runs it branched off; [] if one has not ended."""
    if not run.ended():
        return []
    before = loss_curve(run.parent) if run.parent else []
    return [line for line in before if line["step"] < run.start] + read_metrics(run.folder)


def what_was_run(plan, curves, results):
    """List what was trained, on what, and how much of it is there."""
    cfg, (settings, config) = plan.cfg, plan.shape[plan.size]
    seeds, tuning_seeds = (", ".join(map(str, values)) for values in (cfg.seeds, cfg.finetune_seeds))
    done = [has_result(plan, *point) for point in plan.points()]
    budgets = " and ".join(f"{budget:,}" for budget, *_ in cfg.splits)
    lines = [
        f"pretraining: {len(curves)} of {len(plan.runs)} runs have ended; seeds {seeds}",
        f"fine-tuning: {sum(done)} of {len(done)} jobs have a result, {len(results.failed)} failed; seeds {tuning_seeds}",
        f"budgets: {budgets} steps of {settings.global_batch_tokens:,} tokens",
        f"metrics: the {cfg.metrics}'s decide",
        f"main model: {config.n_layer} layers, width {config.d_model}, T={config.seq_len}",
    ]
    if Path(settings.data).exists():
        tokens = load_meta(settings.data)["splits"]["train"]["tokens"]
        epochs = plan.longest * settings.global_batch_tokens / tokens
        lines.append(f"text: {tokens:,} tokens; the longest budget is {epochs:.2g} epochs")
    lines += sorted({", ".join(f"{k} {v}" for k, v in run.versions.items()) for run in results.runs})
    for run in plan.runs.values():
        if run.lr and run.name in curves:
            objective = "clm" if run.clm else "mlm"
            loss = last_losses([curves[run.name]], f"val_{objective}_loss")
            lines.append(f"{run.name}: {objective.upper()} loss {loss}, for the choice of a learning rate")
    return "\n".join([*(f"- {line}" for line in lines), *differing_settings(results.runs)])


# ----------------------------------------------------------------------------
# A study: which share of CLM is better than MLM alone?


def answer_section(page, plan, results):
    """Add the answer for each budget, the longest first; return the answers as text."""
    random = [model for model in plan.random if model.run.size == plan.size]
    scores = scores_of(models_at(plan, plan.longest) + random, page, results)
    included = [task for task in scores.tasks if task not in scores.results.repeated]
    why = ["There are no results of random weights, so every task is included."]
    for variant in scores.results.variants:
        if variant.random_weights:
            included, differences = sensitivity(scores, variant)
            why = [SENSITIVITY, differences]
    page.add(f"## Which share of CLM{' or variant' * bool(plan.named)} is better than MLM alone?")
    answers = []
    for budget in sorted((budget for budget, *_ in plan.cfg.splits), reverse=True):
        text, comparisons = answer(page, plan, results, budget, included)
        page.add(f"### At {counted(budget, 'step')}", text)
        if comparisons:
            apart = "; the mean, on which the answer rests, is corrected apart from the tasks" * (len(included) > 1)
            caption = f"Difference to MLM alone, in points (bold: clearly different{apart}):"
            page.add(caption, difference_table(comparisons))
        if comparisons and budget == plan.longest:
            page.draw("differences", figures.draw_differences, comparisons, DIFFERENCE, note=DIFFERENCES)
        answers.append(f"At {counted(budget, 'step')}: {text}")
    page.add("### Which tasks are included", *why)
    return answers


def answer(page, plan, results, budget, included):
    """Return (the answer for one budget, the Comparisons with MLM alone); without an answer there are none."""
    models, target = models_at(plan, budget), "mean of " * (len(included) > 1) + ", ".join(included)
    scores = scores_of(models, page, results, {target: included} | {task: [task] for task in included})
    mlm = [v for v in scores.results.variants if v.clm_fraction == 0 and not v.facts["named"]]
    if not scores.results.runs:
        return "No answer: no results yet.", []
    if not included:
        return "No answer: no task is shown to be sensitive to pretraining.", []
    comparisons = compare(scores, [(v, mlm[0]) for v in scores.results.variants if v not in mlm] if mlm else [])
    gains = [c for c in comparisons if c.target == target and c.units > 1]
    if not gains:
        return f"No answer yet: MLM alone and another model need two seeds in common on {target}.", []
    page.correct(f"{budget:,} steps", gains)  # apart from the single tasks: the answer rests on these alone
    page.correct(f"{budget:,} steps", [c for c in comparisons if c not in gains])
    text = recommendation(target, scores[mlm[0], target], gains)
    names = {Path(run.folder).parts[0] for variant in (mlm[0], *(c.a for c in gains)) for run in variant.runs}
    label = {model.name: label_of(plan, model.run) for model in models}
    compared = {label[name] for name in names}
    if lacking := [its for its in dict.fromkeys(label.values()) if its not in compared]:
        text += f" Not compared yet, because results are missing: {', '.join(lacking)}."
    return text, comparisons


def recommendation(target, level, gains):
    """Say what follows from the comparisons `gains` with MLM alone, whose score is `level`."""
    gains = sorted(gains, key=lambda c: -c.estimate)
    if better := [c.a for c in gains if c.better == c.a.label]:
        advice = f"Train {better[0].label}." if better[0].facts["named"] else "Start with CLM."
        labels = ", ".join(variant.label for variant in better)
        text = f"{advice} Clearly better than MLM alone on {target}, best first: **{labels}**."
    else:
        others = "other model" if any(c.a.facts["named"] for c in gains) else "share of CLM"
        nearest = f"The nearest is {gains[0].a.label} ({gains[0]})."
        text = f"Stay with MLM. No {others} is clearly better than **MLM alone** on {target}. {nearest}"
    text += f" MLM alone scores {level}."
    if worse := [c.a.label for c in gains if c.better == c.b.label]:
        text += f" Clearly worse than MLM alone: {', '.join(worse)}."
    if once := [c.a.label for c in gains if c.unit == "fine-tuning seed"]:
        text += f" Careful: one pretraining seed is behind what is said of {', '.join(once)}. Another may differ."
    return text


# ----------------------------------------------------------------------------
# A study: its other questions


def scores_section(page, plan, results):
    """Add the scores of all models and figures of them. Return the Scores of those from scratch with one mask ratio."""
    if not results.runs:
        return None
    finals = [model for model in plan.finals if not model.run.base]
    splits = [model for model in finals if model.run.mask == plan.cfg.mask_ratios[0]]  # and variants
    scores = scores_of(splits + plan.inside + plan.random, page, results)
    page.add("## Scores")
    flops = figures.flops_axis({model.name: costs.flops(plan, model.run, 0) for model in splits})
    for axis in (figures.CLM_FRACTION, flops, figures.STEPS):
        page.draw_lines(axis, scores)
    page.draw_lines(figures.SIZE, scores_of(finals + plan.random, page, results))
    page.draw_lines(figures.MASK_RATIO, scores_of(finals, page, results))
    page.add(score_table(results))
    return scores


def continued_section(page, plan, results):
    """Add what the same steps of MLM on top make of a finished decoder and a finished encoder."""
    for steps in sorted(plan.cfg.continued):
        after = [model for model in plan.finals if model.run.base and model.run.budget == steps]
        if comparisons := compare(scores_of(after, page, results)):
            page.add(f"## After {counted(steps, 'more step')} of MLM, with a new optimizer")
            page.add(comparison_text(page, f"{steps:,} steps added", comparisons))


def continued_loss_section(page, plan, curves):
    """Add a figure of the MLM loss over the steps that continue the pure models."""
    logs, key = defaultdict(list), "val_mlm_loss"
    for run in plan.runs.values():  # the longest first
        if run.base and {run.name, plan.pure(0).name} <= curves.keys():
            logs[f"from {'CLM' if run.base.clm else 'MLM'}"].append(curves[run.name])
    if logs:
        before = {"the MLM model before": curves[plan.pure(0).name][-1][key]}
        title = "continued pretraining" + " (pale: shorter runs)" * any(len(its) > 1 for its in logs.values())
        panels = {title: (figures.loss_lines(logs, key), before)}
        page.draw("continued_loss", figures.draw_lines, panels, "steps of MLM added", f"MLM {LOSS}", False)


def losses_section(page, plan, curves):
    """Add both validation losses at the longest budget."""
    logs = defaultdict(list)  # {label: [log of each pretraining seed]}
    for model in sorted(models_at(plan, plan.longest), key=lambda m: (m.run.size in plan.named, m.run.clm)):
        if model.run.name in curves:
            logs[label_of(plan, model.run)].append(curves[model.run.name])
    if logs:
        page.add("## Both losses through the switch")
        keys = "val_clm_loss", "val_mlm_loss"
        panels = {key[4:7].upper(): (figures.loss_lines(logs, key), {}) for key in keys}
        page.draw("losses", figures.draw_lines, panels, "pretraining step", LOSS, False)
        rows = [[label, str(len(its)), *(last_losses(its, key) for key in keys)] for label, its in logs.items()]
        page.add(
            LOSSES + OWN_MASKS * bool(plan.named), table(["model", "seeds", "validation, CLM", "validation, MLM"], rows)
        )


def last_losses(logs, key):
    """Return the mean of the losses that end these logs, and its interval, as text."""
    values = [log[-1][key] for log in logs if key in log[-1]]
    if not values:
        return "-"
    mean, half = stats.interval(values)
    return f"{mean:.3f}" + ("" if half is None else f" ± {half:.3f}")
