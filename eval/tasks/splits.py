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
from eval.tasks.readers import READERS, SPLITS, Pair, Query, find_files, read_qrels, read_texts_by_id, to_train_on
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

    def search(self, name, corpus, find):
        """Return the runs of some queries, as `metrics.retrieval_scores` takes them.

        name: of the corpus. corpus: {document id: text}, of the documents that are searched. find(ids, rows): returns
        {document id: score} for each query, of documents with these ids, which are these rows of the corpus.
        """
        known, ids = wanted((*self.validation, *self.test))[name], list(corpus)
        rows = [i for i, document in enumerate(ids) if document in known]
        runs = [{"judged": run} for run in find([ids[i] for i in rows], rows)]
        if self.main["field"]:  # empty if the corpus holds judged documents only
            for run, whole in zip(runs, find(ids, slice(None))):
                run["corpus"] = whole
        return runs

    def summary(self):
        """Return what a user should know of it before training, as lines of text."""
        main = self.main["field"] or self.main["paper"]
        lines = [f"{self.name} ({self.family}), {' and '.join(main)}"]
        if self.labels:
            lines.append(f"labels: {', '.join(self.labels)}")
        lines += [f"{rule}: {count:,}" for rule, count in self.counts.items()]
        lines.append("The first example, as it was read:")
        first = (self.train or self.test)[0]._asdict()
        lines += [f"  {name:10}{textwrap.shorten(str(value), 160)}" for name, value in first.items()]
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
    return Dataset(
        name=task.name or task.family,
        family=task.family,
        labels=label_names(task, parts["train"]),
        counts=dict(counts),
        main=main_metrics(task, full_corpus),
        task=task,
        **parts,
    )


def main_metrics(task, full_corpus):
    """Return {"field": metrics, "paper": metrics}; the score of a task is the mean of either."""
    field = task.metrics if full_corpus or task.family != "ir" else []
    main = {"field": field, "paper": task.metrics if task.regression else [PAPER[task.family]]}
    sets = list(task.sets) or [""]
    return {name: [in_set(part, metric) for part in sets for metric in chosen] for name, chosen in main.items()}


def label_names(task, train):
    """Return the labels seen in training: in the order of `task.names`, then "O", then alphabetically.

    Of two labels the second is the positive one. Numbers have no names: [].
    """
    if task.family not in ("sc", "tc"):
        return []
    known = set().union(*([example.gold] if task.family == "sc" else example.gold for example in train))
    if len(known) < 2:
        why = f"all examples to train on are {min(known)!r}: there is nothing to learn"
        raise DataError(f"{task.train}: {why}. If others were held out to validate on, give validation")
    if task.regression:
        return []
    first = [label for label in (*task.names, "O") if label in known]
    labels = first + sorted(known - {*first})
    if "matthews" in task.metrics and len(labels) != 2:
        raise DataError(f"matthews is only for two labels, but there are {len(labels)}: {', '.join(labels)}")
    return labels


# ----------------------------------------------------------------------------
# Texts, sentences and questions


def hold_out(path, examples, fraction=VALIDATION_FRACTION):
    """Split a file's examples in two lists; the second has `fraction` of the distinct keys, at random, at least one."""
    distinct = list(dict.fromkeys(example.key for example in examples))
    n = len(distinct)
    count = max(1, round(fraction * n))
    if count >= n:
        raise DataError(f"{path}: too few different examples ({n}) to hold some of them out: give validation")
    # RandomState's stream is frozen, unlike that of newer generators: the same split with every version of numpy.
    order = np.random.RandomState(SPLIT_SEED).permutation(n)
    held_keys = {distinct[i] for i in order[:count]}
    parts = [], []
    for example in examples:
        parts[example.key in held_keys].append(example)
    return parts


def example_splits(task, counts):
    """Return {split: examples} of sc, tc or qa."""
    splits = {split: read_all(getattr(task, split), task, split, counts) for split in SPLITS if getattr(task, split)}
    if not task.validation:
        splits["train"], splits["validation"] = hold_out(task.train, splits["train"])
        counts["validation: held out of train, at random"] = len(splits["validation"])
    return splits


def read_all(path, task, split, counts):
    """Return the examples of all files of a path."""
    rules, examples = Counter(), []
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
    splits = {split: [] for split in SPLITS}
    for split, queries in judged_queries(retrieval_table(task), counts):
        splits[split] += queries
    judged = wanted(splits["validation"] + splits["test"])
    corpora = {}
    for name, ids in wanted(sum(splits.values(), [])).items():
        whole = full_corpus and name in judged
        corpora[name] = read_texts_by_id(find_files(name)[0], None if whole else ids, task.form)
        if absent := sorted(ids - corpora[name].keys()):
            raise DataError(f"{name}: {len(absent)} judged documents are not in it, the first is {absent[0]!r}")

    pairs = []
    for query in splits["train"]:
        relevant = [document for document, grade in query.grades.items() if grade > 0]
        pairs += [Pair(query.text, corpora[query.corpus][document]) for document in relevant]
    if not pairs and not task.zero_shot:
        pairs = read_all(task.train, task, "train", counts)
    searched = {}
    for name, ids in judged.items():
        searched[name] = {id: text for id, text in corpora[name].items() if full_corpus or id in ids}
    return splits | {"train": pairs, "corpora": searched}


def judged_queries(table, counts):
    """Yield (split, its Queries) for each row of a retrieval table. No other row has what a row holds out of a file."""
    files = [find_files(row.judgments)[0] for row in table]
    held_out = {realpath(file): row.held_out for file, row in zip(files, table) if row.held_out}
    texts = {name: read_texts_by_id(find_files(name)[0]) for name in {row.beside("queries.jsonl") for row in table}}
    for file, row in zip(files, table):
        corpus, text_of, queries = row.beside("corpus.jsonl"), texts[row.beside("queries.jsonl")], []
        for id, grades in read_qrels(file).items():
            if id not in text_of:
                raise DataError(f"{file}: the query {id!r} in it is not in queries.jsonl")
            queries.append(Query(id, text_of[id], grades, corpus, row.set))
        if not queries:
            raise DataError(f"{file}: no query has a relevant document")
        if fraction := held_out.get(realpath(file)):
            queries = hold_out(file, queries, fraction)[row.held_out > 0]
        if row.held_out:
            rule = f"validation: queries held out of {Path(row.judgments).stem}, at random"
            counts[in_set(row.set, rule, ": ")] = len(queries)
        yield row.split, queries


def wanted(queries):
    """Return {corpus: ids of the documents in it that some Queries judge}."""
    found = defaultdict(set)
    for query in queries:
        found[query.corpus].update(query.grades)
    return found
