"""What a data set is made of: the examples of the four families, and the Dataset that holds them."""

from dataclasses import dataclass
from typing import NamedTuple


class Text(NamedTuple):
    """SC: a text as the model sees it, and the name of its class."""

    text: str
    label: str


class Sentence(NamedTuple):
    """TC: words, and for each its tag in BIO: "O", "B-PER", "I-PER"."""

    words: list
    tags: list


class Question(NamedTuple):
    """QA: answers is a list of (text, start character in the context); empty = unanswerable.

    A start of -1 stands for a test or validation answer that is not in the context.
    """

    id: str
    question: str
    context: str
    answers: list


class Pair(NamedTuple):
    """IR, training: a query and a document that answers it."""

    query: str
    document: str


class Retrieval(NamedTuple):
    """IR, evaluation: {id: text}, {id: text}, and {query id: {document id: grade}}; a grade above 0 is relevant."""

    queries: dict
    corpus: dict
    qrels: dict


@dataclass
class Dataset:
    name: str
    family: str  # "sc", "tc", "qa", "ir"
    labels: list  # sc: the classes; tc: the tags, "O" first; both as seen in training; qa, ir: []
    train: list  # of Text, Sentence, Question or Pair
    validation: list  # the same; ir: {name of the set: Retrieval}, the name "" where there is one set only
    test: list  # the same
    counts: dict  # {rule in words: how many examples it applied to}; those of train are from before the holding out
    main: dict  # {"field": [metrics], "paper": [metrics]}: the score of a task is their mean
