"""The four task families: what they make of examples, losses, predictions, and which examples are scored."""

import json

import numpy as np
import pytest
import torch

from eval.tasks import metrics
from eval.tasks.families import nearest_documents, subsample
from eval.tasks.readers import Query, Question, Sentence, Text
from eval.tasks.result import prediction_lines
from task_helpers import TOKENIZER, family, logits, score


# --- Classification ---


def test_all_tokens_of_a_word_have_its_tag():
    words = ["Müller's", "3,141.5", "U.S.", ",", "don't", "(x)", "日本", "a--b", "#", "🙂"]
    tags = [f"B-{i}" for i in range(len(words))]
    (item,) = family("tc", labels=["O", *tags]).items(Sentence(words, tags), "train")
    assert item.ids == [*TOKENIZER.encode(" " + " ".join(words)), TOKENIZER.eos_id]  # a space before each word
    assert item.target[-1] == -1 and len(item.target) == len(item.ids)
    for i, word in enumerate(words):
        assert TOKENIZER.decode(np.array(item.ids[:-1])[item.extra == i]).strip() == word
        assert set(item.target[:-1][item.extra == i]) == {1 + i}


def test_a_class_is_given_with_its_probability():
    sc, texts = family("sc", labels=["bad", "good"]), [Text("x", "good"), Text("y", "bad")]
    answers = sc.predict(lambda items: [np.array([0, 1.0]), np.array([0, 0.5])], texts, "test")
    lines = [*map(json.loads, prediction_lines(answers, texts))]
    assert [(x["id"], x["gold"], x["predicted"]) for x in lines] == [(1, "good", "good"), (2, "bad", "good")]
    assert [x["score"] for x in lines] == pytest.approx([1 / (1 + np.exp(-1)), 1 / (1 + np.exp(-0.5))], abs=1e-6)
    assert metrics.score(sc.metrics(answers, texts)["accuracy"]) == 50


def test_regression_learns_standardized_numbers_and_predicts_them_as_they_are():
    train = [Text("a", 100.0), Text("b", 300.0)]
    sc = family("sc", train=train)
    items = [item for example in train for item in sc.items(example, "train")]
    model = torch.nn.Module()
    model.head = torch.nn.Sequential(torch.nn.Linear(1, 1))
    output = torch.tensor([[-1.0], [1.0]])  # the two numbers in units of their standard deviation, 100
    assert sc.n_outputs == 1 and sc.loss(output, items) == 0 and sc.loss(output + 2, items) == 4
    with torch.no_grad():
        before = model.head(output)
        sc.finish(model)
        torch.testing.assert_close(model.head(output), 100 * before + 200)


# --- Question answering ---

CONTEXT = "The Bengal tiger, of course, lives in Müllheim – 3,500 km away – says Ana 🙂 Lima."


@pytest.mark.parametrize(
    "context, answer",
    [*((CONTEXT, answer) for answer in ("The", "Müllheim", "3,500 km", "Ana 🙂", "Lima")), ("日本 is x.", "日本")],
)
def test_answers_survive_the_way_to_tokens_and_back(context, answer):
    qa = family("qa")
    question = Question("1", "What?", context, [(answer, context.index(answer))])
    (item,) = qa.items(question, "test")
    predicted = TOKENIZER.decode([i for i, t in zip(item.ids, item.target) if t == 1]).strip()
    assert answer in predicted and len(predicted) <= len(answer) + 1  # a token may carry a comma behind it
    found = score(qa, lambda items: [logits(20.0 * item.target - 10) for item in items], [question], None)
    assert found["exact_match"] == 100 and found["token_set_f1"] == 100
    answers = qa.predict(lambda items: [logits(20.0 * item.target - 10)], [question], "new")
    (line,) = map(json.loads, prediction_lines(answers, [question]))
    best = 10 * (item.target == 1).sum() - qa.threshold * (item.target == 1).sum()
    assert (line["id"], line["gold"], answer in line["predicted"], line["score"]) == ("1", [answer], True, best)


def test_no_answer_is_possible_only_if_training_had_such_questions():
    asked = [Question("1", "What?", "One two three.", [("two", 4)]), Question("2", "Why?", "One two three.", [])]
    for train, right in ((asked, 50), (asked[:1], 0)):
        qa = family("qa", train=train)
        qa.thresholds = [0.0]
        found = score(qa, lambda items: [logits(np.full(len(item.ids), -1.0)) for item in items], asked, None)
        assert found["exact_match"] == right
    assert qa.best_span(np.array([]), None, "", 0.0) == ("", 0)  # without tokens, if a tokenizer drops spaces


def test_the_threshold_of_answers_is_chosen_on_validation_and_kept_for_test():
    question = Question("1", "What?", "alpha beta gamma delta.", [("beta gamma", 6)])
    qa = family("qa")

    def forward(items):  # the right tokens stand out, but no token is more likely inside than outside
        return [logits(4.0 * (item.target == 1) - 5) for item in items]

    splits = "test", "validation", "test"
    assert [score(qa, forward, [question], split)["exact_match"] for split in splits] == [0, 100, 100]


# --- Retrieval ---


@pytest.mark.parametrize("memory", [1, 700, 10**6])
def test_the_nearest_documents_do_not_depend_on_the_memory(memory):
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(5, 8)).astype("f"), rng.normal(size=(300, 8)).astype("f")
    best = np.argsort(-(queries @ documents.T), axis=1)[:, :10]
    found = nearest_documents(queries, documents, range(300), k=10, memory=memory)
    assert [list(run) for run in found] == best.tolist()


def test_retrieval_is_scored_on_the_whole_corpus_and_on_the_judged_documents():
    corpora = {"a": {"d1": "red", "d2": "green", "d3": "blue", "d4": "red too"}}
    corpora["b"] = {"d2": "green", "d1": "red", "d3": "blue"}
    queries = [Query("q1", "red", {"d1": 1}, "a"), Query("q2", "green", {"d2": 1, "d1": 0}, "a")]
    other = [query._replace(corpus="b", set="s") for query in queries]
    ir, calls = family("ir", validation=queries, test=queries + other, corpora=corpora), []
    vectors = {"red": [1, 0, 0], "red too": [1, 0.01, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}

    def predict(items):
        texts = [TOKENIZER.decode(item.ids[:-1]) for item in items]
        calls.append(len(texts))
        return [np.array([1, 0.02, 0] if t == "Query: red" else vectors[t.partition(": ")[2]], "f") for t in texts]

    found = score(ir, predict, queries, "validation")
    assert found["mrr@10"] == 75  # d4 comes before d1 for q1
    assert found["ndcg@10_judged"] == 100  # but nobody judged d4
    score(ir, predict, queries + other, "test")
    assert calls == [4, 2, 2, 3, 2]  # each corpus is embedded once for all splits
    lines = [*map(json.loads, prediction_lines(ir.predict(predict, queries, "test"), queries))]
    assert [(line["id"], line["gold"], line["predicted"][:2]) for line in lines] == [
        ("q1", {"d1": 1}, ["d4", "d1"]),
        ("q2", {"d2": 1, "d1": 0}, ["d2", "d4"]),
    ]
    assert all(line["score"] == sorted(line["score"], reverse=True) and len(line["score"]) == 4 for line in lines)
    calls.clear()
    score(ir, predict, queries, None)
    score(ir, predict, queries, None)
    assert calls == [2, 2, 2, 2]  # in the validations during training, the judged documents, each time
    ir.dataset.main["field"] = []
    assert [*score(ir, predict, queries + other, "test")] == ["ndcg@10_judged", "s/ndcg@10_judged"]
    assert json.loads(next(prediction_lines(ir.predict(predict, other, "test"), other)))["id"] == "s/q1"


def test_a_subsample_is_spread_evenly():
    assert subsample([*range(10)], 4) == [0, 2, 5, 7] and subsample([1, 2], 3) == [1, 2]
    queries = [Query(f"q{i}", "?", {}, "c", name) for name in "ab" for i in range(4)]
    assert [(query.set, query.id) for query in subsample(queries, 2)] == [(s, q) for s in "ab" for q in ("q0", "q2")]
