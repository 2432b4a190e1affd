"""The statistics of eval/report.py: intervals over seeds, the comparison of two arms, Holm's correction.

The comparison. Two arms were fine-tuned with the same seeds (the units) and tested on the same instances. With D_u the
difference of their scores in unit u, the estimate is the mean of the D_u over U units. It is uncertain for two
reasons, which are kept apart:

- the units: the variance of the D_u between units, divided by U, with U - 1 degrees of freedom. It covers all that
  changes from unit to unit: the seed's own effect, and which instances this seed happens to get right. Scores are
  counts, so units may tie, which is no sign that nothing varies: then it is the part that the resamples below see.
- the sample of test instances, which all units share: instances are drawn anew, with replacement and the same for
  every run (a paired bootstrap), and the mean covariance between the D_u of different units over these resamples is
  the variance that more units would not remove. (The variance of the averaged difference, instead, would count what
  changes from unit to unit a second time.)

The mean of several tasks adds up their variances. For the units' part this assumes that a seed's runs on two tasks are
independent, so Welch and Satterthwaite's degrees of freedom count those of all tasks. With pretraining seeds as units
they are not independent: there the caller averages the D_u over tasks first and passes them as one.

So the error of the estimate is se * T + shared * Z, with T of Student's t distribution and Z normal: the Behrens-Fisher
distribution, which gives the interval and the p-value. Two common short cuts fail with few seeds. One t with
Satterthwaite's degrees of freedom for the sum of both parts: without a true difference, where seeds add ten times the
variance of instances, it rejects 7.5 % at the 5 % level with 3 seeds (12 % with 2), and 2 % at the 0.5 % level, where
a correction for many comparisons looks. A variance pooled over arms: 20 % for the least stable of six arms. This one
stays at or below its level (with 3 seeds 2.4 to 5 %, and below 0.5 %; the mean of two unlike tasks up to 5.8 and 0.8).
It pays with power: intervals from few seeds are wide. tests/test_stats.py repeats the main simulations.
"""

import functools
import math

import numpy as np

NODES = np.polynomial.legendre.leggauss(200)  # positions in (-1, 1) and weights, of an integral over it


@functools.lru_cache
def chi(df):
    """Nodes and weights (200,) of the distribution of sqrt(chi-squared) with df degrees of freedom, df >= 1."""
    low, high = max(0.0, math.sqrt(df) - 10), math.sqrt(df) + 10  # beyond: less than 1e-20 of it
    v, w = (NODES[0] + 1) / 2, NODES[1]
    x = low + (high - low) * v**2  # squared: more nodes near 0, where the far tails of few degrees come from
    log_density = (df - 1) * np.log(x) - x**2 / 2
    w = w * v * np.exp(log_density - log_density.max())
    return x, w / w.sum()


def tail(h, df, se=1.0, shared=0.0):
    """P(|se * T + shared * Z| > h), and its slope in h.

    T has Student's t distribution with df degrees of freedom, Z is standard normal and independent of it. T is normal
    given its chi-squared denominator, so this is a mean over that one, exact to 1e-12. shared = 0: Student's t.
    """
    x, w = chi(df)
    sd = np.hypot(se * math.sqrt(df) / x, shared)
    z = h / sd / math.sqrt(2)
    p = w @ np.array(list(map(math.erfc, z.tolist())))
    return float(p), float(w @ (-2 / math.sqrt(2 * math.pi) * np.exp(-z * z) / sd))


def half_width(df, se=1.0, shared=0.0, level=0.05):
    """Half the width of an interval: the h that |se * T + shared * Z| exceeds with probability `level`.

    Newton's method: the tail is convex and falls, so from below the root, where 1.9 standard errors lie for any level
    up to 0.05, it climbs to it.
    """
    h, before = 1.9 * math.hypot(se, shared), 0.0
    while abs(h - before) > 1e-7 * h:  # the error squares with every step
        p, slope = tail(h, df, se, shared)
        h, before = h - (p - level) / slope, h
    return h


def interval(values):
    """The mean of values (n,) and half the width of its 95 % interval (Student's t); None for one value."""
    n = len(values)
    half = half_width(n - 1, float(np.std(values, ddof=1)) / math.sqrt(n)) if n > 1 else None
    return float(np.mean(values)), half


def ratio_score(sums):
    """(..., C, 2) sums of numerators and denominators -> (...) scores in per cent.

    The mean of the ratios of the classes that occur (denominator not 0); 0 where none does.
    """
    occurs = sums[..., 1] > 0
    ratios = np.divide(sums[..., 0], sums[..., 1], out=np.zeros_like(sums[..., 0]), where=occurs)
    return 100 * ratios.sum(-1) / np.maximum(occurs.sum(-1), 1)


def bootstrap(instances, resamples, seed):
    """The scores of R runs on resamples of their n test instances: (R, n, C, 2) -> (resamples, R).

    A resample is a vector of how often each instance was drawn, the same for all runs; its sums are a matrix product.
    """
    runs, n, classes, _ = instances.shape
    flat = np.ascontiguousarray(instances.transpose(1, 0, 2, 3)).reshape(n, -1)
    rng, scores = np.random.default_rng(seed), np.empty((resamples, runs))
    size = max(1, 4_000_000 // n)  # resamples at a time: 16 MB of weights
    for first in range(0, resamples, size):
        m = min(size, resamples - first)
        drawn = rng.integers(n, size=(m, n)) + n * np.arange(m)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=m * n).reshape(m, n).astype(flat.dtype)
        scores[first : first + m] = ratio_score((weights @ flat).reshape(m, runs, classes, 2))
    return scores


def shared_variance(covariance):
    """The mean of what is off the diagonal of a (U, U)."""
    U = len(covariance)
    return (covariance.sum() - np.trace(covariance)) / (U * (U - 1))


def unit_variance(d, covariance):
    """Of the differences d (U,) between units; where all tie, of what each unit's own answers to the instances add."""
    variance = d.var(ddof=1)
    return variance if variance > 1e-12 else max(0.0, np.trace(covariance) / len(d) - shared_variance(covariance))


def compare(parts):
    """(estimate, half the width of its 95 % interval, p-value) of a paired comparison; see the top of this file.

    parts: of each task (differences (U,), covariance (U, U)), with U > 1: the score of A minus that of B in each unit,
        and the covariance of these differences over resamples of the test instances. The estimate is of the mean over
        the parts, which must be independent.
    """
    estimate = float(np.mean([d.mean() for d, _ in parts]))
    seeds = np.array([unit_variance(d, c) / len(d) for d, c in parts]) / len(parts) ** 2  # (parts,)
    se, df = math.sqrt(seeds.sum()), 1.0
    if se:
        df = float(seeds.sum() ** 2 / (seeds**2 / [len(d) - 1 for d, _ in parts]).sum())
    between = sum(shared_variance(c) for _, c in parts) / len(parts) ** 2
    shared = math.sqrt(max(0.0, between))
    p = tail(abs(estimate), df, se, shared)[0] if se or shared else float(estimate == 0)
    return estimate, half_width(df, se, shared), p


def holm(p):
    """The p-values (m,) of m comparisons, corrected by Holm's step-down method (Holm 1979)."""
    p = np.asarray(p, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted


def ranks(better):
    """(M, M) bool, [i, j] = i is surely better than j -> (best (M,), worst (M,)) possible rank of each, from 1."""
    return 1 + better.sum(0), len(better) - better.sum(1)
