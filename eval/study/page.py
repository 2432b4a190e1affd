"""The page of a study: what was asked, what came out, how sure that is. Made by eval/study.py from its runs and results.

Writes OUT_DIR/report/: page.md, the figures (with matplotlib), losses.csv (both validation losses of every run),
results.csv (a row for each fine-tuning) and comparisons-BUDGET.csv (each share of CLM against MLM alone). Scores
are the field's metric of each task, the paper's for retrieval among judged documents only; how they are compared is told
in eval/report.py and eval/stats.py.
"""

import itertools
import json
import shutil
from collections import defaultdict
from pathlib import Path

import numpy as np

from data.shards import load_meta
from eval.study import figures, report, stats
from eval.study.results import Study, differences, label_by_difference
from eval.study.plan import folder_of, logged, results_of
from eval.plot import read_metrics
from eval.study.sweep import job_folder

COLUMN = "main"  # the field's metric, the paper's where a task has none
WORDS = "score (%, the metric of each task)"
HOW = """\
A score is a mean over seeds, ± half of its 95 % interval (Student t; over pretraining seeds where a model has several, \
over fine-tuning seeds otherwise: such an interval says nothing about another pretraining). The learning rate of the \
fine-tuning is chosen on validation alone.

A difference is paired by seed and by test instance; its 95 % interval counts how much it varies between seeds and between \
draws of the test set. Two models are called clearly different where p is below 0.05 after Holm's correction: over the \
shares of CLM for the first column, on which the answer rests, and over all shares and tasks for the others. The intervals \
are not corrected."""


def write(p):
    """Writes the page of a plan (eval/study.py) as far as its results are there; returns its path. Raises DataError."""
    final, out = Path(p.s["out_dir"], "report"), Path(p.s["out_dir"], "report.new")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    curves = {name: lines for name, run in p.runs.items() if (lines := curve(p, run))}
    by_budget = {
        budget: [m for m in p.finals if is_split(p, m.run) and m.run.budget == budget] for budget, *_ in p.s["splits"]
    }
    longest, study = by_budget[p.longest], study_of(p, p.models)
    parts = [f"# {Path(p.s['out_dir']).name}: MLM, CLM, or CLM and then MLM?", setting(p, curves, study)]
    if study:
        sensitive, table = sensitivity(p, longest)
        answers = [answer(p, budget, by_budget[budget], sensitive, out) for budget in sorted(by_budget, reverse=True)]
        parts += ["## The answer", *answers, "### Which tasks say something", table]
        parts += share_section(p, sum(by_budget.values(), []), out)
    parts += losses_section(p, curves, [m.run for m in longest], out)
    if study:
        parts += efficiency_section(p, by_budget, out) + mask_section(p, out) + continued_section(p, out) + sizes_section(p)
        parts += ["## Stability of fine-tuning", stability(study, report.all_scores(study, COLUMN))]
        report.write_results(study, out / "results.csv")
    write_losses(p, curves, out / "losses.csv")
    (out / "page.md").write_text("\n\n".join([*parts, "## How to read the numbers", HOW]) + "\n", encoding="utf-8")
    shutil.rmtree(final, ignore_errors=True)
    out.rename(final)
    return final / "page.md"


# ----------------------------------------------------------------------------
# What is there


def is_split(p, run):
    """Whether a run is one of the main comparison: the shares of CLM within a budget."""
    return (run.size, run.mask, run.base, run.lr) == (p.size, p.s["mask_ratios"][0], "", 0) and run.clm in next(
        (steps for budget, *steps in p.s["splits"] if budget == run.budget), ())  # fmt: skip


def study_of(p, models):
    """The Study of these models' results, its arms labelled by what they differ in; None where there is no result."""
    root, by_name = results_of(p), {model.name: model for model in models}
    jobs = itertools.product(by_name, [task for task, _ in p.s["tasks"]], p.s["finetune_lrs"], p.s["finetune_seeds"])
    folders = {str(job_folder(*job)) for job in jobs}
    if not any((root / folder / "result.json").exists() for folder in folders):
        return None
    study = Study(root, folders)
    model_of = {run.arm: by_name[Path(run.folder).parts[0]] for run in study.runs}  # one of an arm's
    words = [words_for(p, model_of[a]) for a in range(len(study.arms))]
    for arm, label, its in zip(study.arms, label_by_difference(words), words):
        arm.label = label or its["objective"]
    return study


def words_for(p, model):
    """{fact: words} of a model, for its label."""
    run = model.run
    words = {"objective": share_words(run), "mask": "", "steps": "", "size": run.size}
    if model.untrained:
        return words | {"objective": "untrained"}
    if run.clm < run.budget:
        words["mask"] = f"mask {100 * run.mask:.3g}%"
    if run.base:
        return words | {"objective": f"{share_words(p.runs[run.base])}, then {run.budget:,} MLM"}
    steps = f"{run.budget:,} steps" if model.step == run.budget else f"step {model.step:,} of {run.budget:,}"
    return words | {"steps": steps}


def curve(p, run):
    """The lines of a run's log from step 0, those of the runs that it branched off included; [] where one has not ended."""
    if logged(p, run) < run.budget:
        return []
    before = curve(p, p.runs[run.parent]) if run.parent else []
    return [line for line in before if line["step"] < run.start] + read_metrics(folder_of(p, run.name))


def share_words(run):
    return {0: "MLM only", 1: "CLM only"}.get(run.clm / run.budget, f"{100 * run.clm / run.budget:.3g}% CLM")


# ----------------------------------------------------------------------------
# The sections, each a list of Markdown blocks


def setting(p, curves, study):
    """What was trained, on what, how much of it is there. study: of all models, or None."""
    settings, config = p.shape[p.size]
    n_done, n_failed = (len(study.runs), len(study.failed)) if study else (0, 0)
    seeds, tuning_seeds = (", ".join(map(str, p.s[name])) for name in ("seeds", "finetune_seeds"))
    budgets = " and ".join(f"{budget:,}" for budget, *_ in p.s["splits"])
    lines = [
        f"- pretraining: {len(curves)} of {len(p.runs)} runs have ended; seeds {seeds}",
        f"- fine-tuning: {n_done} of {sum(map(p.jobs, p.models))} jobs have a result, {n_failed} failed; seeds {tuning_seeds}",
        f"- budgets: {budgets} steps of {settings['global_batch_tokens']:,} tokens",
        f"- main model: {config.n_layer} layers, width {config.d_model}, T={config.seq_len}",
    ]
    if Path(settings["data"]).exists():
        meta = load_meta(settings["data"])
        tokens = meta["splits"]["train"]["tokens"]
        epochs = p.longest * settings["global_batch_tokens"] / tokens
        lines.append(f"- text: {tokens:,} tokens, of which the longest budget is {epochs:.2g} epochs; a vocabulary of "
                     f"{meta['tokenizer']['vocab_size']:,}")  # fmt: skip
    facts = [json.loads((folder_of(p, name) / "config.json").read_text()) for name in curves]
    versions = sorted({", ".join(f"{k} {v}" for k, v in fact["versions"].items()) for fact in facts})
    lines += [f"- {words}" for words in versions]
    for objective, key in (("CLM", "val_clm_loss"), ("MLM", "val_mlm_loss")):
        ends = {run.lr: curves[run.name][-1][key] for run in p.runs.values()
                if run.lr and run.size == p.size and (run.clm > 0) == (objective == "CLM") and run.name in curves}  # fmt: skip
        tried = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in ends.items())
        if ends:
            lines.append(f"- learning rate for {objective}: {min(ends, key=ends.get):g}, by the {objective} loss after "
                         f"{p.s['lr_steps']} steps of it alone ({tried})")  # fmt: skip
    for task in study.tasks if study else ():
        differing = differences([run for run in study.runs if run.task == task and run.arm not in untrained_of(study)])
        lines += [
            f"- careful: the runs of {task} differ in `{name}`: {', '.join(values)}" for name, values in differing.items()
        ]
    return "\n".join(lines)


def untrained_of(study):
    """The numbers of its untrained arms."""
    return [a for a, arm in enumerate(study.arms) if arm.facts["untrained"]]


def sensitivity(p, models):
    """Which tasks tell a pretrained model from an untrained one: (their names, a table as text)."""
    study = study_of(p, models + [m for m in p.untrained if m.run.size == p.size])
    if not study:
        return [], ""
    scores, none = report.all_scores(study, COLUMN), untrained_of(study)
    if not none:
        return [*study.tasks], "Not asked: there are no results of random weights. So every task has a vote."
    rows, found = [], []
    for task in study.tasks:
        tests = against_untrained(p, study, scores, none[0], task)
        verdict, cells = "not known: needs two fine-tuning seeds that all models have, random weights too", ["-", "-"]
        if tests:
            (mean, half), most = tests["mean"], max(tests, key=lambda label: tests[label][0] - tests[label][1])
            cells = [f"{mean:+.1f} ± {half:.1f}", f"{most}: {tests[most][0]:+.1f} ± {tests[most][1]:.1f}"]
            verdict = "not shown: no interval is above 0"
            if tests[most][0] - tests[most][1] > 1e-6:
                verdict = "yes"
                found.append(task)
            elif mean + half < -1e-6:
                verdict = "no: random weights are better"
        trivial = [f"{name} {level:.1f}" for (name, column), level in study.baselines[task].items() if column == COLUMN]
        rows.append([task, str(scores[none[0], task] or "-"), *cells, verdict, ", ".join(trivial) or "-"])
    header = ["task", "untrained", "pretrained, mean", "pretrained, clearest", "does pretraining matter", "without a model"]
    note = ("Random weights with the same fine-tuning, and how much better the models of the longest budget are: their mean, and "
            "the one of them, or the mean, whose interval begins highest (first pretraining seed, paired by fine-tuning seed, "
            "95 % intervals, not corrected). Where none is above 0 the task tells nothing about objectives at this scale and has "
            "no say in the answer. One is enough, for a task on which a single objective pays must count; so about one in ten of "
            "the tasks that tell nothing has a say by chance, which adds noise to the mean, not a direction.")  # fmt: skip
    return found, f"{note}\n\n{report.table(header, rows)}"


def against_untrained(p, study, scores, none, task):
    """{label: (estimate, half of its 95 % interval)} of the difference to the untrained arm, over fine-tuning seeds: of each
    pretrained arm, and of their "mean". {} where fewer than two seeds are common to all."""
    runs = {a: {seed: run for (pretraining, seed), run in scores[a, task].runs.items() if pretraining == p.seed}
            for a in range(len(study.arms)) if scores[a, task]}  # fmt: skip
    runs = {a: by_seed for a, by_seed in runs.items() if by_seed}
    seeds = sorted(set.intersection(*map(set, runs.values())))
    if len(seeds) < 2 or len(runs) < 2 or none not in runs:
        return {}
    flat = [by_seed[seed] for by_seed in runs.values() for seed in seeds]
    values = np.array([run.scores[COLUMN, "test"] for run in flat])
    covariance, groups = report.score_covariance(study, task, COLUMN, flat), {"mean": [a for a in runs if a != none]}
    groups |= {study.arms[a].label: [a] for a in groups["mean"]}
    tests = {}
    for label, group in groups.items():
        weight = np.array([-1.0 if a == none else (a in group) / len(group) for a in runs])
        contrast = np.kron(weight, np.eye(len(seeds)))  # (seeds, runs)
        tests[label] = stats.compare([(contrast @ values, contrast @ covariance @ contrast.T)])[:2]
    return tests


def answer(p, budget, models, sensitive, out):
    """The recommendation for a budget, in words."""
    study, title = study_of(p, models), f"### At {budget:,} steps"
    if not study or not sensitive:
        why = "no task is shown to tell a pretrained model from an untrained one" if study else "no results yet"
        return f"{title}\n\nNo recommendation: {why}."
    target = f"mean of {', '.join(sensitive)}" if len(sensitive) > 1 else sensitive[0]
    study.targets = {target: tuple(sensitive)} | {task: (task,) for task in sensitive}
    scores = report.all_scores(study, COLUMN)
    reference = next((a for a, arm in enumerate(study.arms) if arm.share == 0), None)
    if reference is None or not scores[reference, target]:
        lacks = [task for task in sensitive if reference is None or not scores[reference, task]]
        return f"{title}\n\nNo recommendation yet: MLM alone has no result on {', '.join(lacks)}."
    comparisons = report.compare_all(study, scores, COLUMN, reference)
    mine = {c.a + c.b - reference: c for c in comparisons if c.target == target and c.units > 1}
    if not mine:
        return f"{title}\n\nNo recommendation yet: no share of CLM has two seeds in common with MLM alone on {target}."
    correct(mine.values())  # apart from the single tasks: the answer rests on these alone
    correct([c for c in comparisons if c.target != target])
    report.write_comparisons(study, {COLUMN: comparisons}, out / f"comparisons-{budget}.csv")

    names = {a: study.arms[a].label for a in (reference, *mine)}
    gain = {reference: 0.0} | {a: c.estimate if c.a == a else -c.estimate for a, c in mine.items()}  # by pairs of seeds
    best = max(gain, key=gain.get)
    better = sorted((a for a, c in mine.items() if c.better == a), key=lambda a: -gain[a])
    worse = [names[a] for a, c in mine.items() if c.better == reference]
    level = f"{names[reference]} has {scores[reference, target]}"
    reach = max(gain[a] + c.half for a, c in mine.items())
    doubt = f" A gain of {reach:.1f} points is not ruled out." if reach > 0 else ""
    if better:
        best_first = ", ".join(names[a] for a in better)
        lines = [f"Begin with CLM: clearly better than MLM alone on {target}, the best first: **{best_first}**. {level}."]
    elif best == reference:
        lines = [f"Stay with **MLM alone**: on {target} nothing that begins with CLM is ahead. {level}.{doubt}"]
    else:
        ahead = f"{names[best]} is ahead by {gain[best]:.1f} ± {mine[best].half:.1f}"
        lines = [f"No share of CLM is clearly better than **MLM alone** on {target}: {ahead}. {level}.{doubt}"]
    if worse:
        lines.append(f"Clearly worse than MLM alone: {', '.join(worse)}.")
    compared = {round(study.arms[a].share, 6) for a in names}
    lacking = [m.run for m in models if m.run.seed == p.seed and round(m.run.clm / budget, 6) not in compared]
    if lacking:
        lines.append(f"Not compared yet, for results are missing: {', '.join(map(share_words, lacking))}.")
    if once := [names[a] for a, c in mine.items() if c.unit == "seed"]:
        lines.append(
            f"Careful: what is said of {', '.join(once)} rests on one pretraining seed; another may say otherwise."
        )
    table = difference_table(study, comparisons, reference)
    return "\n\n".join([title, " ".join(lines), f"Minus {names[reference]} (points; bold: clearly different):", table])


def correct(comparisons):
    """Holm's correction over these alone."""
    tested = [c for c in comparisons if c.units > 1]
    for c, p in zip(tested, stats.holm([c.p for c in tested])):
        c.holm = float(p)


def difference_table(study, comparisons, reference):
    """A row for each arm but the reference, a column for each target; what the pairs of the first one are."""
    rows = []
    for a in [a for a in range(len(study.arms)) if a != reference]:
        mine, cells = {c.target: c for c in comparisons if a in (c.a, c.b) and c.units > 1}, []
        for c in map(mine.get, study.targets):
            text = f"{c.estimate if c.a == a else -c.estimate:+.1f} ± {c.half:.1f}" if c else "-"
            cells.append(f"**{text}**" if c and c.better is not None else text)
        first = mine.get(next(iter(study.targets)))
        over = f"{first.units} {first.unit}s".replace(" seeds", " fine-tuning seeds") if first else "-"
        rows.append([study.arms[a].label, *cells, over.replace("pretraining fine-tuning", "pretraining")])
    return report.table(["", *study.targets, "over"], rows)


def score_rows(study, scores):
    """A table: a row for each arm, a column for each target."""
    metric = {run.task: ", ".join(run.main[COLUMN]) for run in study.runs}
    header = ["", *(f"{title} ({metric[title]})" if title in metric else title for title in study.targets)]
    return report.table(header, [[arm.label, *(str(scores[a, title] or "-") for title in study.targets)]
                                 for a, arm in enumerate(study.arms)])  # fmt: skip


def picture(path, lines, titles, levels, label):
    """The Markdown of a figure, [] where matplotlib is not installed or there is but one place on its axis."""
    places = {point[0] for line in lines.values() for points in line.values() for point in points}
    if len(places) < 2 or not figures.available():
        return []
    figures.draw_lines(path, titles, lines, levels, label, WORDS)
    return [f"![{path.stem}]({path.name})"]


def share_section(p, models, out):
    """Scores against the share of CLM."""
    study = study_of(p, models + [m for m in p.untrained if m.run.size == p.size])
    if not study:
        return []
    scores = report.all_scores(study, COLUMN)
    levels = {arm.label: {title: scores[a, title].mean for title in study.targets if scores[a, title]}
              for a, arm in enumerate(study.arms) if arm.facts["untrained"]}  # fmt: skip
    lines = figures.arm_lines(study, scores, figures.by_share)
    image = picture(out / "share.png", lines, [*study.targets], levels, "share of CLM in pretraining (% of its steps)")
    return ["## Scores against the share of CLM", *image, score_rows(study, scores)]


def lines_section(p, title, models, choose, label, path):
    """Scores along one axis, [] where the study has none."""
    study = study_of(p, models)
    if not study:
        return []
    scores = report.all_scores(study, COLUMN)
    lines = figures.arm_lines(study, scores, choose)
    return [f"## {title}", *picture(path, lines, [*study.targets], {}, label), score_rows(study, scores)]


def efficiency_section(p, by_budget, out):
    """Along the pure runs, where checkpoints on the way are fine-tuned; else over the budgets."""
    along = [*p.inside, *(m for m in p.finals if m.run in (p.pure(0), p.pure(p.longest)))] if p.inside else []
    if not along and len(by_budget) < 2:
        return []
    label = "pretraining step (hollow: learning rate not yet decayed)"
    return lines_section(p, "Data efficiency", along or sum(by_budget.values(), []),
                         figures.by_step if along else figures.by_budget, label, out / "steps.png")  # fmt: skip


def mask_section(p, out):
    models = [m for m in p.finals if m.run.seed == p.seed and not m.run.base and m.run.budget == p.longest
              and m.run.clm in (0, p.s["late_switch"])] if len(p.s["mask_ratios"]) > 1 else []  # fmt: skip
    return lines_section(p, "Mask ratio", models, figures.by_mask, "masked tokens in pretraining (%)", out / "masks.png")


def continued_section(p, out):
    """What more MLM does for a finished decoder and a finished encoder; first pretraining seed."""
    further = [m for m in p.finals if m.run.base]
    bases = [p.runs[name] for name in dict.fromkeys(m.run.base for m in further)]
    study = study_of(p, further + [m for m in p.finals if m.run in bases]) if further else None
    if not study:
        return []
    place = {m.name: (m.run.base or m.run.name, m.step if m.run.base else 0) for m in p.finals}  # base, steps added
    arm_at = {place[Path(run.folder).parts[0]]: run.arm for run in study.runs}
    scores, lines = report.all_scores(study, COLUMN), {}
    for base in bases:
        added = sorted((steps, a) for (name, steps), a in arm_at.items() if name == base.name)
        lines[f"from {share_words(base)}"] = {
            title: [(x, scores[a, title].mean, scores[a, title].half or 0, True) for x, a in added if scores[a, title]]
            for title in study.targets}  # fmt: skip
    note = (f"From the decayed models of {p.longest:,} steps, with a new optimizer; at most "
            f"{max(p.s['continued']) / p.longest:.0%} of the steps before.")  # fmt: skip
    image = picture(out / "continued.png", lines, [*study.targets], {}, "steps of MLM added")
    parts = ["## Continued pretraining", note, *image, score_rows(study, scores)]
    for steps in sorted(p.s["continued"]):
        both = {arm_at.get((p.pure(clm).name, steps)) for clm in (0, p.longest)}
        if None not in both:
            pair = [c for c in report.compare_all(study, scores, COLUMN, min(both)) if {c.a, c.b} == both]
            correct(pair)
            sentences = "\n".join(f"- {c.target}: {report.sentence(study, c)}" for c in pair)
            parts += [f"After {steps:,} more steps of MLM, corrected together:", sentences]
    return parts


def sizes_section(p):
    models = [m for m in p.finals if m.run.seed == p.seed and m.run.budget == p.longest and not m.run.base
              and m.run.clm in (0, p.longest)]  # fmt: skip
    study = study_of(p, models + p.untrained) if len(p.shape) > 1 else None
    return ["## Sizes", score_rows(study, report.all_scores(study, COLUMN))] if study else []


def stability(study, scores):
    """A row for each arm, a column for each task: the deviation between fine-tunings, the spread over learning rates."""
    rows = []
    for a, arm in enumerate(study.arms):
        cells = []
        for task in study.tasks:
            chosen, groups, rates = scores[a, task], defaultdict(list), study.grid.get((a, task), {})
            for (pretraining, _), run in chosen.runs.items() if chosen else ():
                groups[pretraining].append(run.scores[COLUMN, "test"])
            variances = [np.var(values, ddof=1) for values in groups.values() if len(values) > 1]
            text = f"{np.sqrt(np.mean(variances)):.1f}" if variances else "-"
            alike = set.intersection(*map(set, rates.values())) if rates else ()  # the seeds at which every rate was tried
            means = [np.mean([runs[key].scores[COLUMN, "test"] for key in alike]) for runs in rates.values() if alike]
            cells.append(f"{text}, {np.ptp(means):.1f}" if len(means) > 1 else text)
        rows.append([arm.label, *cells])
    note = ("Points: the standard deviation over fine-tuning seeds at the chosen learning rate; then how far apart the means at "
            "the tried rates are, over the seeds at which all were tried.")  # fmt: skip
    return f"{note}\n\n{report.table(['', *study.tasks], rows)}"


# ----------------------------------------------------------------------------
# Pretraining losses


def losses_section(p, curves, runs, out):
    """Both validation losses through the switch, and the losses of MLM on the same batches."""
    by_clm = defaultdict(dict)  # {steps of CLM: {seed: lines}}
    for run in runs:
        if run.name in curves:
            by_clm[run.clm][run.seed] = curves[run.name]
    if not by_clm:
        return []
    rows, longest = [], p.longest
    for clm, lines in sorted(by_clm.items()):
        cells = [interval([end[-1][key] for end in lines.values()]) for key in ("val_clm_loss", "val_mlm_loss")]
        paired = [np.mean([line["loss"] - other[line["step"]] for line in lines[seed] if line["step"] in other])
                  for seed in lines if clm < longest and seed in by_clm.get(0, ())
                  if (other := last_losses(by_clm[0][seed], max(clm, longest * 9 // 10)))] if clm else []  # fmt: skip
        rows.append([share_words(p.runs[next(run.name for run in runs if run.clm == clm)]), f"{len(lines)}", *cells,
                     interval(paired, "+") if paired else "-"])  # fmt: skip
    header = ["", "seeds", "validation, CLM", "validation, MLM", "training, MLM: minus that of MLM alone"]
    note = ("Nats per predicted token at the end of the longest budget, mean over pretraining seeds ± half of the 95 % interval. "
            "The last column is over the last tenth of the steps, step by step on the same batches with the same masks.")  # fmt: skip
    path = out / "losses.png"
    image = []
    if figures.available():
        figures.draw_losses(
            path, {share_words(run): by_clm[run.clm] for run in sorted(runs, key=lambda r: r.clm) if run.clm in by_clm}
        )
        image = [f"![{path.stem}]({path.name})"]
    return ["## Both losses through the switch", *image, note, report.table(header, rows)]


def last_losses(lines, first):
    return {line["step"]: line["loss"] for line in lines if "loss" in line and line["step"] > first}


def interval(values, sign=""):
    mean, half = stats.interval(values)
    return f"{mean:{sign}.3f}" + ("" if half is None else f" ± {half:.3f}")


def write_losses(p, curves, path):
    """The mask ratio is that of the run's own validation: MLM losses at two ratios are not comparable."""
    rows = [[name, p.runs[name].mask, line["step"], line["phase"], line["val_clm_loss"], line["val_mlm_loss"]]
            for name, lines in curves.items() for line in lines if "val_clm_loss" in line]  # fmt: skip
    report.write_csv(path, ["run", "mask_ratio", "step", "phase", "val_clm_loss", "val_mlm_loss"], rows)
