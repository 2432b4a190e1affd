"""Every metric against values derived by hand, and against an independent implementation where one is installed."""

import random

import numpy as np
import pytest
from task_helpers import cases

from eval.tasks import metrics


def ratios(instances):
    """The metric of each instance, (n,): of a metric of one class whose denominators are 1."""
    assert instances.shape == (len(instances), 1, 2) and instances.dtype == np.float64
    np.testing.assert_array_equal(instances[:, 0, 1], 1)
    return instances[:, 0, 0]


def test_the_score_is_the_mean_over_classes_of_a_ratio_of_sums():
    instances = np.array([[[1, 2], [0, 0], [0, 3]], [[2, 2], [0, 0], [1, 1]]])  # (n=2, C=3, 2)
    assert metrics.score(instances) == pytest.approx(100 * (3 / 4 + 1 / 4) / 2)  # without the class in the middle
    assert metrics.score(metrics.entity_f1([["O", "O"]], [["O", "O"]])) == 0.0  # nothing to find
    stored = np.full((10**5, 1, 2), [0.1, 1], np.float32)
    assert metrics.score(stored) == pytest.approx(10, abs=1e-5)  # float32 instances are summed in float64


def test_resamples_of_the_instances_vary_as_the_correlation_does():
    rng = np.random.default_rng(0)
    gold = rng.normal(size=500)
    predicted = 3 * gold + rng.normal(size=500)
    found = metrics.text_scores(predicted, gold, [])
    draws = rng.integers(500, size=(400, 500))
    resampled = [metrics.score(found["pearson"][draw]) for draw in draws]
    expected = [100 * np.corrcoef(predicted[draw], gold[draw])[0, 1] for draw in draws]
    assert np.std(resampled) == pytest.approx(np.std(expected), rel=0.05)
    assert metrics.score(metrics.correlation([1, 1], [1, 2])) == 0


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_glues_metrics_are_those_of_scikit_learn_and_scipy(rate):
    sklearn, stats = pytest.importorskip("sklearn.metrics"), pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    gold = rng.random(300) < 0.6
    predicted = gold ^ (rng.random(300) < rate)
    found = metrics.text_scores(predicted.tolist(), gold.tolist(), [False, True])
    oracles = sklearn.accuracy_score, sklearn.f1_score, sklearn.matthews_corrcoef
    expected = [100 * oracle(gold, predicted) for oracle in oracles]
    assert [metrics.score(found[name]) for name in ("accuracy", "f1", "matthews")] == pytest.approx(expected)
    noisy = np.round(3 * gold + rng.normal(size=300), 1)
    found = metrics.text_scores(noisy, gold, [])
    expected = [100 * oracle(noisy, gold).statistic for oracle in (stats.pearsonr, stats.spearmanr)]
    assert [metrics.score(found[name]) for name in ("pearson", "spearman")] == pytest.approx(expected)
    assert metrics.score(metrics.text_scores(list("bb"), list("ab"), ["a", "b"])["matthews"]) == 0  # the majority
    x_is_wrong = metrics.text_scores(list("aab"), list("axb"), ["a", "b"])
    assert metrics.score(x_is_wrong["matthews"]) == pytest.approx(50)
    assert "matthews" not in metrics.text_scores(list("bb"), list("ab"), ["a", "b", "c"])


@pytest.mark.parametrize("case", cases("squad"))  # v1, v2: of a set of version 1.1, and of one of version 2
def test_squad(case):
    for gold, expected in ([case["answers"]], case["v1"]), ([case["answers"], []], case["v2"]):
        if expected:
            result = metrics.squad([case["predicted"], "cat"][: len(gold)], gold)
            assert [ratios(result[name])[0] for name in ("exact_match", "f1")] == pytest.approx(expected)


def test_the_papers_f1_of_tags_and_of_token_positions():
    predicted, gold = ["B-X O O O".split(), "O B-Y".split()], ["B-X I-X O O".split(), "O O".split()]
    # B-X is right, I-X missing, O is 2 * 2 / (3 + 2);  O is 2 * 1 / (1 + 2), B-Y wrong
    expected = [(1 + 0 + 4 / 5) / 3, (2 / 3 + 0) / 2]
    np.testing.assert_allclose(ratios(metrics.sentence_macro_f1(predicted, gold)), expected)
    predicted = [{3, 4, 5}, {3}, {7}, set(), set(), {0, 1}]
    gold = [{4, 5}, {3}, {8, 9}, set(), {4, 5}, set()]  # the empty set is {0}
    np.testing.assert_allclose(ratios(metrics.token_set_f1(predicted, gold)), [2 * 2 / 5, 1, 0, 1, 0, 2 * 1 / 3])


@pytest.mark.parametrize("classes", [2, 9])
def test_f1_equals_scikit_learn(classes):
    sklearn = pytest.importorskip("sklearn.metrics")
    draw, labels = random.Random(classes), [f"label {i}" for i in range(classes)]
    for n in (1, 2, 5, 40):
        gold, predicted = draw.choices([*labels, "unseen"], k=n), draw.choices(labels, k=n)
        occur = [label for label in (labels if classes > 2 else labels[1:]) if label in gold + predicted]
        expected = sklearn.f1_score(gold, predicted, labels=occur, average="macro") if occur else 0
        assert metrics.score(metrics.f1(predicted, gold, labels)) == pytest.approx(100 * expected)


@pytest.mark.parametrize("prefixes", ["IO", "BIO", "IOE", "BIOES"])
def test_entity_f1_equals_seqeval(prefixes):
    """Most of these tags break their scheme."""
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    draw, tags = random.Random(2), [f"{prefix}-{kind}" for prefix in prefixes if prefix != "O" for kind in ("X", "Y-1")]
    gold = [draw.choices(["O", *tags], k=draw.randint(1, 12)) for _ in range(300)]
    predicted = [[draw.choice(tags) if draw.random() < 0.3 else tag for tag in sentence] for sentence in gold]
    for sentence in gold:
        expected = [(kind, begin, end + 1) for kind, begin, end in labeling.get_entities(sentence)]
        assert metrics.entities(sentence) == expected
    assert metrics.score(metrics.entity_f1(predicted, gold)) == pytest.approx(100 * labeling.f1_score(gold, predicted))


@pytest.mark.parametrize("case", cases("ndcg_retrieved"))
def test_the_papers_ndcg_has_binary_gains_and_the_ideal_of_the_retrieved_ten(case):
    grades = {"a": 1, "b": 3, "c": 2, "zero": 0, "y": -1}
    assert metrics.score(metrics.ndcg_retrieved([case["run"]], [grades])) == pytest.approx(case["score"])
