"""The numbers behind a report against the functions and views that they restate."""

import pytest

from kvdiag.analysis.cells import Choice
from kvdiag.analysis.compare import compare
from kvdiag.analysis.report import tables
from kvdiag.query.connection import connect, rows
from tests import random_ledgers as random
from tests import rows as made


@pytest.fixture(scope="module")
def connection(ledger):
    return connect(ledger)


def test_rates_are_those_of_the_view(made_report, connection):
    data, _, _ = made_report
    names = ("workload", "method", "setting", "protocol", "n_runs", "n_answered", "n_eligible", "n_c2w")
    view = {
        tuple(r[n] for n in names): (r["c2w_rate"], r["c2w_low"], r["c2w_high"])
        for r in rows(connection, "FROM failure_rates")
    }
    assert {tuple(r[n] for n in names): (r["rate"], r["low"], r["high"]) for r in data.rates} == view
    assert len(view) == 16 and any(r["n_answered"] < r["n_runs"] for r in data.rates)


def test_bytes_are_means_over_runs_that_have_them(made_report, connection):
    sql = (
        "SELECT avg(kv_bytes / kv_bytes_full) AS share, count(kv_bytes) AS n FROM runs "
        "WHERE method = 'snapkv' AND setting = 'keep=0.25' AND protocol = 'query_aware' AND workload = 'ruler_2k'"
    )
    (expected,) = rows(connection, sql)
    (found,) = [
        r
        for r in made_report[0].rates
        if (r["method"], r["setting"], r["protocol"], r["workload"])
        == ("snapkv", "keep=0.25", "query_aware", "ruler_2k")
    ]
    assert found["bytes_share"] == pytest.approx(expected["share"]) and found["n_bytes"] == expected["n"] == 29
    assert all(
        r["bytes_share"] is None and not r["n_bytes"] for r in made_report[0].rates if r["method"] == "knorm"
    )


def test_overlap_is_that_of_compare(made_report, ledger):
    choice = Choice("knorm", "snapkv", "keep=0.5", protocols=("query_aware",))
    (expected,) = compare(ledger, choice, resamples=100)
    (found,) = [r for r in made_report[0].overlap if r["protocol"] == "query_aware"]
    failures = expected["failures"]
    assert found["jaccard"] == failures["jaccard"]
    assert found["n_both"] == failures["both"] and found["n_sources"] == expected["sources"]["common"]
    assert found["n_union"] == failures["only_a"] + failures["only_b"] + failures["both"]


def test_shares_are_those_of_the_view(made_report, connection):
    pooled = {r["workload"]: r for r in tables.shares(made_report[0].signatures, ("workload",))}
    view = rows(connection, "FROM signature_shares WHERE NOT is_degenerate")
    assert len(view) > 4
    for row in view:
        own = pooled[row["workload"]]
        assert own["n"] == row["n_total"] and own["counts"][row["signature"]] == row["n_c2w"]


def test_degenerate_rows_stay_out_of_shares():
    row = {"workload": "w", "signature": "ambiguous", "n_c2w": 3, "is_degenerate": False}
    found = tables.shares([row, row | {"n_c2w": 50, "is_degenerate": True}], ("workload",))
    assert found == [{"workload": "w", "counts": {"ambiguous": 3}, "n": 3}]


def test_models_are_never_pooled(tmp_path):
    found = made.made_up_rows()
    for table in ("controls", "runs"):
        twins = [r | {"model": "other"} for r in found[table]]
        for row in twins:
            row |= {k: row[k].replace(made.MODEL, "other") for k in ("control_id", "run_id") if k in row}
        found[table] += twins
    made.write_made_up(tmp_path, found)
    data = tables.gather(tmp_path, 100, 0)
    assert data.models == [made.MODEL, "other"]
    assert {(r["model"], r["n_runs"]) for r in data.rates} == {(made.MODEL, 3), ("other", 3)}
    assert {r["n_sources"] for r in data.overlap} == {3, 2}
    assert [w["n_sources"] for w in data.workloads] == [3]


def test_settings_stand_from_mild_to_strong():
    settings = ["keep=0.25", "bits=2", "keep=0.75", "bits=8", "keep=0.5"]
    assert sorted(settings, key=tables.by_strength) == ["bits=8", "bits=2", "keep=0.75", "keep=0.5", "keep=0.25"]
    assert sorted(["25%", "75%", "50%"], key=tables.by_strength) == ["75%", "50%", "25%"]


def test_a_cell_degenerate_in_one_workload_is_no_finding_in_any(tmp_path):
    def label(run):
        return random.knorm_degenerate(run) if run["workload"] == "ruler_1k" else run | {"output": run["run_id"]}

    random.paired_runs(tmp_path, change=label)
    found = tables.rates(connect(tmp_path))
    why = {(r["method"], r["workload"]): r["no_finding"] for r in found}
    assert why["knorm", "ruler_1k"] == why["knorm", "ruler_2k"] != why["snapkv", "ruler_2k"]
    assert why["knorm", "ruler_2k"].startswith("labelled kept_within_window")
