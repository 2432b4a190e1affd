"""Tables, comparisons and figures of a folder of fine-tuning results.

    python eval/report.py RESULTS_DIR [--out=FOLDER] [--resamples=2000]

Reads every result.json below RESULTS_DIR and the instances.npz beside it. Writes report.md, results.csv (a row per
run), table.csv (a row per model and task), comparisons.csv, and figures where matplotlib is installed; prints the
tables. Missing and failed runs are shown as such, never filled in; a file that is no result stops the report.

What is compared is an arm (eval/arms.py), at the learning rate with the best mean validation score among the rates
with the most finished runs: a rate that lost seeds must not win on the seeds that survived, and where every rate lost
some, those with the fewest losses are left. HOW, below, tells readers of the report how scores are compared; the
reasons are in eval/stats.py.
"""

import csv
import itertools
import math
import sys
import zipfile
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import configurator
from errors import DataError
from eval.study import figures, stats
from eval.study.results import COLUMNS, FAMILIES, Study, differences

out = ""  # the folder to write to; "" = RESULTS_DIR
resamples = 2000  # of the test instances, for the comparisons


# ----------------------------------------------------------------------------
# Scores


@dataclass
class Score:
    values: dict  # {unit: per cent}, see Arm.by_unit
    done: int  # runs, or seeds of a family ...
    expected: int  # ... of how many
    several: bool  # pretraining seeds
    lr: float = math.nan  # the chosen one, of a task
    runs: dict = field(default_factory=dict)  # {(pretraining seed, seed): Run} at that rate, of a task

    def __post_init__(self):
        self.mean, self.half = stats.interval([*self.values.values()])

    def __str__(self):
        text = f"{self.mean:.1f}" + ("" if self.half is None else f" ± {self.half:.1f}")
        if self.done < self.expected:
            return f"{text} ({self.done} of {self.expected} {'runs' if self.several else 'seeds'})"
        return text + " (one seed)" * (self.half is None)


def task_score(study, a, task, column):
    """The Score of arm number a at the learning rate that validation chooses; None where it has no run."""
    rates, arm = study.grid.get((a, task)), study.arms[a]
    if not rates or not all((column, "test") in run.scores for runs in rates.values() for run in runs.values()):
        return None
    most = max(map(len, rates.values()))
    validation = {lr: np.mean([run.scores[column, "validation"] for run in runs.values()])
                  for lr, runs in sorted(rates.items()) if len(runs) == most}  # fmt: skip
    lr = max(validation, key=validation.get)  # of equals the lowest
    expected = len(arm.seeds) * len(study.seeds[task])
    return Score(arm.by_unit(rates[lr], column), most, expected, len(arm.seeds) > 1, lr, rates[lr])


def all_scores(study, column):
    """{(number of the arm, target): Score, or None where it is missing}."""
    scores = {}
    for a, (title, tasks) in itertools.product(range(len(study.arms)), study.targets.items()):
        parts = [task_score(study, a, task, column) for task in tasks]
        scores[a, title] = parts[0] if len(tasks) == 1 else None
        if len(tasks) > 1 and all(parts) and (units := set.intersection(*(set(part.values) for part in parts))):
            values = {unit: float(np.mean([part.values[unit] for part in parts])) for unit in sorted(units)}
            done, expected = sum(part.done for part in parts), sum(part.expected for part in parts)
            if not parts[0].several:
                done, expected = len(units), len(set.union(*(study.seeds[task] for task in tasks)))
            scores[a, title] = Score(values, done, expected, parts[0].several)
    return scores


# ----------------------------------------------------------------------------
# Comparisons


@dataclass
class Comparison:
    target: str
    a: int
    b: int
    units: int  # pairs
    unit: str  # what one is; "" where there is nothing to pair by
    estimate: float = math.nan
    half: float = math.nan  # the interval is estimate ± half
    p: float = math.nan
    holm: float = math.nan

    @property
    def better(self):
        """The number of the arm that is clearly better, None where they are not distinguishable."""
        return (self.a if self.estimate > 0 else self.b) if self.holm < 0.05 else None


def score_covariance(study, task, column, runs):
    """The covariance (R, R) of the test scores of R runs over resamples of the test instances."""
    scores, names = np.zeros((resamples, len(runs))), runs[0].main[column]
    for metric in names:
        arrays, first = [], None
        for run in runs:
            path = Path(study.root, run.folder, "instances.npz")
            try:
                with np.load(path) as file:
                    array = file[metric]
            except (OSError, KeyError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
                raise DataError(f"{path}: {error}. The comparisons need it: make this run again") from None
            first = first or (array.shape, path)
            if array.shape != first[0]:
                raise DataError(f"{task}, {metric}: two test sets, which cannot be compared:\n  {first[1]}: {first[0]}"
                                f"\n  {path}: {array.shape}")  # fmt: skip
            if abs(stats.ratio_score(array.sum(0, dtype=np.float64)) - run.test[metric]) > 0.01:
                raise DataError(f"{path}: not the {metric} of {run.test[metric]} in result.json. Make the run again")
            arrays.append(array)
        retrieval_set = metric.rpartition("/")[0]  # the metrics of one share its resamples
        seed = zlib.crc32(f"{task}/{retrieval_set}".encode())
        scores += stats.bootstrap(np.stack(arrays), resamples, seed) / len(names)
    return np.cov(scores.T).reshape(len(runs), len(runs))


def pair(arm_a, arm_b, runs_a, runs_b):
    """The runs at which two arms meet on a task: ({unit: [(run of a, run of b), ...]}, what a unit is)."""
    common = set(arm_a.seeds) & set(arm_b.seeds)
    if len(arm_a.seeds) == len(arm_b.seeds) == 1:  # by fine-tuning seed, whatever the two pretraining seeds
        runs_b = {(arm_a.seeds[0], seed): run for (_, seed), run in runs_b.items()}
        common = set(arm_a.seeds)
    units = defaultdict(list)
    for key in sorted(runs_a.keys() & runs_b.keys()):
        units[key[0] if len(common) > 1 else key[1]].append((runs_a[key], runs_b[key]))
    return units, "pretraining seed" if len(common) > 1 else "seed" if common else ""


def compare_all(study, scores, column, reference=None):
    """A Comparison of every two arms on every target where both have a score, Holm-corrected together; only of those
    with the arm number `reference` where one is given."""
    arms, covariance, place, found = range(len(study.arms)), {}, {}, []
    for task in dict.fromkeys(task for tasks in study.targets.values() for task in tasks) if len(arms) > 1 else ():
        runs = [run for a in arms if scores[a, task] for run in scores[a, task].runs.values()]
        if not runs:
            continue
        place |= {run.folder: i for i, run in enumerate(runs)}
        covariance[task] = score_covariance(study, task, column, runs)
    for (title, tasks), (a, b) in itertools.product(study.targets.items(), itertools.combinations(arms, 2)):
        if not (scores[a, title] and scores[b, title]) or reference not in (None, a, b):
            continue
        pairs = [pair(study.arms[a], study.arms[b], scores[a, task].runs, scores[b, task].runs) for task in tasks]
        shared = set.intersection(*(set(by_unit) for by_unit, _ in pairs))
        found.append(comparison := Comparison(title, a, b, len(shared), pairs[0][1]))
        if len(shared) < 2:
            continue
        parts = []  # of the tasks
        for task, (by_unit, _) in zip(tasks, pairs):
            contrast = np.zeros((len(shared), len(covariance[task])))  # (units, runs)
            difference = np.zeros(len(shared))
            for i, unit in enumerate(sorted(shared)):
                for one, other in by_unit[unit]:
                    contrast[i, place[one.folder]] += 1 / len(by_unit[unit])
                    contrast[i, place[other.folder]] -= 1 / len(by_unit[unit])
                    difference[i] += (one.scores[column, "test"] - other.scores[column, "test"]) / len(by_unit[unit])
            parts.append((difference, contrast @ covariance[task] @ contrast.T))
        if comparison.unit == "pretraining seed":  # the tasks of a unit share its pretraining; the test sets are apart
            n = len(parts)
            parts = [(sum(d for d, _ in parts) / n, sum(c for _, c in parts) / n**2)]
        comparison.estimate, comparison.half, comparison.p = stats.compare(parts)
    tested = [c for c in found if c.units > 1]
    for c, p in zip(tested, stats.holm([c.p for c in tested])):
        c.holm = float(p)
    return found


def all_ranks(study, scores, comparisons):
    """{(number of the arm, target): (best, worst) rank that the comparisons leave open}."""
    ranks = {}
    for title in study.targets:
        arms = [a for a in range(len(study.arms)) if scores[a, title]]
        better = np.zeros((len(arms), len(arms)), bool)
        for c in comparisons:
            if c.target == title and c.better is not None:
                better[arms.index(c.better), arms.index(c.a + c.b - c.better)] = True
        ranks |= {(a, title): (int(best), int(worst)) for a, best, worst in zip(arms, *stats.ranks(better))}
    return ranks


# ----------------------------------------------------------------------------
# Words and tables

MOST_LISTED = 300  # comparisons; of more, report.md lists those that are distinguishable
HOW = """\
A score is a mean over seeds, ± half of its 95 % interval (Student t; over pretraining seeds where a model has \
several, over fine-tuning seeds otherwise). The learning rate is chosen on validation alone, for each model, task and \
metric, among the rates with the most finished runs. A family's score is the mean over its tasks, seed by seed.

A comparison pairs the runs of two models by seed and their answers by test instance, and estimates the mean \
difference over seeds. Its 95 % interval counts two kinds of chance: the seeds (how much the difference varies from \
one to the next) and the test set (how much it varies over {resamples} draws of as many instances from it). p-values \
are corrected by Holm's method over all comparisons of a metric's section, every two models on every task and family \
mean: two models are called different where the corrected p is below 0.05. The intervals are not corrected."""


def table(header, rows):
    """A Markdown table whose columns also line up in a terminal."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def baseline_rows(study, column):
    """{baseline: {target: per cent, or None where the baseline or the metric is missing}}."""
    rows = defaultdict(dict)
    for name in dict.fromkeys(name for its in study.baselines.values() for name, _ in its):
        for title, tasks in study.targets.items():
            values = [study.baselines[task].get((name, column)) for task in tasks]
            rows[name][title] = None if None in values else float(np.mean(values))
    return rows


def score_tables(study, scores, column):
    """A table per family: a row per arm, the baselines beneath."""
    parts = []
    for family in dict.fromkeys(study.tasks.values()):
        titles = [title for title, tasks in study.targets.items() if study.tasks[tasks[0]] == family]
        metric = {run.task: f"{run.task} ({', '.join(run.main[column])})" for run in study.runs}
        rows = [[arm.label, *(str(scores[a, title] or "-") for title in titles)] for a, arm in enumerate(study.arms)]
        for name, levels in baseline_rows(study, column).items():
            cells = ["-" if levels[title] is None else f"{levels[title]:.1f}" for title in titles]
            if {*cells} != {"-"}:
                rows.append([f"*{name}*", *cells])
        header = [COLUMNS[column], *(metric.get(title, title) for title in titles)]
        parts.append(f"### {FAMILIES[family]}, {COLUMNS[column]}\n\n{table(header, rows)}")
    return "\n\n".join(parts)


def rank_table(study, ranks):
    cells = {key: f"{best}" if best == worst else f"{best}-{worst}" for key, (best, worst) in ranks.items()}
    rows = [[arm.label, *(cells.get((a, title), "-") for title in study.targets)] for a, arm in enumerate(study.arms)]
    return table(["possible ranks", *study.targets], rows)


def stability_table(study, scores):
    """Of each arm and task, by the field's metric: what changes with the seed and the learning rate, what failed."""
    rows = []
    for task, (a, arm) in itertools.product(study.tasks, enumerate(study.arms)):
        rates, jobs = study.grid.get((a, task), {}), len(study.lrs[task]) * len(study.seeds[task]) * len(arm.seeds)
        tests = {lr: [run.scores.get(("field", "test"), math.nan) for run in runs.values()] for lr, runs in rates.items()}
        chosen, deviation, spread, collapsed = scores[a, task], "-", "-", "-"
        if chosen:
            by_pretraining = defaultdict(list)
            for (pretraining, _), run in chosen.runs.items():
                by_pretraining[pretraining].append(run.scores["field", "test"])
            variances = [np.var(values, ddof=1) for values in by_pretraining.values() if len(values) > 1]
            deviation = f"{math.sqrt(np.mean(variances)):.2f}" if variances else "-"
        if chosen and len(tests) > 1:
            spread = f"{np.ptp([np.mean(values) for values in tests.values()]):.1f}"
        if chosen and (floor := study.baselines[task].get(("majority", "field"))) is not None:
            collapsed = str(sum(value < floor + 1e-6 for values in tests.values() for value in values))
        done, failed = sum(map(len, tests.values())), study.n_failed[a, task]
        rows.append([task, arm.label, f"{chosen.lr:g}" if chosen else "-", deviation, spread, f"{done} of {jobs}",
                     str(failed), str(jobs - done - failed), collapsed])  # fmt: skip
    return table(["task", "model", "best lr", "sd over seeds", "spread over lr", "runs", "failed", "missing",
                  "at majority or below"], rows)  # fmt: skip


def p_value(p):
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def sentence(study, c):
    """What a comparison found."""
    a, b, estimate = study.arms[c.a].label, study.arms[c.b].label, c.estimate
    if not c.unit:
        return f"{a} and {b}: not compared, for they have no pretraining seed in common"
    if c.units < 2:
        return f"{a} and {b}: not compared, for with {c.units} {c.unit} in common the noise between seeds is unknown"
    if c.better == c.b:
        a, b, estimate = b, a, -estimate
    found = f"{a} and {b}: not distinguishable" if c.better is None else f"**{a}** better than **{b}**"
    if c.better is None and c.p < 0.05:
        found += " once corrected"
    numbers = f"{estimate:+.1f}, 95 % interval {estimate - c.half:.1f} to {estimate + c.half:.1f}".replace("-", "−")
    return f"{found}: {numbers} ({c.units} {c.unit}s, {p_value(c.p)}, corrected {p_value(c.holm)})"


def comparison_lines(study, comparisons):
    """The section of comparisons: what they cannot say first, then a sentence each."""
    tested, clear = [c for c in comparisons if c.units > 1], [c for c in comparisons if c.better is not None]
    lines = [f"Comparisons, corrected together: {len(tested)}. Distinguishable: {len(clear)}."]
    for units, unit in sorted({(c.units, c.unit) for c in tested}):
        bar = stats.half_width(units - 1, level=0.05 / len(tested))
        lines[0] += (f" With {units} {unit}s a difference on one task must exceed {bar:.0f} standard errors of the "
                     "noise between them to stand out among so many.")  # fmt: skip
    if any(c.unit == "seed" for c in tested):
        which = "" if all(c.unit == "seed" for c in tested) else " where a comparison is over fine-tuning seeds"
        lines[0] += f" Intervals do not include pretraining noise: one pretraining seed{which}."
    listed = comparisons if len(comparisons) <= MOST_LISTED else clear
    if len(comparisons) > MOST_LISTED:
        lines[0] += " Only the distinguishable are listed; all are in comparisons.csv."
    untrained = {a for a, arm in enumerate(study.arms) if arm.facts["untrained"]}
    for title in study.targets:
        against = [c for c in tested if c.target == title and (c.a in untrained) != (c.b in untrained)]
        sentences = [sentence(study, c) for c in listed if c.target == title]
        above = [c for c in against if (c.estimate > 0) == (c.b in untrained)]
        if against and not any(c.better is not None for c in above):
            words = "once corrected" if any(c.p < 0.05 for c in above) else "so it says nothing about objectives here"
            sentences.insert(0, f"{title}: no pretrained model is clearly better than the untrained one, {words}")
        if sentences:
            lines.append(f"{title}:\n" + "\n".join(f"- {s}" for s in sentences))
    return "\n\n".join(lines)


def overview(study):
    """What was read: the arms, and what a reader must know of the runs."""
    names = [", ".join(arm.names) for arm in study.arms]
    rows = [[arm.label, names[a], ", ".join(map(str, arm.seeds)), f"{arm.facts['parameters']:,}"]
            for a, arm in enumerate(study.arms)]  # fmt: skip
    parts = [f"Results: {len(study.runs)}. Failed jobs: {len(study.failed)}.",
             table(["model", "checkpoints", "pretraining seeds", "parameters"], rows)]  # fmt: skip
    lines = [f"{task}: runs differ in `{name}`: {', '.join(values)}" for task in study.tasks
             for name, values in differences([run for run in study.runs if run.task == task]).items()]  # fmt: skip
    lines += [f"failed: `{job}`: {error}" for job, error in itertools.islice(study.failed.items(), 50)]
    if len(study.failed) > 50:
        lines.append(f"{len(study.failed) - 50} more failed jobs: results.csv has them all")
    return "\n\n".join(parts + ["\n".join(f"- {line}" for line in lines)] * bool(lines))


# ----------------------------------------------------------------------------
# Writing


def write_csv(path, header, rows):
    """A cell that is None, or no number, stays empty."""
    rows = [["" if cell is None or cell != cell else f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row]
            for row in rows]  # fmt: skip
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def write_results(study, path):
    columns = list(itertools.product(COLUMNS, ("validation", "test")))
    rows = [[run.folder, "done", study.arms[run.arm].label, run.pretraining, run.task, run.family, run.lr, run.seed,
             *(run.scores.get(key) for key in columns), ""] for run in study.runs]  # fmt: skip
    rows += [[job, "failed", *[""] * (6 + len(columns)), error] for job, error in study.failed.items()]
    write_csv(path, ["folder", "status", "model", "pretraining_seed", "task", "family", "lr", "seed",
                     *("_".join(key) for key in columns), "error"], rows)  # fmt: skip


def write_table(study, scores, ranks, path):
    rows = []
    for column, title in itertools.product(COLUMNS, study.targets):
        start = [column, study.tasks[study.targets[title][0]], title]
        for a, arm in enumerate(study.arms):
            s, cells = scores[column][a, title], [None] * 8
            if s:
                cells = [s.mean, s.half, s.done, s.expected, len(s.values), s.lr, *ranks[column][a, title]]
            rows.append([*start, arm.label, *cells])
        for name, levels in baseline_rows(study, column).items():
            rows.append([*start, f"baseline: {name}", levels[title], *[None] * 7])
    write_csv(path, ["metric", "family", "target", "model", "score", "half_width_95", "done", "expected", "units", "lr",
                     "best_rank", "worst_rank"], rows)  # fmt: skip


def write_comparisons(study, comparisons, path):
    labels = {None: None, **{a: arm.label for a, arm in enumerate(study.arms)}}
    rows = [[column, c.target, labels[c.a], labels[c.b], c.estimate, c.estimate - c.half, c.estimate + c.half, c.p,
             c.holm, c.units, c.unit, labels[c.better]] for column in comparisons for c in comparisons[column]]  # fmt: skip
    write_csv(path, ["metric", "target", "model_a", "model_b", "difference", "low_95", "high_95", "p", "p_holm",
                     "units", "unit", "better"], rows)  # fmt: skip


def check(s):
    if s["resamples"] < 100:
        yield f"resamples={s['resamples']}: must be at least 100"
    if Path(s["out"]).is_file():
        yield f"out={s['out']}: is a file, must be a folder"


def report(root):
    """Reads the results below a folder and writes the report; returns the tables as text. Raises DataError."""
    study = Study(root)
    folder = Path(out or root)
    folder.mkdir(parents=True, exist_ok=True)
    scores, comparisons, ranks, main = {}, {}, {}, []
    text = ["# Report", overview(study)]
    for column in COLUMNS:
        scores[column] = all_scores(study, column)
        main.append(score_tables(study, scores[column], column))
        comparisons[column] = compare_all(study, scores[column], column)
        ranks[column] = all_ranks(study, scores[column], comparisons[column])
        text += [f"## The {COLUMNS[column]}", main[-1]]
        if len(study.arms) > 1:
            text += [f"### Ranks, {COLUMNS[column]}", rank_table(study, ranks[column]),
                     f"### Comparisons, {COLUMNS[column]}", comparison_lines(study, comparisons[column])]  # fmt: skip
    text += ["## Stability of fine-tuning, field's metric", stability_table(study, scores["field"])]
    images = [path for column in COLUMNS
              for path in figures.draw(study, scores[column], column, COLUMNS[column], folder)]  # fmt: skip
    text += ["## Figures"] * bool(images) + [f"![{path.stem}]({path.name})" for path in images]
    text += ["## How to read the numbers", HOW.format(resamples=resamples)]
    (folder / "report.md").write_text("\n\n".join(text) + "\n", encoding="utf-8")
    write_results(study, folder / "results.csv")
    write_table(study, scores, ranks, folder / "table.csv")
    write_comparisons(study, comparisons, folder / "comparisons.csv")
    return "\n\n".join(main)


def main():
    if "--help" in sys.argv:
        print("\n".join(__doc__.splitlines()[:3]) + "\n")
        configurator.load(__file__, ["--help"])
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python eval/report.py RESULTS_DIR [--key=value ...]    (RESULTS_DIR: a folder of results)")
    globals().update(configurator.load(__file__, sys.argv[2:], check))
    try:
        print(report(sys.argv[1]))
    except DataError as error:
        sys.exit(str(error))
    print(f"\n{Path(out or sys.argv[1]) / 'report.md'}")


if __name__ == "__main__":
    main()
