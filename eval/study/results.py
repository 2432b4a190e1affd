"""The results below a folder, read, checked and sorted into arms; for eval/report.py.

An *arm* is what a study compares: all checkpoints that are equal in everything but the pretraining seed. One that was
pretrained several times has several pretraining seeds.
"""

import json
import math
import os
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from errors import DataError

COLUMNS = {"field": "field's metric", "paper": "paper's metric"}  # and "main": the field's, the paper's where it has none
FAMILIES = {"sc": "Sequence classification", "tc": "Token classification", "qa": "Question answering",
            "ir": "Retrieval"}  # fmt: skip
FACTS = ("parameters", "model", "max_steps", "step", "clm_steps", "mask_ratio", "init_from", "untrained", "peak_lr",
         "recipe")  # fmt: skip
OWN = {"task", "lr", "seed", "init_from", "out_dir"}  # settings that differ between the runs of a task by design


@dataclass(slots=True)
class Run:
    """A result.json."""

    folder: str  # relative to the folder of the results
    task: str
    family: str
    lr: float
    seed: int  # of fine-tuning
    pretraining: int  # seed
    checkpoint: str  # its facts, seed and name, as JSON
    main: dict  # {"field": [names of metrics], "paper": [...]}
    scores: dict  # {("field", "validation"): per cent, ...}
    test: dict  # {metric: per cent}
    baselines: dict  # {(name, "field"): per cent on test, ...}
    n_test: tuple  # how many test instances, and their checksum
    settings: str  # and versions, as JSON, without those that differ by design
    arm: int = -1


@dataclass
class Arm:
    facts: dict
    names: list  # of its checkpoints
    seeds: list  # of pretraining
    label: str = ""

    @property
    def share(self):
        """The part of its steps that were CLM."""
        return self.facts["clm_steps"] / self.facts["step"] if self.facts["step"] else 0.0

    @property
    def decayed(self):
        return self.facts["step"] == self.facts["max_steps"]

    def words(self):
        """{fact: words}; "" where a fact does not apply."""
        f, n = self.facts, self.facts["parameters"]
        size = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.{int(n < 1e7)}f}M"
        words = {"objective": "untrained", "mask": "", "steps": "", "from": "", "size": size}
        if f["untrained"]:
            return words
        if not f["step"]:  # pretrained elsewhere
            return words | {"objective": "/".join(self.names)}
        words["objective"] = {0: "MLM only", 1: "CLM only"}.get(self.share, f"{100 * self.share:.3g}% CLM")
        words["mask"] = f"mask {100 * f['mask_ratio']:.3g}%" if self.share < 1 else ""
        words["steps"] = f"{f['step']} steps" if self.decayed else f"step {f['step']} of {f['max_steps']}"
        words["from"] = f"from {f['init_from'] or 'scratch'}"
        return words

    def by_unit(self, runs, column):
        """{unit: mean test score} of {(pretraining seed, seed): Run}.

        The unit is a pretraining seed where the arm has several, a fine-tuning seed otherwise.
        """
        values = defaultdict(list)
        for (pretraining, seed), run in sorted(runs.items()):
            values[pretraining if len(self.seeds) > 1 else seed].append(run.scores[column, "test"])
        return {unit: float(np.mean(v)) for unit, v in values.items()}


class Study:
    """All results of a folder.

    root: the folder; only: the folders of jobs that count, as paths from root, None = all. runs: every Run, by folder.
    arms: every Arm.
    tasks: {task: family}, by family. targets: {title: tasks}, what arms are compared on: each family's mean, where it
        has several tasks, and each task.
    grid: {(number of the arm, task): {lr: {(pretraining seed, seed): Run}}}.
    lrs, seeds: {task: set}, of all its jobs. baselines: {task: {(name, "field"): per cent}}.
    failed: {folder: last line of its error.txt}. n_failed: {(number of the arm, task): jobs}.
    Raises DataError: no result there, damaged files (all of them), a run that is there twice, two test sets of a task.
    """

    def __init__(self, root, only=None):
        self.root, files = root, defaultdict(set)
        for folder, name in scan(root):
            if only is None or os.path.relpath(folder, root) in only:
                files[folder].add(name)
        self.runs = read_runs(root, sorted(folder for folder in files if "result.json" in files[folder]))
        self.arms = make_arms(self.runs)
        tasks = {run.task: run.family for run in self.runs}
        self.tasks = dict(sorted(tasks.items(), key=lambda item: ([*FAMILIES].index(item[1]), item[0])))
        self.targets = {}
        for family in dict.fromkeys(self.tasks.values()):
            group = tuple(task for task in self.tasks if self.tasks[task] == family)
            self.targets |= {f"{family} mean": group} if len(group) > 1 else {}
            self.targets |= {task: (task,) for task in group}

        self.grid, self.lrs, self.seeds, first = defaultdict(dict), defaultdict(set), defaultdict(set), {}
        for run in self.runs:
            other = self.grid[run.arm, run.task].setdefault(run.lr, {}).setdefault((run.pretraining, run.seed), run)
            if other is not run:
                differ = ", ".join(differences([run, other])) or "none"
                raise DataError(f"the same pretraining, task, learning rate and seed twice:\n  {other.folder}\n"
                                f"  {run.folder}\nSettings that differ: {differ}. Delete one, or report them from two "
                                "folders.")  # fmt: skip
            like = first.setdefault(run.task, run)
            if (run.n_test, run.main) != (like.n_test, like.main):
                sets = "".join(
                    f"\n  {r.folder}: {r.n_test[0]} examples, checksum {r.n_test[1]}, {r.main}" for r in (like, run)
                )
                raise DataError(f"{run.task}: two test sets, which cannot be compared:{sets}")
            self.lrs[run.task].add(run.lr)
            self.seeds[run.task].add(run.seed)
        self.baselines = {task: {} for task in first}  # a sweep has them scored once
        for run in self.runs:
            self.baselines[run.task] |= run.baselines

        self.failed, self.n_failed = {}, Counter()
        arm_of = {Path(run.folder).parents[1]: run.arm for run in self.runs if run.folder.count(os.sep) > 1}
        for folder in sorted(folder for folder in files if files[folder] == {"error.txt"}):
            lines = Path(folder, "error.txt").read_text(encoding="utf-8", errors="replace").split("\n")
            job = Path(os.path.relpath(folder, root))  # .../checkpoint/task/lr-<lr>_seed-<seed>
            self.failed[str(job)] = next((line.strip() for line in reversed(lines) if line.strip()), "")
            match, task = re.fullmatch(r"lr-([\d.]+(?:e[+-]?\d+)?)_seed-(\d+)", job.name), job.parent.name
            if match and task in self.tasks:
                self.lrs[task].add(float(match[1]))
                self.seeds[task].add(int(match[2]))
                self.n_failed[arm_of.get(job.parents[1]), task] += 1


def scan(folder):
    """Yields (folder, file name) of each result.json and error.txt below a folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from scan(entry.path)
            elif entry.name in ("result.json", "error.txt"):
                yield folder, entry.name


def read_runs(root, folders):
    """The Run of each folder. Raises DataError that names every file which is no result."""
    runs, damaged = [], []
    for folder in folders:
        path = Path(folder, "result.json")
        try:
            runs.append(read_run(os.path.relpath(folder, root), json.loads(path.read_bytes())))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            damaged.append(f"{path}: " + (f"lacks {error}" if isinstance(error, KeyError) else f"{error}"))
    if damaged:
        raise DataError("not results of finetune.py, or damaged; delete these folders or make their runs again:\n  "
                        + "\n  ".join(damaged))  # fmt: skip
    if not runs:
        raise DataError(f"{root}: no result.json below it. finetune.py makes one, eval/sweep.py many")
    return runs


def read_run(folder, r):
    """The Run of a parsed result.json."""
    metrics, c = r["metrics"], r["checkpoint"]
    main = {**r["main"], "main": r["main"]["field"] or r["main"]["paper"]}
    scores, baselines = {}, {}
    for column in main:
        if not main[column]:  # retrieval among judged documents only has no field's metric
            continue
        # Of several retrieval sets, those without a validation part have no say in the choice of a learning rate.
        validated = [metrics["validation"][name] for name in main[column] if name in metrics["validation"]]
        scores[column, "validation"] = mean(validated)
        scores[column, "test"] = mean([metrics["test"][name] for name in main[column]])
        for baseline, its in r["baselines"].items():
            if all(name in its for name in main[column]):
                baselines[baseline, column] = mean([its[name] for name in main[column]])
    if r["family"] not in FAMILIES:
        raise ValueError(f"family {r['family']!r} is none of {', '.join(FAMILIES)}")
    settings = {k: v for k, v in {**r["settings"], **r["versions"]}.items() if k not in OWN}
    checkpoint = {k: c[k] for k in (*FACTS, "seed", "name")}
    return Run(folder, r["task"], r["family"], float(r["lr"]), int(r["seed"]), c["seed"],
               sys.intern(json.dumps(checkpoint, sort_keys=True)), main, scores, metrics["test"], baselines,
               (r["examples"]["test"], r["test_set"]), sys.intern(json.dumps(settings, sort_keys=True)))  # fmt: skip


def mean(values):
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"the main metric's values are {values}, must be finite numbers")
    return sum(values) / len(values)


def differences(runs):
    """{setting: its values} where the settings of these runs differ."""
    kinds = [json.loads(s) for s in dict.fromkeys(run.settings for run in runs)]
    values = {name: sorted({str(kind.get(name)) for kind in kinds}) for kind in kinds for name in kind}
    return {name: values[name] for name in sorted(values) if len(values[name]) > 1}


def make_arms(runs):
    """The arms of these runs, labelled by the facts in which they differ; sets run.arm, the number of its arm."""
    groups = defaultdict(list)
    for text in sorted({run.checkpoint for run in runs}):
        c = json.loads(text)
        # What continues another checkpoint differs from one pretraining seed to the next in that one's path as well.
        facts = {**{k: c[k] for k in FACTS}, "init_from": without_seed(c["init_from"] or "")}
        groups[json.dumps(facts)].append((text, c))
    arms = []  # of (Arm, the checkpoints as in run.checkpoint)
    for facts, checkpoints in groups.items():
        parts = defaultdict(list)
        clash = len({c["seed"] for _, c in checkpoints}) < len(checkpoints)  # they differ in what is no fact: by name
        for text, c in checkpoints:
            parts[without_seed(c["name"]) if clash else ""].append((text, c))
        for part in parts.values():
            names, seeds = {c["name"] for _, c in part}, {c["seed"] for _, c in part}
            arms.append((Arm(json.loads(facts), sorted(names), sorted(seeds)), [text for text, _ in part]))
    labels = label_by_difference([arm.words() for arm, _ in arms])
    for (arm, _), label in zip(arms, labels):
        names = "/".join(dict.fromkeys(map(without_seed, arm.names)))
        arm.label = label if label and labels.count(label) == 1 else f"{label} ({names})" if label else names
    arms.sort(key=lambda item: order(item[0]))
    number = {text: i for i, (_, texts) in enumerate(arms) for text in texts}
    for run in runs:
        run.arm = number[run.checkpoint]
    return [arm for arm, _ in arms]


def without_seed(name):
    """mlm-seed-2 and mlm-seed-3 are one thing but for the seed."""
    return re.sub(r"[-_.]?seed[-_=]?\d+", "", name)


def label_by_difference(words):
    """[{fact: words}, ...] -> a label for each, of the facts in which they differ; "" is no value of a fact."""
    differ = [k for k in words[0] if len({w[k] for w in words} - {""}) > 1]
    return [", ".join(w[k] for k in differ if w[k]) for w in words]


def order(arm):
    f = arm.facts
    numbers = (f["parameters"], f["max_steps"] or 0, f["step"] or 0, arm.share, f["mask_ratio"] or 0)
    return f["untrained"], numbers, arm.label
