"""Plans and made-up results of fine-tuning, for the tests of studies."""

import json
from pathlib import Path

import numpy as np

import configurator
from data.objective import CLM, MLM
from data.tokenizer_files import read_tokenizer
from eval.study.plan import Plan
from eval.tasks import metrics
from helpers import ROOT, record

METRICS = {"tc": ("entity_f1", "sentence_macro_f1"), "ir": ("ndcg@10", "ndcg@10_judged")}  # or accuracy
SIZE = dict(vocab_size=4096, d_model=128, tie_embeddings=False)


def plan_of(*args, **settings):
    """Return the Plan of a study: of files of settings, or without any of two rows, clm and mlm."""
    rows = (("clm", "", "--switch_step=650"), ("mlm", "", "--switch_step=0"))
    settings = settings if args else dict(runs=rows, tasks="sst2", rates="1e-3") | settings
    words = [f"--{name}={value}" for name, value in settings.items()]
    return Plan(configurator.load(ROOT / "eval/study/__main__.py", [*args, *words]))


def phases(clm, mlm, ratio=0.4, proportions=(1, 0, 0)):
    """The record of so many steps of CLM, then of MLM."""
    found = []
    for objective, steps in ((CLM(), clm), (MLM(ratio, proportions=proportions), mlm)):
        for phase in record({objective: [0]}) if steps else ():
            phase["steps"] = phase["objectives"][objective.name]["steps"] = steps
            found.append(phase)
    return found


def state_of(model, settings, **more):
    """A checkpoint's dict, of a Transformer and the embedded tokenizer. Without settings its weights are of the hub."""
    tokenizer = read_tokenizer("embedded")
    state = dict(step=650, model=model.state_dict(), config=vars(model.config), settings=settings, data="f00d")
    if settings:
        state["phases"] = phases(200, 450)
    return state | dict(tokenizer=tokenizer.state(), tokenizer_ranks=tokenizer.content) | more


def facts_of(name, clm=0, steps=2000, ratio=0.4, seed=1, settings=(), **more):
    """What result.json says about a checkpoint."""
    settings = {"global_batch_tokens": 4096, **dict(settings)}
    facts = dict(name=name, step=steps, max_steps=steps, clm_steps=float(clm), mask_ratio=ratio, seed=seed)
    facts |= dict(init_from="", untrained=False, parameters=1_200_000, model=SIZE)
    facts |= dict(flops=1e12 * steps, tokens=4096 * steps)
    trained = phases(clm, steps - clm, ratio, settings.get("mask_proportions", (1, 0, 0)))
    return {**facts, "phases": trained, "settings": settings, **more}


def write_result(folder, facts, task="sst2", family="sc", lr=1e-4, seed=1, test=50, validation=50.0, n=100, main=None):
    """Write one result as finetune.py does, in the folder of a job.

    test: how many of the n test instances are right, or whether each is (n,). validation: percent. Both may be of each
    metric, {name: value}. main: {"field": names of metrics, "paper": names}.
    """
    field, paper = METRICS.get(family, ("accuracy", "accuracy"))
    main = main or {"field": [field], "paper": [paper]}
    names = main["field"] + main["paper"]
    test, validation = (its if isinstance(its, dict) else dict.fromkeys(names, its) for its in (test, validation))
    right = {metric: np.arange(n) < its if np.ndim(its) == 0 else its for metric, its in test.items()}
    arrays = {metric: metrics.one_class(its).astype(np.float32) for metric, its in right.items()}
    result = {"task": task, "family": family, "lr": lr, "seed": seed, "main": main, "versions": {"torch": "2.13"}}
    result |= {"test_set": f"of {task}", "examples": {"train": 1000, "validation": 50, "test": n}}
    test = {metric: metrics.score(array) for metric, array in arrays.items()}
    result |= {"metrics": {"validation": validation, "test": test}, "checkpoint": facts}
    result |= {"baselines": {"majority": dict.fromkeys(main["field"][:1], 40.0)}, "settings": {"batch": 32, "lr": lr}}
    Path(folder).mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    np.savez(folder / "instances.npz", **arrays)
    return folder


def make_result(root, name="mlm", task="sst2", lr=1e-4, seed=1, facts=None, **result):
    """Write one result into a folder of results, by default of pure MLM."""
    folder = root / name / task / f"lr-{lr:g}_seed-{seed}"
    return write_result(folder, facts_of(name, **(facts or {})), task=task, lr=lr, seed=seed, **result)
