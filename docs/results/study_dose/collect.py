"""Collect what this page looks at from the folder of a study.

    python docs/results/study_dose/collect.py out/study-dose COMMIT docs/results/study_dose/runs

writes runs.csv, a line for each fine-tuning. COMMIT is that of the code that trained and fine-tuned. The losses are
those on the pinned masks of validation. A model with `predict_from=before` predicts the hidden tokens from the position
before. `slow_start` is the first evaluation at which this loss is below 5.5.

It also writes runs.npz: for each fine-tuning, the score of each test instance as a numerator and a denominator
(n, classes, 2), under the name "model seed task rate". From these the intervals can be computed again.
"""

import csv
import json
import sys
import time
from pathlib import Path

import numpy as np

SLOW = 5.5  # nats
METRICS = {"conll2003": "entity_f1", "scifact": "ndcg@10_judged"}


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses_of(run):
    """Return the final MLM loss of a run, and the step at which it falls below SLOW."""
    losses = []
    for line in read_lines(run / "metrics.jsonl"):
        loss = line.get("val_mlm_loss", line.get("val_mntp_loss"))
        if loss is not None:
            losses.append((line["step"], loss))
    below = [step for step, loss in losses if loss < SLOW and losses[0][0] == 0]  # a branch has no start of its own
    return losses[-1][1], below[0] if below else None


def collect(study, commit):
    """Return (the lines of the table, the instances of the fine-tunings)."""
    lines, instances = [], {}
    with open(study / "report" / "results.csv") as file:
        scores = list(csv.DictReader(file))
    for score in scores:
        run = study / "runs" / f"{score['model']}-seed-{score['pretraining_seed']}"
        loss, slow_start = losses_of(run)
        day = time.strftime("%Y-%m-%d", time.gmtime((run / "metrics.jsonl").stat().st_mtime))
        line = {
            "model": score["model"],
            "seed": score["pretraining_seed"],
            "task": score["task"],
            "rate": score["lr"],
            "validation": score["validation"],
            "test": score["test"],
            "mlm_loss": round(loss, 4),
            "slow_start": slow_start,
            "commit": commit,
            "day": day,
        }
        lines.append(line)
        with np.load(study / "results" / score["folder"] / "instances.npz") as file:
            instances[f"{line['model']} {line['seed']} {line['task']} {line['rate']}"] = file[METRICS[line["task"]]]
    return lines, instances


if __name__ == "__main__":
    study, commit, name = sys.argv[1:]
    lines, instances = collect(Path(study), commit)
    with open(f"{name}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    np.savez_compressed(f"{name}.npz", **instances)
