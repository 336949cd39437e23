"""`kvdiag evaluate`, `methods new`, `submit` and `merge`, from the flags to the files, on a tiny model."""

import json
import os
import signal

import pytest

from kvdiag.conformance import checks, suite
from kvdiag.engine import against
from kvdiag.ledger import faults
from kvdiag.query.connection import connect, rows
from kvdiag.validation.validate import validate
from tests.command import kvdiag
from tests.faults.harness import At, disk_full

PRESS = '''
from dataclasses import dataclass
from kvpress import ScorerPress

@dataclass
class LongKeys(ScorerPress):
    """Keeps the longest keys."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return keys.float().norm(dim=-1)
'''
FAULTS = {
    "crash": "raise KeyError('planted')",
    "nan": "return keys * float('nan'), values",
    "shapes": "return keys[..., ::2], values",
    "eager": "return keys * attentions.sum(), values",
}
FAULTY = """
from kvpress import BasePress

class Faulty(BasePress):
    compression_ratio = 0.5
    seen = 0

    def __init__(self, compression_ratio=0.5):
        self.compression_ratio = compression_ratio

    def post_init_from_model(self, model):
        Faulty.seen += 1
        self.number = Faulty.seen

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        if self.number < {first}:
            n = keys.shape[2] // 2
            return keys[:, :, :n].contiguous(), values[:, :, :n].contiguous()
        {fault}
"""


@pytest.fixture
def few_checks(monkeypatch):
    """The suite by one quick check; tests/conformance runs it whole."""
    monkeypatch.setattr(suite, "CHECKS", (checks.head_layouts,))


def press(folder, text=PRESS):
    path = folder / "my_press.py"
    path.write_text(text)
    return path


def evaluate(path, name, ledger, out, *more):
    cell = ("--setting", "keep=0.5", "--protocol", "agnostic")
    return kvdiag("evaluate", "--method", f"{path}:{name}", "--data", ledger, "--out", out, *cell, *more)


def ask(ledger, sql):
    return rows(connect(ledger), sql)


def test_a_press_file_to_a_verdict(few_checks, built_ledger, tmp_path):
    path, out = press(tmp_path), tmp_path / "out"
    outcome = kvdiag("evaluate", "--method", f"{path}:LongKeys", "--data", built_ledger, "--out", out)
    assert outcome.code == 0, outcome.err
    assert "longkeys (verified" in outcome.out and "runs answered: 12 of 12" in outcome.out
    for cell in ("keep=0.5/agnostic", "keep=0.25/agnostic", "keep=0.5/aware", "keep=0.25/aware"):
        assert f"longkeys/{cell}: " in outcome.out
    assert outcome.out.count("  snapkv keep=") == 4
    assert "head_layouts" in outcome.err and "source 3/3" in outcome.err
    assert validate(out) == []
    again = kvdiag("evaluate", "--method", f"{path}:LongKeys", "--data", built_ledger, "--out", out, "--json")
    found = json.loads(again.out)
    assert (found["method"], found["runs"]["n"], len(found["cells"])) == ("longkeys", 12, 4)
    assert found["conformance"]["passed"] is True


@pytest.mark.parametrize(
    ("fault", "first", "status", "reason", "n"),
    [
        ("crash", 4, "failed", "exception", 1),  # an object for the probe, then one a source
        ("nan", 1, "failed", "nonfinite", 3),
        ("shapes", 1, "unsupported", "probe_failed", 3),
        ("shapes", 2, "failed", "exception", 3),
        ("eager", 1, "unsupported", "probe_failed", 3),
    ],
)
def test_bad_presses_get_rows_and_a_report(monkeypatch, built_ledger, tmp_path, fault, first, status, reason, n):
    monkeypatch.setattr(suite, "CHECKS", ())
    path = press(tmp_path, FAULTY.format(first=first, fault=FAULTS[fault]))
    outcome = evaluate(path, "Faulty", built_ledger, tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert f"runs answered: {3 - n} of 3; without an answer: {n} {status}: {reason}" in outcome.out
    found = ask(tmp_path / "out", "SELECT status, reason, detail FROM runs WHERE status <> 'available'")
    assert [(r["status"], r["reason"]) for r in found] == [(status, reason)] * n
    assert all(r["detail"] for r in found)


def test_a_method_that_fails_checks_is_not_run_unless_told(monkeypatch, built_ledger, tmp_path):
    monkeypatch.setattr(suite, "CHECKS", (checks.is_itself,))
    path = press(tmp_path, "from kvpress import KnormPress\n\nclass Renamed(KnormPress):\n    pass\n")
    outcome = evaluate(path, "Renamed", built_ledger, tmp_path / "out")
    assert outcome.code == 1
    assert "the same cache as knorm" in outcome.err and "fails is_itself, so it was not run" in outcome.err
    assert not (tmp_path / "out").exists()
    told = json.loads(evaluate(path, "Renamed", built_ledger, tmp_path / "out", "--json").out)
    assert told["conformance"]["failed"] == ["is_itself"]
    outcome = evaluate(path, "Renamed", built_ledger, tmp_path / "out", "--despite-failures")
    assert outcome.code == 0
    assert "renamed (unverified: fails is_itself)" in outcome.out
    assert {r["detail"] for r in ask(tmp_path / "out", "SELECT detail FROM runs")} == {"unverified"}
    (line,) = [text for text in outcome.out.splitlines() if text.startswith("  knorm keep=0.5")]
    assert "100" not in line.split()[2] and line.split()[2] == line.split()[3]  # its own twin, at equal bytes


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_source_in_hand_finish(few_checks, monkeypatch, built_ledger, tmp_path, signum, code):
    real, path, out = against.run_source, press(tmp_path), tmp_path / "out"

    def run_source(*given):
        os.kill(os.getpid(), signum)
        return real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(against, "run_source", run_source)
        stopped = evaluate(path, "LongKeys", built_ledger, out)
    assert stopped.code == code and not stopped.out
    assert "stopped with 1 of 3 sources done; to go on, run again: " in stopped.err
    again = evaluate(path, "LongKeys", built_ledger, out)
    assert again.code == 0 and "1 of 3 sources were done before" in again.err


def test_a_signal_while_the_checks_run_stops_at_once(monkeypatch, built_ledger, tmp_path):
    def stopped(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

    monkeypatch.setattr(suite, "CHECKS", (stopped,))
    assert evaluate(press(tmp_path), "LongKeys", built_ledger, tmp_path / "out").code == 143
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_line(few_checks, monkeypatch, built_ledger, tmp_path):
    monkeypatch.setattr(faults, "hook", At("source:written", 2, disk_full))
    full = evaluate(press(tmp_path), "LongKeys", built_ledger, tmp_path / "out")
    assert full.code == 1 and "Traceback" not in full.err and not full.out
    said = "cannot be written (No space left on device); 1 of 3 sources are kept"
    assert said in full.err.splitlines()[-1]


def test_a_method_of_kvdiag_needs_no_file(few_checks, built_ledger, tmp_path):
    outcome = kvdiag(
        *("evaluate", "--method", "tova", "--data", built_ledger, "--out", tmp_path / "out", "--limit", "2"),
        *("--setting", "keep=0.5", "--protocol", "aware"),
    )
    assert outcome.code == 0
    assert "tova/keep=0.5/aware" in outcome.out and "runs answered: 2 of 2" in outcome.out


def test_mistakes_are_one_line(few_checks, monkeypatch, built_ledger, tmp_path):
    path = press(tmp_path)
    monkeypatch.chdir(tmp_path)
    missing = kvdiag("evaluate", "--method", f"{path}:LongKeys")
    assert missing.is_one_line_error(2) and "make one with kvdiag build" in missing.err
    assert evaluate(path, "LongKeys", built_ledger, "out", "--protocol", "half").is_one_line_error(2)
    assert kvdiag("evaluate", "--data", built_ledger).is_one_line_error(2)
    for name in (f"{path}:Nothing", f"{tmp_path}/none.py:LongKeys", "snapvk"):
        outcome = kvdiag("evaluate", "--method", name, "--data", built_ledger)
        assert outcome.code == 2 and "Traceback" not in outcome.err
    outcome = kvdiag("evaluate", "--method", "snapkv", "--data", built_ledger)
    assert outcome.code == 2 and "has runs of a method snapkv already" in outcome.err
    assert not (tmp_path / "evaluations").exists()


def test_from_an_evaluation_to_a_merged_ledger(few_checks, built_ledger, tmp_path):
    path, out = press(tmp_path), tmp_path / "out"
    assert evaluate(path, "LongKeys", built_ledger, out).code == 0
    who = ("--contact", "A. Person <a@example.org>")
    packed = tmp_path / "packed"
    offered = kvdiag("submit", out, built_ledger, *who, "--dry-run", "--out", packed)
    assert offered.code == 0, offered.err
    assert "3 runs, 3 answered; reviewed, nothing found" in offered.out and "nothing was sent" in offered.out
    assert kvdiag("submit", out, built_ledger, *who).is_one_line_error(2)
    assert kvdiag("submit", out, "org/name@v1.0.0", *who).is_one_line_error(2)
    assert kvdiag("submit", tmp_path / "none", built_ledger, *who, "--dry-run").is_one_line_error(2)

    merged = tmp_path / "merged"
    sample = ("--sample", "2", "--method", f"{path}:LongKeys")
    done = kvdiag("merge", built_ledger, packed, "--out", merged, *sample)
    assert done.code == 0, done.err
    assert "merged 3 runs of longkeys (A. Person <a@example.org>; rerun 2/3: equal)" in done.out
    assert validate(merged) == []
    assert ask(merged, "SELECT count(*) AS n FROM runs WHERE method = 'longkeys'") == [{"n": 3}]
    assert kvdiag("merge", merged, packed, "--out", tmp_path / "twice").is_one_line_error(3)
    path.write_text(PRESS + "\n# other code\n")
    other = kvdiag("merge", built_ledger, packed, "--out", tmp_path / "other", *sample)
    assert other.is_one_line_error(1) and "is not the submitted one" in other.err
    assert not (tmp_path / "other").exists()


def test_a_new_method_passes_the_whole_suite(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    made = kvdiag("methods", "new", "MyPress", "--out", "sub")
    assert made.code == 0 and "kvdiag evaluate --method sub/my_press.py:MyPress" in made.out
    verified = kvdiag("methods", "verify", "sub/my_press.py:MyPress")
    assert verified.code == 0, verified.out
    test = (tmp_path / "sub" / "test_my_press.py").read_text()
    compile(test, "test_my_press.py", "exec")
    assert "with_name('my_press.py')" in test
    before = (tmp_path / "sub" / "my_press.py").read_text()
    assert kvdiag("methods", "new", "MyPress", "--out", "sub").is_one_line_error(3)
    assert (tmp_path / "sub" / "my_press.py").read_text() == before


@pytest.mark.parametrize("name", ["my press", "2nd", "class", "SnapKV", "Prés"])
def test_names_that_no_method_may_have(tmp_path, name):
    assert kvdiag("methods", "new", name, "--out", tmp_path / "sub").is_one_line_error(2)
    assert not (tmp_path / "sub").exists()
