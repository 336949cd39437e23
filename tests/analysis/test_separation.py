"""Separation: against scikit-learn and scipy, on simulated data, and on a ledger."""

from collections import Counter, defaultdict
from math import erf

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from kvdiag.analysis import separation as sep
from tests import rows as made
from tests.random_ledgers import gap, separable


def make(values, failed, strata=None, sources=None, groups=None):
    n = len(values)
    zeros = np.zeros(n, dtype=np.int64)
    return sep.Rows(
        np.asarray(values, dtype=float),
        np.asarray(failed, dtype=bool),
        zeros if strata is None else np.asarray(strata),
        np.arange(n) if sources is None else np.asarray(sources),
        zeros if groups is None else np.asarray(groups),
    )


def random_rows(seed, n=300, n_strata=6):
    """Rows with many ties, in strata of unequal size and unequal share of failures; some hold one kind only."""
    rng = np.random.default_rng(seed)
    strata = rng.integers(n_strata, size=n) ** 2
    failed = rng.random(n) < np.linspace(0, 1, 26)[strata]
    values = np.round(rng.normal(size=n) + 0.8 * failed, 1)
    return make(values, failed, strata, rng.permutation(n), rng.integers(2, size=n))


def oracle(values, failed, strata):
    """Mean of scikit-learn's AUROC by stratum, weighted by pairs; and (AUROC, pairs) by stratum."""
    found = {}
    for stratum in np.unique(strata):
        mine = strata == stratum
        if len(set(failed[mine])) == 2:
            pairs = int(failed[mine].sum()) * int((~failed[mine]).sum())
            found[int(stratum)] = (roc_auc_score(failed[mine], values[mine]), pairs)
    if not found:
        return None, found
    return np.average([a for a, _ in found.values()], weights=[p for _, p in found.values()]), found


@pytest.mark.parametrize("seed", range(8))
def test_auroc_is_scikit_learns_in_every_stratum_and_on_the_whole(seed):
    rows = random_rows(seed)
    expected, strata = oracle(rows.values, rows.failed, rows.strata)
    found = sep.separate(rows, resamples=100)
    assert len(strata) < len(np.unique(rows.strata))  # the case has strata that cannot be used
    assert found["auroc"] == pytest.approx(expected, abs=1e-12)
    assert {s["stratum"]: (pytest.approx(s["auroc"], abs=1e-12), s["n_pairs"]) for s in found["strata"]} == strata
    assert (found["n_strata"], found["n_pairs"]) == (len(strata), sum(p for _, p in strata.values()))
    used = np.isin(rows.strata, list(strata))
    assert (found["n_c2w"], found["n_c2c"]) == (rows.failed[used].sum(), (~rows.failed)[used].sum())
    assert all(s["n_c2w"] * s["n_c2c"] == s["n_pairs"] for s in found["strata"])


@pytest.mark.parametrize(
    ("values", "failed", "expected"),
    [
        ([1, 2, 3, 4], [0, 0, 1, 1], 1.0),
        ([4, 3, 2, 1], [0, 0, 1, 1], 0.0),
        ([5, 5, 5, 5], [0, 1, 0, 1], 0.5),
        ([1, 2, 2, 3], [0, 1, 0, 1], 0.875),  # by hand: pairs 2>1, 2=2, 3>1, 3>2
    ],
)
def test_auroc_of_plain_cases(values, failed, expected):
    assert sep.separate(make(values, failed), resamples=100)["auroc"] == expected


@pytest.mark.parametrize("failed", [[0, 0, 0], [1, 1, 1], []])
def test_no_auroc_of_one_kind(failed):
    found = sep.separate(make(range(len(failed)), failed))
    assert (found["auroc"], found["low"], found["n_strata"], found["strata"]) == (None, None, 0, [])


@pytest.mark.parametrize("seed", range(4))
def test_weights_count_as_repeated_rows(seed):
    """What the bootstrap rests on: a row drawn k times is a row that stands there k times."""
    rows = random_rows(seed)
    rows = rows.only(sep.comparable(rows))
    counts = np.random.default_rng(seed).integers(4, size=(5, len(rows.values)))
    won, pairs = sep.Ranking(rows).won_and_pairs(counts.astype(float))
    for i, count in enumerate(counts):
        again = [np.repeat(part, count) for part in (rows.values, rows.failed, rows.strata)]
        assert won[i].sum() / pairs[i].sum() == pytest.approx(oracle(*again)[0], abs=1e-12)


def test_the_interval_is_scipys_on_one_stratum():
    rng = np.random.default_rng(5)
    failed = rng.random(150) < 0.3
    values = np.round(rng.normal(size=150) + 0.9 * failed, 1)

    def auroc(values, failed):
        return roc_auc_score(failed, values)

    theirs = stats.bootstrap(
        (values, failed), auroc, paired=True, vectorized=False, n_resamples=3000, method="percentile", rng=1
    ).confidence_interval
    ours = sep.separate(make(values, failed), resamples=20_000, seed=2)
    assert (ours["low"], ours["high"]) == pytest.approx(theirs, abs=0.008)
    assert ours["high"] - ours["low"] > 0.1  # the tolerance is small beside the interval


def test_a_source_brings_all_its_rows():
    """The same rows twice, in two strata, tell nothing new: no replicate changes. As other sources they do."""
    one = random_rows(1, n=80, n_strata=1)
    one = make(one.values, np.arange(80) % 3 == 0)
    twice = [np.tile(part, 2) for part in (one.values, one.failed)]
    strata = np.repeat([0, 1], 80)
    same_sources = make(*twice, strata, np.tile(one.sources, 2))
    np.testing.assert_allclose(sep.replicates(same_sources, 300, 7), sep.replicates(one, 300, 7))
    apart = sep.replicates(make(*twice, strata), 300, 7)
    assert apart.std() < 0.85 * sep.replicates(one, 300, 7).std()


def simulated(rng, n_sources=90, n_strata=4):
    """Values with a part that a source carries through all strata. The true AUROC is normal_cdf(1 / 2)."""
    sources = np.tile(np.arange(n_sources), n_strata)
    failed = rng.random(len(sources)) < 0.35
    own, noise = rng.normal(size=n_sources)[sources], rng.normal(size=len(sources))
    return make(own + noise + failed, failed, np.repeat(np.arange(n_strata), n_sources), sources)


def test_intervals_cover_the_truth_as_often_as_they_say():
    rng = np.random.default_rng(11)
    truth = (1 + erf(0.5 / 2**0.5)) / 2
    found = [sep.separate(simulated(rng), resamples=300, seed=i) for i in range(200)]
    covered = np.mean([f["low"] <= truth <= f["high"] for f in found])
    assert 0.90 <= covered <= 0.985  # 0.95 within the error of 200 trials
    assert np.mean([f["auroc"] for f in found]) == pytest.approx(truth, abs=0.01)


def test_no_interval_where_a_kind_comes_from_one_source():
    found = sep.separate(make([3, 1, 2, 0], [1, 0, 0, 0]), resamples=100)
    assert (found["auroc"], found["low"], found["high"], found["n_resamples"]) == (1.0, None, None, 0)


def test_replicates_without_a_pair_are_counted_out():
    found = sep.separate(make([3, 4, 1, 2], [1, 1, 0, 0]), resamples=1000)
    lost = 2 * 0.5**4  # all four draws from one kind
    assert found["n_resamples"] / 1000 == pytest.approx(1 - lost, abs=0.03)
    assert found["low"] is not None


# -- on a ledger -------------------------------------------------------------------------------------------------


def diagnostic_of(name, run, control):
    """A diagnostic by its definition, None where it has no value."""
    if name == "eam_loss":
        sides = (control["eam"], run["eam"])
        return None if None in sides else sides[0] - sides[1]
    value = run[name.removeprefix("1-")]
    return value if value is None or not name.startswith("1-") else 1 - value


def by_hand(found, name, degenerate=False):
    controls = {c["control_id"]: c for c in found["controls"]}
    data = defaultdict(lambda: ([], []))
    for run in found["runs"]:
        value = diagnostic_of(name, run, controls[run["control_id"]])
        if value is None or run["transition"] not in ("C->W", "C->C"):
            continue
        if degenerate or run["degenerate"] is None:
            stratum = tuple(run[k] for k in sep.STRATUM)
            data[stratum][0].append(round(value, 9))  # ties of the diagnostic, not of its rounding
            data[stratum][1].append(run["transition"] == "C->W")
    aurocs, pairs = [], []
    for values, failed in data.values():
        if len(set(failed)) == 2:
            aurocs.append(roc_auc_score(failed, values))
            pairs.append(sum(failed) * (len(failed) - sum(failed)))
    return np.average(aurocs, weights=pairs), len(pairs), sum(pairs), sum(len(f) for _, f in data.values())


def test_every_diagnostic_of_a_ledger(tmp_path):
    """Against plain Python over the rows: direction, values, missing ones, strata."""
    found = separable()
    made.write_made_up(tmp_path, found)
    result = sep.separation(tmp_path, resamples=100)
    names = [d["diagnostic"] for d in result["diagnostics"]]
    assert names == [
        *("1-err", "1-ecov", "delta_nll", "1-gpr", "1-top50_overlap", "kl", "gold_rank_shift", "eam_loss"),
        *("1-ear", "1-prefix_agreement"),
    ]
    for d in result["diagnostics"]:
        auroc, n_strata, n_pairs, n_available = by_hand(found, d["diagnostic"])
        # a - b of rounded numbers ties or not by the last bit, so that one may differ by a tie or two
        assert d["auroc"] == pytest.approx(auroc, abs=2e-3 if d["diagnostic"] == "eam_loss" else 1e-9)
        assert (d["n_strata"], d["n_pairs"], d["n_available"]) == (n_strata, n_pairs, n_available)
        assert d["low"] < d["auroc"] < d["high"]
        assert all(set(sep.STRATUM) < s.keys() for s in d["strata"])
    transitions = Counter(r["transition"] for r in found["runs"])
    assert (result["n_c2w"], result["n_c2c"]) == (transitions["C->W"], transitions["C->C"])
    assert result["n_strata"] == 8


def test_what_is_eligible_and_what_is_missing_is_counted(tmp_path):
    found = separable()
    made.write_made_up(tmp_path, found)
    mine = [r for r in found["runs"] if r["transition"] in ("C->W", "C->C")]
    by_name = {d["diagnostic"]: d for d in sep.separation(tmp_path, resamples=100)["diagnostics"]}
    statuses = Counter(r["kl__status"] for r in mine)
    assert by_name["kl"]["n_eligible"] == len(mine) - statuses["not_applicable"]
    assert {(m["status"], m["reason"]): m["n"] for m in by_name["kl"]["missing"]} == {
        ("not_measured", "lost"): statuses["not_measured"],
        ("not_applicable", "no_sense"): statuses["not_applicable"],
    }
    # The control's failure is worse than whatever the run says.
    broken = {c["control_id"] for c in found["controls"] if c["eam"] is None}
    reasons = {(m["status"], m["reason"]): m["n"] for m in by_name["eam_loss"]["missing"]}
    assert reasons["failed", "control:oom"] == sum(r["control_id"] in broken for r in mine)
    assert all(reason.startswith(("control:", "run:")) for _, reason in reasons)


def test_degenerate_rows_are_kept_apart_and_counted(tmp_path):
    found = separable()
    for run in found["runs"]:
        if run["method"] == "tova":
            run |= {"degenerate": "kept_within_window", "kl": 5.0 + run["correct"]}
            run |= {"kl__status": "available", "kl__reason": None}
    made.write_made_up(tmp_path, found)
    n = sum(r["method"] == "tova" and r["transition"] in ("C->W", "C->C") for r in found["runs"])
    for included in (False, True):
        result = sep.separation(tmp_path, resamples=100, with_degenerate=included)
        kl = next(d for d in result["diagnostics"] if d["diagnostic"] == "kl")
        assert (result["n_degenerate"], result["degenerate_included"]) == (n, included)
        assert result["n_strata"] == (8 if included else 6)
        assert any(s["method"] == "tova" for s in kl["strata"]) is included
        assert kl["auroc"] == pytest.approx(by_hand(found, "kl", included)[0])


def test_a_ledger_with_values_of_failures_only_says_so(tmp_path):
    """As the public artifact: coverage for the C->W rows, none for the others."""
    found = separable()
    for run in found["runs"]:
        run |= gap("ear", reason="not_in_artifact")
        if run["transition"] != "C->W":
            run |= gap("err", reason="not_in_artifact")
    made.write_made_up(tmp_path, found)
    by_name = {d["diagnostic"]: d for d in sep.separation(tmp_path, resamples=100)["diagnostics"]}
    err, ear = by_name["1-err"], by_name["1-ear"]
    assert (err["auroc"], err["reason"], err["n_available_c2c"]) == (None, "no_value_in_c2c", 0)
    assert err["n_available_c2w"] > 0
    assert (ear["auroc"], ear["reason"], ear["n_available"]) == (None, "no_value", 0)
    assert by_name["kl"]["reason"] is None


def test_a_ledger_where_no_answer_turned_wrong(tmp_path):
    made.write_made_up(tmp_path, made.made_up_rows(all_right=True))
    result = sep.separation(tmp_path, resamples=100)
    assert (result["n_c2w"], {d["auroc"] for d in result["diagnostics"]}) == (0, {None})


def test_a_seed_fixes_the_intervals(tmp_path):
    made.write_made_up(tmp_path, separable())
    assert sep.separation(tmp_path, 200, seed=3) == sep.separation(tmp_path, 200, seed=3)
    ends = [[d["low"] for d in sep.separation(tmp_path, 200, seed)["diagnostics"]] for seed in (3, 4)]
    assert ends[0] != ends[1]
