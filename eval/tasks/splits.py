"""From a Task to its Dataset: read the files, and hold examples out to validate on.

The splits are the paper's (arXiv 2507.00994): SC and QA are tested on the official validation set, because the labels
of the test sets are not public, and validated on 5 % of train. Unlike in the paper, a text, sentence, context or query
is on one side of a random split only.
"""

import textwrap
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from errors import DataError
from eval.tasks import readers
from eval.tasks.metrics import answerable, in_set
from eval.tasks.readers import READERS, Pair, find_files
from eval.tasks.registry import is_beir, judgment_files, missing

SPLIT_SEED = 42  # of every random split, so that all runs of a task share its splits
VALIDATION_FRACTION = 0.05  # of train's distinct keys, where a task has no validation set
PAPER = {"sc": "accuracy", "tc": "sentence_macro_f1", "qa": "token_set_f1", "ir": "ndcg@10_judged"}  # its metrics


class Retrieval(NamedTuple):
    """Information retrieval, evaluation: a grade above 0 marks a relevant document."""

    queries: dict  # {id: text}
    corpus: dict  # {id: text}
    qrels: dict  # {query id: {document id: grade}}


@dataclass
class Dataset:
    name: str
    family: str  # "sc", "tc", "qa" or "ir"
    labels: list  # sc: the classes, [] if they are numbers; tc: the tags, "O" first; both as seen in training; else []
    train: list  # of Text, Sentence, Question or Pair
    validation: list  # the same; ir: {name of the set: Retrieval}, the name "" if there is only one set
    test: list  # the same
    counts: dict  # {rule: number of examples it applied to}; counts of train are from before validation is held out
    main: dict  # {"field": [metrics], "paper": [metrics]}: a task's score is the mean of the metrics
    task: object = None  # the Task that it was read from, see registry.py

    def judged(self):
        """Return {id(corpus): ids of the documents that validation or test judge in it}. They mostly share a corpus."""
        found = defaultdict(set)
        for part in (*self.validation.values(), *self.test.values()):
            found[id(part.corpus)].update(*part.qrels.values())
        return found

    def summary(self):
        """Return what a user should know of it before training, as lines of text."""
        lines = [f"{self.name} ({self.family}), {' and '.join(self.main['field'] or self.main['paper'])}"]
        if self.labels:
            lines.append(f"labels: {', '.join(self.labels)}")
        lines += [f"{rule}: {count:,}" for rule, count in self.counts.items()]
        lines.append("The first example to train on, as it was read:")
        fields = self.train[0]._asdict().items()
        return "\n".join([*lines, *(f"  {name:10}{textwrap.shorten(str(value), 160)}" for name, value in fields)])


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
        splits = retrieval_splits(task, full_corpus, counts)
    else:
        splits = example_splits(task, counts)
    field = task.metrics if full_corpus or task.family != "ir" else []
    paper = task.metrics if task.regression else [PAPER[task.family]]
    main = {"field": field, "paper": paper}
    main = {name: [in_set(part, x) for part in [*task.sets] or [""] for x in chosen] for name, chosen in main.items()}
    labels = label_names(task, splits["train"])
    return Dataset(task.name or task.family, task.family, labels, **splits, counts=dict(counts), main=main, task=task)


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
    count = max(1, round(fraction * len(distinct)))
    if count >= len(distinct):
        few = f"too few different examples ({len(distinct)}) to hold some of them out"
        raise DataError(f"{path}: {few}: give --validation")
    # RandomState's stream is frozen, unlike that of newer generators: the same split with every version of numpy.
    held = {distinct[i] for i in np.random.RandomState(SPLIT_SEED).permutation(len(distinct))[:count]}
    pairs = list(zip(examples, keys, strict=True))
    return [example for example, key in pairs if key not in held], [example for example, key in pairs if key in held]


def example_splits(task, counts):
    """Return {split: examples} of sc, tc or qa."""
    splits = {split: read_all(path, task, split, counts) for split, path in task.paths.items()}
    if "validation" not in splits:
        train = splits["train"]
        splits["train"], splits["validation"] = hold_out(task.paths["train"], train, [example.key for example in train])
        counts["validation: held out of train, at random"] = len(splits["validation"])
    return splits


def read_all(path, task, split, counts):
    """Return the examples of all files of a path."""
    rules = Counter()
    examples = [example for file in find_files(path) for example in READERS[task.family](file, task, split, rules)]
    if not examples:
        why = "".join(f"; {rule}: {count}" for rule, count in rules.items())
        raise DataError(f"{path}: there are no examples in it{why}")
    counts.update({f"{split}: {rule}": count for rule, count in rules.items()})
    return examples


# ----------------------------------------------------------------------------
# Retrieval


class Judgments(NamedTuple):
    """What a file of judgments says, with the texts of its queries."""

    path: str
    folder: str  # of the corpus that they judge
    queries: dict  # {id: text}, and maybe others
    qrels: dict  # {query id: {document id: grade}}, of queries with a relevant document


def retrieval_splits(task, full_corpus, counts):
    """Return the splits of ir: Pairs to train on, and {name of the set: Retrieval} for validation and for test."""
    sets, judged = task.sets or {"": task.paths}, read_judgments(task)
    for name, paths in sets.items():
        if (name, "validation") not in judged:
            source, fraction = (name, "test"), 0.5
            if paths["corpus"] == task.paths.get("train"):
                source, fraction = ("", "train"), VALIDATION_FRACTION
            path, folder, texts, qrels = judged[source]
            kept, held = hold_out(path, qrels.items(), [texts[query] for query in qrels], fraction)
            judged[source] = Judgments(path, folder, texts, dict(kept))
            judged[name, "validation"] = Judgments(path, folder, texts, dict(held))
            counts[in_set(name, f"validation: queries held out of {source[1]}, at random", ": ")] = len(held)

    tested = [judged[name, split] for name in sets for split in ("validation", "test")]
    searched = {part.folder for part in tested} if full_corpus else {}
    named = defaultdict(set)  # {folder: ids of the documents that its judgments name}
    for part in judged.values():
        named[part.folder].update(*part.qrels.values())
    documents = {}  # {folder: {id: text}}
    for folder, ids in named.items():
        path = find_files(f"{folder}/corpus.jsonl")[0]
        documents[folder] = readers.read_texts_by_id(path, None if folder in searched else ids, task.form)
        if absent := sorted(ids - documents[folder].keys()):
            raise DataError(f"{path}: {len(absent)} judged documents are not in it, the first is {absent[0]!r}")

    train = task.paths.get("train")
    if is_beir(train):
        _, _, texts, qrels = judged["", "train"]
        relevant = ((query, document) for query, grades in qrels.items() for document in grades if grades[document] > 0)
        pairs = [Pair(texts[query], documents[train][document]) for query, document in relevant]
    else:
        pairs = read_all(train, task, "train", counts)

    if not full_corpus:
        judged_only = defaultdict(dict)  # {folder: {id: text}}, of those that validation or test judge
        for _, folder, _, qrels in tested:
            ids = (document for grades in qrels.values() for document in grades)
            judged_only[folder] |= {document: documents[folder][document] for document in ids}
        documents = judged_only
    splits = {"train": pairs, "validation": {}, "test": {}}
    for name, split in ((name, split) for name in sets for split in ("validation", "test")):
        _, folder, texts, qrels = judged[name, split]
        splits[split][name] = Retrieval({query: texts[query] for query in qrels}, documents[folder], qrels)
    return splits


def read_judgments(task):
    """Return {(name of the set, split): Judgments}."""
    judged = {}
    read_queries = cache(lambda folder: readers.read_texts_by_id(find_files(f"{folder}/queries.jsonl")[0]))
    for name, split, folder, path in judgment_files(task):
        qrels, texts = readers.read_qrels(find_files(path)[0])
        texts = texts or read_queries(folder)
        if absent := sorted(qrels.keys() - texts.keys()):
            raise DataError(f"{path}: {len(absent)} queries in it are not in queries.jsonl, the first is {absent[0]!r}")
        useful = {query: qrels[query] for query in answerable(qrels)}
        if not useful:
            raise DataError(f"{path}: no query has a relevant document")
        judged[name, split] = Judgments(path, folder, texts, useful)
    return judged
