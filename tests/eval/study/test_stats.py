"""The statistics against closed forms, other implementations and simulations under the null hypothesis."""

import math

import numpy as np
import pytest

from eval.study import stats


def test_students_t_against_tables_and_closed_forms():
    table = {1: 12.7062047362, 2: 4.30265272975, 3: 3.18244630528, 4: 2.77644510520, 9: 2.26215716274}
    for df, t in table.items():
        assert stats.half_width(df) == pytest.approx(t, rel=1e-8)
        assert stats.tail(t, df) == pytest.approx(0.05, rel=1e-9)
    for x in (0.0, 0.3, 2.0, 40.0):
        assert stats.tail(x, 1) == pytest.approx(1 - 2 / math.pi * math.atan(x), abs=1e-13)
        assert stats.tail(x, 2) == pytest.approx(1 - x / math.sqrt(2 + x * x), abs=1e-13)


def test_the_sum_of_a_t_and_a_normal():
    assert stats.tail(1.3, 2, se=0, shared=0.7) == pytest.approx(math.erfc(1.3 / 0.7 / math.sqrt(2)))
    z, dz = np.linspace(-12, 12, 20001, retstep=True)
    for df, se, shared, h in ((1, 0.5, 1.0, 2.0), (2, 1.0, 0.3, 1.0), (2, 0.2, 2.0, 7.0)):
        x = (h - shared * z) / se  # P(T > x), integrated over z
        above = 0.5 - np.arctan(x) / math.pi if df == 1 else 0.5 - x / np.sqrt(2 + x * x) / 2
        expected = 2 * dz * (above * np.exp(-z * z / 2)).sum() / math.sqrt(2 * math.pi)
        assert stats.tail(h, df, se, shared) == pytest.approx(expected, rel=1e-8)
        assert stats.tail(stats.half_width(df, se, shared), df, se, shared) == pytest.approx(0.05, rel=1e-6)


def test_bootstrap_variances():
    """Of an accuracy and of a ratio, against the delta method; and two runs see the same resamples."""
    rng, n = np.random.default_rng(0), 400
    right = (rng.random((2, n)) < 0.7).astype(np.float32)
    accuracy = np.stack([right, np.ones_like(right)], -1)[:, :, None]  # (2 runs, n, 1 class, 2)
    weight = rng.integers(0, 5, n).astype(np.float32)
    ratio = np.stack([2 * right * weight, weight + weight[::-1] + 0 * right], -1)[:, :, None]
    for instances in (accuracy, ratio):
        scores = stats.bootstrap(instances, 4000, 1)
        num, den = np.moveaxis(instances[:, :, 0].astype(float), -1, 0)
        r = num.sum(1) / den.sum(1)
        influence = 100 * (num - r[:, None] * den) / den.mean(1, keepdims=True)
        assert scores.mean(0) == pytest.approx(100 * r, rel=0.01)
        assert np.cov(scores.T) == pytest.approx(np.cov(influence) / n, rel=0.08, abs=0.15)
    same = stats.bootstrap(accuracy[[0, 0]], 50, 2)
    assert (same[:, 0] == same[:, 1]).all() and same.std() > 0
    assert (stats.bootstrap(accuracy, 50, 2) == stats.bootstrap(accuracy, 50, 2)).all()


def test_a_class_that_a_resample_misses_is_left_out_of_it():
    instances = np.zeros((1, 3, 2, 2), np.float32)
    instances[:, :2, 0] = 1  # right each time
    instances[:, 2, 1] = [0, 1]  # one instance of the second class, wrong
    assert set(stats.bootstrap(instances, 200, 0)[:, 0]) == {0.0, 50.0, 100.0}


def test_compare_by_hand():
    d = np.array([1.0, 2.0, 3.0])
    estimate, half, p = stats.compare([(d, np.diag([9.0, 9.0, 9.0]))])  # noise of each unit's own is in d already
    assert estimate == 2 and half == pytest.approx(4.30265273 / math.sqrt(3))
    assert p == pytest.approx(stats.tail(2 * math.sqrt(3), 2))
    _, half, p = stats.compare([(d - d, np.full((3, 3), 4.0))])  # only what the units share
    assert half == pytest.approx(1.959963985 * 2) and p == 1
    # Units tie: their own 7 stand in.
    _, half, p = stats.compare([(d - d + 4, np.full((3, 3), 2.0) + np.diag([7.0] * 3))])
    error = math.sqrt(7 / 3), math.sqrt(2)
    assert (half, p) == pytest.approx((stats.half_width(2, *error), stats.tail(4, 2, *error)))
    estimate, half, _ = stats.compare([(d, np.zeros((3, 3))), (3 * d, np.zeros((3, 3)))])  # 1/3 and 9/3, df 200/82
    assert estimate == 8 and half == pytest.approx(math.sqrt(10 / 3) * stats.half_width(200 / 82))
    assert stats.compare([(d - d, np.zeros((3, 3)))]) == (0, 0, 1)


@pytest.mark.parametrize("noise", [0.0, 1e-15])  # rounding is no variance
def test_where_all_seeds_tie_the_error_is_not_known(noise):
    ties, error = 4 + noise * np.arange(3), noise**2 * np.eye(3)
    assert stats.compare([(ties, error)]) == (pytest.approx(4), math.inf, 1)
    assert stats.compare([(ties, error), (-ties, error)]) == (pytest.approx(0), 0, 1)


def test_one_unit_is_refused():
    one, two = (np.array([4.0]), np.eye(1)), (np.array([1.0, 3.0]), np.eye(2))
    for parts in [one], [two, one]:
        with pytest.raises(ValueError, match="fewer than two units: give two seeds"):
            stats.compare(parts)
    assert stats.interval([4.0]) == (4, None)


def test_holm_by_hand():
    assert stats.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert stats.holm([0.5, 0.4]).tolist() == [0.8, 0.8] and stats.holm([]).tolist() == []


@pytest.mark.slow
@pytest.mark.parametrize("units", [2, 3, 5])
@pytest.mark.parametrize("seed_noise, own", [(0.03, 0.2), (0.3, 1)])  # below and above the noise of the instances
def test_level_and_coverage_on_made_up_predictions(units, seed_noise, own):
    """Two models answer 300 questions, each seed anew: coverage is about 95 %, and about 5 % of tests reject a true
    null hypothesis. own: how much the answer to a question changes from seed to seed."""
    rng, n, simulations = np.random.default_rng(7), 300, 500
    wrongly_found, covered = 0, 0
    spread = math.sqrt(1 + 0.25 + seed_noise**2 + own**2)  # of what is added to a model's level below
    for i in range(simulations):
        level = np.array([0.5, 0.5 if i % 2 else 0.9])
        z = rng.normal(size=n) + 0.5 * rng.normal(size=(2, 1, n))  # (models, 1, n): how easy a question is for whom
        z = z + seed_noise * rng.normal(size=(2, units, 1)) + own * rng.normal(size=(2, units, n))
        right = (z + level[:, None, None] > 0).astype(np.float32).reshape(2 * units, n)
        scores = stats.bootstrap(np.stack([right, np.ones_like(right)], -1)[:, :, None], 200, i)
        difference = 100 * (right[:units].mean(1) - right[units:].mean(1))
        estimate, half, p = stats.compare([(difference, np.cov((scores[:, :units] - scores[:, units:]).T))])
        a, b = (50 * math.erfc(-v / spread / math.sqrt(2)) for v in level)
        covered += abs(estimate - (a - b)) <= half
        wrongly_found += level[0] == level[1] and p < 0.05
    assert 0.93 <= covered / simulations <= (0.99 if units > 2 else 1)  # with two seeds the intervals are too wide
    assert wrongly_found / (simulations // 2) <= 0.07
