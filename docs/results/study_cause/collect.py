"""Collect the fine-tunings of a study: a line for each in NAME.csv, and their test scores in NAME.npz. The validation
losses of pretraining go to losses.csv beside them.

    python docs/results/study_cause/collect.py out/study-cause COMMIT NAME

COMMIT is that of the code that was run. NAME.npz has the score of each test instance as a numerator and a
denominator, under "model seed task rate finetune_seed". What is there already stays.
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
        result, run = read_json(path), study / "runs" / path.parts[-4]
        metric = METRICS[result["task"]]
        name, _, seed = run.name.rpartition("-seed-")
        losses = read_log(run)[-1]
        line = {
            "model": name,
            "seed": int(seed),
            "task": result["task"],
            "rate": result["lr"],
            "finetune_seed": result["seed"],
            "validation": round(result["metrics"]["validation"][metric], 4),
            "test": round(result["metrics"]["test"][metric], 4),
            "mlm_loss": round(losses.get("val_mlm_loss") or losses["val_mntp_loss"], 4),
            "pretrained_on": read_json(run / "config.json")["versions"]["device"],
            "finetuned_on": result["versions"]["device"],
            "commit": commit,
            "day": time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime)),
        }
        with np.load(path.with_name("instances.npz")) as file:
            yield line, file[metric]


def read_json(path):
    return json.loads(path.read_bytes())


def read_log(run):
    """Return the lines of a run's log; before them those of the run that it branched off."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    origin = read_json(run / "config.json")["settings"]["branch_from"]
    if origin:
        parent = run.parent / Path(origin).parent.name
        lines = [line for line in read_log(parent) if line["step"] < lines[0]["step"]] + lines
    return lines


def losses(study):
    """Yield the validation losses of each finished run of pretraining, a line for each evaluation."""
    for run in sorted(study.glob("runs/*")):
        model, _, seed = run.name.rpartition("-seed-")
        lines = read_log(run)
        for line in lines if lines[-1]["step"] == read_json(run / "config.json")["settings"]["max_steps"] else ():
            if "val_clm_loss" in line:
                mlm_loss = line.get("val_mlm_loss") or line["val_mntp_loss"]
                found = round(line["val_clm_loss"], 4), round(mlm_loss, 4)
                yield dict(zip(("model", "seed", "step", "clm_loss", "mlm_loss"), (model, seed, line["step"], *found)))


def read_csv(path):
    if not Path(path).exists():
        return []
    with open(path, newline="") as file:
        return [*csv.DictReader(file)]


def write_csv(path, lines):
    lines = [*lines]
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def key(line):
    return " ".join(str(line[name]) for name in ("model", "seed", "task", "rate", "finetune_seed"))


if __name__ == "__main__":
    study, commit, name = sys.argv[1:]
    lines, instances = {key(line): line for line in read_csv(f"{name}.csv")}, {}
    if lines:
        with np.load(f"{name}.npz") as file:
            instances = dict(file)
    for line, counts in collect(Path(study), commit):
        if key(line) not in lines:
            lines[key(line)] = line
            instances[key(line)] = counts
    write_csv(f"{name}.csv", (lines[each] for each in sorted(lines)))
    path = Path(name).with_name("losses.csv")
    both = [*read_csv(path), *losses(Path(study))]
    write_csv(path, {tuple(str(line[part]) for part in ("model", "seed", "step")): line for line in both}.values())
    np.savez_compressed(f"{name}.npz", **instances)
