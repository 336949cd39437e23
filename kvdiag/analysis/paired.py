"""Two columns of results on the same sources: differences with intervals, McNemar's test, overlap of failures."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvdiag.analysis.bootstrap import Bools, Floats, Ints, draws, interval

RESAMPLES = 10_000


def mcnemar_exact(only_a: int, only_b: int) -> float:
    """Two-sided exact p of McNemar's test: only_a of n = only_a + only_b under a binomial with p = 1/2."""
    n, k = only_a + only_b, min(only_a, only_b)
    term = total = 1  # whole numbers: no rounding however large n is
    for i in range(k):
        term = term * (n - i) // (i + 1)
        total += term
    return min(1.0, 2 * total / 2**n)


@dataclass(frozen=True)
class Difference:
    """A mean of each side over the same sources, and their difference. Null where no source counts."""

    a: float | None
    b: float | None
    difference: float | None
    low: float | None
    high: float | None
    n: int

    def columns(self) -> dict[str, Any]:
        """As JSON has it."""
        return dict(vars(self))


def differences(
    sides: list[tuple[Floats, Floats]], groups: Ints, resamples: int = RESAMPLES, seed: int = 0
) -> list[Difference]:
    """Mean of a, mean of b, and mean of a - b for several measures of the same sources.

    sides: for each measure its values on both sides, one a source; NaN where it does not count. A source counts
    for a measure when both its values do. groups: the group (workload) of each source. All measures share the
    replicates, which draw sources, both sides at once.
    """
    if not sides:
        return []
    counted = np.stack([np.isfinite(a) & np.isfinite(b) for a, b in sides], axis=1)
    gaps = np.stack([np.where(c, a - b, 0.0) for (a, b), c in zip(sides, counted.T, strict=True)], axis=1)
    blocks = [_means(counts, gaps, counted) for counts in draws(groups, resamples, seed)] if len(groups) else []
    found = np.concatenate(blocks) if blocks else np.zeros((0, len(sides)))
    return [_difference(*side, counted[:, i], found[:, i]) for i, side in enumerate(sides)]


def _means(counts: Floats, gaps: Floats, counted: Bools) -> Floats:
    """Mean gap of each replicate over what it drew; NaN where that is nothing."""
    n = counts @ counted.astype(float)
    return np.divide(counts @ gaps, n, out=np.full(n.shape, np.nan), where=n > 0)


def _difference(a: Floats, b: Floats, counted: Bools, found: Floats) -> Difference:
    n = int(counted.sum())
    if not n:
        return Difference(None, None, None, None, None, 0)
    ends = interval(found) if n > 1 else None  # one source repeats itself in every replicate
    mean_a, mean_b = float(a[counted].mean()), float(b[counted].mean())
    low, high = ends or (None, None)
    return Difference(mean_a, mean_b, mean_a - mean_b, low, high, n)


def jaccard(a: Bools, b: Bools) -> float | None:
    """Share of the failures of either side that are failures of both; None where neither failed."""
    union = int((a | b).sum())
    return int((a & b).sum()) / union if union else None
