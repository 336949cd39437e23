"""`kvdiag audit protocol` and `kvdiag audit coverage`: what is printed, and what a program reads."""

import json

import pytest

from kvdiag.analysis.audit.coverage import coverage
from kvdiag.analysis.audit.desk import Options
from kvdiag.analysis.audit.protocol import audit
from tests.audit_ledgers import CHANCES, audited, number
from tests.command import kvdiag
from tests.rows import without_answer

QUICK = ("--resamples", 500)
NINE = CHANCES | {
    "h2o": (0.5, 0.6),
    "tova": (0.4, 0.7),
    "expected_attention": (0.5, 0.6),
    "adakv_snapkv": (0.4, 0.8),
}
SETTINGS = ("keep=0.75", "keep=0.5", "keep=0.25", "keep=0.1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    audited(folder, NINE, n=30, settings=SETTINGS)
    return folder


@pytest.fixture(scope="module")
def holed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("holed")

    def oom(run):
        hit = run["method"] == "snapkv" and run["protocol"] == "query_aware" and number(run) < 3
        return without_answer(run, "failed", "oom") if hit else run

    audited(folder, n=30, settings=("keep=0.5",), change=oom)
    return folder


def no_nan(constant):
    raise ValueError(constant)


def plain(found):
    return json.loads(json.dumps(found))


def test_json_is_what_the_library_says(whole):
    result = kvdiag("audit", "protocol", "--data", whole, "--json", "--seed", 2, "--interval", "bca", *QUICK)
    assert (result.code, result.err) == (0, "")
    said = json.loads(result.out, parse_constant=no_nan)
    assert said == plain(audit(whole, Options(resamples=500, seed=2, interval="bca")))
    result = kvdiag("audit", "coverage", "--data", whole, "--json")
    assert json.loads(result.out, parse_constant=no_nan) == plain(coverage(whole))


def line_of(out, *starts):
    (line,) = [line.split() for line in out.splitlines() if line.split()[: len(starts)] == list(starts)]
    return line


def test_the_text_shows_numbers_with_what_they_rest_on(whole):
    result = kvdiag("audit", "protocol", "--data", whole, *QUICK)
    assert (result.code, result.err) == (0, "")
    found = audit(whole, Options(resamples=500))
    d = next(d for d in found["delta"] if (d["method"], d["setting"]) == ("snapkv", "keep=0.25"))
    assert line_of(result.out, "snapkv", "75%") == [
        *("snapkv", "75%", f"{d['agnostic']:.3f}", f"{d['aware']:.3f}", f"{d['delta']:+.3f}"),
        *(f"{d['low']:+.3f}", "to", f"{d['high']:+.3f}", "30/30", "complete"),
    ]
    wins = next(
        m for m in found["wins"]["methods"] if (m["method"], m["protocol"]) == ("keydiff", "query_agnostic")
    )
    counts = [str(wins[n]) for n in ("n_tie", "n_loss", "n_sure_win", "n_sure_loss")]
    assert f"{wins['n_win']} of 16" in result.out
    row = ["keydiff", "agnostic", str(wins["n_win"]), "of", "16", *counts, "complete"]
    assert row in [line.split() for line in result.out.splitlines()]
    for said in (
        "30 sources, made-up; full cache 1.000 (30/30)",
        "planned matrix: complete",
        "intervals: 95% percentile, 500 draws of sources within 4 strata (workload x task group), seed 0",
        "(96 agnostic, 96 aware)",
        "ordinal evidence over 6 methods, not a law; complete",
        f"tau-b = {found['ranks']['tau_b']:+.3f}, two-sided p = {found['ranks']['p']:.3g} (exact, 60 orders)",
        "the best baseline is chosen on the same scores",
        "(high: window)",
    ):
        assert said in " ".join(result.out.split()), said


def test_text_fits_a_screen(whole, holed):
    for folder in (whole, holed):
        for args in (("protocol", "--cells", "--allow-incomplete", *QUICK), ("coverage",)):
            out = kvdiag("audit", *args, "--data", folder).out
            assert out
            assert [line for line in out.splitlines() if len(line) > 100] == []


def test_cells_are_listed_on_request(whole):
    out = kvdiag("audit", "protocol", "--data", whole, "--cells", "--by", "task", *QUICK).out
    cell = next(
        c for c in audit(whole, Options(resamples=500, by="task"))["wins"]["cells"] if c["method"] == "tova"
    )
    assert "tova, agnostic" in out.splitlines()
    shown = [
        cell["setting"],
        cell["group"],
        f"{cell['score']:.3f}",
        cell["best_baseline"],
        f"{cell['difference']:+.3f}",
    ]
    assert any(line.split()[:5] == shown and f" {cell['outcome']} " in line for line in out.splitlines())


def test_unequal_sources_are_refused_in_one_line(holed):
    result = kvdiag("audit", "protocol", "--data", holed, *QUICK)
    assert result.is_one_line_error(3), result
    assert "snapkv/keep=0.5/aware 27, snapkv/keep=0.5/agnostic 30" in result.err
    assert "incomplete: 3 of 30 sources missing (oom 3)" in result.err


def test_allowed_what_is_missing_is_printed(holed):
    result = kvdiag("audit", "protocol", "--data", holed, "--allow-incomplete", *QUICK)
    assert result.code == 0
    assert line_of(result.out, "snapkv", "50%")[-2:] == ["27/30", "incomplete"]
    for said in (
        "planned matrix: incomplete: 3 of 300 runs missing, in 1 of 10 cells (oom 3)",
        "UNEQUAL SOURCES in 3 comparisons; only common ones are compared:",
        "  snapkv/keep=0.5/aware 27, snapkv/keep=0.5/agnostic 30: 27 in common (made-up)",
        "  snapkv 50%: incomplete: 3 of 30 sources missing (oom 3)",
        "  snapkv aware: incomplete: 3 of 30 sources missing (oom 3)",
    ):
        assert said in result.out.splitlines(), said
    assert json.loads(
        kvdiag("audit", "protocol", "--data", holed, "--allow-incomplete", "--json", *QUICK).out
    ) == plain(audit(holed, Options(resamples=500, allow_incomplete=True)))


def test_coverage_names_every_hole(holed):
    result = kvdiag("audit", "coverage", "--data", holed)
    assert result.code == 0
    lines = [line.split() for line in result.out.splitlines()]
    for task in ("niah_single_1", "niah_multiquery", "vt"):
        assert ["snapkv", "keep=0.5", "aware", "ruler_1k", task, "failed", "oom", "1"] in lines
    assert "holes: 3" in result.out.splitlines()
    assert result.out.splitlines()[-1] == "incomplete: 3 of 300 runs missing, in 1 of 10 cells (oom 3)"
    assert "controls: 30/30 have a score" in result.out


def test_what_is_lacking_is_said(tmp_path):
    audited(tmp_path, {"snapkv": (0.3, 0.8), "keydiff": (0.7, 0.7)}, n=1)
    out = kvdiag("audit", "protocol", "--data", tmp_path, *QUICK).out
    assert "not in this ledger: random, knorm, streaming_llm" in out
    assert "no method has a baseline at its setting" in out
    assert "no interval: a single source" in out
    assert "1 strata hold one source" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("protocol", "--interval", "basic"), "--interval basic: must be percentile or bca"),
        (("protocol", "--by", "length"), "--by length: must be group or task"),
        (("protocol", "--workload", "ruler_9k"), "--workload ruler_9k: not in this ledger"),
        (("coverage", "--workload", "ruler_9k"), "--workload ruler_9k: not in this ledger"),
        (("protocol", "--resamples", "10"), "--resamples"),
        (("rank",), "rank"),
    ],
)
def test_a_mistake_is_one_line(whole, args, said):
    result = kvdiag("audit", *args, "--data", whole)
    assert result.is_one_line_error(2), result
    assert said in result.err


def test_one_protocol_only_is_one_line(tmp_path):
    audited(tmp_path, n=3, protocols=("query_aware",))
    result = kvdiag("audit", "protocol", "--data", tmp_path)
    assert result.is_one_line_error(2), result
    assert "this ledger has query_aware only, an audit needs query_agnostic too" in result.err
