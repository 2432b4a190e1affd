"""From a Task to its Dataset: read the files, and hold examples out to validate on.

The splits are the paper's (arXiv 2507.00994): SC and QA are tested on the official validation set, because the labels
of the test sets are not public, and validated on 5 % of train. Unlike in the paper, a text, sentence, context or query
is on one side of a random split only.
"""

import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from os.path import realpath
from pathlib import Path

import numpy as np

from errors import DataError
from eval.tasks.metrics import in_set
from eval.tasks.readers import READERS, Pair, Query, find_files, read_qrels, read_texts_by_id, to_train_on
from eval.tasks.registry import VALIDATION_FRACTION, missing, retrieval_table

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

    def judged(self):
        """Return {name of a corpus: ids of the documents in it that validation or test judge}."""
        found = defaultdict(set)
        for query in (*self.validation, *self.test):
            found[query.corpus].update(query.grades)
        return found

    def summary(self):
        """Return what a user should know of it before training, as lines of text."""
        main = self.main["field"] or self.main["paper"]
        lines = [f"{self.name} ({self.family}), {' and '.join(main)}"]
        if self.labels:
            lines.append(f"labels: {', '.join(self.labels)}")
        for rule, count in self.counts.items():
            lines.append(f"{rule}: {count:,}")
        lines.append("The first example to train on, as it was read:")
        for name, value in self.train[0]._asdict().items():
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
        raise DataError(f"{task.title}: {absent}")
    counts = Counter()
    if task.family == "ir":
        parts = retrieval_splits(task, full_corpus, counts)
    else:
        parts = example_splits(task, counts)
    labels = label_names(task, parts["train"])
    main = main_metrics(task, full_corpus)
    return Dataset(task.name or task.family, task.family, labels, **parts, counts=dict(counts), main=main, task=task)


def main_metrics(task, full_corpus):
    """Return {"field": metrics, "paper": metrics}; the score of a task is the mean of either."""
    main = {"field": task.metrics, "paper": [PAPER[task.family]]}
    if task.regression:
        main["paper"] = task.metrics
    if task.family == "ir" and not full_corpus:
        main["field"] = []
    sets = list(task.sets) or [""]
    return {name: [in_set(part, metric) for part in sets for metric in chosen] for name, chosen in main.items()}


def label_names(task, train):
    """Return the labels seen in training: in the order of `task.names`, then "O", then alphabetically.

    Of two labels the second is the positive one. Numbers have no names: [].
    """
    if task.family not in ("sc", "tc"):
        return []
    known = {label for example in train for label in example.labels}
    if len(known) < 2:
        why = f"all examples to train on are {min(known)!r}: there is nothing to learn"
        raise DataError(f"{task.paths['train']}: {why}. If others were held out to validate on, give --validation")
    if task.regression:
        return []
    order = {name: i for i, name in enumerate((*task.names, "O"))}
    labels = sorted(known, key=lambda label: (order.get(label, len(order)), label))
    if "matthews" in task.metrics and len(labels) != 2:
        raise DataError(f"matthews is only for two labels, but there are {len(labels)}: {', '.join(labels)}")
    return labels


# ----------------------------------------------------------------------------
# Texts, sentences and questions


def hold_out(path, examples, keys, fraction=VALIDATION_FRACTION):
    """Split a file's examples in two lists; the second has `fraction` of the distinct keys, at random, at least one."""
    distinct = list(dict.fromkeys(keys))
    n = len(distinct)
    count = max(1, round(fraction * n))
    if count >= n:
        raise DataError(f"{path}: too few different examples ({n}) to hold some of them out: give --validation")
    # RandomState's stream is frozen, unlike that of newer generators: the same split with every version of numpy.
    order = np.random.RandomState(SPLIT_SEED).permutation(n)
    held_keys = {distinct[i] for i in order[:count]}
    kept, held = [], []
    for example, key in zip(examples, keys, strict=True):
        if key in held_keys:
            held.append(example)
        else:
            kept.append(example)
    return kept, held


def example_splits(task, counts):
    """Return {split: examples} of sc, tc or qa."""
    splits = {}
    for split, path in task.paths.items():
        splits[split] = read_all(path, task, split, counts)
    if "validation" not in splits:
        train = splits["train"]
        keys = [example.key for example in train]
        splits["train"], held = hold_out(task.paths["train"], train, keys)
        splits["validation"] = held
        counts["validation: held out of train, at random"] = len(held)
    return splits


def read_all(path, task, split, counts):
    """Return the examples of all files of a path."""
    rules, examples = Counter(), []
    for file in find_files(path):
        examples += READERS[task.family](file, task, rules)
    if task.family == "qa" and split == "train":
        examples = to_train_on(examples, rules)
    if not examples:
        why = "".join(f"; {rule}: {count}" for rule, count in rules.items())
        raise DataError(f"{path}: there are no examples in it{why}")
    counts.update({f"{split}: {rule}": count for rule, count in rules.items()})
    return examples


# ----------------------------------------------------------------------------
# Retrieval


def retrieval_splits(task, full_corpus, counts):
    """Return {split: examples} of ir, and the corpora; see Dataset."""
    table = retrieval_table(task)
    texts = {}  # {file of queries: {query id: text}}
    for row in table:
        if row.queries not in texts:
            texts[row.queries] = read_texts_by_id(find_files(row.queries)[0])
    judged = judged_queries(table, texts, counts)  # in the order of the table
    tested = list(dict.fromkeys(row.corpus for row in table if row.split != "train"))
    corpora = read_corpora(judged, tested if full_corpus else (), task.form)

    splits = {"train": [], "validation": [], "test": []}
    for row, found in judged.items():
        if row.split == "train":
            splits["train"] = relevant_pairs(found, corpora[row.corpus])
        else:
            splits[row.split] += found
    if not splits["train"]:
        splits["train"] = read_all(task.paths["train"], task, "train", counts)

    if full_corpus:
        searched = {name: corpora[name] for name in tested}
    else:
        searched = {name: {} for name in tested}
        for row, found in judged.items():
            if row.split != "train":
                corpus = corpora[row.corpus]
                for query in found:
                    searched[row.corpus] |= {document: corpus[document] for document in query.grades}
    return splits | {"corpora": searched}


def judged_queries(table, texts, counts):
    """Return {row: its Queries} of a retrieval table, after queries were held out to validate on.

    texts: {file of queries: {query id: text}}.
    """
    files = {row: find_files(row.judgments)[0] for row in table}
    qrels = {}  # {file, without links: {query id: {document id: grade}}}
    for row, file in files.items():
        grades = read_qrels(file)
        if absent := sorted(grades.keys() - texts[row.queries].keys()):
            raise DataError(f"{file}: {len(absent)} queries in it are not in queries.jsonl, the first is {absent[0]!r}")
        if not grades:
            raise DataError(f"{file}: no query has a relevant document")
        qrels[realpath(file)] = grades

    held_out = {}  # {row: its part of a file}
    for row, file in files.items():
        if row.held_out:
            grades = qrels[realpath(file)]
            keys = [texts[row.queries][query] for query in grades]
            kept, held = hold_out(file, grades.items(), keys, row.held_out)
            qrels[realpath(file)] = dict(kept)
            held_out[row] = dict(held)
            rule = f"validation: queries held out of {Path(row.judgments).stem}, at random"
            counts[in_set(row.set, rule, ": ")] = len(held)

    judged = {}
    for row, file in files.items():
        judged[row] = []
        qrels_of_row = held_out.get(row) or qrels[realpath(file)]
        for id, grades in qrels_of_row.items():
            text = texts[row.queries][id]
            judged[row].append(Query(id, text, grades, row.corpus, row.set))
    return judged


def read_corpora(judged, whole, form):
    """Return {corpus: {document id: text}} of all corpora in {row: its Queries}.

    whole: the corpora of which all documents are kept. Of others those are that a query judges.
    """
    wanted = defaultdict(set)
    for row, found in judged.items():
        for query in found:
            wanted[row.corpus].update(query.grades)
    corpora = {}
    for name, ids in wanted.items():
        corpora[name] = read_texts_by_id(find_files(name)[0], None if name in whole else ids, form)
        if absent := sorted(ids - corpora[name].keys()):
            raise DataError(f"{name}: {len(absent)} judged documents are not in it, the first is {absent[0]!r}")
    return corpora


def relevant_pairs(queries, corpus):
    """Return the Pairs of queries and their relevant documents."""
    pairs = []
    for query in queries:
        for document, grade in query.grades.items():
            if grade > 0:
                pairs.append(Pair(query.text, corpus[document]))
    return pairs
