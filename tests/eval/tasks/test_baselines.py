"""The baselines: hand-computed values, other implementations, and the embedded tasks."""
import random
import sys
from math import log

import numpy as np
import pytest

from helpers import ROOT
sys.path.insert(0, str(ROOT))
from eval.tasks import embedded
from eval.tasks.baselines import baselines, bm25, overlap_answer, random_answer, tfidf_predictions
from eval.tasks import Dataset, Question, Retrieval, Sentence, Text


def dataset(family, train, test, labels=(), field=("some metric",)):
    return Dataset("toy", family, list(labels), train, test, test, {}, {"field": list(field), "paper": []})


# ---------------------------------------------------------------------------------------------------------------------
# Retrieval

CORPUS = {"a": "Red fish, blue fish.", "b": "the red house", "c": "green", "d": "A blue-green sea of blue"}


def test_bm25_by_hand():
    """Lengths without stop words: 4, 2, 1, 4. "fish" is in one of four documents, "blue" and "red" in two."""
    idf = {1: log(1 + 3.5 / 1.5), 2: log(1 + 2.5 / 2.5)}

    def term(d, n, length, k1=0.9, b=0.4):
        return idf[d] * n / (n + k1 * (1 - b + b * length / 2.75))

    queries = {"q": "The red FISH", "twice": "red red", "none": "of the", "absent": "yellow"}
    run = bm25(queries, CORPUS)
    assert run["q"] == pytest.approx({"a": term(1, 2, 4) + term(2, 1, 4), "b": term(2, 1, 2)})
    assert run["twice"] == pytest.approx({"a": 2 * term(2, 1, 4), "b": 2 * term(2, 1, 2)})
    assert run["none"] == run["absent"] == {}
    other = bm25({"q": "blue"}, CORPUS, k1=2.0, b=1.0)
    assert other["q"] == pytest.approx({"a": term(2, 1, 4, 2.0, 1.0), "d": term(2, 2, 4, 2.0, 1.0)})


def test_random_answers_are_runs_of_words_anywhere():
    draw, context = random.Random(0), "One, two three-four five."
    drawn = {random_answer(context, 2, draw) for _ in range(200)}
    assert drawn == {"One, two", "two three", "three-four", "four five"}
    assert random_answer("?!", 2, draw) == "" and random_answer("one", 2, draw) == "one"


def test_bm25_returns_the_best():
    draw = np.random.default_rng(0)
    vocabulary = [f"w{i}" for i in range(40)]
    corpus = {f"d{i}": " ".join(draw.choice(vocabulary, draw.integers(1, 30))) for i in range(300)}
    queries = {f"q{i}": " ".join(draw.choice(vocabulary, 6)) for i in range(10)}
    few, all_of_them = bm25(queries, corpus, best=20), bm25(queries, corpus, best=300)
    for query in queries:
        assert len(few[query]) == 20 < len(all_of_them[query])
        assert sorted(few[query].values()) == sorted(all_of_them[query].values())[-20:]
        assert few[query].items() <= all_of_them[query].items()


def test_retrieval_sets_by_name():
    one = Retrieval({"q": "red fish", "r": "sea", "unjudged": "green"}, CORPUS, {"q": {"b": 1}, "r": {"d": 1}})
    found = baselines(dataset("ir", [], {"x": one, "y": one}))["bm25"]
    names = {"ndcg@10", "mrr@10", "recall@100", "ndcg@10_judged"}
    assert set(found) == {f"{name}/{metric}" for name in "xy" for metric in names}
    assert found["x/mrr@10"] == 75 and found["x/recall@100"] == 100 and found["x/ndcg@10_judged"] == 100
    assert found["x/ndcg@10"] == pytest.approx(50 * (1 + 1 / np.log2(3)))
    assert set(baselines(dataset("ir", [], {"": one}))["bm25"]) == names
    partial = baselines(dataset("ir", [], {"": one}, field=()))["bm25"]  # the field's metrics need a whole corpus
    assert partial == {"ndcg@10_judged": 100}


# ---------------------------------------------------------------------------------------------------------------------
# Classification


def test_tfidf_learns_words():
    train = [Text(f"the {word} was {word} today {i}", label) for i in range(5)
             for word, label in (("sun", "warm"), ("heat", "warm"), ("snow", "cold"), ("Ice", "cold"))]  # fmt: skip
    test = [Text("Sun!", "warm"), Text("all this snow and ice", "cold"), Text("heat", "warm"), Text("ice", "cold"),
            Text("", "cold"), Text("words never seen", "cold")]  # fmt: skip
    toy = dataset("sc", train, test, ["cold", "warm"])
    assert tfidf_predictions(toy)[:4] == ["warm", "cold", "warm", "cold"]
    found = baselines(dataset("sc", train, test[:4], ["cold", "warm"]))
    assert found["tfidf"] == {"accuracy": 100, "f1": 100}
    assert found["majority"] == {"accuracy": 50, "f1": pytest.approx(200 / 3)}  # the first label of equally many


def test_tfidf_agrees_with_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    linear_model = pytest.importorskip("sklearn.linear_model")
    task = embedded.load("embedded-sc")
    small = dataset("sc", task.train[::4], task.test, task.labels)
    vectorizer = text.TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+")
    model = linear_model.LogisticRegression(C=1.0, tol=1e-6, max_iter=1000)
    model.fit(vectorizer.fit_transform([x.text for x in small.train]), [x.label for x in small.train])
    theirs = model.predict(vectorizer.transform([x.text for x in small.test]))
    assert np.mean(theirs == tfidf_predictions(small)) > 0.99


# ---------------------------------------------------------------------------------------------------------------------
# Tagging and answer spans


def test_most_frequent_tag():
    train = [Sentence(["May", "works", "in", "May"], ["B-PER", "O", "O", "O"]), Sentence(["May"], ["B-PER"]),
             Sentence(["New", "York"], ["B-LOC", "I-LOC"])]  # fmt: skip
    test = [Sentence(["May", "in", "New", "York"], ["B-PER", "O", "B-LOC", "I-LOC"]), Sentence(["Paris"], ["B-LOC"]),
            Sentence(["may", "rain"], ["O", "O"])]  # fmt: skip
    found = baselines(dataset("tc", train, test, ["O"]))
    assert found == {"word": {"entity_f1": pytest.approx(80), "sentence_macro_f1": pytest.approx(200 / 3)}}


CONTEXT = "Ada Lovelace wrote a programme. It was published in 1843, in London.\nCharles Babbage built an engine."


@pytest.mark.parametrize("question, context, answer", [
    ("When was it published?", CONTEXT, "1843"),
    ("Who built an engine?", CONTEXT, "Charles Babbage"),
    ("Who WROTE the programme?", CONTEXT, "Ada Lovelace"),
    ("Is it the queen of the land?", "It is of the sort. The queen slept.", "slept"),  # stop words say nothing
    ("Who met Bob?", "Paris is where Ada met Bob.", "Ada"),  # near beats far
    ("Who sleeps?", "Only these words.", "Only"),  # nothing shared: the first stretch
    ("What was it?", "It was.", "It was"),  # no stretch: all of it
    ("What?", "...", ""),
])  # fmt: skip
def test_overlap_answer(question, context, answer):
    assert overlap_answer(question, context) == answer


def test_answer_baselines():
    can = Question("1", "Who built an engine?", CONTEXT, [("Babbage", 80), ("Charles Babbage", 72)])
    cannot = Question("2", "Who sleeps?", CONTEXT, [])
    found = baselines(dataset("qa", [], [can]))
    assert found["overlap"] == {"exact_match": 100, "f1": 100} and [*found] == ["random", "overlap"]
    found = baselines(dataset("qa", [], [can, cannot]))
    assert found["overlap"] == found["no_answer"] == {"exact_match": 50, "f1": 50}


# ---------------------------------------------------------------------------------------------------------------------


def test_embedded_tasks_are_neither_trivial_nor_hopeless():
    sc, tc, qa, ir = (baselines(embedded.load(name)) for name in embedded.MAKERS)
    print(sc, tc, qa, ir)
    assert sc["majority"]["accuracy"] + 25 < sc["tfidf"]["accuracy"] < 90
    assert 10 < tc["word"]["entity_f1"] < 60
    assert 0 < 1.5 * qa["random"]["f1"] < qa["overlap"]["f1"] < 50
    assert ir["random"]["ndcg@10"] < 10 and 30 < ir["bm25"]["ndcg@10"] < 80
    task = embedded.load("embedded-sc")
    assert baselines(task) == sc and set(sc["tfidf"]) == {"accuracy", "f1"}
