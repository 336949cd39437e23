"""`kvdiag analyze separation`: what is printed, and what a program reads."""

import json

import pytest

from kvdiag.analysis.separation import separation
from tests import rows
from tests.command import kvdiag
from tests.random_ledgers import gap, separable


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    found = separable()
    for run in found["runs"]:
        run |= gap("ear", reason="not_in_artifact")
        if run["transition"] != "C->W":
            run |= gap("err", reason="not_in_artifact")
        if run["method"] == "tova":
            run["degenerate"] = "kept_within_window"
    folder = tmp_path_factory.mktemp("separation")
    rows.write_made_up(folder, found)
    return folder


def test_json_is_what_the_library_says(ledger):
    result = kvdiag("analyze", "separation", "--data", ledger, "--json", "--seed", 3, "--resamples", 200)
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == separation(ledger, 200, 3)


def test_the_table_shows_numbers_with_what_they_rest_on(ledger):
    out = kvdiag("analyze", "separation", "--data", ledger, "--resamples", 200).out
    found = separation(ledger, 200)
    assert f"{found['n_c2w']} C->W and {found['n_c2c']} C->C rows in 6 strata" in out
    assert f"{found['n_degenerate']} rows labelled degenerate are left out" in out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    for d in found["diagnostics"]:
        if d["auroc"] is None:
            continue
        counts = (f"{d['n_strata']}/6", *(str(d[n]) for n in ("n_pairs", "n_c2w", "n_c2c", "n_sources")))
        interval = (f"{d['low']:.3f}", "to", f"{d['high']:.3f}")
        available = f"{d['n_available']}/{d['n_eligible']}"
        assert lines[d["diagnostic"]] == [
            *(d["diagnostic"], f"{d['auroc']:.3f}", *interval, *counts, available),
        ]


def test_a_diagnostic_without_an_auroc_says_why(ledger):
    out = kvdiag("analyze", "separation", "--data", ledger, "--resamples", 200).out
    err = next(line for line in out.splitlines() if line.startswith("1-err: "))
    assert " C->W and 0 C->C rows have a value, and no stratum has both kinds" in err
    assert "not_measured (not_in_artifact)" in err
    assert "1-ear: no AUROC: no row has a value; without a value: " in out


def test_degenerate_rows_can_be_included(ledger):
    args = ("analyze", "separation", "--data", ledger, "--resamples", 200)
    out = kvdiag(*args, "--with-degenerate").out
    assert "in 8 strata" in out
    assert "rows labelled degenerate are included" in out


def test_few_rows_make_no_interval(tmp_path):
    rows.write_made_up(tmp_path, rows.made_up_rows(3))
    out = kvdiag("analyze", "separation", "--data", tmp_path).out
    assert "no row is labelled degenerate" in out
    assert "no interval: each kind must come from two sources at least" in out


@pytest.mark.parametrize("args", [("--resamples", "1"), ("--seed", "-1"), ("--resamples", "many")])
def test_a_wrong_value_is_one_line(made_up, args):
    assert kvdiag("analyze", "separation", "--data", made_up, *args).is_one_line_error(2)
