"""The section of a report on what models get right and wrong, class by class, from predictions.jsonl."""

import json
from collections import Counter

import numpy as np

from errors import DataError
from eval.study import figures
from eval.study.page import table
from eval.tasks.metrics import entities

MAX_CLASSES = 20  # a task with more has no table
NOTE = (
    "Counts are summed over the runs at the chosen learning rate; precision, recall and F1 (%) are computed from them. "
    "The details are those of the model with the highest score on this task."
)


def classes_section(page, scores, task):
    """Add the F1 of each class (sc) or type of entity (tc), and the details of the best model.

    Adds nothing for other families, without predictions, and if there are no or too many classes.
    """
    family, pairs = scores.results.tasks[task], {}  # {variant: [(gold, predicted), ...]}
    for variant in scores.results.variants if family in ("sc", "tc") else ():
        if score := scores[variant, task]:
            lines = read_predictions(scores.results.root, score.runs.values())
            its = lines if family == "sc" else [pair for line in lines for pair in entity_pairs(*line)]
            pairs |= {variant: its} if its else {}
    names = {name for its in pairs.values() for pair in its for name in pair} - {None}
    if not 1 <= len(names) <= MAX_CLASSES or not all(isinstance(name, str) for name in names):  # numbers: a regression
        return
    names = sorted(names)
    counts = {variant: count_pairs(its, names) for variant, its in pairs.items()}
    f1 = {variant: class_scores(matrix)[2] for variant, matrix in counts.items()}
    page.add(f"## Classes of {task}", NOTE)
    if len(f1) > 1:
        page.add(table(["F1", *names], [[v.label, *map("{:.1f}".format, its)] for v, its in f1.items()]))

    best = max(counts, key=lambda variant: scores[variant, task].mean)
    matrix = counts[best][:-1, :-1]
    header = [best.label, "gold", "precision", "recall", "F1"]
    columns = zip(names, counts[best].sum(1), class_scores(counts[best]).T)
    rows = [[name, f"{n:,}", *map("{:.1f}".format, its)] for name, n, its in columns]
    if family == "sc":
        header += [f"as {name}" for name in names]
        rows = [[*row, *map("{:,}".format, its)] for row, its in zip(rows, matrix)]
        percent = 100 * matrix / np.maximum(1, matrix.sum(1, keepdims=True))
        figure = percent, names, names, "predicted", "gold (% of each row)", f"{task}: {best.label}"
    else:
        figure = np.array([*f1.values()]), [variant.label for variant in f1], names, "type", "F1 (%)", task
    page.add(table(header, rows))
    page.draw(f"classes-{task}", figures.draw_matrix, *figure)


def read_predictions(root, runs):
    """Return (gold, predicted) of all lines of predictions.jsonl of these runs, [] if one of them has no such file."""
    pairs = []
    for run in runs:
        path = root / run.folder / "predictions.jsonl"
        if not path.exists():
            return []
        try:
            with open(path, encoding="utf-8") as file:
                its = [(line["gold"], line["predicted"]) for line in map(json.loads, file)]
            if len(its) != run.test_set[0]:
                raise ValueError(f"{len(its)} predictions, but result.json counts {run.test_set[0]}")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: {error}. Delete it, or make this run again") from None
        pairs += its
    return pairs


def entity_pairs(gold, predicted):
    """Return (type, type) for each entity of a sentence that is right, else (type, None) or (None, type)."""
    gold, predicted = {*entities(gold)}, {*entities(predicted)}
    return [(kind if x in gold else None, kind if x in predicted else None) for x in gold | predicted for kind in x[:1]]


def count_pairs(pairs, names):
    """Count pairs of (gold, predicted): (C + 1, C + 1), the last row and column of None."""
    index = {name: i for i, name in enumerate([*names, None])}
    matrix = np.zeros((len(index), len(index)), int)
    for (gold, predicted), n in Counter(pairs).items():
        matrix[index[gold], index[predicted]] = n
    return matrix


def class_scores(matrix):
    """Return precision, recall and F1 of the C classes in percent: (3, C); 0 where one is not defined."""
    right, gold, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    return 100 * np.stack([right / np.maximum(1, n) for n in (predicted, gold, (predicted + gold) / 2)])[:, :-1]
