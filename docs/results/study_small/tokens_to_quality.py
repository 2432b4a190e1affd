"""How many million tokens each recipe needs for the score of pure MLM at 20.9M tokens: python tokens_to_quality.py

From results.csv beside this file, seed by seed, interpolated between the four budgets on a logarithmic scale of tokens.
"""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np

STEPS = (1_200, 2_600, 5_000, 10_200)
TOKENS = np.log([steps * 2_048 / 1e6 for steps in STEPS])
TASKS = {"tagging": ["conll2003"], "retrieval": ["scifact"], "mean of both": ["conll2003", "scifact"]}

scores = defaultdict(lambda: defaultdict(list))  # {(model, task, pretraining seed): {rate: test scores}}
with open(Path(__file__).with_name("results.csv")) as file:
    for row in csv.DictReader(file):
        scores[row["model"], row["task"], row["pretraining_seed"]][row["lr"]].append(float(row["field_test"]))


def curve(recipe, tasks, seed):
    """Return the score at each budget: the mean over tasks and fine-tuning seeds, at the rate that all seeds have."""
    rates = [[scores[f"{recipe}, {steps:,} steps", task, seed].values() for task in tasks] for steps in STEPS]
    return [np.mean([np.mean(max(its, key=len)) for its in of_tasks]) for of_tasks in rates]


for title, tasks in TASKS.items():
    for recipe in ("25 % CLM", "CLM only"):
        needed = []
        for seed in "123":
            goal, ours = curve("MLM only", tasks, seed)[-1], curve(recipe, tasks, seed)
            first = next((i for i, score in enumerate(ours) if score >= goal), None)  # the first budget that reaches it
            if first:
                pair = slice(first - 1, first + 1)
                needed.append(f"{np.exp(np.interp(goal, ours[pair], TOKENS[pair])):.2f}")
            else:
                needed.append("never" if first is None else "below 2.46")
        print(f"{title}, {recipe}, seeds 1 to 3: {', '.join(needed)}")
