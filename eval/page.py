"""The page of a study: what was asked, what came out, how sure that is. Made by eval/study.py from its runs and results.

Writes OUT_DIR/report/: page.md, the figures (with matplotlib), losses.csv (both validation losses of every run),
results.csv (a row for each fine-tuning) and comparisons.csv. Scores are the field's metric of each task, the paper's for
retrieval among judged documents only; how they are compared is told in eval/report.py and eval/stats.py.
"""

import copy
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

import checkpoint
from data.shards import load_meta
from eval import figures, report, stats
from eval.arms import Study, label_by_difference, scan
from eval.plot import read_metrics

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
    out = Path(p.s["out_dir"], "report")
    out.mkdir(parents=True, exist_ok=True)
    curves = {name: curve(p, run) for name, run in p.runs.items()}
    curves = {name: lines for name, lines in curves.items() if lines}
    parts = [f"# {Path(p.s['out_dir']).name}: MLM, CLM, or CLM and then MLM?", setting(p, curves)]
    split_models = {
        budget: [m for m in p.finals if is_split(p, m.run) and m.run.budget == budget] for budget, *_ in p.s["splits"]
    }
    budgets = sorted(split_models, reverse=True)
    everything = study_of(p, p.models)
    if everything:
        sensitive, table = sensitivity(p, split_models[budgets[0]])
        parts += ["## The answer", *(answer(p, budget, split_models[budget], sensitive, out) for budget in budgets), table]
        parts += share_section(p, [m for models in split_models.values() for m in models], out)
    parts += losses_section(p, curves, [m.run for m in split_models[budgets[0]]], out)
    if everything:
        pures = [m for m in p.finals if p.inside and m.run in (p.pure(0), p.pure(p.longest))]
        along, axis = (
            (p.inside + pures, figures.by_step) if p.inside else (sum(split_models.values(), []), figures.by_budget)
        )
        label = "pretraining step (hollow: learning rate not yet decayed)"
        parts += lines_section(
            p, "Data efficiency", along if p.inside or len(budgets) > 1 else [], axis, label, out / "steps.png"
        )
        masks = [m for m in p.finals if m.run.seed == p.seed and not m.run.base and len(p.s["mask_ratios"]) > 1
                 and m.run.budget == p.longest and m.run.clm in (0, p.s["late_switch"])]  # fmt: skip
        parts += lines_section(
            p, "Mask ratio", masks, figures.by_mask, "masked tokens in pretraining (%)", out / "masks.png"
        )
        parts += continued_section(p, out)
        parts += sizes_section(p)
        scores = report.all_scores(everything, COLUMN)
        parts += ["## Stability of fine-tuning", stability(everything, scores)]
        report.write_results(everything, out / "results.csv")
    parts += ["## How to read the numbers", HOW]
    write_losses(curves, out / "losses.csv")
    checkpoint.write_whole(out / "page.md", lambda f: f.write(("\n\n".join(parts) + "\n").encode()))
    return out / "page.md"


# ----------------------------------------------------------------------------
# What is there


def is_split(p, run):
    """Whether a run is one of the main comparison: the shares of CLM within a budget."""
    return (run.size, run.mask, run.base, run.lr) == (p.size, p.s["mask_ratios"][0], "", 0) and run.clm in next(
        (steps for budget, *steps in p.s["splits"] if budget == run.budget), ())  # fmt: skip


def study_of(p, models):
    """The Study of these models' results, its arms labelled by what they differ in; None where there is no result."""
    root, by_name = Path(p.s["out_dir"], "results"), {model.name: model for model in models}
    if not any(next(root.glob(f"{name}/*/*/result.json"), None) for name in by_name):
        return None
    study = Study(root, set(by_name))
    words = []
    for arm in study.arms:
        untrained = [m for m in models if m.untrained and f"{m.run.name}-{m.run.budget}" in arm.names]
        words.append(words_for(p, untrained[0] if arm.facts["untrained"] else by_name[arm.names[0]]))
    for arm, label, its in zip(study.arms, label_by_difference(words), words):
        arm.label = label or its["objective"]
    return study


def words_for(p, model):
    """{fact: words} of a model, for its label."""
    run = model.run
    words = {
        "objective": share_words(p.runs[run.base] if run.base else run),
        "added": "",
        "mask": "",
        "steps": "",
        "size": run.size,
    }
    if model.untrained:
        return words | {"objective": "untrained"}
    if run.clm < run.budget:
        words["mask"] = f"mask {100 * run.mask:.3g}%"
    if run.base:
        return words | {"added": f"{run.budget:,} more of MLM"}
    steps = f"{run.budget:,} steps" if model.step == run.budget else f"step {model.step:,} of {run.budget:,}"
    return words | {"steps": steps}


def curve(p, run):
    """The lines of a run's log from step 0, those of the runs that it branched off included; [] where one has not ended."""
    folder = Path(p.s["out_dir"], "runs", run.name)
    if not checkpoint.path_of(folder, run.budget).exists():
        return []
    before = curve(p, p.runs[run.parent]) if run.parent else []
    if run.parent and not before:
        return []
    return [line for line in before if line["step"] <= run.start] + [
        line for line in read_metrics(folder) if line["step"] > run.start or not run.parent]  # fmt: skip


def share_words(run):
    return {0: "MLM only", 1: "CLM only"}.get(run.clm / run.budget, f"{100 * run.clm / run.budget:.3g}% CLM")


# ----------------------------------------------------------------------------
# The sections, each a list of Markdown blocks


def setting(p, curves):
    """What was trained, on what."""
    settings, config = p.shape[p.size]
    results = Path(p.s["out_dir"], "results")
    n_done = sum(name == "result.json" for _, name in scan(results)) if results.exists() else 0
    seeds, tuning_seeds = (", ".join(map(str, p.s[name])) for name in ("seeds", "finetune_seeds"))
    budgets = " and ".join(f"{budget:,}" for budget, *_ in p.s["splits"])
    lines = [
        f"- pretraining: {len(curves)} of {len(p.runs)} runs have ended; seeds {seeds}",
        f"- fine-tuning: {n_done} of {sum(map(p.jobs, p.models))} jobs have a result; seeds {tuning_seeds}",
        f"- budgets: {budgets} steps of {settings['global_batch_tokens']:,} tokens",
        f"- main model: {config.n_layer} layers, width {config.d_model}, T={config.seq_len}",
    ]
    if Path(settings["data"]).exists():
        meta = load_meta(settings["data"])
        tokens = meta["splits"]["train"]["tokens"]
        epochs = p.longest * settings["global_batch_tokens"] / tokens
        lines.append(f"- text: {tokens:,} tokens, of which the longest budget is {epochs:.2g} epochs; a vocabulary of "
                     f"{meta['tokenizer']['vocab_size']:,}")  # fmt: skip
    facts = [json.loads((Path(p.s["out_dir"], "runs", name) / "config.json").read_text()) for name in curves]
    versions = sorted({", ".join(f"{k} {v}" for k, v in fact["versions"].items()) for fact in facts})
    lines += [f"- {words}" for words in versions]
    for objective, key in (("CLM", "val_clm_loss"), ("MLM", "val_mlm_loss")):
        ends = {run.lr: curves[run.name][-1][key] for run in p.runs.values()
                if run.lr and run.size == p.size and (run.clm > 0) == (objective == "CLM") and run.name in curves}  # fmt: skip
        tried = ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in ends.items())
        if ends:
            lines.append(f"- learning rate for {objective}: {min(ends, key=ends.get):g}, by the {objective} loss after "
                         f"{p.s['lr_steps']} steps of it alone ({tried})")  # fmt: skip
    return "\n".join(lines)


def sensitivity(p, models):
    """Which tasks tell a pretrained model from an untrained one: (their names, a table as text)."""
    study = study_of(p, models + [m for m in p.untrained if m.run.size == p.size])
    if not study:
        return [], ""
    scores = report.all_scores(study, COLUMN)
    none = [a for a, arm in enumerate(study.arms) if arm.facts["untrained"]]
    rows, found = [], []
    for task in study.tasks if none else ():
        if not scores[none[0], task]:
            continue
        estimate, half = against_untrained(p, study, scores, none[0], task)
        if estimate - half > 0:
            found.append(task)
        verdict = "yes" if estimate - half > 0 else "no: at this scale it says nothing about pretraining"
        trivial = ", ".join(
            f"{name} {level:.1f}" for (name, column), level in study.baselines[task].items() if column == COLUMN
        )
        rows.append([task, f"{scores[none[0], task]}", f"{estimate:+.1f} ± {half:.1f}", verdict, trivial or "-"])
    header = ["task", "untrained", "pretrained, on average", "does pretraining matter", "without a model"]
    note = ("Random weights with the same fine-tuning, and how much better the models of the longest budget are on average "
            "(first pretraining seed, paired by fine-tuning seed, 95 % interval, not corrected):")  # fmt: skip
    text = f"{note}\n\n{report.table(header, rows)}" if rows else "There is no untrained arm."
    return found, f"### Which tasks say something\n\n{text}"


def against_untrained(p, study, scores, none, task):
    """(mean difference of all pretrained arms to the untrained one, half of its 95 % interval), over fine-tuning seeds."""
    runs = {a: {seed: run for (pretraining, seed), run in scores[a, task].runs.items() if pretraining == p.seed}
            for a in range(len(study.arms)) if scores[a, task]}  # fmt: skip
    runs = {a: by_seed for a, by_seed in runs.items() if by_seed}
    seeds = sorted(set.intersection(*map(set, runs.values())))
    if len(seeds) < 2 or len(runs) < 2:
        return np.nan, np.nan
    flat = [by_seed[seed] for by_seed in runs.values() for seed in seeds]
    weight = np.array([-1.0 if a == none else 1 / (len(runs) - 1) for a in runs])
    contrast = np.kron(weight, np.eye(len(seeds)))  # (seeds, runs)
    difference = contrast @ np.array([run.scores[COLUMN, "test"] for run in flat])
    covariance = report.score_covariance(study, task, COLUMN, flat)
    estimate, half, _ = stats.compare([(difference, contrast @ covariance @ contrast.T)])
    return estimate, half


def answer(p, budget, models, sensitive, out):
    """The recommendation for a budget, in words."""
    study, title = study_of(p, models), f"### At {budget:,} steps"
    if not study or not sensitive:
        why = "no task tells a pretrained model from an untrained one" if study else "no results yet"
        return f"{title}\n\nNo recommendation: {why}."
    mean = f"mean of {', '.join(sensitive)}"
    study.targets = {task: (task,) for task in sensitive} | ({mean: tuple(sensitive)} if len(sensitive) > 1 else {})
    target = [*study.targets][-1]
    scores = report.all_scores(study, COLUMN)
    reference = next((a for a, arm in enumerate(study.arms) if arm.share == 0), None)
    arms = [a for a in range(len(study.arms)) if scores[a, target]]
    if reference not in arms or len(arms) < 2:
        return f"{title}\n\nNo recommendation yet: MLM alone, or what to compare it with, has no results."
    mine, per_task = {}, []
    for targets in ([target], study.targets.keys() - {target}):  # corrected apart: the answer rests on the first ones alone
        part = copy.copy(study)
        part.targets = {name: study.targets[name] for name in study.targets if name in targets}
        found = report.compare_all(part, scores, COLUMN, reference) if part.targets else []
        per_task += found
        mine = mine or {c.a + c.b - reference: c for c in found}
    report.write_comparisons(study, {COLUMN: per_task}, out / f"comparisons-{budget}.csv")
    best, base = max(arms, key=lambda a: scores[a, target].mean), study.arms[reference].label
    several = any(c.unit == "pretraining seed" for c in mine.values())
    name = {a: study.arms[a].label + " (one pretraining seed)" * (several and c.unit == "seed") for a, c in mine.items()}
    better = sorted((a for a, c in mine.items() if c.better == a), key=lambda a: -scores[a, target].mean)
    worse = [name[a] for a, c in mine.items() if c.better == reference]
    widest = max((c.half for c in mine.values() if c.half == c.half), default=np.nan)
    lines = [
        f"Highest on {target}: **{study.arms[best].label}**, {scores[best, target]}; {base} has {scores[reference, target]}."
    ]
    if better:
        lines.append(
            f"Begin with CLM: clearly better than MLM alone, the best first: {', '.join(name[a] for a in better)}."
        )
    elif best == reference:
        lines.append("MLM alone is a sound choice: nothing that begins with CLM is clearly better.")
    else:
        lines.append("Not enough to prefer it: no share of CLM is clearly better than MLM alone. The intervals reach "
                     f"± {widest:.1f}; a smaller difference cannot be seen with so few seeds.")  # fmt: skip
    if worse:
        lines.append(f"Clearly worse than MLM alone: {', '.join(worse)}.")
    return "\n\n".join([title, " ".join(lines), f"Minus {base} (points; bold: clearly different):",
                        difference_table(study, per_task, reference, target)])  # fmt: skip


def difference_table(study, comparisons, reference, first):
    """A row for each arm but the reference, a column for each target."""
    titles, rows = [first, *(title for title in study.targets if title != first)], []
    for a in [a for a in range(len(study.arms)) if a != reference]:
        cells, units = [], ""
        for title in titles:
            c = next((c for c in comparisons if c.target == title and a in (c.a, c.b)), None)
            known = c is not None and c.half == c.half
            units = f"{c.units} {c.unit}s" if known else units
            text = f"{c.estimate if c.a == a else -c.estimate:+.1f} ± {c.half:.1f}" if known else "-"
            cells.append(f"**{text}**" if known and c.better is not None else text)
        rows.append([study.arms[a].label, *cells, units])
    return report.table(["", *titles, "over"], rows)


def score_rows(study, scores):
    """A table: a row for each arm, a column for each target."""
    metric = {run.task: ", ".join(run.main[COLUMN]) for run in study.runs}
    header = ["", *(f"{title} ({metric[title]})" if title in metric else title for title in study.targets)]
    return report.table(header, [[arm.label, *(str(scores[a, title] or "-") for title in study.targets)]
                                 for a, arm in enumerate(study.arms)])  # fmt: skip


def picture(path, lines, titles, levels, label):
    """The Markdown of a figure, [] where matplotlib is not installed or a line would be a point."""
    path.unlink(missing_ok=True)
    if not lines or not figures.available():
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


def continued_section(p, out):
    """What more MLM does for a finished decoder and a finished encoder; first pretraining seed."""
    further = [m for m in p.finals if m.run.base]
    bases = {f"from {share_words(p.runs[name])}": p.runs[name] for name in dict.fromkeys(m.run.base for m in further)}
    study = study_of(p, further + [m for m in p.finals if m.run in bases.values()])
    if not study or not further:
        return []
    scores, lines = report.all_scores(study, COLUMN), {}
    for label, base in bases.items():
        added = {m.name: m.step if m.run.base else 0 for m in p.finals if base.name in (m.run.name, m.run.base)}
        arms = sorted((added[arm.names[0]], a) for a, arm in enumerate(study.arms) if arm.names[0] in added)
        lines[label] = {title: [(x, scores[a, title].mean, scores[a, title].half or 0, True) for x, a in arms if scores[a, title]]
                        for title in study.targets}  # fmt: skip
    share = max(p.s["continued"]) / p.longest
    note = f"From the decayed models of {p.longest:,} steps, with a new optimizer; at most {share:.0%} of the steps before."
    image = picture(out / "continued.png", lines, [*study.targets], {}, "steps of MLM added")
    return ["## Continued pretraining", note, *image, score_rows(study, scores)]


def stability(study, scores):
    """A row for each arm, a column for each task: the deviation between fine-tunings, the spread over learning rates."""
    rows = []
    for a, arm in enumerate(study.arms):
        cells = []
        for task in study.tasks:
            chosen, groups = scores[a, task], defaultdict(list)
            for (pretraining, _), run in chosen.runs.items() if chosen else ():
                groups[pretraining].append(run.scores[COLUMN, "test"])
            variances = [np.var(values, ddof=1) for values in groups.values() if len(values) > 1]
            means = [
                np.mean([run.scores[COLUMN, "test"] for run in runs.values()])
                for runs in study.grid.get((a, task), {}).values()
            ]
            text = f"{np.sqrt(np.mean(variances)):.1f}" if variances else "-"
            cells.append(f"{text}, {np.ptp(means):.1f}" if len(means) > 1 else text)
        rows.append([arm.label, *cells])
    note = ("Points: the standard deviation over fine-tuning seeds at the chosen learning rate, and how far apart the means at "
            "the tried rates are.")  # fmt: skip
    return f"{note}\n\n{report.table(['', *study.tasks], rows)}"


def sizes_section(p):
    models = [m for m in p.finals if m.run.seed == p.seed and m.run.budget == p.longest and not m.run.base
              and m.run.clm in (0, p.longest)]  # fmt: skip
    study = study_of(p, models + p.untrained) if len(p.shape) > 1 else None
    return ["## Sizes", score_rows(study, report.all_scores(study, COLUMN))] if study else []


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
    path.unlink(missing_ok=True)
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


def write_losses(curves, path):
    rows = [[name, line["step"], line["phase"], line["val_clm_loss"], line["val_mlm_loss"]]
            for name, lines in curves.items() for line in lines if "val_clm_loss" in line]  # fmt: skip
    report.write_csv(path, ["run", "step", "phase", "val_clm_loss", "val_mlm_loss"], rows)
