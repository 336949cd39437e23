"""Which sources a replicate draws, and intervals from replicates."""

import numpy as np
import pytest

from kvdiag.analysis import bootstrap

GROUPS = np.array([0, 0, 1, 1, 1, 1, 2])


def all_draws(groups, resamples, seed, **options):
    return np.concatenate(list(bootstrap.draws(groups, resamples, seed, **options)))


def test_a_replicate_keeps_the_size_of_every_group():
    counts = all_draws(GROUPS, 500, seed=1)
    assert counts.shape == (500, len(GROUPS))
    for group in range(3):
        assert (counts[:, group == GROUPS].sum(axis=1) == (group == GROUPS).sum()).all()


def test_every_source_is_drawn_as_often_as_chance_has_it():
    """Once a replicate on average, with the binomial's variance 1 - 1/m."""
    counts = all_draws(GROUPS, 20_000, seed=2)
    sizes = np.array([(group == GROUPS).sum() for group in GROUPS])
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.03)
    np.testing.assert_allclose(counts.var(axis=0), 1 - 1 / sizes, atol=0.05)


def test_a_seed_fixes_the_draws():
    assert (all_draws(GROUPS, 50, seed=3) == all_draws(GROUPS, 50, seed=3)).all()
    assert (all_draws(GROUPS, 50, seed=3) != all_draws(GROUPS, 50, seed=4)).any()


@pytest.mark.parametrize("width", [1, 7, 1_000_000, 10**9])
def test_blocks_hold_what_the_memory_allows_and_lose_no_replicate(width):
    blocks = list(bootstrap.draws(GROUPS, 11, seed=0, width=width))
    assert sum(len(b) for b in blocks) == 11
    assert max(len(b) for b in blocks) <= max(1, bootstrap._HELD // width)


def test_an_interval_leaves_out_replicates_without_a_value():
    values = np.arange(101.0)
    assert bootstrap.interval(values) == pytest.approx((2.5, 97.5))
    assert bootstrap.interval(np.r_[values, [np.nan] * 50]) == pytest.approx((2.5, 97.5))
    assert bootstrap.interval(np.array([np.nan])) is None
    assert str(bootstrap.interval(np.array([-0.0, -0.0]))) == "(0.0, 0.0)"
