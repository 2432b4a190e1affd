"""eval/report.py, on made-up results whose tables are known by hand or by construction."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from data.tokenizer import DataError
from eval import report, stats
from eval.study import Study

METRICS = {"sc": ("accuracy", "accuracy"), "tc": ("entity_f1", "sentence_macro_f1"), "qa": ("f1", "token_set_f1"),
           "ir": ("ndcg@10", "ndcg@10_judged")}  # fmt: skip


def make_result(root, name="mlm", task="sst2", family="sc", lr=1e-4, seed=1, test=50, validation=50.0, paper=None,
                settings=(), n=100, **facts):  # fmt: skip
    """Writes one run as finetune.py does. test: how many of the n test instances are right, or whether each is
    (n,); validation: per cent; paper: the same two of the paper's metric, where it is not the field's."""

    def instances(right):
        right = np.arange(n) < right if np.ndim(right) == 0 else right
        return np.stack([right, np.ones(n)], -1)[:, None].astype(np.float32)  # (n, 1, 2)

    field_metric, paper_metric = METRICS[family]
    arrays = {field_metric: instances(test)}
    scores = {"validation": {field_metric: validation}, "test": {}}
    if field_metric != paper_metric:
        arrays[paper_metric] = instances(test if paper is None else paper[0])
        scores["validation"][paper_metric] = validation if paper is None else paper[1]
    scores["test"] = {metric: float(stats.ratio_score(array.sum(0))) for metric, array in arrays.items()}
    checkpoint = {"name": name, "path": f"out/{name}/ckpt-2000.pt", "step": 2000, "max_steps": 2000, "clm_steps": 0,
                  "mask_ratio": 0.4, "seed": 1, "init_from": "", "untrained": False, "parameters": 1_740_000,
                  "model": {"n_layer": 4}, **facts}  # fmt: skip
    result = {"task": task, "family": family, "metrics": scores, "main": {"field": [field_metric], "paper": [paper_metric]},
              "baselines": {"majority": {field_metric: 40.0}}, "counts": {}, "steps": 1000, "lr": lr, "seed": seed,
              "examples": {"train": 1000, "validation": 50, "test": n}, "checkpoint": checkpoint,
              "settings": {"task": task, "lr": lr, "seed": seed, "batch": 32, **dict(settings)},
              "versions": {"torch": "2.13"}}  # fmt: skip
    folder = Path(root, name, task, f"lr-{lr:g}_seed-{seed}")
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    np.savez(folder / "instances.npz", **arrays)
    return folder
