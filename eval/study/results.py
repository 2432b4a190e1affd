"""Read the results below a folder, check them and group them into variants.

A *variant* is what a report compares: all checkpoints that are equal in everything but their pretraining seed.
"""

import json
import math
import re
from collections import defaultdict
from pathlib import Path

from data.objective import describe
from errors import DataError
from eval.study.jobs import counted, error_of
from eval.tasks.registry import GLUE, REGRESSION

FAMILIES = "sc", "tc", "qa", "ir"  # in the order of the tables
METRICS = ("field", "paper")  # the field's is the paper's for a task that has no other
GLUE_AVERAGE = "GLUE average"  # the title of a target; it is by the field's metrics
CORRELATIONS = {"matthews", *REGRESSION}  # they have another scale than the percentages of the other metrics
# The facts of a checkpoint. Those in which the variants of a report differ make up their labels.
FACTS = "parameters model max_steps step clm_steps mask_ratio init_from untrained peak_lr recipe".split()
USUAL = ["clm"], ["mlm"], ["clm", "mlm"]  # the phases of a run that a share of CLM describes
PER_RUN = {"task", "lr", "seed", "init_from", "out_dir", "random_weights"}  # settings that differ by design


class Run:
    """One fine-tuning: the contents `r` of the result.json in a folder.

    prefix: of its metrics, such as "nq/": one of several sets of a retrieval task, each a task here, such as msmarco/nq.
    """

    def __init__(self, folder, r, prefix=""):
        checkpoint, validation, test = r["checkpoint"], r["metrics"]["validation"], r["metrics"]["test"]
        self.folder = folder  # relative to the folder of all results
        self.task = f"{r['task']}/{prefix}".removesuffix("/")
        self.family, self.lr, self.seed = r["family"], float(r["lr"]), int(r["seed"])
        if self.family not in FAMILIES:
            raise ValueError(f"family {self.family!r} is none of {', '.join(FAMILIES)}")
        self.name, self.pretraining_seed = checkpoint["name"], checkpoint["seed"]
        if revision := checkpoint.get("revision"):  # of a model of the hub
            self.name += f"@{revision[:7]}"
        # A run that continues another checkpoint has a path to it, which differs between pretraining seeds as well.
        self.facts = {k: checkpoint[k] for k in FACTS} | {"init_from": without_seed(checkpoint["init_from"] or "")}
        # named: the name that a study gives it; see read_results.
        self.facts |= {"schedule": schedule(checkpoint), "named": "", "clm_steps": float(checkpoint["clm_steps"])}
        self.test = test  # {name of a metric: score in percent}
        self.test_set = r["examples"]["test"], r["test_set"] + prefix  # number of examples and checksum
        self.versions = r["versions"]
        self.settings = {k: v for k, v in {**r["settings"], **r["versions"]}.items() if k not in PER_RUN}
        self.metrics = {}  # {"field": [names], ...}
        self.scores = {}  # {("field", "validation"): percent, ...}
        self.baselines = {}  # {(baseline, "field"): percent on the test set, ...}
        for metric in METRICS:  # retrieval among judged documents only has no metric of the field
            names = [name for name in r["main"][metric] or r["main"]["paper"] if name.startswith(prefix)]
            self.metrics[metric] = names
            # MNLI has two test sets and one validation set.
            self.scores[metric, "validation"] = mean([validation[name] for name in names if name in validation])
            self.scores[metric, "test"] = mean([test[name] for name in names])
            for baseline, values in r["baselines"].items():
                if values.keys() >= set(names):
                    self.baselines[baseline, metric] = mean([values[name] for name in names])


class Variant:
    """Checkpoints that differ in nothing but their pretraining seed, and their runs."""

    def __init__(self, runs):
        self.runs, self.facts, self.label = runs, runs[0].facts, ""
        self.names = sorted({run.name for run in runs})  # of the checkpoints
        self.seeds = sorted({run.pretraining_seed for run in runs})
        self.random_weights = self.facts["untrained"]
        self.elsewhere = not (self.facts["step"] or self.random_weights)  # pretrained with other code
        base = Path(self.facts["init_from"])  # what it continued: a checkpoint in the folder of its run, or a folder
        base = base.parent if base.suffix == ".pt" else base
        self.after = f" after {base.name}" if base.name else ""
        self.decayed = self.facts["step"] == self.facts["max_steps"]  # whether the learning rate has come to its end
        self.clm_fraction = self.facts["clm_steps"] / self.facts["step"] if self.facts["step"] else 0.0  # of its steps
        self.split = 0 < self.clm_fraction < 1 and not self.facts["schedule"]  # CLM followed by MLM

    def describe(self):
        """Return {fact: words}; a fact that does not apply is ""."""
        f, n = self.facts, self.facts["parameters"]
        size = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.{int(n < 1e7)}f}M" if n >= 5e4 else f"{n / 1e3:.0f}K"
        words = {"objective": "randomly initialized", "mask": "", "steps": "", "size": size}
        if self.random_weights:
            return words
        if self.elsewhere:
            return words | {"objective": "/".join(name.partition("@")[0] for name in self.names)}
        words["objective"] = fraction_label(self.clm_fraction)
        words["mask"] = f"mask {100 * f['mask_ratio']:.3g} %" if self.clm_fraction < 1 else ""
        if f["named"]:
            words |= {"objective": f["named"], "mask": ""}
        elif f["schedule"]:
            words |= schedule_words(f["schedule"], self.clm_fraction)
        words["steps"] = counted(f["step"], "step") if self.decayed else f"step {f['step']:,} of {f['max_steps']:,}"
        if self.after:
            words["objective"] = words["objective"].replace(" only", "")
            words["steps"] += self.after
        return words


class Results:
    """The fine-tunings that a report is about, grouped by variant, task and learning rate.

    variants: every Variant, in the order of the tables. tasks: {task: family}, ordered by family.
    targets: {title: tasks} to report on: each task, the mean of each family over its tasks on the scale of percentages,
        if there are several, and the average of GLUE.
    repeated: {task: another one with the same test set}, which counts in means and comparisons in its place.
    grid: {(variant, task): {lr: {(pretraining seed, fine-tuning seed): Run}}}.
    seeds, lrs: {task: fine-tuning seeds, learning rates of all models}. failed: {folder: what its error.txt says}.
    metrics, baselines: {task: Run.metrics}, {task: Run.baselines}.
    Raises DataError: a run that is there twice, two different test sets of a task.
    """

    def __init__(self, root, runs, failed):
        self.root, self.runs, self.failed = Path(root), runs, failed
        self.variants = make_variants(runs)
        ordered = sorted(runs, key=lambda run: (FAMILIES.index(run.family), run.task))
        self.tasks = {run.task: run.family for run in ordered}
        self.metrics, self.baselines = {run.task: run.metrics for run in runs}, {task: {} for task in self.tasks}
        self.seeds, self.lrs, self.grid = defaultdict(set), defaultdict(set), defaultdict(dict)
        example, first_with = {}, {}  # {task: its first Run}, {test set: its first task}
        for run in runs:
            like = example.setdefault(run.task, run)
            if (run.test_set, run.metrics) != (like.test_set, like.metrics):
                why = "have different test sets or metrics, which cannot be compared"
                raise DataError(f"{run.task}: {like.folder} and {run.folder} {why}")
            self.seeds[run.task].add(run.seed)
            self.lrs[run.task].add(run.lr)
            self.baselines[run.task] |= run.baselines  # one run of each task has them
        for variant in self.variants:
            for run in variant.runs:
                key = run.pretraining_seed, run.seed
                other = self.grid[variant, run.task].setdefault(run.lr, {}).setdefault(key, run)
                if other is not run:
                    why = "are the same pretraining, task, learning rate and seed: delete one of them"
                    raise DataError(f"{other.folder} and {run.folder} {why}")

        self.repeated, self.targets = {}, {}
        for task in self.tasks:
            first = first_with.setdefault(example[task].test_set, task)
            if first != task:
                self.repeated[task] = first
        for family in dict.fromkeys(self.tasks.values()):
            group = [task for task in self.tasks if self.tasks[task] == family]
            counted = [task for task in group if task not in self.repeated]
            counted = [task for task in counted if CORRELATIONS.isdisjoint(self.metrics[task]["field"])]
            if len(counted) > 1:
                self.targets[f"{family} mean"] = counted
            self.targets |= {task: [task] for task in group}
        if self.tasks.keys() >= {*GLUE}:
            self.targets[GLUE_AVERAGE] = [*GLUE]


def read_results(root, only=None, names=()):
    """Return the Results below a folder.

    only: the job folders that count, as paths from root, None = all. names: {folder of a checkpoint: the name that a
    study gives its variant}.
    """
    paths = [path for name in ("error.txt", "result.json") for path in Path(root).rglob(name)]
    last = {str(path.parent.relative_to(root)): path for path in paths}  # a result counts, whatever failed before it
    jobs = {job: path for job, path in sorted(last.items()) if only is None or job in only}
    done = [path.parent for path in jobs.values() if path.name == "result.json"]
    failed = {job: error_of(path) for job, path in jobs.items() if path.name == "error.txt"}
    runs = read_runs(root, done)
    for run in runs:
        run.facts["named"] = dict(names).get(Path(run.folder).parts[0], "")
    return Results(root, runs, failed)


def read_runs(root, folders):
    """Return the Runs of all folders, one for each task. Raises DataError that names every file which is not a result."""
    runs, damaged = [], []
    for folder in folders:
        path = Path(folder, "result.json")
        try:
            r, job = json.loads(path.read_bytes()), str(Path(folder).relative_to(root))
            prefixes = {name[: name.rfind("/") + 1]: 0 for name in r["main"]["paper"]} if r["family"] == "ir" else [""]
            runs += [Run(job, r, prefix) for prefix in prefixes]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            damaged.append(f"{path}: {'lacks ' * isinstance(error, KeyError)}{error}")
    if damaged:
        intro = "not results of finetune.py, or damaged; delete them or run them again:"
        raise DataError("\n  ".join([intro, *damaged]))
    return runs


def mean(values):
    if not values or not all(map(math.isfinite, values)):
        raise ValueError(f"the metric's values are {values}, must be finite numbers")
    return sum(values) / len(values)


# ----------------------------------------------------------------------------
# Variants and their labels


def make_variants(runs):
    """Return the labeled variants of these runs, in the order of the tables."""
    groups = defaultdict(list)
    for run in runs:  # of models pretrained elsewhere only the name is known
        elsewhere = not run.facts["step"] and not run.facts["untrained"]
        groups[json.dumps([run.facts, run.name if elsewhere else ""])].append(run)
    variants = [Variant(group) for group in groups.values()]
    labels = label_by_difference([variant.describe() for variant in variants])
    for variant, label in zip(variants, labels):
        names = "/".join(dict.fromkeys(map(without_seed, variant.names)))
        variant.label = label if label and labels.count(label) == 1 else f"{label} ({names})" if label else names
    return sorted(variants, key=order)


def order(variant):
    f, steps = variant.facts, [variant.facts[k] or 0 for k in ("max_steps", "step")]
    other = f["named"] != "", f["schedule"] != []  # those with a share of CLM come first
    numbers = f["parameters"], f["init_from"] != "", *steps, *other, variant.clm_fraction, f["mask_ratio"] or 0
    return variant.random_weights, numbers, variant.label


def label_by_difference(descriptions):
    """Return a label for each {fact: words}, of the facts in which they differ; "" does not count as a value."""
    differ = [k for k in next(iter(descriptions), {}) if len({d[k] for d in descriptions} - {""}) > 1]
    return [", ".join(d[k] for k in differ if d[k]) for d in descriptions]


def schedule(checkpoint):
    """Return the record of phases of a checkpoint that was trained in other ways than CLM, MLM or CLM followed by MLM.

    [] if it was trained in these ways, at one mask ratio, each masked token predicted at its own position.
    """
    phases = checkpoint.get("phases", [])  # older results have none
    usual = [its["phase"] for its in phases] in ([], *USUAL)
    usual &= all(its["predict_from"] == "mask" and len({*its["mask_ratio"]}) == 1 for its in phases)
    return [] if usual else phases


def schedule_words(phases, clm_fraction):
    """Return what Variant.describe says of a schedule: {"objective": words, "mask": words}."""
    names, last = [its["phase"] for its in phases], phases[-1]
    if names not in (*USUAL, ["mixed"]):
        return {"objective": describe(phases), "mask": ""}
    objective = fraction_label(clm_fraction) if names in USUAL else f"mixed, {100 * clm_fraction:.3g} % CLM"
    objective += ", predicted from the position before" * (last["predict_from"] == "before")
    ratios = dict.fromkeys(f"{100 * ratio:.3g}" for ratio in last["mask_ratio"])
    return {"objective": objective, "mask": f"mask {' to '.join(ratios)} %"}


def fraction_label(fraction):
    """Return "MLM only", "50 % CLM" or "CLM only"."""
    return {0: "MLM only", 1: "CLM only"}.get(fraction, f"{100 * fraction:.3g} % CLM")


def without_seed(name):
    """Return a name such as mlm-seed-2 without its seed: mlm."""
    return re.sub(r"[-_.]?seed[-_=]?\d+", "", name)
