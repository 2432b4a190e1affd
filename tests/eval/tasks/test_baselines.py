"""The baselines on cases computed by hand."""

import pytest

from eval.tasks.baselines import baselines
from eval.tasks.readers import Question, Sentence, Text
from eval.tasks.splits import Dataset


def dataset(family, train, test, labels=()):
    return Dataset("toy", family, list(labels), train, test, test, counts={}, main={})


def test_majority():
    texts = [Text("the sun", "warm"), Text("the heat", "warm"), Text("the snow", "cold"), Text("the ice", "cold")]
    test = [Text("sun", "warm"), Text("all this snow", "cold"), Text("heat", "warm")]
    scores = baselines(dataset("sc", texts, test, ["cold", "warm"]))
    assert scores["majority"]["accuracy"] == pytest.approx(200 / 3)  # the first label of equally many
    numbers = [Text("sun", 25.0), Text("snow", 0.0), Text("heat", 25.0)]
    assert baselines(dataset("sc", numbers, numbers)) == {"majority": {"pearson": 0, "spearman": 0}}


def test_most_frequent_tag_and_no_answer():
    train = [Sentence("May works in May".split(), ["B-PER", "O", "O", "O"]), Sentence(["May"], ["B-PER"])]
    train.append(Sentence(["New", "York"], ["B-LOC", "I-LOC"]))
    test = [Sentence(["May", "in", "New", "York"], ["B-PER", "O", "B-LOC", "I-LOC"]), Sentence(["Paris"], ["B-LOC"])]
    test.append(Sentence(["may", "rain"], ["O", "O"]))
    scores = baselines(dataset("tc", train, test, ["O"]))
    assert scores == {"word": {"entity_f1": pytest.approx(80), "sentence_macro_f1": pytest.approx(200 / 3)}}
    # Questions have a baseline where some have no answer.
    can, cannot = Question("1", "Who?", "Ada did.", [("Ada", 0)]), Question("2", "Who?", "Nobody did.", [])
    assert baselines(dataset("qa", [], [can])) == {}
    assert baselines(dataset("qa", [], [can, cannot])) == {"no_answer": {"exact_match": 50, "f1": 50}}
