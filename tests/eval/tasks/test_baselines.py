"""The baselines on cases computed by hand."""

from math import log, log2

import pytest

from eval.tasks.baselines import baselines, bm25, tfidf
from eval.tasks.readers import Query, Question, Sentence, Text
from eval.tasks.splits import Dataset

CORPUS = {"a": "Red fish, blue fish.", "b": "the red house", "c": "green", "d": "A blue-green sea of blue"}
TEXTS = [Text("the sun", "warm"), Text("the heat", "warm"), Text("the snow", "cold"), Text("the Ice", "cold")] * 5


def dataset(family, train, test, labels=(), field=("some metric",)):
    main = {"field": list(field), "paper": []}
    return Dataset("toy", family, list(labels), train, test, test, counts={}, main=main, corpora={"c": CORPUS})


def test_bm25_by_hand():
    """Lengths without stop words: 4, 2, 1, 4. "fish" is in one of four documents, "blue" and "red" in two."""
    pytest.importorskip("bm25s")

    def term(df, tf, length, k1=0.9, b=0.4):
        return log(1 + (4 - df + 0.5) / (df + 0.5)) * tf / (tf + k1 * (1 - b + b * length / 2.75))

    one, twice, none, absent = bm25(["The red FISH", "red red", "of the", "yellow"], CORPUS)
    assert one == pytest.approx({"a": term(1, 2, 4) + term(2, 1, 4), "b": term(2, 1, 2)})
    assert twice == pytest.approx({"a": 2 * term(2, 1, 4), "b": 2 * term(2, 1, 2)})
    assert none == absent == {} and [[*run] for run in bm25(["blue"], CORPUS)] == [["d", "a"]]
    assert bm25(["red", "blue"], {"a": "", "b": "the"}) == bm25(["red", "blue"], {}) == [{}, {}]  # no words to index


def test_several_retrieval_sets():
    pytest.importorskip("bm25s")
    one = [Query("q", "red fish", {"b": 1}, "c"), Query("r", "sea", {"d": 1}, "c")]
    scores = baselines(dataset("ir", [], [query._replace(set=name) for name in "xy" for query in one]))["bm25"]
    names = {"ndcg@10", "mrr@10", "recall@100", "ndcg@10_judged"}
    assert set(scores) == {f"{name}/{metric}" for name in "xy" for metric in names}
    assert scores["x/mrr@10"] == 75 and scores["x/recall@100"] == 100 and scores["x/ndcg@10_judged"] == 100
    assert scores["x/ndcg@10"] == pytest.approx(50 * (1 + 1 / log2(3)))
    toy = dataset("ir", [], one, field=())  # the field's metrics need a whole corpus
    assert baselines(toy)["bm25"] == {"ndcg@10_judged": 100}
    toy.validation = [Query("other", "?", {"a": 1, "none": 0}, "c")]  # a is better than b for the first query
    assert baselines(toy)["bm25"]["ndcg@10_judged"] == pytest.approx(50 * (1 + 1 / log2(3)))


def test_texts():
    pytest.importorskip("sklearn")
    test = [Text("Sun!", "warm"), Text("all this snow and ice", "cold"), Text("heat", "warm"), Text("I", "cold")]
    assert tfidf(dataset("sc", TEXTS, test, ["cold", "warm"]))[:3] == ["warm", "cold", "warm"]  # "I" is no known word
    scores = baselines(dataset("sc", TEXTS, test[:3], ["cold", "warm"]))
    assert scores["tfidf"].items() >= {"accuracy": 100, "f1": 100, "matthews": 100}.items()
    assert scores["majority"]["accuracy"] == pytest.approx(200 / 3)  # the first label of equally many
    train = [Text(text, {"warm": 30.5, "cold": -5.0}[label]) for text, label in TEXTS]
    scores = baselines(dataset("sc", train, [Text("sun", 25.0), Text("snow", 0.0), Text("heat", 28.0)]))
    assert scores["majority"] == {"pearson": 0, "spearman": 0} and scores["tfidf"]["pearson"] > 95


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
