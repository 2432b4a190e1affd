"""From a Task to its Dataset: read the files, and hold examples out to validate on.

The splits are the paper's (arXiv 2507.00994): SC and QA are tested on the official validation set, because the labels
of the test sets are not public, and validated on 5 % of train. Unlike in the paper, a text, sentence, context or query
is on one side of a random split only.
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

SPLIT_SEED = 42  # of every random split, so that all runs of a task share its splits
PAPER = {"sc": "accuracy", "tc": "sentence_macro_f1", "qa": "token_set_f1", "ir": "ndcg@10_judged"}  # its metrics


@dataclass
class Dataset:
    name: str
    family: str  # "sc", "tc", "qa" or "ir"
    labels: list  # sc: the classes, [] if they are numbers; tc: the tags, "O" first; both as seen in training; else []
    train: list  # of Text, Sentence, Question or Pair
    validation: list  # the same; ir: of Query
    test: list  # as validation
    counts: dict  # {rule: number of examples it applied to}; counts of train are from before validation is held out
    main: dict  # {"field": [metrics], "paper": [metrics]}: a task's score is the mean of the metrics
    task: object = None  # the Task that it was read from, see registry.py
    corpora: dict = field(default_factory=dict)  # ir: {name of a corpus: {document id: text}}, those to search
    judged: dict = field(default_factory=dict)  # ir: {name of a corpus: ids that validation or test judge}

    @property
    def sizes(self):
        """{split: number of examples}"""
        return {split: len(getattr(self, split)) for split in SPLITS}

    def search(self, queries, corpus, find):
        """Return the runs of queries of one corpus, as `metrics.retrieval_scores` takes them.

        As in BEIR, no query finds the document that has its own id. corpus: {document id: text}, of the documents that
        are searched. find(ids, rows): for each query, the best (see `metrics.best`) of the documents with these ids;
        rows are their positions in the corpus.
        """
        known = self.judged[queries[0].corpus]
        ids = list(corpus)
        rows = [i for i, document in enumerate(ids) if document in known]
        runs = [{"judged": run} for run in find([ids[i] for i in rows], rows)]
        if self.main["field"]:  # empty if the corpus holds judged documents only
            for run, whole in zip(runs, find(ids, slice(None))):
                run["corpus"] = whole
        for query, run in zip(queries, runs):
            for found in run.values():
                found.pop(query.id, None)
        return runs

    def summary(self):
        """Return what a user should know of it before training, as lines of text."""
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

    full_corpus: ir: False keeps only those documents of a corpus that the validation or test judgments name. That takes
        little memory and is all that the paper's metric needs. The field's metric is not defined on it, so
        main["field"] is empty.
    Raises DataError: before it reads any file, with everything that is missing and where to get it; later with file and
        line.
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
    # A task's score is the mean of the field's metrics or of the paper's, each of every set that it searches.
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
    """Return the labels seen in training: in the order of `task.names`, then "O" of tags, then alphabetically.

    Of two labels the second is the positive one. Numbers have no names: []. If all are equal, no correlation with
    them is defined. parts: {split: examples}.
    """
    if task.family not in ("sc", "tc"):
        return []
    for split in reversed(SPLITS if task.regression else SPLITS[:1]):
        known = set().union(*(example.labels for example in parts[split]))
        if len(known) < 2:
            raise DataError(
                f"{getattr(task, split) or task.train}: all examples of {split} are {min(known)!r}: there is nothing "
                "to learn or to tell apart. If examples of train were held out to validate on, give validation"
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
    """Split a file's examples in two lists; the second has `fraction` of the distinct keys, at random, at least one."""
    keys = [*dict.fromkeys(example.key for example in examples)]
    n = max(1, round(fraction * len(keys)))
    if n >= len(keys):
        raise DataError(f"{path}: too few different examples ({len(keys)}) to hold some of them out: give validation")
    # RandomState's stream is frozen, unlike that of newer generators: the same split with every version of numpy.
    held = {keys[i] for i in np.random.RandomState(SPLIT_SEED).permutation(len(keys))[:n]}
    kept = [example for example in examples if example.key not in held]
    return kept, [example for example in examples if example.key in held]


def example_splits(task, counts):
    """Return {split: examples} of sc, tc or qa."""
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
        raise DataError("; ".join([f"{path}: there are no examples in it", *rules]))
    counts.update({f"{split}: {rule}": count for rule, count in rules.items()})
    return examples


# ----------------------------------------------------------------------------
# Retrieval


def retrieval_splits(task, full_corpus, counts):
    """Return {split: examples} of ir, and the corpora; see Dataset."""
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
    """Return {split: Queries} of a table of Judged. No other row has what a row holds out of a file."""
    held_out = {os.path.realpath(row.judgments): row.held_out for row in table if row.held_out}
    splits = {split: [] for split in SPLITS}
    texts = {}  # of the queries, by folder and id
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
            raise DataError(f"{row.judgments}: there are no judgments in it of queries that queries.jsonl has")
        counts[f"{row.split}: queries left out, as queries.jsonl lacks their text"] += len(qrels) - len(queries)
        if fraction := held_out.get(os.path.realpath(row.judgments)):
            kept, held = hold_out(row.judgments, queries, fraction)
            queries = held if row.held_out else kept
        if row.held_out:
            stem = Path(row.judgments).stem
            counts[in_set(row.set, f"validation: queries held out of {stem}, at random")] = len(queries)
        splits[row.split] += queries
    return splits


def wanted(queries):
    """Return {corpus: ids of the documents in it that some Queries judge}."""
    found = defaultdict(set)
    for query in queries:
        found[query.corpus].update(query.grades)
    return found
