"""Collect what the study of dose and response looks at, one line for each model, from the folder of the study.

python docs/results/study_dose/collect.py out/study-dose COMMIT > docs/results/study_dose/runs.csv

COMMIT is that of the code that trained and fine-tuned. The losses are those on the pinned masks of validation. A model
with `predict_from=before` predicts the hidden tokens from the position before. `slow_start` is the first evaluation
(one each 100 steps) at which this loss is below 5.5.
"""

import csv
import json
import sys
import time
from pathlib import Path

SLOW = 5.5  # nats


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def losses_of(run):
    """Return the final MLM loss of a run, and the step at which it falls below SLOW."""
    evaluated = [line for line in read_lines(run / "metrics.jsonl") if "val_mlm_loss" in line]
    below = [line["step"] for line in evaluated if line["val_mlm_loss"] < SLOW]
    return evaluated[-1]["val_mlm_loss"], below[0] if below else None


def rows(study, commit):
    with open(study / "report" / "results.csv") as file:
        scores = list(csv.DictReader(file))
    for score in scores:
        run = study / "runs" / f"{score['model']}-seed-{score['pretraining_seed']}"
        loss, slow_start = losses_of(run)
        day = time.strftime("%Y-%m-%d", time.gmtime((run / "metrics.jsonl").stat().st_mtime))
        yield {
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


found = list(rows(Path(sys.argv[1]), sys.argv[2]))
writer = csv.DictWriter(sys.stdout, found[0].keys(), lineterminator="\n")
writer.writeheader()
writer.writerows(found)
