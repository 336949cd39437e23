"""Comparison of two methods: statistics against scipy, the rest against plain Python over the rows."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from kvdiag.analysis import paired
from kvdiag.analysis.cells import Choice
from kvdiag.analysis.compare import DIAGNOSTICS, compare
from kvdiag.errors import UsageError
from tests import rows as made
from tests.random_ledgers import BITS, SNAPKV, knorm_degenerate, number, paired_runs, with_gaps

# -- statistics --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("only_a", "only_b"), [(0, 0), (0, 1), (1, 1), (3, 9), (9, 3), (0, 12), (40, 41), (77, 145), (2100, 2000)]
)
def test_mcnemar_is_scipys_binomial_test(only_a, only_b):
    n = only_a + only_b
    expected = stats.binomtest(only_a, n, 0.5).pvalue if n else 1.0
    assert paired.mcnemar_exact(only_a, only_b) == pytest.approx(expected, rel=1e-9)


def one_group(n):
    return np.zeros(n, dtype=np.int64)


def test_the_interval_of_a_difference_is_scipys():
    rng = np.random.default_rng(0)
    a = rng.random(80)
    b = a + 0.3 * rng.normal(size=80) - 0.1  # correlated: an unpaired bootstrap would be wider
    theirs = stats.bootstrap((a - b,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
    (found,) = paired.differences([(a, b)], one_group(80), resamples=20_000, seed=2)
    assert (found.low, found.high) == pytest.approx(theirs, abs=0.003)
    assert found.difference == pytest.approx(np.mean(a - b))
    assert found.high - found.low > 0.1


def test_a_ratio_varies_with_its_denominator():
    """Where values are missing, a replicate's mean is over what it drew: scipy over pairs, gaps ignored."""
    rng = np.random.default_rng(1)
    a, b = 3 + rng.random(60), rng.random(60)  # far from 0: a fixed denominator would double the width
    a[:15], b[10:25] = np.nan, np.nan

    def mean_gap(a, b, axis):
        return np.nanmean(a - b, axis=axis)

    theirs = stats.bootstrap(
        (a, b), mean_gap, paired=True, n_resamples=20_000, method="percentile", rng=1
    ).confidence_interval
    (found,) = paired.differences([(a, b)], one_group(60), resamples=20_000, seed=2)
    assert (found.low, found.high) == pytest.approx(theirs, abs=0.006)
    assert (found.n, found.a, found.b) == (35, pytest.approx(a[25:].mean()), pytest.approx(b[25:].mean()))


def test_both_sides_are_drawn_together():
    a = np.random.default_rng(3).random(30)
    (found,) = paired.differences([(a, a - 0.25)], one_group(30), resamples=500)
    assert (found.low, found.high) == pytest.approx((0.25, 0.25))


def test_sources_are_drawn_within_their_workload():
    """A difference between workloads is no uncertainty: the mix of workloads stays."""
    gaps = np.repeat([0.0, 1.0], 20)
    groups = np.repeat([0, 1], 20)
    (within,) = paired.differences([(gaps, 0 * gaps)], groups, resamples=500)
    (pooled,) = paired.differences([(gaps, 0 * gaps)], one_group(40), resamples=500)
    assert (within.low, within.high) == (0.5, 0.5)
    assert pooled.high - pooled.low > 0.2


def test_measures_without_a_source_have_no_value():
    nan = np.full(5, np.nan)
    (found,) = paired.differences([(nan, np.ones(5))], one_group(5), resamples=100)
    assert found == paired.Difference(None, None, None, None, None, 0)
    assert paired.differences([(np.zeros(0), np.zeros(0))], one_group(0), resamples=100)[0].n == 0
    (single,) = paired.differences([(np.ones(1), np.zeros(1))], one_group(1), resamples=100)
    assert (single.difference, single.low) == (1.0, None)


def test_jaccard():
    a, b = np.array([1, 1, 0, 0], dtype=bool), np.array([0, 1, 1, 0], dtype=bool)
    assert paired.jaccard(a, b) == 1 / 3
    assert paired.jaccard(a, a) == 1
    assert paired.jaccard(a & ~a, a) == 0
    assert paired.jaccard(a & ~a, a & ~a) is None


# -- on a ledger -------------------------------------------------------------------------------------------------


def matched(found, method_a="snapkv", method_b="knorm"):
    """Pairs of answered runs, by source."""
    sides = [
        {r["source_id"]: r for r in found["runs"] if r["method"] == m and r["status"] == "available"}
        for m in (method_a, method_b)
    ]
    return [(sides[0][s], sides[1][s]) for s in sorted(sides[0].keys() & sides[1].keys())]


def test_only_sources_that_both_answered_count_and_the_rest_is_said(tmp_path):
    pairs = matched(paired_runs(tmp_path, change=with_gaps))
    (result,) = compare(tmp_path, Choice("snapkv", "knorm"), resamples=200)
    assert len(pairs) == 33
    assert result["sources"] == {
        "planned": 40,
        "common": 33,
        "left_out": 7,
        "answered_a": 36,
        "answered_b": 36,
        "missing_a": [
            {"status": "unsupported", "reason": "too_short", "n": 3},
            {"status": "not_planned", "reason": None, "n": 1},
        ],
        "missing_b": [{"status": "failed", "reason": "oom", "n": 4}],
    }
    for name, key in (("score", "score"), ("accuracy", "correct")):
        a, b = (np.mean([pair[side][key] for pair in pairs]) for side in (0, 1))
        assert (result[name]["a"], result[name]["b"], result[name]["n"]) == (
            *(pytest.approx(a), pytest.approx(b)),
            33,
        )
        assert result[name]["difference"] == pytest.approx(a - b)
        assert result[name]["low"] < a - b < result[name]["high"]


def test_failures_are_counted_among_right_controls(tmp_path):
    pairs = matched(paired_runs(tmp_path, change=with_gaps))
    (result,) = compare(tmp_path, Choice("snapkv", "knorm"), resamples=200)
    right = [(a, b) for a, b in pairs if a["transition"][0] == "C"]
    assert 0 < len(right) < len(pairs)
    kinds = {"only_a": [], "only_b": [], "both": []}
    for a, b in right:
        fails = (a["transition"] == "C->W", b["transition"] == "C->W")
        if any(fails):
            kinds[{(True, False): "only_a", (False, True): "only_b", (True, True): "both"}[fails]].append(a)
    failures = result["failures"]
    assert failures["n_control_right"] == result["c2w_rate"]["n"] == len(right)
    assert failures["source_ids"] == {k: [r["source_id"] for r in v] for k, v in kinds.items()}
    assert all(kinds.values())
    n = {k: len(v) for k, v in kinds.items()}
    assert {k: failures[k] for k in kinds} == n
    assert failures["jaccard"] == n["both"] / sum(n.values())
    assert result["c2w_rate"]["a"] == pytest.approx((n["only_a"] + n["both"]) / len(right))
    assert result["c2w_rate"]["difference"] == pytest.approx((n["only_a"] - n["only_b"]) / len(right))
    for task in failures["by_task"]:
        key = (task["workload"], task["task"])
        assert task["n_control_right"] == sum((a["workload"], a["task"]) == key for a, _ in right)
        for kind, there in kinds.items():
            assert task[kind] == Counter((r["workload"], r["task"]) for r in there)[key]
    assert len(failures["by_task"]) == 4


def test_mcnemar_is_over_all_common_sources(tmp_path):
    pairs = matched(paired_runs(tmp_path))
    (result,) = compare(tmp_path, Choice("snapkv", "knorm"), resamples=200)
    only = [
        sum(x["correct"] and not y["correct"] for x, y in pairs) for pairs in (pairs, [p[::-1] for p in pairs])
    ]
    assert result["mcnemar"] == {
        "n": 40,
        "only_a_right": only[0],
        "only_b_right": only[1],
        "p": pytest.approx(stats.binomtest(only[0], sum(only), 0.5).pvalue),
    }


def test_means_over_shared_failures_count_their_values(tmp_path):
    def some_missing(run):
        if run["method"] == "knorm":
            run |= {"err": None, "err__status": "not_applicable", "err__reason": "structural_position"}
        if number(run) % 3 == 0:
            run |= {"ear": None, "ear__status": "not_measured", "ear__reason": "lost"}
        return run

    pairs = matched(paired_runs(tmp_path, change=some_missing))
    both = [pair for pair in pairs if all(r["transition"] == "C->W" for r in pair)]
    (result,) = compare(tmp_path, Choice("snapkv", "knorm"), resamples=200)
    shared = {d["diagnostic"]: d for d in result["failures"]["shared"]}
    assert list(shared) == list(DIAGNOSTICS)
    for name, d in shared.items():
        assert d["n_sources"] == len(both) > 3
        for side, runs in zip("ab", zip(*both, strict=True), strict=True):
            values = [r[name] for r in runs if r[name] is not None]
            assert d[f"n_{side}"] == len(values)
            assert d[side] == (pytest.approx(np.mean(values)) if values else None)
    assert (shared["err"]["b"], shared["err"]["n_b"]) == (None, 0)
    assert 0 < shared["ear"]["n_a"] < len(both)


def test_swapping_the_methods_mirrors_everything(tmp_path):
    paired_runs(tmp_path, change=with_gaps)
    (one,) = compare(tmp_path, Choice("snapkv", "knorm"), resamples=200)
    (two,) = compare(tmp_path, Choice("knorm", "snapkv"), resamples=200)
    for name in ("score", "accuracy", "c2w_rate"):
        assert (one[name]["a"], one[name]["difference"]) == (two[name]["b"], -two[name]["difference"])
        assert (one[name]["low"], one[name]["high"]) == pytest.approx((-two[name]["high"], -two[name]["low"]))
    assert one["failures"]["source_ids"]["only_a"] == two["failures"]["source_ids"]["only_b"]
    assert one["mcnemar"]["p"] == two["mcnemar"]["p"]


def test_degenerate_runs_are_said(tmp_path):
    paired_runs(tmp_path, change=knorm_degenerate)
    (result,) = compare(tmp_path, Choice("snapkv", "knorm"), resamples=200)
    assert (result["a"]["degenerate"], result["b"]["degenerate"]) == ({}, {"kept_within_window": 40})


# -- which cells -------------------------------------------------------------------------------------------------

MANY = [
    *((m, s, p) for m in ("snapkv", "knorm") for s in ("keep=0.5", "keep=0.25") for p in made.keys.PROTOCOLS),
    BITS,
]


def cells_of(results):
    return [(r["a"]["cell_id"], r["b"]["cell_id"]) for r in results]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    paired_runs(folder, MANY, n=4)
    return folder


def test_every_setting_and_protocol_that_both_have_is_compared_by_itself(many):
    assert cells_of(compare(many, Choice("snapkv", "knorm"), 100)) == [
        ("snapkv/keep=0.5/agnostic", "knorm/keep=0.5/agnostic"),
        ("snapkv/keep=0.25/agnostic", "knorm/keep=0.25/agnostic"),
        ("snapkv/keep=0.5/aware", "knorm/keep=0.5/aware"),
        ("snapkv/keep=0.25/aware", "knorm/keep=0.25/aware"),
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (("snapkv", "knorm", "keep=0.50"), ("snapkv/keep=0.5/agnostic", "knorm/keep=0.5/agnostic")),
        (("snapkv", "knorm", "keep=0.5", "keep=0.25"), ("snapkv/keep=0.5/agnostic", "knorm/keep=0.25/agnostic")),
        (("snapkv", "snapkv", "keep=0.5", "keep=0.25"), ("snapkv/keep=0.5/agnostic", "snapkv/keep=0.25/agnostic")),
        (
            ("snapkv", "quantized_hqq", "keep=0.5", "bits=4"),
            ("snapkv/keep=0.5/agnostic", "quantized_hqq/bits=4/agnostic"),
        ),
    ],
)
def test_named_settings(many, choice, expected):
    found = compare(many, Choice(*choice, protocols=("query_agnostic",)), 100)
    assert cells_of(found) == [expected]


def test_settings_of_different_kinds_pair_by_the_label_they_had(tmp_path):
    paired_runs(tmp_path, (SNAPKV, BITS), n=4, change=lambda r: r | {"origin_label": "50%"})
    found = compare(tmp_path, Choice("snapkv", "quantized_hqq"), 100)
    assert cells_of(found) == [("snapkv/keep=0.5/agnostic", "quantized_hqq/bits=4/agnostic")]


def test_a_workload_alone(tmp_path):
    paired_runs(tmp_path)
    (result,) = compare(tmp_path, Choice("snapkv", "knorm", workload="ruler_2k"), resamples=100)
    assert result["sources"]["planned"] == 20
    assert {t["workload"] for t in result["failures"]["by_task"]} == {"ruler_2k"}


def test_models_are_never_pooled(tmp_path):
    def another_model(run):
        return run | ({"model": "other", "run_id": run["run_id"] + "2"} if number(run) % 2 else {})

    paired_runs(tmp_path, change=another_model)
    found = compare(tmp_path, Choice("snapkv", "knorm"), resamples=100)
    assert [(r["model"], r["sources"]["planned"]) for r in found] == [(made.MODEL, 20), ("other", 20)]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice("snapvk", "knorm"), "snapvk: no such method; did you mean snapkv"),
        (Choice("snapkv", "tova"), "tova: no runs of it for this ledger, which has knorm, quantized_hqq, snapkv"),
        (
            Choice("snapkv", "knorm", "keep=0.3"),
            "--setting keep=0.3: no runs of snapkv with it; this ledger has keep",
        ),
        (Choice("snapkv", "knorm", "keep=0.5", "bits=4"), "--setting-b bits=4: no runs of knorm with it"),
        (Choice("snapkv", "knorm", "half"), "--setting half: no runs"),
        (Choice("snapkv", "knorm", None, "keep=0.5"), "--setting-b needs --setting"),
        (Choice("snapkv", "snapkv"), "name two settings with --setting and --setting-b; this ledger has keep=0.5"),
        (Choice("snapkv", "snapkv", "keep=0.5", "keep=0.5"), "snapkv with itself"),
        (Choice("snapkv", "quantized_hqq"), "quantized_hqq has bits=4: none alike; name two"),
        (
            Choice("snapkv", "quantized_hqq", "keep=0.5", "bits=4", ("query_aware",)),
            "--protocol aware: no runs of quantized_hqq; this ledger has agnostic",
        ),
        (Choice("snapkv", "knorm", workload="ruler_3k"), "--workload ruler_3k: not in this ledger; did you mean"),
    ],
)
def test_a_wrong_name_is_one_line_that_says_what_there_is(many, choice, said):
    with pytest.raises(UsageError) as error:
        compare(many, choice, resamples=100)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_no_source_in_common_is_an_error(tmp_path):
    def apart(run):
        if (run["method"] == "knorm") == (number(run) < 10):
            return made.without_answer(run, "failed", "oom")
        return run

    paired_runs(tmp_path, n=20, change=apart)
    with pytest.raises(UsageError) as error:
        compare(tmp_path, Choice("snapkv", "knorm"), resamples=100)
    assert "no answered sources in common" in str(error.value)
    assert "snapkv/keep=0.5/agnostic answered 10, knorm/keep=0.5/agnostic 10 of 20" in str(error.value)
