"""The audit's statistics against scipy, published examples and simulations."""

import numpy as np
import pytest
from scipy import stats

from kvdiag.analysis.audit import statistics
from kvdiag.analysis.audit.statistics import Estimate, bootstrap_means, holm, sign_flip


def one_stratum(n):
    return np.zeros(n, dtype=np.int64)


def intervals(gaps, resamples=20_000, seed=2):
    """Estimates of columns of gaps, a row a source, no strata."""
    columns = np.asarray(gaps, dtype=float)
    columns = columns[:, None] if columns.ndim == 1 else columns
    return bootstrap_means(columns, np.ones_like(columns), one_stratum(len(columns)), resamples, seed)


def skewed(seed, n=40):
    rng = np.random.default_rng(seed)
    return rng.exponential(size=n) ** 2 - rng.random(n)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", ["percentile", "bca"])
def test_intervals_are_scipys(seed, kind):
    gaps = skewed(seed)
    options = {"n_resamples": 20_000, "method": kind, "rng": 1, "batch": 1000}
    theirs = stats.bootstrap((gaps,), np.mean, **options).confidence_interval
    (found,) = intervals(gaps)
    noise = 0.05 * (theirs.high - theirs.low)  # of tail quantiles of 20,000 replicates, two runs
    assert getattr(found, kind) == pytest.approx((theirs.low, theirs.high), abs=noise)
    assert found.value == pytest.approx(gaps.mean())


def test_bca_is_not_the_percentile_interval_where_scores_are_skewed():
    (found,) = intervals(skewed(0))
    assert found.bca[0] > found.percentile[0] + 0.05
    assert found.bca[1] > found.percentile[1] + 0.05
    (mirrored,) = intervals(-skewed(0))
    assert mirrored.bca[0] < mirrored.percentile[0] - 0.05


def test_both_sides_of_a_pair_are_drawn_together_as_scipy_does():
    rng = np.random.default_rng(5)
    a = rng.random(60)
    b = a + 0.1 * rng.normal(size=60)

    def mean_gap(a, b, axis):
        return (a - b).mean(axis=axis)

    options = {"paired": True, "n_resamples": 20_000, "method": "BCa", "rng": 1, "batch": 1000}
    theirs = stats.bootstrap((a, b), mean_gap, **options).confidence_interval
    (found,) = intervals(a - b)
    assert found.bca == pytest.approx((theirs.low, theirs.high), abs=0.002)
    assert found.bca[1] - found.bca[0] < 0.1  # unpaired it would be 0.2


def test_95_percent_intervals_hold_the_true_mean_95_times_in_100():
    """600 simulated data sets of 60 pairs, within three standard errors of a binomial."""
    rng = np.random.default_rng(7)
    data = rng.choice([-1.0, 0.0, 0.5, 1.0], p=[0.2, 0.4, 0.2, 0.2], size=(60, 600))
    truth = 0.1
    found = intervals(data, resamples=2_000)
    error = 3 * np.sqrt(0.95 * 0.05 / 600)
    for kind in ("percentile", "bca"):
        held = np.mean([getattr(e, kind)[0] <= truth <= getattr(e, kind)[1] for e in found])
        assert abs(held - 0.95) < error + 0.01, (kind, held)  # 0.01: n = 60, not infinity


def test_sources_are_the_unit_not_their_rows():
    """Four copies of each row change nothing but the count of rows."""
    gaps = skewed(3)[:, None]
    (once,) = bootstrap_means(gaps, np.ones_like(gaps), one_stratum(40), 2_000, 0)
    (four,) = bootstrap_means(4 * gaps, 4 * np.ones_like(gaps), one_stratum(40), 2_000, 0)
    assert (four.value, four.percentile) == (pytest.approx(once.value), pytest.approx(once.percentile))
    assert four.bca == pytest.approx(once.bca)
    assert (once.n, four.n, once.n_sources, four.n_sources) == (40, 160, 40, 40)
    (rows,) = intervals(np.repeat(gaps[:, 0], 4), 2_000)
    assert rows.percentile[1] - rows.percentile[0] < 0.6 * (four.percentile[1] - four.percentile[0])


def test_differences_between_strata_do_not_widen_an_interval():
    gaps = np.r_[np.zeros(30), np.ones(30)][:, None] + 0.1 * np.random.default_rng(0).normal(size=(60, 1))
    ones, halves = np.ones_like(gaps), np.repeat([0, 1], 30)
    (apart,) = bootstrap_means(gaps, ones, halves, 5_000, 0)
    (mixed,) = bootstrap_means(gaps, ones, one_stratum(60), 5_000, 0)
    assert apart.percentile[1] - apart.percentile[0] == pytest.approx(4 * 0.1 / np.sqrt(60), rel=0.2)
    assert mixed.percentile[1] - mixed.percentile[0] > 0.2


def test_differences_between_strata_are_no_skew():
    """A few sources far off in a stratum of their own: mixed they would skew the interval, apart they do not."""
    gaps = np.r_[np.tile([-0.1, 0.1], 25), np.tile([4.9, 5.1], 3)][:, None]
    strata = np.repeat([0, 1], [50, 6])
    (apart,) = bootstrap_means(gaps, np.ones_like(gaps), strata, 20_000, 0)
    assert apart.bca == pytest.approx(apart.percentile, abs=0.001)
    moved = statistics.influences(gaps, np.ones_like(gaps), strata)[:, 0]
    assert moved == pytest.approx(np.tile([-0.1, 0.1], 28))


def test_the_acceleration_of_a_ratio_is_the_jackknifes():
    """Sources with unlike numbers of rows: influences against delete-one means, which agree to first order."""
    rng = np.random.default_rng(4)
    sizes = rng.integers(1, 5, size=200).astype(float)
    sums = sizes * rng.exponential(size=200)
    moved = statistics.influences(sums[:, None], sizes[:, None], one_stratum(200))[:, 0]
    without = (sums.sum() - sums) / (sizes.sum() - sizes)
    jackknife = without.mean() - without

    def skew(values):
        return (values**3).sum() / (6 * (values**2).sum() ** 1.5)

    assert skew(moved) == pytest.approx(skew(jackknife), rel=0.05)
    assert np.corrcoef(moved, jackknife)[0, 1] > 0.999


def test_statistics_share_replicates_whatever_block_they_stand_in(monkeypatch):
    rng = np.random.default_rng(1)
    sums, sizes = rng.normal(size=(20, 9)), np.ones((20, 9))
    sizes[:4, 3] = sums[:4, 3] = 0
    whole = bootstrap_means(sums, sizes, one_stratum(20), 500, 1)
    monkeypatch.setattr(statistics, "_COLUMNS", 2)
    parts = bootstrap_means(sums, sizes, one_stratum(20), 500, 1)
    for a, b in zip(whole, parts, strict=True):
        assert a.percentile == pytest.approx(b.percentile)
        assert (a.n, a.why) == (b.n, b.why)
    assert whole[3].n == 16


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([], Estimate(None, None, None, 0, 0, "no_source")),
        ([0.25], Estimate(0.25, None, None, 1, 1, "single_source")),
        ([0.5] * 6, Estimate(0.5, (0.5, 0.5), (0.5, 0.5), 6, 6, "zero_variance")),
        ([0.0] * 6, Estimate(0.0, (0.0, 0.0), (0.0, 0.0), 6, 6, "zero_variance")),
    ],
)
def test_without_variance_there_is_nothing_to_correct(gaps, expected):
    (found,) = intervals(np.array(gaps, dtype=float).reshape(-1, 1), 200)
    assert found == expected


def test_one_source_in_each_stratum_has_no_interval():
    gaps = np.array([[0.0], [1.0], [0.5]])
    (found,) = bootstrap_means(gaps, np.ones_like(gaps), np.arange(3), 200, 0)
    assert (found.value, found.percentile, found.bca, found.why) == (0.5, None, None, "one_source_per_stratum")


def test_an_undefined_bias_leaves_the_percentile_interval():
    assert statistics.bca_levels(0.0, np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0])) is None
    low, high = statistics.bca_levels(2.0, np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0]))
    assert (low, high) == pytest.approx((0.025, 0.975))  # no bias, no skew: the percentile interval


def test_quantiles_are_numpys():
    values = np.sort(np.random.default_rng(0).normal(size=101))
    for low, high in ((0.025, 0.975), (0.0, 1.0), (0.333, 0.5)):
        assert statistics._quantiles(values, low, high) == pytest.approx(tuple(np.quantile(values, [low, high])))


# -- tests and their correction ----------------------------------------------------------------------------------


def test_holm_by_hand_and_as_statsmodels_has_it():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    # multipletests([0.9, 0.001, 0.02, 0.02, 0.5, 0.04], method="holm")[1]
    assert holm([0.9, 0.001, 0.02, 0.02, 0.5, 0.04]) == pytest.approx([1.0, 0.006, 0.1, 0.1, 1.0, 0.12])
    assert holm([0.7, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([]).tolist() == []


def test_few_signs_are_all_tried():
    gaps = np.array([[0.2, 0.5], [0.3, -0.5], [0.0, 0.0], [0.4, 0.0]])
    p, exact = sign_flip(gaps)
    assert p == pytest.approx([2 / 8, 1.0])
    assert exact.all()
    assert sign_flip(np.zeros((3, 1)))[0] == pytest.approx([1.0])


def test_sign_flips_are_scipys_paired_permutations():
    rng = np.random.default_rng(3)
    few, many = rng.normal(0.5, 1, size=10), rng.normal(0.3, 1, size=40)

    def mean(x, axis):
        return x.mean(axis=axis)

    for gaps, tolerance in ((few, 1e-9), (many, 0.01)):
        options = {"permutation_type": "samples", "n_resamples": 20_000, "rng": 1}
        theirs = stats.permutation_test(
            (gaps, np.zeros_like(gaps)), lambda x, y, axis: mean(x - y, axis), **options
        )
        p, exact = sign_flip(gaps[:, None], 20_000)
        assert p[0] == pytest.approx(theirs.pvalue, abs=tolerance)
        assert exact[0] == (len(gaps) == 10)


def test_p_is_uniform_where_nothing_differs():
    """At most 5 % below 0.05, within a binomial's error, over 400 null data sets."""
    gaps = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], size=(50, 400))
    p, _ = sign_flip(gaps, 2_000)
    assert np.mean(p < 0.05) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert 0.35 < np.mean(p < 0.5) < 0.6
