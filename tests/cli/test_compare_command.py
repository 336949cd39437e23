"""`kvdiag compare`: what is printed, and what a program reads."""

import json

import pytest

from kvdiag.analysis.cells import Choice
from kvdiag.analysis.compare import compare
from tests.command import kvdiag
from tests.random_ledgers import knorm_degenerate, paired_runs, with_gaps


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    paired_runs(folder, change=with_gaps)
    return folder


def test_json_is_what_the_library_says(ledger):
    result = kvdiag("compare", "snapkv", "knorm", "--data", ledger, "--json", "--seed", 2, "--resamples", 300)
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == compare(ledger, Choice("snapkv", "knorm"), 300, 2)


def test_the_text_shows_numbers_with_what_they_rest_on(ledger):
    out = kvdiag("compare", "snapkv", "knorm", "--setting", "keep=0.5", "--data", ledger).out
    (found,) = compare(ledger, Choice("snapkv", "knorm"))
    assert "snapkv/keep=0.5/agnostic against knorm/keep=0.5/agnostic (made-up)" in out
    assert "sources: 33/40 answered by both, 7 left out" in out
    assert "first: 3 unsupported (too_short), 1 not_planned\n" in out
    assert "second: 4 failed (oom)\n" in out
    score, failures = found["score"], found["failures"]
    (line,) = [line.split() for line in out.splitlines() if line.startswith("score ")]
    assert line == [
        *("score", f"{score['a']:.3f}", f"{score['b']:.3f}", f"{score['difference']:+.3f}"),
        *(f"{score['low']:+.3f}", "to", f"{score['high']:+.3f}", "33"),
    ]
    assert f"McNemar exact p = {found['mcnemar']['p']:.3g}" in out
    assert f"of {failures['n_control_right']} whose control is right: first alone {failures['only_a']}" in out
    assert f"Jaccard {failures['jaccard']:.3f} ({failures['both']}/" in out
    (ecov,) = [d for d in failures["shared"] if d["diagnostic"] == "ecov"]
    assert f"{ecov['a']:.3f} ({ecov['n_a']})  {ecov['b']:.3f} ({ecov['n_b']})" in out


def test_degenerate_runs_are_no_finding(tmp_path):
    paired_runs(tmp_path, change=knorm_degenerate)
    out = kvdiag("compare", "snapkv", "knorm", "--data", tmp_path, "--resamples", 100).out
    assert "second is labelled degenerate, no finding: kept_within_window in 40 of its runs" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("snapvk", "knorm"), "did you mean snapkv"),
        (("snapkv", "tova"), "tova: no runs of it"),
        (("snapkv", "knorm", "--protocol", "awear"), "--protocol awear: must be agnostic, aware or both"),
        (("snapkv", "knorm", "--setting", "keep=0.1"), "--setting keep=0.1"),
        (("snapkv",), "METHOD"),
    ],
)
def test_a_mistake_is_one_line(ledger, args, said):
    result = kvdiag("compare", *args, "--data", ledger)
    assert result.is_one_line_error(2), result
    assert said in result.err
