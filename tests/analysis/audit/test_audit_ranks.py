"""Kendall's tau-b with an exact p."""

from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from kvdiag.analysis.audit import ranks
from kvdiag.analysis.audit.ranks import kendall


@pytest.mark.parametrize("n", [2, 3, 5, 7])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_without_ties_tau_and_p_are_scipys(n, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=n), rng.normal(size=n)
    theirs = stats.kendalltau(x, y, method="exact")
    found = kendall(x, y)
    assert (found.tau_b, found.p, found.exact) == (
        pytest.approx(theirs.statistic),
        pytest.approx(theirs.pvalue),
        True,
    )
    assert found.n == n


TIED = [0, 0, 1, 2, 2, 2], [0.01, 0.03, 0.03, 0.2, 0.1, 0.5]


def test_with_ties_p_is_the_share_of_all_orders():
    """Against all 720 permutations one by one, each with scipy's tau-b."""
    x, y = TIED
    observed = stats.kendalltau(x, y).statistic
    all_of = [stats.kendalltau(order, y).statistic for order in permutations(x)]
    found = kendall(x, y)
    assert found.tau_b == pytest.approx(observed)
    assert found.p == pytest.approx(np.mean(np.abs(all_of) >= abs(observed) - 1e-9))
    assert found.n_orders == 60
    assert kendall(y, x).p == pytest.approx(found.p)


@pytest.mark.parametrize(("x", "y"), [([], []), ([1], [2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [5, 5, 5])])
def test_what_does_not_vary_has_no_rank(x, y):
    found = kendall(x, y)
    assert (found.tau_b, found.p, found.n) == (None, None, len(x))


def test_too_many_orders_are_sampled_and_said(monkeypatch):
    x, y = np.arange(6.0), np.array([0.0, 1, 3, 2, 4, 5])
    monkeypatch.setattr(ranks, "MOST_ORDERS", 20_000)
    sampled = kendall(np.arange(9.0), np.r_[y, 8, 7, 6])
    theirs = stats.kendalltau(np.arange(9.0), np.r_[y, 8, 7, 6], method="exact").pvalue
    assert not sampled.exact
    assert sampled.p == pytest.approx(theirs, abs=0.01)
    assert kendall(x, y).exact
