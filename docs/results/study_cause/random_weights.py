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


def differences(a, b):
    return [x - y for x, y in zip(a, b, strict=True)]


random, mlm = read("random.csv", "random"), read("results.csv", "mlm-10.2M")
seeds = sorted(random["scifact"])
scores = {"random weights": [], "pure MLM − random weights": []}
for task in TASKS:
    for rate in sorted(random[task][seeds[0]]):
        tests = [random[task][seed][rate][0][1] for seed in seeds]
        print(f"{task} at {rate}: {mean(tests):.1f} ± {stdev(tests):.1f}")
    print(f"{task}, chosen rates: {[chosen(random[task][seed])[0] for seed in seeds]}")
    ours, others = ([chosen(model[task][seed])[1] for seed in seeds] for model in (random, mlm))
    scores["random weights"].append(ours)
    scores["pure MLM − random weights"].append(differences(others, ours))
for name, (tagging, retrieval) in scores.items():
    both = [mean(pair) for pair in zip(tagging, retrieval)]
    for what, values in (*zip(TASKS, (tagging, retrieval)), ("mean of both", both)):
        center, half = stats.interval(values)
        print(f"{name}, {what}: {center:.1f} ± {half:.1f}")
