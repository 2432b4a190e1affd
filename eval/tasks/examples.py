"""The examples of the four task families, and the Dataset that holds them.

An example's `key` is what never lies on both sides of a random split. Its `labels` are what a model can predict for it,
its `gold` is what it should predict.
"""

import textwrap
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

SPLITS = ("train", "validation", "test")


class Text(NamedTuple):
    """Sequence classification: a text as the model sees it, and the name of its class."""

    text: str
    label: str  # in regression a number

    key = property(lambda self: self.text)
    labels = property(lambda self: [self.label])
    gold = property(lambda self: self.label)


class Sentence(NamedTuple):
    """Token classification: words, and the tag of each in BIO: "O", "B-PER", "I-PER"."""

    words: list
    tags: list

    key = property(lambda self: tuple(self.words))
    labels = property(lambda self: self.tags)
    gold = property(lambda self: self.tags)


class Question(NamedTuple):
    """Extractive question answering. An answer of a test set that is not in the context starts at -1."""

    id: str
    question: str
    context: str
    answers: list  # of (text, first character in the context); [] if there is no answer

    key = property(lambda self: self.context)
    gold = property(lambda self: [text for text, _ in self.answers])


class Pair(NamedTuple):
    """Information retrieval, training: a query and a document that answers it."""

    query: str
    document: str


class Retrieval(NamedTuple):
    """Information retrieval, evaluation: a grade above 0 marks a relevant document."""

    queries: dict  # {id: text}
    corpus: dict  # {id: text}
    qrels: dict  # {query id: {document id: grade}}


def text_of(example):
    """Return an example as text, a line for each field, shortened where it is long."""
    fields = example._asdict()
    if isinstance(example, Sentence):
        fields = {"words": " ".join(word if tag == "O" else f"{word}/{tag}" for word, tag in zip(*example))}
    return "\n".join(f"  {name:10}{textwrap.shorten(str(value), 160)}" for name, value in fields.items())


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
        """Return {(split, name of a retrieval set): ids of the documents that validation or test judge in its corpus}."""
        parts = [*self.validation.values(), *self.test.values()]
        found = defaultdict(set)
        for split in ("validation", "test"):
            for name, part in getattr(self, split).items():
                for other in parts:
                    if other.corpus is part.corpus:  # mostly shared by validation and test
                        found[split, name].update(*other.qrels.values())
        return found

    def summary(self):
        """Return what a user should know of it before training, as lines of text."""
        lines = [f"{self.name} ({self.family}), {' and '.join(self.main['field'] or self.main['paper'])}"]
        if self.labels:
            lines.append(f"labels: {', '.join(self.labels)}")
        return "\n".join([*lines, *(f"{rule}: {count:,}" for rule, count in self.counts.items())])
