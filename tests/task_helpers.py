"""What the tests of the task families share."""

import numpy as np

import configurator
from data.tokenizer import Tokenizer
from eval.tasks import metrics
from eval.tasks.families import FAMILIES
from eval.tasks.registry import find_task
from eval.tasks.splits import Dataset, read
from helpers import ROOT

TOKENIZER = Tokenizer.load("embedded")


def settings(**changed):
    """The settings of finetune.py, on a CPU in fp32."""
    defaults, _ = configurator.read_script(ROOT / "finetune.py")
    return configurator.Settings(defaults | dict(device="cpu", dtype="float32") | changed)


def load(task="", folder="data/tasks", full_corpus=True, **fields):
    """Return the Dataset of a task."""
    return read(find_task(task, folder, **fields), full_corpus)


def family(name, max_len=64, **parts):
    parts = dict(labels=[], train=[], validation=[], test=[]) | parts
    return FAMILIES[name](Dataset("toy", name, counts={}, main={}, **parts), TOKENIZER, max_len)


def score(task, forward, examples, split):
    """Return {metric: percent}."""
    found = task.metrics(task.predict(forward, examples, split), examples)
    return {name: metrics.score(instances) for name, instances in found.items()}


def logits(odds):
    """The outputs (tokens, 2) of a model with these log-odds."""
    return np.stack([np.zeros(len(odds)), odds], -1)
