"""Intervals over seeds, the paired comparison of two models, and Holm's correction.

The comparison. Two models were fine-tuned with the same seeds (the units) and tested on the same instances. D_u is the
difference of their scores in unit u; the estimate is the mean of the D_u over U units. It has two sources of error:

- the units. Their variance is that of the D_u divided by U, with U - 1 degrees of freedom. It covers everything that
  changes from one seed to the next. Scores are counts, so all D_u may tie by chance. Then the variance within a unit,
  over the resamples below, is used instead.
- the sample of test instances, which all units share. A paired bootstrap draws instances with replacement, the same for
  every run. The mean covariance between the D_u of different units is the variance that more units would not remove.

For several independent tasks, the variances add up, and the Welch-Satterthwaite formula gives the degrees of freedom.
Tasks that share pretraining seeds are not independent, nor are sets of a retrieval task that share a fine-tuning. The
caller adds their D_u first.

The error is se * T + shared * Z, where T has Student's t distribution and Z is normal. This Behrens-Fisher distribution
gives the interval and the p-value. Two common shortcuts fail with few seeds. One t distribution for both parts rejects
a true null hypothesis in 7.5 % of cases at the 5 % level with 3 seeds (12 % with 2), if seeds add ten times the
variance of instances. A variance pooled over six models rejects in 20 % for the least stable one. This method rejects
in 2.4 to 5 % (up to 5.8 % for the mean of two unlike tasks). The price is wide intervals.
`tests/eval/study/test_stats.py` simulates it.
"""

import functools
import math

import numpy as np

from eval.tasks.metrics import score_of_sums

RESAMPLES = 2000  # bootstrap resamples of the test instances
TIE = 1e-6  # percentage points; a smaller difference is a rounding error
NODES = np.polynomial.legendre.leggauss(200)  # positions and weights to integrate over (-1, 1)


@functools.lru_cache
def chi(df):
    """Return nodes and weights (200,) of the distribution of sqrt(chi-squared) with df degrees of freedom, df >= 1."""
    positions, weights = NODES
    low = max(0.0, math.sqrt(df) - 10)  # outside [low, high] is less than 1e-20
    high = math.sqrt(df) + 10
    v = (positions + 1) / 2
    x = low + (high - low) * v**2  # squared for more nodes near 0, which decide the far tails if df is small
    log_density = (df - 1) * np.log(x) - x**2 / 2
    weights = weights * v * np.exp(log_density - log_density.max())
    return x, weights / weights.sum()


def tail(h, df, se=1.0, shared=0.0):
    """Return P(|se * T + shared * Z| > h), exact to 1e-12. shared = 0: Student's t.

    T has Student's t distribution with df degrees of freedom. Z is standard normal and independent of T. Given its
    chi-squared denominator, T is normal, so this averages a normal tail over that denominator.
    """
    x, weights = chi(df)
    z = h / np.hypot(se * math.sqrt(df) / x, shared)
    return float(weights @ [math.erfc(value) for value in z / math.sqrt(2)])


def half_width(df, se=1.0, shared=0.0):
    """Return half the width of a 95 % interval: the h that |se * T + shared * Z| exceeds with probability 0.05."""
    h = 13 * (se + shared)  # an upper bound: t is 12.7 at one degree of freedom
    step = h / 2
    while step > 1e-10 * h:  # bisection
        h += step if tail(h, df, se, shared) > 0.05 else -step
        step /= 2
    return h


def interval(values):
    """Return the mean of values (n,) and half the width of its 95 % interval (Student's t); None for one value."""
    n = len(values)
    mean = float(np.mean(values))
    if n == 1:
        return mean, None
    return mean, half_width(n - 1, np.std(values, ddof=1) / math.sqrt(n))


def bootstrap(instances, resamples, seed):
    """Return the scores (resamples, R) of R runs on resamples of the n test instances. instances: (R, n, C, 2).

    A resample, a vector of how often each instance was drawn, is the same for all runs.
    """
    runs, n, classes, _ = instances.shape
    flat = instances.transpose(1, 0, 2, 3).reshape(n, -1)  # (n, R * C * 2)
    rng = np.random.default_rng(seed)
    scores = np.empty((resamples, runs))
    for i in range(resamples):
        sums = np.bincount(rng.integers(n, size=n), minlength=n).astype(flat.dtype) @ flat
        scores[i] = score_of_sums(sums.reshape(runs, classes, 2))
    return scores


def compare(parts):
    """Return (estimate, half-width of its 95 % interval, p-value) of a paired comparison: the sum of independent parts.

    parts: (differences (U,), covariance (U, U)) each, U > 1: in each unit, the weighted score of A minus that of B; and
        the covariance of these differences over resamples of the test instances.

    If all units tie at a difference that is not 0, and no resample changes it, its error is unknown: the half-width is
    infinite and p is 1. Raises ValueError if a part has only one unit, because its variance is unknown.
    """
    estimate = 0.0
    of_units = 0.0  # the part of the estimate's variance that comes from the units
    of_instances = 0.0  # the part from the sample of instances
    denominator = 0.0  # of the Welch-Satterthwaite formula
    for d, covariance in parts:
        U = len(d)
        if U < 2:
            raise ValueError("compare: a part has fewer than two units: give two seeds or more that both models have")
        own = np.trace(covariance) / U
        off_diagonal = (covariance.sum() / U - own) / (U - 1)  # its mean
        variance = d.var(ddof=1)
        if variance <= TIE**2:  # all tie: use the variance within a unit
            variance = max(0.0, own - off_diagonal)
        estimate += float(d.mean())
        of_units += variance / U
        of_instances += off_diagonal
        denominator += (variance / U) ** 2 / (U - 1)
    se = math.sqrt(of_units)
    shared = math.sqrt(max(0.0, of_instances))
    if se + shared <= TIE:
        half = 0.0 if abs(estimate) <= TIE else math.inf
        return estimate, half, 1.0
    df = of_units**2 / denominator if of_units else 1.0
    half = half_width(df, se, shared)
    return estimate, half, tail(abs(estimate), df, se, shared)


def holm(p):
    """Return the p-values (m,) of m comparisons, corrected by Holm's step-down method (Holm 1979)."""
    corrected = np.ones(len(p))
    largest = 0.0  # so far, because corrected p-values must not decrease
    for n, i in enumerate(np.argsort(p, kind="stable")):  # n hypotheses are rejected already
        largest = max(largest, (len(p) - n) * p[i])
        corrected[i] = min(1.0, largest)
    return corrected
