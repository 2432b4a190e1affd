"""Print the test scores of random weights: at each rate of fine-tuning, at the chosen ones, and below pure MLM.

    python docs/results/study_cause/random_weights.py

Run it in the main folder.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

sys.path.insert(0, ".")
from eval.study import stats

FOLDER = Path(__file__).parent
TASKS = ("conll2003", "scifact")


def read(name, model):
    """Return {task: {seed: {rate: [(validation, test) of each fine-tuning seed]}}} of a model."""
    found = {task: defaultdict(lambda: defaultdict(list)) for task in TASKS}
    with open(FOLDER / name, newline="") as file:
        for row in sorted(csv.DictReader(file), key=lambda row: row["finetune_seed"]):
            if row["model"] == model:
                score = float(row["validation"]), float(row["test"])
                found[row["task"]][int(row["seed"])][float(row["rate"])].append(score)
    return found


def chosen(rates):
    """Return (the rate that validation chose with the first fine-tuning seed, the mean test score there)."""
    rate = max(rates, key=lambda rate: rates[rate][0][0])
    return rate, mean(test for _, test in rates[rate])


def print_interval(what, tagging, retrieval):
    """Print the mean over the seeds and its 95 % interval: of each task, then of the mean of both."""
    both = [mean(pair) for pair in zip(tagging, retrieval, strict=True)]
    for task, values in zip((*TASKS, "mean of both"), (tagging, retrieval, both)):
        center, half = stats.interval(values)
        print(f"{what}, {task}: {center:.1f} ± {half:.1f}")


random, mlm = read("random.csv", "random"), read("results.csv", "mlm-10.2M")
seeds = sorted(random["scifact"])
scores, leads = [], []  # of random weights, of pure MLM over them: for each task, one for each seed
for task in TASKS:
    for rate in sorted(random[task][seeds[0]]):
        tests = [random[task][seed][rate][0][1] for seed in seeds]
        print(f"{task} at {rate}: {mean(tests):.1f} ± {stdev(tests):.1f}")
    best = [chosen(random[task][seed]) for seed in seeds]
    print(f"{task}, chosen rates: {[rate for rate, _ in best]}")
    scores.append([score for _, score in best])
    leads.append([chosen(mlm[task][seed])[1] - score for seed, (_, score) in zip(seeds, best)])
print_interval("random weights", *scores)
print_interval("pure MLM − random weights", *leads)
