"""Every catalogued method passes the suite, and every planted fault is caught."""

import dataclasses
import json

import pytest

from kvdiag.conformance import checks, suite
from kvdiag.errors import UsageError
from kvdiag.methods import catalogue
from tests.command import kvdiag

BAD = "tests.conformance.bad_methods"


@pytest.mark.parametrize("method", [m.id for m in catalogue.runnable()])
def test_verified_methods_pass(method):
    """The equivalence check is the proof; the others guard what it cannot see."""
    report = suite.verify(method)
    assert report.passed, [o for o in report.outcomes if not o.passed]
    assert catalogue.get(method).state == "verified"


def test_verified_is_only_what_the_suite_has_passed():
    assert {m.id for m in catalogue.methods().values() if m.state == "verified"} == set(catalogue.verifications())
    assert len(catalogue.verifications()) >= 20
    assert len(catalogue.methods()) >= 25
    assert {m.family for m in catalogue.methods().values()} == set(catalogue.FAMILIES)
    for method in catalogue.methods().values():
        assert method.query_visibility in catalogue.VISIBILITY
        assert (method.state_reason is None) == (method.state != "catalogued")


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("RenamedSnapKV", "is_itself"),
        ("WritesInPlace", "equivalence"),
        ("KeepsTooMuch", "budget"),
        ("RemembersOnTheModule", "leaves_no_trace"),
        ("Unseeded", "stable"),
    ],
)
def test_planted_faults_are_caught(fault, check):
    report = suite.verify(f"{BAD}:{fault}")
    failed = {o.check for o in report.outcomes if not o.passed}
    assert check in failed, report.outcomes


def test_an_honest_foreign_press_passes():
    report = suite.verify(f"{BAD}:HonestPress")
    assert report.passed, [o for o in report.outcomes if not o.passed]


def test_quantized_cache_quantizes_its_history_again(tmp_path):
    """A short residual length makes decoding cross it several times; the real cache must still agree."""
    method = dataclasses.replace(
        catalogue.get("quantized_hqq"), defaults={"q_group_size": 64, "residual_length": 6}
    )
    outcome = checks.equivalence(checks.Subject(method, tmp_path))
    assert outcome.passed, outcome


def test_report_of_the_command(tmp_path):
    good = kvdiag("methods", "verify", "tova", "--json")
    assert good.code == 0
    report = json.loads(good.out)["reports"][0]
    assert report["digest"] == catalogue.verifications()["tova"]["digest"]
    bad = kvdiag("methods", "verify", f"{BAD}:RenamedSnapKV")
    assert bad.code == 1
    assert "is_itself" in bad.out
    assert "snapkv" in bad.out
    assert kvdiag("methods", "verify", "snapvk").is_one_line_error(2)
    assert kvdiag("methods", "verify", "no.such:Press").is_one_line_error(2)
    assert kvdiag("methods", "verify", str(tmp_path / "none.py:Press")).is_one_line_error(2)


def test_foreign_classes_that_are_no_methods():
    with pytest.raises(UsageError, match="neither a kvpress press"):
        suite.verify("json:JSONDecoder")
