"""The repair trial on a ledger, and its verdict."""

import shutil

import pytest
from scipy.stats import binomtest

from kvdiag.analysis.repairs import Share, verdicts
from kvdiag.engine.repair import Trial, repair, select
from kvdiag.errors import DataError, RefusedError
from kvdiag.query.connection import connect, rows
from kvdiag.validation.validate import validate
from tests.command import kvdiag

LOOSE = Trial(biases=(2.0,), draws=2, limit=3, ear_below=1e9, ecov_at_least=0.0)


@pytest.fixture
def ledger(built_ledger, tmp_path):
    shutil.copytree(built_ledger, tmp_path / "ledger")
    return tmp_path / "ledger"


def test_rows_of_a_trial(ledger):
    done = repair(ledger, LOOSE)
    targets = {r["run_id"] for r in done if r["kind"] == "target"}
    assert len(targets) == 3
    for run_id in targets:
        arms = [(r["arm"], r["bias"], r["draw"]) for r in done if r["run_id"] == run_id]
        assert arms == [("none", 0.0, 0), ("evidence", 2.0, 0), ("sham", 2.0, 0), ("sham", 2.0, 1)]
    outputs = {r["run_id"]: r["output"] for r in rows(connect(ledger), "SELECT run_id, output FROM runs")}
    for row in done:
        if row["arm"] == "none":
            assert row["output"] == outputs[row["run_id"]], "a run without a bias is the ledger's run again"
        else:
            assert row["n_positions"] > 0
    raised = {r["run_id"]: r["ear"] for r in done if r["arm"] == "evidence"}
    for row in done:
        if row["arm"] == "none" and row["kind"] == "target":
            assert raised[row["run_id"]] > row["ear"], "a bias on the evidence raises attention on it"
    assert validate(ledger) == []
    stored = rows(connect(ledger), "SELECT count(*) AS n FROM repairs")
    assert stored == [{"n": len(done)}]
    with pytest.raises(RefusedError, match="--replace"):
        repair(ledger, LOOSE)


def test_the_command(ledger):
    outcome = kvdiag(
        *("repair", "--data", ledger, "--bias", "2", "--draws", "1", "--limit", "1"),
        *("--ear-below", "1e9", "--ecov-at-least", "0"),
    )
    assert outcome.code == 0
    assert "failures that fail again: 1/1" in outcome.out
    assert "bias 2: repaired" in outcome.out
    for wrong in (("--bias", "a"), ("--layers", "9-3"), ("--layers", "x")):
        assert kvdiag("repair", "--data", ledger, "--replace", *wrong).is_one_line_error(2)


def test_nothing_to_repair_is_said(ledger):
    with pytest.raises(DataError, match="no failure has ear below"):
        select(ledger, Trial(ear_below=-1.0))


def row(run, kind, arm, correct, bias=0.0, draw=0):
    return {
        "run_id": run,
        "kind": kind,
        "arm": arm,
        "bias": bias,
        "draw": draw,
        "correct": correct,
        "status": "available",
    }


def test_verdicts_count_what_is_reproducible():
    rows_ = [
        row("a", "target", "none", False),
        row("a", "target", "evidence", True, 1.0),
        row("a", "target", "sham", False, 1.0),
        row("a", "target", "sham", True, 1.0, 1),
        row("b", "target", "none", True),  # did not fail again: counts nowhere
        row("b", "target", "evidence", True, 1.0),
        row("s", "success", "none", True),
        row("s", "success", "evidence", False, 1.0),
    ]
    counts, (verdict,) = verdicts(rows_)
    assert (counts["target"], counts["success"]) == (Share(1, 2), Share(1, 1))
    assert (verdict.repaired, verdict.sham, verdict.harmed) == (Share(1, 1), Share(1, 2), Share(1, 1))


@pytest.mark.parametrize(("k", "n"), [(0, 5), (3, 7), (28, 96), (96, 96)])
def test_intervals_are_exact(k, n):
    want = binomtest(k, n).proportion_ci(method="exact")
    assert Share(k, n).interval == pytest.approx((want.low, want.high))
    assert Share(0, 0).interval is None
