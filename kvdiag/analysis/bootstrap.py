"""Bootstrap over sources: how often each source is drawn, and intervals from the replicates.

A source is drawn with everything measured on it, so that rows of one source never count as independent. Sources
are drawn within their group (the workload), so that a replicate keeps the mix of the data.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

LEVEL = 0.95
# Numbers held at a time: all replicates at once would take gigabytes for a large ledger.
_HELD = 4_000_000


def draws(groups: Ints, resamples: int, seed: int, width: int | None = None) -> Iterator[Floats]:
    """Blocks of replicates: how often each source was drawn, shape (replicates, sources).

    groups: the group of each source. width: numbers the caller makes for each replicate, the number of sources
    when it is not said; it sets how many replicates stand in a block.
    """
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    rng = np.random.default_rng(seed)
    block = max(1, _HELD // max(1, len(groups), width or 0))
    for start in range(0, resamples, block):
        n = min(block, resamples - start)
        counts = np.empty((n, len(groups)))
        for own in members:
            counts[:, own] = _counts(rng.integers(len(own), size=(n, len(own))))
        yield counts


def _counts(drawn: Ints) -> Ints:
    """How often each of m items stands in each row of m draws."""
    n, m = drawn.shape
    return np.bincount((drawn + m * np.arange(n)[:, None]).ravel(), minlength=n * m).reshape(n, m)


def interval(replicates: Floats) -> tuple[float, float] | None:
    """Percentile interval over the replicates that have a value; None where none has."""
    values = replicates[np.isfinite(replicates)]
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low) + 0.0, float(high) + 0.0  # no -0.0, which reads as a sign
