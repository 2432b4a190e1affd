"""What models get right and wrong, class by class: from the predictions.jsonl of the runs at the chosen learning rate."""

import json
from collections import Counter

import numpy as np

from errors import DataError
from eval.study import figures
from eval.study.page import table
from eval.tasks.metrics import entities

MAX_CLASSES = 20  # a task with more has no table
NOTE = (
    "Counts are summed over the runs at the chosen learning rate; precision, recall and F1 (%) are computed from them."
)


def classes_section(page, scores):
    """Add the F1 of each class (sc) or type of entity (tc), and the best model's errors, where predictions are there."""
    parts = [part for task in scores.tasks for part in task_part(page, scores, task)]
    if parts:
        page.add("## Class by class", NOTE, *parts)


def task_part(page, scores, task):
    """Return the blocks of one task; [] if it has no classes, too many, or no predictions."""
    count = {"sc": count_labels, "tc": count_entities}.get(scores.results.tasks[task])
    found = {}  # {variant: (Counter of (gold, predicted), see count_labels)}
    for variant in scores.results.variants if count else ():
        if score := scores[variant, task]:
            lines = read_predictions(scores.results.root, score.runs.values())
            found |= {variant: count(lines)} if lines else {}
    names = sorted({name for pairs in found.values() for pair in pairs for name in pair} - {None}, key=str)
    if not 1 < len(names) + (count is count_entities) <= MAX_CLASSES or not all(isinstance(x, str) for x in names):
        return []
    counts = {variant: to_matrix(pairs, names) for variant, pairs in found.items()}
    f1 = {variant: class_scores(matrix)[2] for variant, matrix in counts.items()}
    best = max(counts, key=lambda variant: scores[variant, task].mean)
    matrix = counts[best][:-1, :-1]  # without the entities that only gold or only the prediction has
    blocks = [f"### {task}"]
    if len(f1) > 1:
        blocks.append(table(["F1", *names], [[v.label, *map("{:.1f}".format, its)] for v, its in f1.items()]))
    columns = [counts[best].sum(1)[:-1], *class_scores(counts[best])]
    rows = [[name, f"{n:,}", *map("{:.1f}".format, its)] for name, n, *its in zip(names, *columns)]
    header = [best.label, "gold", "precision", "recall", "F1"]
    if count is count_labels:
        header += [f"as {name}" for name in names]
        rows = [[*row, *map("{:,}".format, its)] for row, its in zip(rows, matrix)]
        share = 100 * matrix / np.maximum(1, matrix.sum(1, keepdims=True))
        drawn = share, names, "predicted", f"gold (% of each row; {best.label})"
    else:
        drawn = np.array([*f1.values()]), [variant.label for variant in f1], "type", "F1 (%)"
    figure = page.draw(f"classes-{task}", figures.draw_matrix, names, *drawn)
    return [*blocks, table(header, rows), *figure]


def read_predictions(root, runs):
    """Return the lines of predictions.jsonl of all these runs, [] if one of them has no such file."""
    lines = []
    for run in runs:
        path = root / run.folder / "predictions.jsonl"
        if not path.exists():
            return []
        try:
            its = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            pairs = [(line["gold"], line["predicted"]) for line in its]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: {error!r}: delete it, or make this run again") from None
        if len(pairs) != run.test_set[0]:
            raise DataError(f"{path}: {len(pairs)} predictions, but result.json counts {run.test_set[0]}: delete it")
        lines += pairs
    return lines


def count_labels(lines):
    """Return how often each (gold label, predicted label) occurs."""
    return Counter(lines)


def count_entities(lines):
    """Return the same of entities' types: (type, type) if an entity is right, else (type, None) or (None, type)."""
    pairs = Counter()
    for gold, predicted in lines:
        gold, predicted = {*entities(gold)}, {*entities(predicted)}
        pairs.update((kind, kind) for kind, *_ in gold & predicted)
        pairs.update((kind, None) for kind, *_ in gold - predicted)
        pairs.update((None, kind) for kind, *_ in predicted - gold)
    return pairs


def to_matrix(pairs, names):
    """Return the counts as an array (C + 1, C + 1), gold by predicted; the last row and column are None's."""
    index = {name: i for i, name in enumerate([*names, None])}
    matrix = np.zeros((len(index), len(index)), int)
    for (gold, predicted), n in pairs.items():
        matrix[index[gold], index[predicted]] = n
    return matrix


def class_scores(matrix):
    """Return precision, recall and F1 of the C classes in percent: (3, C); 0 where one is not defined."""
    right, gold, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    return 100 * np.stack([right / np.maximum(1, n) for n in (predicted, gold, (predicted + gold) / 2)])[:, :-1]
