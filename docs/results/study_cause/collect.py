"""Collect the fine-tunings of a study: a line for each in NAME.csv, and their test scores in NAME.npz.

    python docs/results/study_cause/collect.py out/study-cause COMMIT NAME

COMMIT is that of the code that was run. NAME.npz has the score of each test instance as a numerator and a
denominator, under "model seed task rate finetune_seed". Fine-tunings that are there already stay.
"""

import csv
import json
import sys
import time
from pathlib import Path

import numpy as np

METRICS = {"conll2003": "entity_f1", "scifact": "ndcg@10_judged"}


def collect(study, commit):
    """Yield (the line of the table, the instances) of each fine-tuning."""
    for path in sorted(study.glob("results/*/*/*/result.json")):
        result = json.loads(path.read_bytes())
        metric = METRICS[result["task"]]
        name, _, seed = path.parts[-4].rpartition("-seed-")
        log = (study / "runs" / path.parts[-4] / "metrics.jsonl").read_text().splitlines()
        losses = json.loads(log[-1])
        line = {
            "model": name,
            "seed": int(seed),
            "task": result["task"],
            "rate": result["lr"],
            "finetune_seed": result["seed"],
            "validation": round(result["metrics"]["validation"][metric], 4),
            "test": round(result["metrics"]["test"][metric], 4),
            "mlm_loss": round(losses.get("val_mlm_loss") or losses["val_mntp_loss"], 4),
            "commit": commit,
            "day": time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime)),
        }
        with np.load(path.with_name("instances.npz")) as file:
            yield line, file[metric]


def key(line):
    return " ".join(str(line[name]) for name in ("model", "seed", "task", "rate", "finetune_seed"))


if __name__ == "__main__":
    study, commit, name = sys.argv[1:]
    lines, instances = {}, {}
    if Path(f"{name}.csv").exists():
        with open(f"{name}.csv", newline="") as file:
            lines = {key(line): line for line in csv.DictReader(file)}
        with np.load(f"{name}.npz") as file:
            instances = dict(file)
    for line, counts in collect(Path(study), commit):
        if key(line) not in lines:
            lines[key(line)] = line
            instances[key(line)] = counts
    with open(f"{name}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, [*lines.values()][0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines[each] for each in sorted(lines))
    np.savez_compressed(f"{name}.npz", **instances)
