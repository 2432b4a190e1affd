"""Write the report on a study, or on any folder of fine-tuning results.

    python -m eval.study report RESULTS_DIR [--out=FOLDER] [--resamples=2000] [--metric=paper]

Both are the same page. A folder of results has fewer sections, because nothing is known about its pretraining runs. The
report consists of report.md, results.csv (a row per fine-tuning), comparisons.csv, for a study losses.csv (both
validation losses of every run), and figures if matplotlib is installed. Missing and failed runs are shown as such and
never filled in. A damaged result stops the report.
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
from eval.study.compare import Scores, compare, correct
from eval.study.jobs import job_folder
from eval.study.page import Page, comparison_text, differing_settings, overview, score_tables, sensitivity
from eval.study.page import stability_section, table, write_csv
from eval.study.plan import folder_of, logged, results_of
from eval.study.results import METRICS, fraction_label, label_by_difference, read_results

out = ""  # the folder to write to; "" = RESULTS_DIR
metric = "main"  # main = the field's metric, or the paper's for a task that has no other; field; paper
resamples = 2000  # of the test instances, for the comparisons

USAGE = "python -m eval.study report RESULTS_DIR"
STUDY_FAMILIES = """\
For each budget it is over the shares of CLM in the first column of differences, on which the answer rests, and apart from \
that over all shares and tasks in the other columns. For continued pretraining it is over the tasks."""
FOLDER_FAMILY = "It is over all comparisons of this page."


def write_study(plan, resamples=2000):
    """Write OUT_DIR/report as far as the results of a study are there; return the answer and the report's path as text.

    Raises DataError: damaged results.
    """
    page, results = Page(Path(plan.cfg.out_dir, "report"), "main", resamples), read_plan_results(plan)
    curves = {name: lines for name, run in plan.runs.items() if (lines := loss_curve(plan, run))}
    page.add(f"# {Path(plan.cfg.out_dir).name}: MLM, CLM, or CLM followed by MLM?", what_was_run(plan, curves, results))
    answers = ["No results yet."]
    if results:
        answers = answer_section(page, plan, results)
        scores_sections(page, plan, results)
    else:
        page.add(*answers)
    losses_section(page, plan, curves)
    if results:
        stability_section(page, Scores(results, page.metric), not plan.cfg.choose_once)
    write_losses(plan, curves, page.folder / "losses.csv")
    return "\n\n".join([*answers, str(page.write(results, STUDY_FAMILIES))])


def write_folder(root, folder, metric="main", resamples=2000):
    """Write the report on all results below `root` to `folder`; return tables of scores and its path. Raises DataError."""
    results = read_results(root)
    page, scores = Page(folder, metric, resamples), Scores(results, metric)
    page.add("# Fine-tuning results", overview(results), "## Scores", tables := score_tables(scores, baselines=True))
    for name, (choose, label) in figures.AXES.items():
        page.draw_lines(name, scores, figures.lines_of(scores, choose), label)
    if random := [a for a, variant in enumerate(results.variants) if variant.random_weights]:
        page.add(
            "## Which tasks are sensitive to pretraining?", *(sensitivity(scores, a, resamples)[1] for a in random)
        )
    if len(results.variants) > 1:
        page.add("## Comparisons of all pairs", comparison_text(page, "all pairs", scores, compare(scores, resamples)))
    stability_section(page, scores)
    return f"{tables}\n\n{page.write(results, FOLDER_FAMILY)}"


def check(cfg):
    if cfg.resamples < 100:
        yield f"resamples={cfg.resamples}: must be at least 100"
    if cfg.metric not in ("main", *METRICS):
        yield f"metric={cfg.metric}: must be main, field or paper"
    if Path(cfg.out).is_file():
        yield f"out={cfg.out}: is a file, must be a folder"


def main(argv):
    """Run the command `report` with its arguments."""
    if not {"--help", "-h"} & {*argv} and not (argv and Path(argv[0]).is_dir()):
        sys.exit(f"usage: {USAGE} [--key=value ...]    (RESULTS_DIR: a folder of results)")
    cfg = configurator.load(__file__, argv[not argv[0].startswith("-") :], check, USAGE)
    try:
        print(write_folder(argv[0], Path(cfg.out or argv[0]), cfg.metric, cfg.resamples))
    except DataError as error:
        sys.exit(str(error))


# ----------------------------------------------------------------------------
# A study: what is there


def read_plan_results(plan):
    """Return the Results of all models of a plan; None if there is none yet."""
    root, cfg, names = results_of(plan), plan.cfg, [model.name for model in plan.models]
    points = itertools.product(names, [task for task, _ in cfg.tasks], cfg.finetune_lrs, cfg.finetune_seeds)
    folders = {str(job_folder(*point)) for point in points}
    if not any((root / folder / "result.json").exists() for folder in folders):
        return None
    return label_by_plan(plan, read_results(root, folders))


def select(plan, results, models):
    """Return the Results of some models of a plan, labeled by what these differ in; None if there is none."""
    chosen = results.select({model.name for model in models})
    return chosen and label_by_plan(plan, chosen)


def label_by_plan(plan, results):
    """Label the variants by what they differ in. The plan knows what a continued model started from."""
    models, descriptions = {model.name: model for model in plan.models}, [v.describe() for v in results.variants]
    for run in results.runs:
        model, words = models[Path(run.folder).parts[0]], descriptions[results.variant_of[run.checkpoint]]
        words["from"] = ""
        if model.run.base and not model.random_weights:
            words |= {"objective": f"{label_of(plan.runs[model.run.base])}, then {model.run.budget:,} MLM", "steps": ""}
    for variant, label, words in zip(results.variants, label_by_difference(descriptions), descriptions):
        variant.label = label or words["objective"]
    return results


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
    done, failed = (len(results.runs), len(results.failed)) if results else (0, 0)
    budgets, batch = " and ".join(f"{budget:,}" for budget, *_ in cfg.splits), settings["global_batch_tokens"]
    seeds, tuning_seeds = (", ".join(map(str, values)) for values in (cfg.seeds, cfg.finetune_seeds))
    jobs = sum(map(plan.jobs, plan.models))
    lines = [
        f"pretraining: {len(curves)} of {len(plan.runs)} runs have ended; seeds {seeds}",
        f"fine-tuning: {done} of {jobs} jobs have a result, {failed} failed; seeds {tuning_seeds}",
        f"budgets: {budgets} steps of {batch:,} tokens",
        f"main model: {config.n_layer} layers, width {config.d_model}, T={config.seq_len}",
    ]
    if Path(settings["data"]).exists():
        meta = load_meta(settings["data"])
        tokens, vocab_size = meta["splits"]["train"]["tokens"], meta["tokenizer"]["vocab_size"]
        epochs = f"{plan.longest * batch / tokens:.2g}"
        lines.append(f"text: {tokens:,} tokens; the longest budget is {epochs} epochs; vocabulary {vocab_size:,}")
    facts = [json.loads((folder_of(plan, name) / "config.json").read_text()) for name in curves]
    lines += sorted({", ".join(f"{k} {v}" for k, v in fact["versions"].items()) for fact in facts})
    for objective, key in (("CLM", "val_clm_loss"), ("MLM", "val_mlm_loss")):
        tries = [run for run in plan.runs.values() if run.lr and run.size == plan.size and run.name in curves]
        ends = {run.lr: curves[run.name][-1][key] for run in tries if (run.clm > 0) == (objective == "CLM")}
        if ends:
            tried = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in ends.items())
            best = f"{min(ends, key=ends.get):g}, by the {objective} loss after {cfg.lr_steps} steps of it alone"
            lines.append(f"learning rate for {objective}: {best} ({tried})")
    random = {model.name for model in plan.random}
    pretrained = [run for run in results.runs if Path(run.folder).parts[0] not in random] if results else []
    return "\n".join([*(f"- {line}" for line in lines), *differing_settings(pretrained)])


# ----------------------------------------------------------------------------
# A study: which share of CLM is better than MLM alone?


def answer_section(page, plan, results):
    """Add the answer for each budget, the longest first; return the answers as text."""
    random = [model for model in plan.random if model.run.size == plan.size]
    judged = select(plan, results, models_at(plan, plan.longest) + random)
    included, gate = [], ""
    if judged:
        scores, a = Scores(judged, page.metric), len(judged.variants) - 1  # random weights come last
        included, gate = scores.tasks, "There are no results of random weights, so every task is included."
        if judged.variants[a].random_weights:
            included, gate = sensitivity(scores, a, page.resamples)
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
    chosen = select(plan, results, models)
    if not chosen or not included:
        return f"No answer: {'no task is shown to be sensitive to pretraining' if chosen else 'no results yet'}.", ""
    target = f"mean of {', '.join(included)}" if len(included) > 1 else included[0]
    scores = Scores(chosen, page.metric, {target: tuple(included)} | {task: (task,) for task in included})
    mlm = next((a for a, variant in enumerate(chosen.variants) if variant.clm_fraction == 0), None)
    if mlm is None or not scores[mlm, target]:
        lacks = [task for task in included if mlm is None or not scores[mlm, task]]
        return f"No answer yet: MLM alone has no result on {', '.join(lacks)}.", ""
    comparisons = compare(scores, page.resamples, [(a, mlm) for a in range(len(chosen.variants)) if a != mlm])
    gains = {c.a: c for c in comparisons if c.target == target and c.units > 1}
    if not gains:
        return f"No answer yet: no share of CLM has two seeds in common with MLM alone on {target}.", ""
    correct(gains.values())  # apart from the single tasks: the answer rests on these alone
    correct([c for c in comparisons if c.target != target])
    page.record(f"{budget:,} steps", chosen.variants, comparisons)
    text = recommendation(scores, target, mlm, gains)
    compared = {round(chosen.variants[a].clm_fraction, 6) for a in (mlm, *gains)}
    runs = [model.run for model in models if model.run.seed == plan.seed]
    if lacking := [label_of(run) for run in runs if round(run.clm / budget, 6) not in compared]:
        text += f" Not compared yet, because results are missing: {', '.join(lacking)}."
    caption = "Difference to MLM alone, in points (bold: clearly different):"
    return text, f"{caption}\n\n{difference_table(scores, comparisons)}"


def recommendation(scores, target, mlm, gains):
    """Say what follows from the comparisons with MLM alone. gains: {variant number: Comparison}."""
    ranked = sorted(gains.values(), key=lambda c: -c.estimate)
    names = {c: scores.results.variants[c.a].label for c in ranked}
    better, worse = [names[c] for c in ranked if c.better == c.a], [names[c] for c in ranked if c.better == mlm]
    level, reach = f"MLM alone scores {scores[mlm, target]}.", max(c.estimate + c.half for c in ranked)
    doubt = f" A gain of {reach:.1f} points is not ruled out." if reach > 0 else ""
    if better:
        best_first = ", ".join(better)
        text = f"Start with CLM. Clearly better than MLM alone on {target}, best first: **{best_first}**. {level}"
    elif ranked[0].estimate <= 0:
        text = f"Stay with **MLM alone**. No share of CLM scores higher on {target}. {level}{doubt}"
    else:
        ahead = f"{names[ranked[0]]} is ahead by {ranked[0].estimate:.1f} ± {ranked[0].half:.1f}"
        text = f"No share of CLM is clearly better than **MLM alone** on {target}; {ahead}. {level}{doubt}"
    if worse:
        text += f" Clearly worse than MLM alone: {', '.join(worse)}."
    if once := [names[c] for c in gains.values() if c.unit == "fine-tuning seed"]:
        text += f" Careful: one pretraining seed is behind what is said of {', '.join(once)}. Another may differ."
    return text


def difference_table(scores, comparisons):
    """Return a table of comparisons with one variant: a row for each other variant, a column for each target."""
    by_variant, rows, first = defaultdict(dict), [], next(iter(scores.targets))
    for c in comparisons:
        by_variant[c.a][c.target] = c
    for a, its in sorted(by_variant.items()):
        cells = [str(its.get(target, "-")) for target in scores.targets]
        clear = [target in its and its[target].better is not None for target in scores.targets]
        cells = [f"**{cell}**" if bold else cell for cell, bold in zip(cells, clear)]
        rows.append([scores.results.variants[a].label, *cells, its[first].over if first in its else "-"])
    return table(["model", *scores.targets, "over"], rows)


# ----------------------------------------------------------------------------
# A study: its other questions


def scores_sections(page, plan, results):
    """Add the scores along each axis that the study has: share of CLM, steps, mask ratio, continued steps, sizes."""
    splits = [model for budget, *_ in plan.cfg.splits for model in models_at(plan, budget)]
    once = [m for m in plan.finals if (m.run.seed, m.run.budget, m.run.base) == (plan.seed, plan.longest, "")]
    random = [model for model in plan.random if model.run.size == plan.size]
    axis_section(page, "Scores against the share of CLM", select(plan, results, splits + random), "clm_fraction", True)
    if plan.inside:  # along the pure runs, where checkpoints on the way are fine-tuned
        pure = [m for m in plan.finals if m.run in (plan.pure(0), plan.pure(plan.longest))]
        axis_section(page, "Data efficiency", select(plan, results, plan.inside + pure), "steps")
    elif len(plan.cfg.splits) > 1:
        axis_section(page, "Data efficiency", select(plan, results, splits), "budgets")
    if len(plan.cfg.mask_ratios) > 1:
        models = [m for m in once if m.run.clm in (0, plan.cfg.late_switch)]
        axis_section(page, "Mask ratio", select(plan, results, models), "mask_ratio")
    continued_section(page, plan, results)
    if len(plan.shape) > 1:
        models = [m for m in once if m.run.clm in (0, plan.longest)]
        axis_section(page, "Sizes", select(plan, results, models + plan.random))


def axis_section(page, title, results, axis="", baselines=False):
    """Add scores along one axis (a name in figures.AXES, or "" for a table only), if there are any."""
    if not results:
        return
    scores = Scores(results, page.metric)
    page.add(f"## {title}")
    if axis:
        choose, label = figures.AXES[axis]
        page.draw_lines(axis, scores, figures.lines_of(scores, choose), label)
    page.add(score_tables(scores, baselines))


def continued_section(page, plan, results):
    """Add what more MLM does for a finished decoder and a finished encoder (first pretraining seed)."""
    further = [m for m in plan.finals if m.run.base]
    bases = [plan.runs[name] for name in dict.fromkeys(m.run.base for m in further)]
    results = select(plan, results, further + [m for m in plan.finals if m.run in bases]) if further else None
    if not results:
        return
    place = {m.name: (m.run.base or m.run.name, m.step if m.run.base else 0) for m in plan.finals}  # base, steps added
    variant_at = {place[Path(run.folder).parts[0]]: results.variant_of[run.checkpoint] for run in results.runs}
    scores, lines, most = Scores(results, page.metric), {}, max(plan.cfg.continued) / plan.longest
    for base in bases:
        added = sorted((steps, a) for (name, steps), a in variant_at.items() if name == base.name)
        lines[f"from {label_of(base)}"] = figures.points(scores, added)
    note = f"From the models at {plan.longest:,} steps, with a new optimizer and up to {most:.0%} more steps."
    page.add("## Continued pretraining", note)
    page.draw_lines("continued", scores, lines, "steps of MLM added")
    page.add(score_tables(scores))
    for steps in sorted(plan.cfg.continued):
        pair = [variant_at.get((plan.pure(clm).name, steps)) for clm in (plan.longest, 0)]
        if None not in pair:
            found = comparison_text(page, f"{steps:,} steps added", scores, compare(scores, page.resamples, [pair]))
            page.add(f"### After {steps:,} more steps of MLM", found)


def losses_section(page, plan, curves):
    """Add both validation losses at the longest budget, and the training losses of MLM on the same batches."""
    runs, by_clm = sorted((m.run for m in models_at(plan, plan.longest)), key=lambda run: run.clm), defaultdict(dict)
    for run in runs:
        if run.name in curves:
            by_clm[run.clm][run.seed] = curves[run.name]
    if not by_clm:
        return
    rows, labels = [], {run.clm: label_of(run) for run in runs}
    for clm, by_seed in by_clm.items():
        seeds = sorted(by_seed.keys() & by_clm[0].keys()) if 0 in by_clm and 0 < clm < plan.longest else ()
        first = max(clm, plan.longest * 9 // 10)
        excess = [mean_difference(by_seed[seed], by_clm[0][seed], first) for seed in seeds]
        ends = [[lines[-1][key] for lines in by_seed.values()] for key in ("val_clm_loss", "val_mlm_loss")]
        rows.append([labels[clm], str(len(by_seed)), *map(loss_interval, ends), loss_interval(excess, "+")])
    page.add("## Both losses through the switch")
    page.draw("losses", figures.draw_losses, {labels[clm]: by_seed for clm, by_seed in by_clm.items()})
    note = (
        "Nats per predicted token at the end of the longest budget: the mean over pretraining seeds ± half of the 95 % "
        "interval. The last column is the mean over the last tenth of the steps, on the same batches with the same masks."
    )
    header = ["model", "seeds", "validation, CLM", "validation, MLM", "training, MLM: minus that of MLM alone"]
    page.add(note, table(header, rows))


def mean_difference(lines, others, first):
    """Return the mean difference of two runs' training losses after step `first`."""
    other = {line["step"]: line["loss"] for line in others if "loss" in line and line["step"] > first}
    return np.mean([line["loss"] - other[line["step"]] for line in lines if line["step"] in other])


def loss_interval(values, sign=""):
    if not values:
        return "-"
    mean, half = stats.interval(values)
    return f"{mean:{sign}.3f}" + ("" if half is None else f" ± {half:.3f}")


def write_losses(plan, curves, path):
    """Write both validation losses of every run, with its mask ratio: MLM losses at two ratios are not comparable."""
    keys, rows = ["step", "phase", "val_clm_loss", "val_mlm_loss"], []
    for name, lines in curves.items():
        evaluated = [line for line in lines if "val_clm_loss" in line]
        rows += [[name, plan.runs[name].mask, *(line[key] for key in keys)] for line in evaluated]
    write_csv(path, ["run", "mask_ratio", *keys], rows)
