"""Print numbers of the studies' pages, from the results beside each page.

    python docs/results/studies.py cause      # or dose, visible, intervention, ladder

Run it in the main folder, because it imports the project's statistics. results.csv has a line for each fine-tuning.
instances.npz has the score of each test instance, a numerator and a denominator, under the key "model seed task rate
finetune_seed". At commit f4fbce3, collect.py of study_cause makes both from a study's folder. At commit cf8f1c2, this
script also draws the figures of the pages.
"""

import csv
import io
import itertools
import re
import sys
import zipfile
import zlib
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

import numpy as np

sys.path.insert(0, ".")
from eval.study import stats

FOLDER = Path(__file__).parent
TASKS = "conll2003", "scifact"
GROUPS = TASKS, TASKS[:1], TASKS[1:]
RECIPES = {  # {recipe in a model's name: its name on the pages}
    "mlm": "pure MLM",
    "mlm-1e-3": "pure MLM, pretraining rate 1e-3",
    "mlm-80-10-10": "80/10/10",
    "mlm-80-0-20": "80/0/20",
    "mlm-80-20-0": "80/20/0",
    "clm25-mlm": "25 % CLM, then MLM",
    "mntp": "MNTP",
    "random": "random weights",
    "first10-mlm": "the intervention",
    "clm25": "25 % CLM, then MLM",
    "first10": "the intervention",
    "first25": "80/10/10 for 25 %, then pure MLM",
}
PAIRS = (
    ("mlm-80-0-20", "mlm-80-20-0"),
    ("mntp", "mlm"),
    ("mlm-80-10-10", "mlm"),
    ("clm25-mlm", "mlm"),
    ("clm25-mlm", "mntp"),
)
SEEDS_OF_THE_TEST = ("20", "21", "22", "23", "24")  # of study_dose


def table(path, name="results.csv"):
    """Return the rows of a table: the .csv file at `path`, or the file `name` in the zip file there."""
    path = FOLDER / path
    text = path.read_bytes() if path.suffix == ".csv" else zipfile.ZipFile(path).read(name)
    return [*csv.DictReader(text.decode().splitlines())]


def models(rows, pattern, **equal):
    """Yield ((recipe, seed), row) for models whose name matches the pattern. equal: the values a column may have."""
    for row in rows:
        match = re.fullmatch(pattern, row["model"])
        if match and match[1] in RECIPES and all(row[name] in values for name, values in equal.items()):
            yield (match[1], int(row["seed"])), row


def choose(models, highest=1.0):
    """Return {(recipe, seed, task): the rows at the rate that validation chose with the first fine-tuning seed}."""
    tried = defaultdict(list)
    for model, row in models:
        if float(row["rate"]) <= highest:
            tried[(*model, row["task"])].append(row)
    chosen = {}
    for key, rows in tried.items():
        best = max((row for row in rows if row["finetune_seed"] == "1"), key=lambda row: float(row["validation"]))
        chosen[key] = [row for row in rows if row["rate"] == best["rate"]]
    return chosen


def resample(study, chosen):
    """Return {(recipe, seed, task): scores (1 + resamples,)}, the means over fine-tuning seeds. The first score is on
    the test set, the others are on resamples of it, the same for all models."""
    with zipfile.ZipFile(FOLDER / f"study_{study}" / "results.zip") as archive:
        instances = np.load(io.BytesIO(archive.read("instances.npz")))
    found = {}
    for task in TASKS:
        rows = [(key, row) for key, its in chosen.items() if key[2] == task for row in its]
        names = [" ".join(row[part] for part in ("model", "seed", "task", "rate", "finetune_seed")) for _, row in rows]
        stacked = np.stack([instances[name].astype(np.float32) for name in names])
        resampled = stats.bootstrap(stacked, stats.RESAMPLES, zlib.crc32(f"{task}/".encode()))
        scores = defaultdict(list)
        for (key, row), others in zip(rows, resampled.T):
            scores[key].append([float(row["test"]), *others])
        for key, values in scores.items():
            found[key] = np.mean(values, axis=0)
    return found


def means_of(scores, recipe, tasks=TASKS):
    """Return {seed: a recipe's mean over the tasks (1 + resamples,)}."""
    seeds = sorted({seed for name, seed, _ in scores if name == recipe})
    return {seed: np.mean([scores[recipe, seed, task] for task in tasks], axis=0) for seed in seeds}


def differences(a, b):
    """Return {seed: a's value minus b's (1 + resamples,)} for the seeds that both have."""
    return {seed: a[seed] - b[seed] for seed in sorted(a.keys() & b.keys())}


def compare(by_seed):
    """Return (mean, half of its 95 % interval, p, value of each seed) of differences."""
    d = np.stack([*by_seed.values()])  # (seeds, 1 + resamples)
    return *stats.compare([(d[:, 0], np.cov(d[:, 1:]))]), d[:, 0]


def as_text(result):
    """Return a result of `compare` as text."""
    center, half, p, by_seed = result
    return f"{center:.1f} ± {half:.1f} ({', '.join(f'{value:.1f}' for value in by_seed)}), p {p:.2g}"


def with_interval(values):
    """Return the mean of values and half of its 95 % interval as text."""
    center, half = stats.interval([*values])
    return f"{center:.1f}" if half is None else f"{center:.1f} ± {half:.1f}"


def print_scores(title, chosen):
    """Print a line for each recipe: scores, mean loss, chosen rates. Return {(recipe, seed, task): test score (1,)}."""
    print(f"\n| {title} | CoNLL-2003 | SciFact | mean of both | by seed | last loss | rates |\n|{'---|' * 7}")
    tests = {key: np.array([mean(float(row["test"]) for row in rows)]) for key, rows in chosen.items()}
    first = defaultdict(list)  # {recipe: the first row of each model and task}
    for (recipe, *_), rows in chosen.items():
        first[recipe].append(rows[0])
    for recipe, rows in first.items():
        cells = [with_interval(each[0] for each in means_of(tests, recipe, tasks).values()) for tasks in GROUPS[1:]]
        both = [each[0] for each in means_of(tests, recipe).values()]
        cells += [with_interval(both), ", ".join(f"{score:.1f}" for score in both)]
        cells.append(f"{mean(float(row['mlm_loss']) for row in rows):.3f}")
        cells.append(", ".join(sorted({row["rate"] for row in rows})))
        print(f"| {RECIPES[recipe]} | {' | '.join(cells)} |")
    return tests


def report(study, title, chosen, pairs):
    """Print the scores and comparisons of a group of models. Return {recipe: its leads over pure MLM by seed}."""
    print_scores(title, chosen)
    scores = resample(study, chosen)
    found = [compare(differences(means_of(scores, a), means_of(scores, b))) for a, b in pairs]
    for pair, result, p in zip(pairs, found, stats.holm([p for _, _, p, _ in found])):
        print(" − ".join(RECIPES[each] for each in pair) + f": {as_text(result)}, corrected {p:.2g}")
    leads = {}
    for recipe in sorted({recipe for recipe, _, _ in scores} - {"mlm"}):
        for tasks in GROUPS:
            lead = differences(means_of(scores, recipe, tasks), means_of(scores, "mlm", tasks))
            print(f"lead of {RECIPES[recipe]}, {' and '.join(tasks)}: {as_text(compare(lead))}")
            leads.setdefault(recipe, lead)
    return leads


def print_rates(rows, pattern):
    """Print the test scores at each rate of fine-tuning."""
    found = defaultdict(lambda: defaultdict(list))
    for (recipe, _), row in models(rows, pattern, finetune_seed=["1"]):
        found[recipe, row["task"]][float(row["rate"])].append(float(row["test"]))
    for (recipe, task), rates in found.items():
        cells = [f"{rate:g}: {mean(each):.1f} ± {stdev(each):.1f}" for rate, each in sorted(rates.items())]
        print(f"{RECIPES[recipe]}, {task}, fine-tuned at {'; '.join(cells)}")


def cause():
    rows, leads = table("study_cause/results.zip"), {}
    parts = {"10.2M": PAIRS, "41M": (PAIRS[2], PAIRS[3]), "192": (PAIRS[3],)}
    for ending, pairs in parts.items():
        leads[ending] = report("cause", ending, choose(models(rows, f"(.+)-{ending}")), pairs)
    for recipe, after in ("mlm-80-10-10", "41M"), ("clm25-mlm", "41M"), ("clm25-mlm", "192"):
        change = differences(leads[after][recipe], leads["10.2M"][recipe])
        print(f"lead of {RECIPES[recipe]}, {after} minus 10.2M: {as_text(compare(change))}")
    on_cpu = choose(models(rows, r"(.+?)(?:-cpu)?-10\.2M(?:-again)?", pretrained_on=["x86_64"]))
    report("cause", "10.2M, from a CPU only", on_cpu, PAIRS)
    print_scores("41M, pretraining rate 1e-3", choose(models(rows, "(.+)-1e-3-41M-again")))
    ends = choose(models(rows, "(.+(?<!1e-3))-41M-again"))
    print(f"the chosen rates of {len(ends)} long runs and tasks again:", {its[0]["rate"] for its in ends.values()})
    both = choose(models(rows, "(random)")) | choose(models(rows, "(mlm)-10.2M"))
    over_seeds("random weights", both, [("mlm", "random")])
    print_rates(rows, "(random)")
    print_rates(rows, "(.+)-10.2M")


def dose():
    rows, pairs = table("study_dose/results.zip"), (PAIRS[1], PAIRS[3])
    groups = {5000: ("(.+)", PAIRS), 10000: ("(.+)-10k", PAIRS[1:2]), 20000: ("(.+)-20k", pairs)}
    groups["decay"] = "(.+)-decay-2000", pairs
    for highest in 4e-3, 8e-3:  # first the fine-tuning rates of the design, then all
        leads = {}
        for title, (pattern, its_pairs) in groups.items():
            chosen = choose(models(rows, pattern, seed=SEEDS_OF_THE_TEST), highest)
            leads[title] = report("dose", f"{title} steps, rates to {highest:g}", chosen, its_pairs)
    for recipe in "mntp", "clm25-mlm":
        for title in 20000, "decay":
            change = differences(leads[title][recipe], leads[5000][recipe])
            print(f"lead of {recipe}, {title} minus 5,000: {with_interval(each[0] for each in change.values())}")
    grid = defaultdict(list)
    for row in rows:
        if row["seed"] in ("9", "10", "11") and row["rate"] == "0.002":
            grid[row["model"]].append(float(row["test"]))
    for model, tests in grid.items():
        print(f"grid, {model}: {mean(tests):.1f}")


def over_seeds(title, chosen, pairs):
    """Print scores, and the differences of pairs of recipes with intervals over the seeds alone. Return the scores."""
    tests = print_scores(title, chosen)
    for (a, b), tasks in itertools.product(pairs, GROUPS):
        by_seed = differences(means_of(tests, a, tasks), means_of(tests, b, tasks))
        print(f"{RECIPES[a]} − {RECIPES[b]}, {' and '.join(tasks)}: {with_p(by_seed)}")
    return tests


def with_p(by_seed):
    """Write the mean of differences, half of its 95 % interval over the seeds alone, and the p-value of a t-test."""
    d = np.concatenate([*by_seed.values()])
    if len(d) == 1:
        return f"{d[0]:.1f}"
    center, half, p = stats.compare([(d, np.zeros((len(d), len(d))))])
    return f"{center:.1f} ± {half:.1f}, p {p:.2g}"


def intervention():
    rows = table("study_cause/results.zip") + table("study_intervention.csv")
    pairs = [("first10-mlm", other) for other in ("clm25-mlm", "mlm", "mlm-80-10-10")]
    over_seeds("10.2M", choose(models(rows, r"(.+)-10\.2M")), pairs)


def ladder():
    pairs = ("clm25", "mlm"), ("first10", "mlm"), ("first10", "clm25")
    more = ("first25", "clm25"), ("mntp", "mlm"), ("clm25", "mntp")
    rows, leads = table("study_ladder.csv"), defaultdict(list)
    for width, its_pairs in (64, pairs + more), (128, pairs):
        tests = over_seeds(f"width {width}, 5,000 steps", choose(models(rows, f"w{width}-(.+)-13")), its_pairs)
        for tasks in GROUPS:
            leads[tasks].append(differences(means_of(tests, "clm25", tasks), means_of(tests, "mlm", tasks)))
    for tasks, (narrow, wide) in leads.items():
        change = with_p(differences(wide, narrow))
        print(f"lead of 25 % CLM at width 128 minus that at width 64, {' and '.join(tasks)}: {change}")
    over_seeds("width 256, 5,000 steps", choose(models(rows, "w256-(.+)-13")), pairs[:1])
    over_seeds("width 64 in float32", choose(models(rows, "w64-(.+)-13-fp32")), [("first25", "clm25")])


def visible():
    """Print the leads over pure MLM when all models are fine-tuned at the same rate."""
    tests = {}
    for row in table("study_visible/results.zip"):
        if row["seed"] == "1":
            tests[row["model"], row["lr"], row["pretraining_seed"], row["task"]] = float(row["test"])
    leads = defaultdict(list)
    for model, rate, seed, task in tests:
        if task == "scifact" and not model.startswith("random"):
            pure = f"mlm-{model.rpartition('-')[2]}"
            leads[model, rate].append(mean(tests[model, rate, seed, t] - tests[pure, rate, seed, t] for t in TASKS))
    for (model, rate), each in leads.items():
        print(f"lead of {model} over pure MLM, all fine-tuned at {rate}: {with_interval(each)}")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
