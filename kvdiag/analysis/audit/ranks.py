"""Whether methods order by one number as they do by another: Kendall's tau-b with an exact p."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import factorial, prod

import numpy as np

from kvdiag.analysis.bootstrap import Floats

# Orders tried one by one; beyond, as many random ones.
MOST_ORDERS = 400_000


@dataclass(frozen=True)
class Ranks:
    """tau_b and p are None where one side is all ties. exact: whether all n_orders distinct orders were tried."""

    tau_b: float | None
    p: float | None
    n: int
    n_orders: int
    exact: bool


def kendall(x: Sequence[float], y: Sequence[float], seed: int = 0) -> Ranks:
    """Kendall's tau-b (Kendall 1938, ties as in 1945) and its two-sided p under all orders of x against y.

    p is the share of distinct orders with |concordant - discordant| at least as large. Ties stay as they are.
    Beyond 400,000 distinct orders p is Monte Carlo.
    """
    sides = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    a, b = sorted(sides, key=_n_orders)  # the share is the same whichever side moves
    n, n_orders = len(a), _n_orders(a)
    pairs_a, pairs_b = _signs(a[None])[0], _signs(b[None])[0]
    scale = float(np.sqrt(float((pairs_a**2).sum()) * float((pairs_b**2).sum())))
    if scale == 0:
        return Ranks(None, None, n, n_orders, True)
    observed = float(pairs_a @ pairs_b)
    exact = n_orders <= MOST_ORDERS
    if exact:
        as_far = sum(_as_far(block, pairs_b, observed) for block in _blocks(_orders(a)))
        p = as_far / n_orders
    else:
        rng = np.random.default_rng(seed)
        orders = rng.permuted(np.tile(a, (MOST_ORDERS, 1)), axis=1)
        parts = np.array_split(orders, MOST_ORDERS // 10_000)
        p = (1 + sum(_as_far(part, pairs_b, observed) for part in parts)) / (1 + MOST_ORDERS)
    return Ranks(observed / scale, p, n, n_orders, exact)


def _n_orders(values: Floats) -> int:
    _, counts = np.unique(values, return_counts=True)
    return factorial(len(values)) // prod(factorial(int(c)) for c in counts)


def _signs(values: Floats) -> Floats:
    """Which of each two values is larger (1, 0, -1), for rows of values."""
    first, second = np.triu_indices(values.shape[1], 1)
    return np.sign(values[:, second] - values[:, first])


def _as_far(orders: Floats, pairs: Floats, observed: float) -> int:
    return int((np.abs(_signs(orders) @ pairs) >= abs(observed) - 0.5).sum())


def _orders(values: Floats) -> Iterator[Floats]:
    """Distinct orders of values with ties, each once."""
    levels, counts = np.unique(values, return_counts=True)

    def fill(order: Floats, free: tuple[int, ...], level: int) -> Iterator[Floats]:
        if level == len(levels):
            yield order.copy()
            return
        for places in combinations(free, int(counts[level])):
            order[list(places)] = levels[level]
            yield from fill(order, tuple(i for i in free if i not in places), level + 1)

    yield from fill(np.empty(len(values)), tuple(range(len(values))), 0)


def _blocks(orders: Iterator[Floats], size: int = 10_000) -> Iterator[Floats]:
    held: list[Floats] = []
    for order in orders:
        held.append(order)
        if len(held) == size:
            yield np.array(held)
            held = []
    if held:
        yield np.array(held)
