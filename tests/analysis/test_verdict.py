"""The verdict on a method: hand-made ledgers whose numbers can be counted by eye."""

import json

import pytest

from kvdiag.analysis import verdict, verdict_text
from kvdiag.ledger.finish import write_ledger
from kvdiag.methods import catalogue
from kvdiag.query.connection import connect, rows
from kvdiag.records.schema import to_table
from tests import rows as made

FULL = 100
# Which of six sources each cell has right; controls are right but for the last.
RIGHT = {
    ("mine", "keep=0.5"): (0, 1, 1, 1, 0, 0),
    ("knorm", "keep=0.5"): (1, 1, 1, 1, 1, 0),
    ("knorm", "keep=0.25"): (0, 0, 1, 1, 1, 1),
    ("tova", "keep=0.5"): (1, 1, 1, 1, 1, 0),
}
BYTES = {("mine", "keep=0.5"): 28, ("knorm", "keep=0.5"): 50, ("knorm", "keep=0.25"): 25, ("tova", "keep=0.5"): 50}


def ledgers(folder, change=lambda run, index: run):
    """A ledger of knorm and tova, and an evaluation of `mine` on all its sources."""
    sources = [made.source_row(i) | {"task": ("vt", "qa")[i // 4]} for i in range(6)]
    controls = [made.control_row(s, right=i != 5) for i, s in enumerate(sources)]
    runs = []
    for i, (source, control) in enumerate(zip(sources, controls, strict=True)):
        for (method, setting), right in RIGHT.items():
            run = made.run_row(source, control, bool(right[i]), method, setting)
            run |= {"kv_bytes": BYTES[method, setting], "kv_bytes_full": FULL, "score": float(right[i])}
            runs.append(change(run, i))
    paths = folder / "base", folder / "evaluation"
    for path, methods in zip(paths, (("knorm", "tova"), ("mine",)), strict=True):
        own = [r for r in runs if r["method"] in methods]
        entries = [catalogue.method_row(catalogue.get("knorm")) | {"method": m} for m in methods]
        tables = {"sources": sources, "controls": controls, "runs": own, "retention": [], "methods": entries}
        plan = made.plan() | {"cells": sorted({r["cell_id"] for r in own})}
        write_ledger(path, {t: to_table(t, found) for t, found in tables.items()}, plan, build={})
    return paths


def test_a_cell_by_itself(tmp_path):
    base, evaluation = ledgers(tmp_path)
    found = verdict.verdict(base, evaluation, resamples=200)
    assert found["controls"] == {"n_disagree": 0, "n": 6, "n_answered": 6, "n_right": 5}
    assert found["runs"] == {"n": 6, "n_answered": 6, "missing": []}
    (cell,) = found["cells"]
    assert (cell["cell_id"], cell["bytes"], cell["turned_right"]) == ("mine/keep=0.5/agnostic", 0.28, 0)
    assert (cell["turned_wrong"]["k"], cell["turned_wrong"]["n"]) == (2, 5)
    (rates,) = rows(connect(evaluation), "SELECT c2w_low, c2w_high FROM failure_rates")
    assert cell["turned_wrong"]["low"] == pytest.approx(rates["c2w_low"], abs=1e-5)
    assert cell["turned_wrong"]["high"] == pytest.approx(rates["c2w_high"], abs=1e-5)
    assert sum(s["n"] for s in cell["signatures"]) == 2
    assert [(t["task"], t["score"], t["control_score"], t["n_scored"], t["n"]) for t in cell["tasks"]] == [
        ("qa", 0.0, 1.0, 2, 2),
        ("vt", 0.75, 1.0, 4, 4),
    ]


def test_others_stand_beside_it_at_the_nearest_bytes(tmp_path):
    base, evaluation = ledgers(tmp_path)
    knorm, tova = verdict.verdict(base, evaluation, resamples=200)["cells"][0]["against"]
    assert (knorm["cell_id"], knorm["bytes_own"], knorm["bytes_other"]) == ("knorm/keep=0.25/agnostic", 0.28, 0.25)
    assert (tova["setting"], tova["bytes_other"]) == ("keep=0.5", 0.5)
    assert [knorm[f"turned_wrong_{side}"]["k"] for side in ("own", "other")] == [2, 2]
    failures = knorm["failures"]
    assert (failures["both"], failures["only_a"], failures["only_b"]) == (1, 1, 1)
    assert failures["jaccard"] == pytest.approx(1 / 3)
    assert (tova["turned_wrong_other"]["k"], tova["failures"]["jaccard"]) == (0, 0.0)
    assert tova["c2w_rate"]["difference"] == pytest.approx(0.4)


def test_only_sources_that_both_answered_are_compared(tmp_path):
    """Two that knorm lost at keep=0.25 would have changed its bytes, its failures and the method's own."""

    def change(run, index):
        if run["cell_id"].startswith("knorm/keep=0.25") and index < 2:
            return made.without_answer(run, "failed", "oom")
        if run["method"] == "mine" and index == 2:
            return made.without_answer(run, "unsupported", "context_too_short")
        return run

    base, evaluation = ledgers(tmp_path, change)
    found = verdict.verdict(base, evaluation, resamples=200)
    (cell,) = found["cells"]
    assert found["runs"]["missing"] == [{"status": "unsupported", "reason": "context_too_short", "n": 1}]
    knorm = cell["against"][0]
    assert knorm["n_common"] == 3
    assert [(knorm[f"turned_wrong_{s}"]["k"], knorm[f"turned_wrong_{s}"]["n"]) for s in ("own", "other")] == [
        (1, 2),
        (0, 2),
    ]
    assert knorm["missing_other"] == [{"status": "failed", "reason": "oom", "n": 2}]


def test_without_bytes_the_same_label_is_compared(tmp_path):
    base, evaluation = ledgers(tmp_path, lambda run, index: run | {"kv_bytes": None})
    (cell,) = verdict.verdict(base, evaluation, resamples=200)["cells"]
    assert [o["setting"] for o in cell["against"]] == ["keep=0.5", "keep=0.5"]
    assert cell["bytes"] is None


def test_a_method_that_answers_nothing_still_has_a_verdict(tmp_path):
    def change(run, index):
        return made.without_answer(run, "failed", "exception") if run["method"] == "mine" else run

    found = verdict.verdict(*ledgers(tmp_path, change), resamples=200)
    (cell,) = found["cells"]
    assert (cell["n_answered"], cell["turned_wrong"]["share"]) == (0, None)
    text = "\n".join(verdict_text.lines(found))
    assert "runs answered: 0 of 6; without an answer: 6 failed: exception" in text
    assert "against  " not in text  # no table of nothing


def test_the_text_has_denominators_and_both_numbers_of_bytes(tmp_path):
    found = verdict.verdict(*ledgers(tmp_path), resamples=200)
    json.dumps(found, allow_nan=False)
    text = "\n".join(verdict_text.lines(found))
    assert "mine/keep=0.5/agnostic: 28.0% of the bytes; turned wrong 2/5 (40%, 12% to 77%)" in text
    (line,) = [row for row in text.splitlines() if row.startswith("  knorm")]
    assert line.split()[:5] == ["knorm", "keep=0.25", "28.0%", "25.0%", "6"]
    assert line.endswith("0.33 (1/3)")
    assert "vt 0.75 (1.00 full, n 4/4)" in text
