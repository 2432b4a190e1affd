"""From a Task to its Dataset: read the files, and hold out examples for validation.

The splits are the paper's (arXiv 2507.00994). SC and QA are tested on the official validation set, because the labels
of the test sets are not public, and validated on 5 % of train. Unlike in the paper, no text, sentence, context or query
is on both sides of a random split.
"""

import os
import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from errors import DataError
from eval.tasks.metrics import in_set, main_of
from eval.tasks.readers import READERS, SPLITS, Pair, Query, find_files, read_qrels, read_texts_by_id, to_train_on
from eval.tasks.registry import VALIDATION_FRACTION, missing

SPLIT_SEED = 42  # the same for all runs, so that they share their splits
PAPER = {"sc": "accuracy", "tc": "sentence_macro_f1", "qa": "token_set_f1", "ir": "ndcg@10_judged"}  # its metrics


@dataclass
class Dataset:
    name: str
    family: str  # "sc", "tc", "qa" or "ir"
    labels: list  # sc: the classes, [] if they are numbers; tc: the tags, "O" first; both as seen in training; else []
    train: list  # of Text, Sentence, Question or Pair
    validation: list  # the same; ir: of Query
    test: list  # as validation
    counts: dict  # {rule: number of examples it applied to}; for train, before validation is held out
    main: dict  # {"field": [metrics], "paper": [metrics]}: a task's score is the mean of the metrics
    task: object = None  # the Task that it was read from, see registry.py
    corpora: dict = field(default_factory=dict)  # ir: {name of a corpus to search: {document id: text}}
    judged: dict = field(default_factory=dict)  # ir: {name of a corpus: ids that are judged for validation or test}

    @property
    def sizes(self):
        """{split: number of examples}."""
        return {split: len(getattr(self, split)) for split in SPLITS}

    def search(self, queries, corpus, find):
        """Return the runs of queries on one corpus, as `metrics.retrieval_scores` takes them.

        As in BEIR, a query never finds the document with its own id. corpus: {document id: text} of the documents to
        search. find(ids, rows): returns, for each query, the best of the documents with these ids (see `metrics.best`);
        rows are their positions in the corpus.
        """
        known = self.judged[queries[0].corpus]
        ids = list(corpus)
        rows = [i for i, document in enumerate(ids) if document in known]
        runs = [{"judged": run} for run in find([ids[i] for i in rows], rows)]
        if self.main["field"]:  # empty if only judged documents were read
            for run, whole in zip(runs, find(ids, slice(None))):
                run["corpus"] = whole
        for query, run in zip(queries, runs):
            for found in run.values():
                found.pop(query.id, None)
        return runs

    def summary(self):
        """Return what a user should see before training, as text of several lines."""
        lines = [f"{self.name} ({self.family}), {' and '.join(main_of(self.main))}", f"examples: {self.sizes}"]
        if self.labels:
            lines.append(f"labels: {self.labels}")
        lines += [f"{rule}: {count:,}" for rule, count in self.counts.items()]
        lines.append("The first example, as it was read:")
        for name, value in (self.train or self.test)[0]._asdict().items():
            lines.append(f"  {name:10}{textwrap.shorten(str(value), 160)}")
        return "\n".join(lines)


def read(task, full_corpus=True):
    """Return the Dataset of a Task.

    full_corpus: in ir, False keeps only the documents that are judged for validation or test. They take little memory
        and are all that the paper's metric needs. The field's metrics are not defined on them, so main["field"] is
        empty.
    Raises DataError: at first with all missing files and where to get them; later with the file and line of an error.
    """
    if absent := missing(task):
        raise DataError(f"{task.name}: {absent}")
    counts = Counter()
    parts = retrieval_splits(task, full_corpus, counts) if task.family == "ir" else example_splits(task, counts)
    labels = label_names(task, parts)
    seen = {}
    for split in SPLITS:
        for other, keys in seen.items():
            counts[f"{split}: examples whose text, context or query is in {other}, too"] = sum(
                example.key in keys for example in parts[split]
            )
        seen[split] = {example.key for example in parts[split]}
        if labels:
            unknown = Counter(label for example in parts[split] for label in example.labels if label not in labels)
            counts[f"{split}: labels that training does not have, {dict(unknown)!r:.300}"] = unknown.total()
    # A task's score is the mean of the field's or of the paper's metrics over all sets that it searches.
    field = task.metrics if full_corpus or task.family != "ir" else []
    paper = task.metrics if task.regression else [PAPER[task.family]]
    names = [row.set for row in task.judged if row.split == "test"] or [""]
    return Dataset(
        name=task.name,
        family=task.family,
        labels=labels,
        counts=dict(+counts),
        main={
            "field": [in_set(name, metric) for name in names for metric in field],
            "paper": [in_set(name, metric) for name in names for metric in paper],
        },
        task=task,
        **parts,
    )


def label_names(task, parts):
    """Return the labels in the training set: those of `task.names` first, then "O" for tags, then alphabetically.

    Of two labels, the second is the positive one. Regression has no labels: []. Its numbers must not all be equal,
    because correlation would be undefined. parts: {split: examples}.
    """
    if task.family not in ("sc", "tc"):
        return []
    for split in reversed(SPLITS if task.regression else SPLITS[:1]):
        known = set().union(*(example.labels for example in parts[split]))
        if len(known) < 2:
            raise DataError(
                f"{getattr(task, split) or task.train}: all examples of {split} are {min(known)!r}: there is nothing "
                "to learn or to measure. If validation was held out of train, give a file for validation"
            )
    if task.regression:
        return []
    first = [label for label in (*task.names, *"O" * (task.family == "tc")) if label in known]
    labels = first + sorted(known - {*first})
    if "matthews" in task.metrics and len(labels) != 2:
        raise DataError(f"matthews is only for two labels, but there are {len(labels)}: {', '.join(labels)}")
    return labels


# ----------------------------------------------------------------------------
# Texts, sentences and questions


def hold_out(path, examples, fraction=VALIDATION_FRACTION):
    """Split examples at random into two lists; the second has `fraction` of the distinct keys, and at least one."""
    keys = [*dict.fromkeys(example.key for example in examples)]
    n = max(1, round(fraction * len(keys)))
    if n >= len(keys):
        raise DataError(f"{path}: too few different examples ({len(keys)}) to hold some of them out: give validation")
    # RandomState gives the same split with every version of numpy; newer generators may change.
    held = {keys[i] for i in np.random.RandomState(SPLIT_SEED).permutation(len(keys))[:n]}
    kept = [example for example in examples if example.key not in held]
    return kept, [example for example in examples if example.key in held]


def example_splits(task, counts):
    """Return {split: examples} for sc, tc or qa."""
    splits = {}
    for split in SPLITS:
        if path := getattr(task, split):
            splits[split] = read_all(path, task, split, counts)
    if not task.validation:
        splits["train"], splits["validation"] = hold_out(task.train, splits["train"])
        counts["validation: held out of train, at random"] = len(splits["validation"])
    return splits


def read_all(path, task, split, counts):
    """Return the examples of all files of a path."""
    rules = Counter()
    examples = []
    for file in find_files(path):
        examples += READERS[task.family](file, task, rules)
    if task.family == "qa" and split == "train":
        examples = to_train_on(examples, rules)
    if not examples:
        raise DataError("; ".join([f"{path}: has no examples", *rules]))
    counts.update({f"{split}: {rule}": count for rule, count in rules.items()})
    return examples


# ----------------------------------------------------------------------------
# Retrieval


def retrieval_splits(task, full_corpus, counts):
    """Return {split: examples} for ir, with the entries corpora and judged; see Dataset."""
    splits = judged_queries(task.judged, counts)
    tested = splits["validation"] + splits["test"]
    judged = wanted(tested)
    corpora = {}
    for path, ids in wanted(tested + splits["train"]).items():
        kept = None if full_corpus and path in judged else ids
        corpora[path] = read_texts_by_id(path, counts, task.form or "{} {}", kept)
        counts["judged documents that are not in the corpus"] += len(ids - corpora[path].keys())

    pairs = read_all(task.train, task, "train", counts) if task.train else []
    for query in splits["train"]:
        texts = corpora[query.corpus]
        for id, grade in query.grades.items():
            if grade > 0 and id in texts:
                pairs.append(Pair(query.text, texts[id]))
    if splits["train"] and not pairs:
        raise DataError(f"{task.judged[0].judgments}: no query has a relevant document in the corpus to train on")
    searched = {}
    for path, ids in judged.items():
        searched[path] = {id: text for id, text in corpora[path].items() if full_corpus or id in ids}
    for query in tested:
        found = searched[query.corpus]
        relevant = any(grade > 0 and id in found for id, grade in query.grades.items())
        counts["queries with the id of a document, which is left out of their results"] += query.id in found
        counts["queries without a relevant document in the corpus, whose scores are 0"] += not relevant
    return splits | {"train": pairs, "corpora": searched, "judged": judged}


def judged_queries(table, counts):
    """Return {split: Queries} from a table of Judged. Queries that a row holds out of a file are in no other row."""
    held_out = {os.path.realpath(row.judgments): row.held_out for row in table if row.held_out}
    splits = {split: [] for split in SPLITS}
    texts = {}  # {queries.jsonl: {query id: text}}
    for row in table:
        file = f"{row.folder}/queries.jsonl"
        if file not in texts:
            texts[file] = read_texts_by_id(file, counts)
        qrels = read_qrels(row.judgments, row.split, counts)
        queries = []
        for id, grades in qrels.items():
            text = texts[file].get(id)
            if isinstance(text, str):
                queries.append(Query(id, text, grades, f"{row.folder}/corpus.jsonl", row.set))
        if not queries:
            raise DataError(f"{row.judgments}: judges no query that queries.jsonl has")
        counts[f"{row.split}: queries left out, because queries.jsonl lacks their text"] += len(qrels) - len(queries)
        if fraction := held_out.get(os.path.realpath(row.judgments)):
            kept, held = hold_out(row.judgments, queries, fraction)
            queries = held if row.held_out else kept
        if row.held_out:
            stem = Path(row.judgments).stem
            counts[in_set(row.set, f"validation: queries held out of {stem}, at random")] = len(queries)
        splits[row.split] += queries
    return splits


def wanted(queries):
    """Return {corpus: ids of its documents that are judged for some Queries}."""
    found = defaultdict(set)
    for query in queries:
        found[query.corpus].update(query.grades)
    return found
