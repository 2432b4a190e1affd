"""Every metric against values derived by hand, and against an independent implementation where one is installed."""

import random
from collections import namedtuple
from math import log2

import numpy as np
import pytest

from eval.tasks.metrics import (
    accuracy, answerable, entities, entity_f1, f1, ndcg_retrieved, retrieval, score, sentence_macro_f1, squad,
    token_set_f1,
)  # fmt: skip

Question = namedtuple("Question", "id question context answers")


def question(answers, name="q"):
    return Question(name, "?", "", [(text, 0) for text in answers])


def ratios(instances):
    """The metric of each instance, (n,): of a metric of one class whose denominators are 1."""
    assert instances.shape == (len(instances), 1, 2) and instances.dtype == np.float64
    np.testing.assert_array_equal(instances[:, 0, 1], 1)
    return instances[:, 0, 0]


# -----------------------------------------------------------------------------
# The score


def test_the_score_is_the_mean_over_classes_of_a_ratio_of_sums():
    instances = np.array([[[1, 2], [0, 0], [0, 3]], [[2, 2], [0, 0], [1, 1]]])  # (n=2, C=3, 2)
    assert score(instances) == pytest.approx(100 * (3 / 4 + 1 / 4) / 2)  # the class in the middle does not count
    assert score(instances.astype(np.float32)) == score(instances)
    assert type(score(instances)) is float


def test_a_metric_without_anything_to_find_is_0():
    nothing = entity_f1([["O", "O"]], [["O", "O"]])
    np.testing.assert_array_equal(nothing, [[[0, 0]]])
    assert score(nothing) == 0.0


def test_the_score_of_stored_float32_instances_is_summed_in_float64():
    instances = np.ones((10**6, 1, 2), np.float32)
    instances[:, 0, 0] = 0.1
    assert score(instances) == pytest.approx(10, abs=1e-5)


@pytest.mark.parametrize("metric", [accuracy, entity_f1, sentence_macro_f1, token_set_f1])
def test_predictions_and_gold_must_be_equally_many(metric):
    with pytest.raises(ValueError):
        metric([["O"]], [["O"], ["O"]])


# -----------------------------------------------------------------------------
# Sequence classification


def test_accuracy():
    instances = accuracy(["a", "b", "b", "a"], ["a", "b", "a", "never seen"])
    assert ratios(instances).tolist() == [1, 1, 0, 0]
    assert score(instances) == 50


def test_f1_of_two_labels_is_that_of_the_second():
    predicted, gold = ["no", "yes", "yes", "no", "yes"], ["no", "yes", "no", "yes", "yes"]
    instances = f1(predicted, gold, ["no", "yes"])
    assert instances.tolist() == [[[0, 0]], [[2, 2]], [[0, 1]], [[0, 1]], [[2, 2]]]
    assert score(instances) == pytest.approx(100 * 4 / 6)
    assert score(f1(predicted, gold, ["yes", "no"])) == 50


def test_f1_of_more_labels_is_the_mean_over_those_that_occur():
    predicted, gold = ["a", "a", "b", "c"], ["a", "b", "b", "a"]
    instances = f1(predicted, gold, ["a", "b", "c", "nowhere"])
    assert instances.shape == (4, 4, 2) and instances.dtype == np.float64
    assert instances[1].tolist() == [[0, 1], [0, 1], [0, 0], [0, 0]]
    assert score(instances) == pytest.approx(100 * (1 / 2 + 2 / 3 + 0) / 3)


def test_a_gold_label_never_seen_in_training_is_a_false_positive_of_the_class_predicted():
    assert f1(["b", "a"], ["x", "x"], ["a", "b"]).tolist() == [[[0, 1]], [[0, 0]]]
    assert f1(["b"], ["x"], ["a", "b", "c"]).tolist() == [[[0, 0], [0, 1], [0, 0]]]


@pytest.mark.parametrize("classes, unseen", [(2, False), (2, True), (3, False), (3, True), (9, False), (9, True)])
def test_classification_equals_scikit_learn(classes, unseen):
    sklearn = pytest.importorskip("sklearn.metrics")
    draw = random.Random(classes)
    labels = [f"label {i}" for i in range(classes)]
    for n in (1, 2, 5, 40):
        for _ in range(5):
            gold = draw.choices(labels + ["unseen"] * unseen, k=n)
            predicted = [g if g in labels and draw.random() < 0.5 else draw.choice(labels) for g in gold]
            assert score(accuracy(predicted, gold)) == pytest.approx(100 * sklearn.accuracy_score(gold, predicted))
            occur = [label for label in (labels if classes > 2 else labels[1:]) if label in gold + predicted]
            expected = sklearn.f1_score(gold, predicted, labels=occur, average="macro") if occur else 0
            assert score(f1(predicted, gold, labels)) == pytest.approx(100 * expected)
            if not unseen and classes > 2:
                assert score(f1(predicted, gold, labels)) == pytest.approx(
                    100 * sklearn.f1_score(gold, predicted, average="macro"))  # fmt: skip


# -----------------------------------------------------------------------------
# Token classification

ENTITIES = [  # by conlleval's rules for the begin and the end of a chunk
    ("", ""),
    ("O O", ""),
    # BIO
    ("B-X", "X:0-1"),
    ("O B-X I-X O B-Y", "X:1-3 Y:4-5"),
    ("B-X B-X", "X:0-1 X:1-2"),
    ("B-X I-X B-X I-X I-X", "X:0-2 X:2-5"),
    ("B-X B-Y I-Y", "X:0-1 Y:1-3"),
    # IOB1: B only between neighbours of one type
    ("I-X I-X O I-Y", "X:0-2 Y:3-4"),
    ("I-X B-X I-X", "X:0-1 X:1-3"),
    ("I-X I-Y", "X:0-1 Y:1-2"),
    # broken BIO
    ("O I-X", "X:1-2"),
    ("B-X I-Y I-Y", "X:0-1 Y:1-3"),
    ("B-X I-Y I-X", "X:0-1 Y:1-2 X:2-3"),
    ("B-X O I-X", "X:0-1 X:2-3"),
    # IOE
    ("I-X E-X E-X", "X:0-2 X:2-3"),
    ("I-X E-X I-X E-X", "X:0-2 X:2-4"),
    ("O E-X O", "X:1-2"),
    # BIOES
    ("S-X", "X:0-1"),
    ("B-X I-X E-X S-X O B-Y E-Y", "X:0-3 X:3-4 Y:5-7"),
    ("S-X S-X", "X:0-1 X:1-2"),
    ("B-X E-X B-X E-X", "X:0-2 X:2-4"),
    # broken BIOES
    ("E-X", "X:0-1"),
    ("E-X E-X", "X:0-1 X:1-2"),
    ("S-X I-X", "X:0-1 X:1-2"),
    ("S-X E-X", "X:0-1 X:1-2"),
    ("E-X I-X I-X", "X:0-1 X:1-3"),
    ("E-X S-X", "X:0-1 X:1-2"),
    ("B-X S-X", "X:0-1 X:1-2"),
    ("I-X S-X I-X", "X:0-1 X:1-2 X:2-3"),
    ("B-X E-Y", "X:0-1 Y:1-2"),
    ("B-X I-X I-Y E-X", "X:0-2 Y:2-3 X:3-4"),
    ("B-X O E-X", "X:0-1 X:2-3"),
    # types with a hyphen, and none
    ("B-X-1 I-X-1 I-X-2", "X-1:0-2 X-2:2-3"),
    ("B I O I", ":0-2 :3-4"),
]


@pytest.mark.parametrize("tags, expected", ENTITIES)
def test_entities(tags, expected):
    assert " ".join(f"{kind}:{begin}-{end}" for kind, begin, end in entities(tags.split())) == expected


def random_sentences(prefixes, types, count, seed):
    """Sentences of 1 to 12 tags, most of them broken, and predictions of which about three tags in ten differ."""
    draw = random.Random(seed)

    def pick(options):  # of what the random module promises never to change
        return options[int(draw.random() * len(options))]

    def tag():
        prefix = pick(prefixes)
        return prefix if prefix == "O" else f"{prefix}-{pick(types)}"

    gold = [[tag() for _ in range(1 + int(draw.random() * 12))] for _ in range(count)]
    return [[tag() if draw.random() < 0.3 else g for g in tags] for tags in gold], gold


@pytest.mark.parametrize("prefixes, types, in_gold, found, correct", [
    ("IO", "X", 1856, 1846, 1148), ("IO", "XY", 2539, 2553, 1673), ("IOE", "XY", 3571, 3586, 2497),
    ("BIO", "X", 3103, 3091, 2186), ("BIO", ["X", "Y-1", "Y-2"], 3925, 3916, 2798),
])  # fmt: skip
def test_entity_f1_of_broken_tags_is_that_of_conlleval(prefixes, types, in_gold, found, correct):
    """The numbers are what the loop and the rules of conlleval.pl (2004-01-26) count in these sentences."""
    predicted, gold = random_sentences(prefixes, types, 1000, seed=1)
    instances = entity_f1(predicted, gold)
    assert instances.shape == (1000, 1, 2)
    assert instances.sum(0).tolist() == [[2 * correct, in_gold + found]]
    precision, recall = correct / found, correct / in_gold
    assert score(instances) == pytest.approx(100 * 2 * precision * recall / (precision + recall))
    assert sum(len(entities(tags)) for tags in gold) == in_gold


def test_entity_f1_wants_the_type_and_both_ends():
    gold = ["B-X", "I-X", "O", "B-Y"]
    for predicted, terms in [
        (["B-X", "I-X", "O", "B-Y"], [4, 4]),
        (["B-Y", "I-Y", "O", "B-Y"], [2, 4]),  # wrong type
        (["B-X", "O", "O", "B-Y"], [2, 4]),  # too short
        (["B-X", "I-X", "I-X", "B-Y"], [2, 4]),  # too long
        (["B-X", "B-X", "O", "O"], [0, 4]),
        (["O", "O", "O", "O"], [0, 2]),
        (["I-X", "I-X", "O", "I-Y"], [4, 4]),  # another scheme, the same entities
    ]:
        assert entity_f1([predicted], [gold]).tolist() == [[terms]]


@pytest.mark.parametrize("types", ["X", "XY", ["X", "Y-1", "Y-2"]])
@pytest.mark.parametrize("prefixes", ["IO", "BIO", "IOE", "BIOES", "BIES"])
def test_entities_equal_seqeval(prefixes, types):
    labelling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    predicted, gold = random_sentences(prefixes, types, 400, seed=2)
    for tags in gold:
        assert entities(tags) == [(kind, begin, end + 1) for kind, begin, end in labelling.get_entities(tags)]
    assert score(entity_f1(predicted, gold)) == pytest.approx(100 * labelling.f1_score(gold, predicted))


def test_sentence_macro_f1():
    gold = [["B-X", "I-X", "O", "O"], ["O", "O"], ["B-X"], ["B-X", "I-X"]]
    predicted = [["B-X", "O", "O", "O"], ["O", "B-Y"], ["B-X"], ["I-X", "I-X"]]
    instances = sentence_macro_f1(predicted, gold)
    # B-X right, I-X missed, O 2 * 2 / (3 + 2);  O 2 * 1 / (1 + 2), B-Y wrong;  all right;  B-X missed, I-X 2 / (2 + 1)
    np.testing.assert_allclose(ratios(instances), [(1 + 0 + 4 / 5) / 3, (2 / 3 + 0) / 2, 1, (0 + 2 / 3) / 2])
    assert score(instances) == pytest.approx(100 * (0.6 + 1 / 3 + 1 + 1 / 3) / 4)
    with pytest.raises(ValueError):
        sentence_macro_f1([["O"]], [["O", "O"]])


def test_sentence_macro_f1_equals_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    predicted, gold = random_sentences("BIO", "XY", 150, seed=3)
    expected = [sklearn.f1_score(g, p, average="macro") for p, g in zip(predicted, gold)]
    np.testing.assert_allclose(ratios(sentence_macro_f1(predicted, gold)), expected, atol=1e-12)


# -----------------------------------------------------------------------------
# Question answering

SQUAD = [  # prediction, answers, exact match, F1: the same in both versions of the script
    ("the cat", ["cat"], 1, 1),
    ("The  CAT.", ["cat"], 1, 1),
    ("a cat, an ape", ["cat ape"], 1, 1),
    ("theatre", ["atre"], 0, 0),  # an article is a whole word
    ("anthem", ["them"], 0, 0),
    ("U.S.A.", ["USA"], 1, 1),  # the full stops go before the articles: no A is left over
    ("a.b", ["ab"], 1, 1),
    ("well-known", ["well known"], 0, 0),  # punctuation is dropped, not made a space
    ("don't", ["dont"], 1, 1),
    ("“cat”", ["cat"], 0, 0),  # only ASCII punctuation is dropped
    ("the“cat”", ["“cat”"], 1, 1),  # but a typographic quote bounds a word
    ("“cat”the“dog”", ["“cat” “dog”"], 1, 1),
    ("Sofía", ["Sofí"], 0, 0),  # and an accented letter does not
    ("Straße", ["STRASSE"], 0, 0),
    ("1914–1918", ["19141918"], 0, 0),
    ("Île", ["île"], 1, 1),
    ("naïve", ["naive"], 0, 0),
    ("cat\u00a0sat\n", ["cat sat"], 1, 1),  # any white space
    ("black cat", ["cat"], 0, 2 / 3),
    ("cat cat dog", ["cat dog dog"], 0, 2 / 3),  # a word counts as often as both have it
    ("cat black", ["black cat"], 0, 1),  # order matters to the exact match alone
    ("cat", ["dog", "black cat", "the cat"], 1, 1),
    ("big cat", ["cat sat down", "big", "dog"], 0, 2 / 3),  # the best answer
    ("dog", ["cat"], 0, 0),
    ("", ["cat"], 0, 0),
    ("The.", ["cat"], 0, 0),
]


@pytest.mark.parametrize("unanswerable", [False, True])
@pytest.mark.parametrize("prediction, answers, exact_match, overlap", SQUAD)
def test_squad(prediction, answers, exact_match, overlap, unanswerable):
    questions = [question(answers)] + [question([], "none")] * unanswerable
    result = squad({"q": prediction, "none": ""}, questions)
    assert list(result) == ["exact_match", "f1"]
    assert ratios(result["exact_match"])[0] == exact_match
    assert ratios(result["f1"])[0] == pytest.approx(overlap)


@pytest.mark.parametrize("prediction, right", [("", 1), ("the", 1), ("...", 1), ("cat", 0), ("“”", 0)])
@pytest.mark.parametrize("answers", [[], ["."], ["The", "a"]])
def test_squad_v2_without_an_answer(prediction, right, answers):
    """A question whose answers all normalise to nothing is one without an answer."""
    result = squad({"q": prediction, "none": "cat"}, [question(answers), question([], "none")])
    assert ratios(result["exact_match"]).tolist() == ratios(result["f1"]).tolist() == [right, 0]


@pytest.mark.parametrize("prediction, v1, v2", [
    ("", (1, 0), (0, 0)), ("the", (1, 0), (0, 0)), ("cat", (1, 1), (1, 1)), ("big cat", (0, 2 / 3), (0, 2 / 3)),
])  # fmt: skip
def test_an_answer_that_normalises_to_nothing_counts_in_v1_alone(prediction, v1, v2):
    questions = [question(["cat", "."]), question([], "none")]  # SQuAD v1.1 has three such questions in its dev set
    for version, expected in ((questions[:1], v1), (questions, v2)):
        result = squad({"q": prediction, "none": ""}, version)
        assert ratios(result["exact_match"])[0] == expected[0]
        assert ratios(result["f1"])[0] == pytest.approx(expected[1])


def test_squad_keeps_the_order_and_wants_every_prediction():
    questions = [question(["x"], str(i)) for i in range(4)]
    result = squad({"3": "y", "2": "x", "1": "y", "0": "x z"}, questions)
    assert ratios(result["exact_match"]).tolist() == [0, 0, 1, 0]
    assert score(result["exact_match"]) == 25 and score(result["f1"]) == pytest.approx(100 * (2 / 3 + 1) / 4)
    with pytest.raises(KeyError):
        squad({"0": "x"}, questions)


@pytest.mark.parametrize("v2", [False, True])
def test_squad_equals_torchmetrics(v2):
    torchmetrics = pytest.importorskip("torchmetrics.functional.text")
    draw = random.Random(4)
    words = "cat Cat, cats big-cat U.S. don't 42 4.2 naïve ÉCOLE “cat” — theme İ ß".split()
    empty = ["the", "The.", "a", "An", "...", "", "\u00a0", "\n", "_"]

    def text(sources):
        return draw.choice([" ", "  ", "\t"]).join(draw.choice(draw.choice(sources)) for _ in range(draw.randint(1, 4)))

    questions, predicted, answers = [question([], "none")] * v2, {"none": "the"}, {"none": [""]}
    for name in map(str, range(700)):
        answers[name] = [draw.choice(words) + " " + text([words, empty]) for _ in range(draw.randint(v2 ^ 1, 4))]
        nothing = [text([empty]) for _ in range(draw.randint(0, 2))] if v2 else []
        questions.append(question(draw.sample(answers[name] + nothing, len(answers[name] + nothing)), name))
        answers[name] = answers[name] or [""]
        predicted[name] = draw.choice([draw.choice(answers[name]), text([words, empty]), text([empty]), ""])
    result = squad(predicted, questions)
    for i, q in enumerate(questions):
        expected = torchmetrics.squad(
            {"id": q.id, "prediction_text": predicted[q.id]},
            {"id": q.id, "answers": {"text": answers[q.id], "answer_start": [0] * len(answers[q.id])}})  # fmt: skip
        for name in ("exact_match", "f1"):
            assert score(result[name][i : i + 1]) == pytest.approx(float(expected[name]), abs=1e-3)


def test_token_set_f1():
    predicted = [{3, 4, 5}, {3}, {7}, set(), set(), {0, 1}]
    gold = [{4, 5}, {3}, {8, 9}, set(), {4, 5}, set()]
    instances = token_set_f1(predicted, gold)  # the empty set is {0}
    np.testing.assert_allclose(ratios(instances), [2 * 2 / 5, 1, 0, 1, 0, 2 * 1 / 3])
    assert predicted[3] == gold[3] == set()


# -----------------------------------------------------------------------------
# Retrieval


def test_retrieval_of_graded_documents():
    qrels = {"q": {"good": 3, "bad": 0, "fair": 1, "spam": -2, "fine": 2}}
    run = {"q": {"fair": 0.6, "spam": 0.9, "good": 0.8, "unjudged": 0.7}}
    result = retrieval(run, qrels)
    assert list(result) == ["ndcg@10", "mrr@10", "recall@100"]
    ideal = 3 + 2 / log2(3) + 1 / log2(4)
    assert ratios(result["ndcg@10"]) == pytest.approx((3 / log2(3) + 1 / log2(5)) / ideal)
    assert ratios(result["mrr@10"]) == pytest.approx(1 / 2)
    assert ratios(result["recall@100"]) == pytest.approx(2 / 3)
    best = 3 + 1 / log2(3)
    assert ratios(ndcg_retrieved(run, qrels)) == pytest.approx((3 / log2(3) + 1 / log2(5)) / best)


@pytest.mark.parametrize("rank, mrr, recall", [(1, 1, 1), (10, 1 / 10, 1), (11, 0, 1), (100, 0, 1), (101, 0, 0)])
def test_retrieval_looks_at_10_and_at_100_documents(rank, mrr, recall):
    run = {"q": {f"d{i}": -i for i in range(1, 151)}}
    qrels = {"q": {f"d{rank}": 1}}
    result = retrieval(run, qrels)
    ndcg = 1 / log2(rank + 1) if rank <= 10 else 0
    assert [float(ratios(instances)[0]) for instances in result.values()] == pytest.approx([ndcg, mrr, recall])
    assert ratios(ndcg_retrieved(run, qrels)) == pytest.approx(ndcg)


def test_the_ideal_of_more_than_ten_relevant_documents_is_its_first_ten():
    qrels = {"q": {f"d{i:02}": 1 + (i < 3) for i in range(30)}}
    run = {"q": {f"d{i:02}": -i for i in range(20)}}
    result = retrieval(run, qrels)
    assert score(result["ndcg@10"]) == score(ndcg_retrieved(run, qrels)) == pytest.approx(100)
    assert score(result["recall@100"]) == pytest.approx(100 * 20 / 30)


def test_documents_of_equal_score_are_ranked_by_id_backwards():
    relevant = {"q": {"10": 1}}
    for run, rank in [
        ({"10": 1, "9": 1, "11": 1}, 3),  # ids are text: 9, 11, 10
        ({"10": 1, "1": 1, "100": 1}, 2),
        ({"10": 0.5 + 1e-9, "9": 0.5}, 2),  # equal in float32
        ({"10": 0.5 + 1e-6, "9": 0.5}, 1),
        ({"10": 1, "é": 1, "Z": 1, "\uffee": 1, "\U0001f600": 1}, 5),
    ]:
        assert ratios(retrieval({"q": run}, relevant)["mrr@10"]) == pytest.approx(1 / rank)
        assert ratios(ndcg_retrieved({"q": run}, relevant)) == pytest.approx(1 / log2(rank + 1))


def test_the_instances_of_retrieval_are_the_queries_with_a_relevant_document():
    qrels = {"b": {"x": 1}, "none": {"x": 0, "y": -1}, "a": {"y": 2}, "absent": {"x": 1}, "c": {"z": 1}, "no": {}}
    run = {"a": {"y": 1, "x": 0}, "extra": {"x": 1}, "b": {"y": 1, "x": 0}, "none": {"x": 1}, "c": {}}
    assert answerable(qrels) == ["b", "a", "absent", "c"]
    result = retrieval(run, qrels)
    assert ratios(result["mrr@10"]).tolist() == [1 / 2, 1, 0, 0]
    assert ratios(result["recall@100"]).tolist() == [1, 1, 0, 0]
    np.testing.assert_allclose(ratios(result["ndcg@10"]), [1 / log2(3), 1, 0, 0])
    np.testing.assert_allclose(ratios(ndcg_retrieved(run, qrels)), [1 / log2(3), 1, 0, 0])


def test_ndcg_of_the_retrieved_knows_the_first_ten_alone():
    qrels = {"q": {"a": 1, "b": 1, "c": 1}}
    assert ratios(ndcg_retrieved({"q": {"a": 2, "x": 1}}, qrels)) == pytest.approx(1)
    assert ratios(ndcg_retrieved({"q": {"y": 2, "x": 1}}, qrels)) == 0
    below = {"q": {"x": 20, "a": 19, **{f"y{i}": i for i in range(2, 10)}, "b": 1, "c": 0}}
    assert ratios(ndcg_retrieved(below, qrels)) == pytest.approx(1 / log2(3))
    run = {"q": {"x": 3, "a": 2, "b": 1}}
    assert ratios(ndcg_retrieved(run, qrels)) == pytest.approx((1 / log2(3) + 1 / log2(4)) / (1 + 1 / log2(3)))


def random_retrieval(queries, levels, seed):
    """A run and qrels of up to 150 documents a query; scores of few levels have many ties."""
    draw = random.Random(seed)
    run, qrels = {}, {}
    for name in map(str, range(queries)):
        documents = [f"d{i}" for i in range(draw.choice([3, 15, 130, 150]))]
        retrieved = draw.sample(documents, draw.randint(1, len(documents)))
        run[name] = {document: draw.randrange(levels) / levels - 0.5 for document in retrieved}
        judged = draw.sample(documents + ["elsewhere"], draw.randint(1, min(40, len(documents))))
        qrels[name] = {d: draw.choice([-1, 0, 0, 1, 2, 5]) for d in judged}
    return run, qrels


@pytest.mark.parametrize("levels", [1, 4, 50, 10**9])
def test_retrieval_equals_trec_eval(levels):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    run, qrels = random_retrieval(200, levels, seed=levels)
    queries = answerable(qrels)
    assert 50 < len(queries) < 200
    evaluator = pytrec_eval.RelevanceEvaluator(
        {query: qrels[query] for query in queries}, {"ndcg_cut.10", "recip_rank", "recall.100"})  # fmt: skip
    expected = evaluator.evaluate(run)
    result = retrieval(run, qrels)
    for i, query in enumerate(queries):
        assert result["ndcg@10"][i, 0, 0] == pytest.approx(expected[query]["ndcg_cut_10"], abs=1e-9)
        assert result["recall@100"][i, 0, 0] == pytest.approx(expected[query]["recall_100"], abs=1e-9)
        reciprocal = expected[query]["recip_rank"]
        assert result["mrr@10"][i, 0, 0] == pytest.approx(reciprocal if reciprocal > 1 / 10.5 else 0, abs=1e-9)


def test_ndcg_of_the_retrieved_equals_scikit_learn_on_the_first_ten():
    sklearn = pytest.importorskip("sklearn.metrics")
    run, qrels = random_retrieval(150, 10**9, seed=7)
    result = ratios(ndcg_retrieved(run, qrels))
    for value, query in zip(result, answerable(qrels), strict=True):
        first = sorted(run[query], key=run[query].get, reverse=True)[:10]
        grades = [max(qrels[query].get(document, 0), 0) for document in first]
        if len(first) > 1:  # scikit-learn wants two
            assert value == pytest.approx(sklearn.ndcg_score([grades], [[run[query][d] for d in first]]))
