"""Statistics of the audit as pure functions: paired bootstrap, sign-flip test, Holm's correction."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from kvdiag.analysis.bootstrap import LEVEL, Bools, Floats, Ints, draws

RESAMPLES = 50_000
# Columns at a time: their replicates are held at once, 50,000 of 256 columns in 102 MB.
_COLUMNS = 256
# Signs held at a time.
_HELD = 4_000_000
# Up to this many nonzero differences all sign patterns are tried.
EXACT_SIGNS = 13
# Sums of the same terms in another order differ by rounding; no two scores differ by less.
_ROUNDING = 1e-12

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A mean with its intervals.

    n: rows behind it; n_sources: sources they come from. why: why an interval is missing (no_source,
    single_source, one_source_per_stratum) or why bca is the percentile interval (zero_variance, bias_undefined).
    """

    value: float | None
    percentile: Interval | None
    bca: Interval | None
    n: int
    n_sources: int
    why: str | None = None


def bootstrap_means(
    sums: Floats, sizes: Floats, groups: Ints, resamples: int = RESAMPLES, seed: int = 0
) -> list[Estimate]:
    """Means with percentile and BCa intervals (Efron 1987), sources drawn with all their rows.

    sums, sizes: (sources, statistics), the sum and number of a source's rows in each statistic, which is
    sum(sums) / sum(sizes). groups: the stratum of each source; sources are drawn within it. All statistics share
    the replicates.
    """
    found: list[Estimate] = []
    for start in range(0, sums.shape[1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        found += _some_means(sums[:, part], sizes[:, part], groups, resamples, seed)
    return found


def _some_means(sums: Floats, sizes: Floats, groups: Ints, resamples: int, seed: int) -> list[Estimate]:
    totals = sizes.sum(axis=0)
    values = np.divide(sums.sum(axis=0), totals, out=np.full(totals.shape, np.nan), where=totals > 0)
    replicates = _replicates(sums, sizes, groups, resamples, seed)
    replicates.sort(axis=1)  # NaN goes last
    centred = influences(sums, sizes, groups)
    can_vary = np.bincount(groups, minlength=1)[groups] > 1
    return [
        _estimate(values[i], replicates[i], centred[:, i], sizes[:, i], can_vary) for i in range(sums.shape[1])
    ]


def _replicates(sums: Floats, sizes: Floats, groups: Ints, resamples: int, seed: int) -> Floats:
    """Means of each replicate, (statistics, replicates); NaN where it drew nothing that counts."""
    if not len(groups):
        return np.full((sums.shape[1], 0), np.nan)
    unlike, which = np.unique(sizes, axis=1, return_inverse=True)  # most statistics rest on the same sources
    found = np.empty((sums.shape[1], resamples))
    done = 0
    for counts in draws(groups, resamples, seed, width=sums.shape[1]):
        n = (counts @ unlike)[:, which.ravel()]
        means = np.divide(counts @ sums, n, out=np.full(n.shape, np.nan), where=n > 0)
        found[:, done : done + len(counts)] = means.T
        done += len(counts)
    return found


def influences(sums: Floats, sizes: Floats, groups: Ints) -> Floats:
    """How far each source moves each mean, up to a factor: its rows' distance from it, centred in its stratum.

    Without strata and with a row a source these are the jackknife's differences (Davison & Hinkley 1997, 5.3.2).
    """
    totals = sizes.sum(axis=0)
    means = np.divide(sums.sum(axis=0), totals, out=np.zeros(totals.shape), where=totals > 0)
    moved = sums - sizes * means
    _, own = np.unique(groups, return_inverse=True)
    n = np.bincount(own, minlength=1)
    within = np.zeros((len(n), sums.shape[1]))
    np.add.at(within, own, moved)
    return moved - (within / np.maximum(n, 1)[:, None])[own]


def _estimate(value: float, replicates: Floats, moved: Floats, sizes: Floats, can_vary: Bools) -> Estimate:
    """One mean; replicates sorted, NaN last."""
    n, counted = int(sizes.sum()), sizes > 0
    n_sources = int(counted.sum())
    if n_sources < 2 or not can_vary[counted].any():
        why = {0: "no_source", 1: "single_source"}.get(n_sources, "one_source_per_stratum")
        return Estimate(float(value) if n else None, None, None, n, n_sources, why)
    there = replicates[: int(np.isfinite(replicates).sum())]
    percentile = _quantiles(there, (1 - LEVEL) / 2, (1 + LEVEL) / 2)
    if there[-1] - there[0] <= _ROUNDING:
        return Estimate(float(value), percentile, percentile, n, n_sources, "zero_variance")
    levels = bca_levels(value, there, moved)
    if levels is None:
        return Estimate(float(value), percentile, percentile, n, n_sources, "bias_undefined")
    return Estimate(float(value), percentile, _quantiles(there, *levels), n, n_sources)


def bca_levels(value: float, replicates: Floats, moved: Floats) -> tuple[float, float] | None:
    """The quantiles of sorted replicates that a BCa interval takes (Efron 1987); None where they are undefined.

    moved: influences of the sources. A replicate equal to the value counts half below it.
    """
    below = np.searchsorted(replicates, value - _ROUNDING) + np.searchsorted(
        replicates, value + _ROUNDING, "right"
    )
    share = below / (2 * len(replicates))
    if not 0 < share < 1:
        return None
    spread = float((moved**2).sum())
    skew = float((moved**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0
    bias = float(ndtri(share))
    z = bias + ndtri(np.array([(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    if (1 - skew * z <= 0).any():
        return None
    low, high = ndtr(bias + z / (1 - skew * z))
    return float(low), float(high)


def _quantiles(values: Floats, low: float, high: float) -> Interval:
    """Quantiles of sorted values, by linear interpolation as np.quantile has it, without sorting again."""

    def at(level: float) -> float:
        place = level * (len(values) - 1)
        below = min(int(place), len(values) - 1)
        above = min(below + 1, len(values) - 1)
        return float(values[below] + (values[above] - values[below]) * (place - below)) + 0.0  # no -0.0

    return at(low), at(high)


def sign_flip(gaps: Floats, resamples: int = RESAMPLES, seed: int = 0) -> tuple[Floats, Bools]:
    """Two-sided p of paired differences whose signs are exchangeable, and whether it is exact.

    gaps: (sources, statistics), 0 where a source does not count. Exact over all sign patterns with up to 13
    nonzero differences; else (1 + patterns as far out) / (1 + resamples) over random ones (Fisher 1935).
    """
    p = np.ones(gaps.shape[1])
    n_nonzero = (gaps != 0).sum(axis=0)
    exact = n_nonzero <= EXACT_SIGNS
    for i in np.flatnonzero(exact & (n_nonzero > 0)):
        own = gaps[gaps[:, i] != 0, i]
        patterns = np.array(list(product((-1.0, 1.0), repeat=len(own))))
        p[i] = (np.abs(patterns @ own) >= abs(own.sum()) - _ROUNDING * len(own)).mean()
    many = np.flatnonzero(~exact)
    if len(many):
        p[many] = _random_flips(gaps[:, many], resamples, seed)
    return p, exact


def _random_flips(gaps: Floats, resamples: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    limit = np.abs(gaps.sum(axis=0)) - _ROUNDING * len(gaps)
    as_far = np.zeros(gaps.shape[1])
    block = max(1, _HELD // max(gaps.shape))
    for start in range(0, resamples, block):
        n = min(block, resamples - start)
        signs = rng.integers(2, size=(n, len(gaps)), dtype=np.int8) * 2.0 - 1.0
        as_far += (np.abs(signs @ gaps) >= limit).sum(axis=0)
    return (1 + as_far) / (1 + resamples)


def holm(p: Sequence[float] | NDArray[np.float64]) -> Floats:
    """p values corrected for how many there are (Holm 1979), in their order."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values, kind="stable")
    steps = values[order] * np.arange(len(values), 0, -1)
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(values) else steps
    return corrected
