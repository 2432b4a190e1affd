"""What the tests of the task families share."""

import numpy as np

from data.tokenizer import Tokenizer
from eval.tasks.examples import Dataset
from eval.tasks.families import FAMILIES

TOKENIZER = Tokenizer.load("embedded")


def family(name, max_len=64, **parts):
    parts = dict(labels=[], train=[], validation=[], test=[]) | parts
    return FAMILIES[name](Dataset("toy", name, counts={}, main={}, **parts), TOKENIZER, max_len)


def score(task, forward, examples, split):
    """Return {metric: instances}."""
    return task.metrics(task.predict(forward, examples, split), examples)


def logits(odds):
    """The outputs (tokens, 2) of a model with these log-odds."""
    return np.stack([np.zeros(len(odds)), odds], -1)
