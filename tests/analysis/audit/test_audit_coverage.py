"""What is planned against what is there."""

import json

import pytest

from kvdiag.analysis.audit.coverage import coverage
from kvdiag.analysis.audit.desk import Options
from kvdiag.analysis.audit.groups import VISIBILITY_RANKS, task_group
from kvdiag.analysis.audit.matrix import Column
from kvdiag.analysis.audit.protocol import audit
from kvdiag.errors import DataError, RefusedError
from kvdiag.methods.catalogue import VISIBILITY
from tests.audit_ledgers import audited, number
from tests.rows import without_answer


def gappy(run):
    """An OOM, a row that is missing, an unsupported run and a score that failed: sources 0 to 3."""
    if run["method"] != "snapkv" or run["setting"] != "keep=0.5" or run["protocol"] != "query_aware":
        return run
    changed = {
        0: without_answer(run, "failed", "oom"),
        1: None,
        2: without_answer(run, "unsupported", "context_too_short"),
        3: run | {"score": None, "score__status": "failed", "score__reason": "nonfinite"},
        4: run | {"degenerate": "kept_within_window"},
    }
    return changed.get(number(run), run)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("coverage")
    audited(folder, n=10, change=gappy)
    return coverage(folder)


def test_a_full_ledger_is_complete(tmp_path):
    audited(tmp_path, n=5)
    found = coverage(tmp_path)
    assert (found["complete"], found["label"], found["holes"]) == (True, "complete", [])
    assert (found["n_planned"], found["n_present"], found["n_available"]) == (100, 100, 100)
    assert found["controls"] == {"n_planned": 5, "n_available": 5, "holes": [], "cannot_run": []}


def test_every_hole_is_named_and_what_cannot_run_is_apart(found):
    cell = {"model": "made-up", "method": "snapkv", "setting": "keep=0.5", "protocol": "query_aware"}
    own = {tuple(h[k] for k in ("task", "status", "reason", "n")) for h in found["holes"]}
    assert own == {
        ("niah_single_1", "failed", "oom", 1),
        ("niah_multiquery", "absent", None, 1),
        ("cwe", "failed", "nonfinite", 1),
    }
    assert all(cell.items() <= h.items() for h in [*found["holes"], *found["cannot_run"]])
    assert [(c["task"], c["status"], c["reason"], c["n"]) for c in found["cannot_run"]] == [
        ("vt", "unsupported", "context_too_short", 1)
    ]


def test_counts_agree(found):
    (hit,) = [c for c in found["cells"] if not c["complete"]]
    assert {k: v for k, v in hit.items() if k.startswith("n_")} == {
        "n_planned": 10,
        "n_present": 9,
        "n_available": 6,
        "n_holes": 3,
        "n_cannot_run": 1,
        "n_degenerate": 1,
    }
    assert hit["removed"] == 0.5
    for c in found["cells"]:
        assert c["n_planned"] == c["n_available"] + c["n_holes"] + c["n_cannot_run"]
    assert found["n_available"] == sum(c["n_available"] for c in found["cells"]) == 196
    assert (found["n_planned"], found["n_present"], found["n_holes"]) == (200, 199, 3)
    assert found["label"] == "incomplete: 3 of 200 runs missing, in 1 of 20 cells (oom 1, no row 1, nonfinite 1)"


def test_a_planned_cell_without_any_row_and_a_model_listed_are_holes(tmp_path):
    audited(tmp_path, {"knorm": (0.5, 0.5)}, n=4)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["cells"].append("tova/keep=0.5/aware")
    manifest["recipe"]["model"] = ["made-up", "other"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = coverage(tmp_path)
    holes = {(c["model"], c["method"], c["setting"], c["protocol"]): c["n_holes"] for c in found["cells"]}
    assert holes["made-up", "tova", "keep=0.5", "query_aware"] == 4
    assert holes["other", "knorm", "keep=0.5", "query_agnostic"] == 4
    assert holes["made-up", "knorm", "keep=0.5", "query_agnostic"] == 0
    assert found["controls"]["holes"][0]["model"] == "other"
    assert found["label"].endswith("and 4 controls (no row 28)")


def test_a_model_is_planned_once_however_a_recipe_spells_it(tmp_path):
    name = "org/name@0123abc[eager]"
    audited(tmp_path, {"knorm": (0.5, 0.5)}, n=2, models=(name,))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["recipe"]["model"] = ["org/name", "org/name@main"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = coverage(tmp_path)
    assert (found["models"], found["label"]) == ([name], "complete")


def test_a_cell_that_is_no_key_is_a_data_error(tmp_path):
    audited(tmp_path, {"knorm": (0.5, 0.5)}, n=2)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["cells"].append("tova/keep=0.5/blind")
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"plans the cell tova/keep=0\.5/blind"):
        coverage(tmp_path)


def test_a_setting_that_is_no_share_has_no_ratio():
    ratios = [Column("m", "x", s, "query_aware").removed for s in ("keep=0.9", "bits=4", "rank=8")]
    assert ratios == [0.1, None, None]


def test_every_visibility_of_the_catalogue_has_a_rank_or_is_left_out_on_purpose():
    assert set(VISIBILITY) - set(VISIBILITY_RANKS) == {"decode_time"}


def test_tasks_stand_in_their_papers_groups():
    assert [task_group(t) for t in ("niah_multikey_3", "vt", "fwe", "qa_2", "musique", "lcc", "own")] == [
        *("retrieval", "tracing", "aggregation", "qa", "multi_doc_qa", "code", "own")
    ]


def test_two_backends_are_never_in_one_audit(tmp_path):
    audited(tmp_path, n=4, models=("made-up", "made-up[eager]"))
    with pytest.raises(RefusedError, match=r"several attention backends \(eager, sdpa\)"):
        coverage(tmp_path)


def test_sources_that_the_data_did_not_have_are_said(tmp_path):
    audited(tmp_path, n=4)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["recipe"] |= {"limit": 20, "tasks": ["vt", "trec"]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    short = {r["task"]: (r["asked"], r["found"]) for r in coverage(tmp_path)["fewer_than_asked"]}
    assert short["trec"] == (10, 0)
    assert set(short) <= {"vt", "trec"}


def test_ledgers_of_two_models_stand_side_by_side(tmp_path):
    """Each has sources of its own: none of the other's is a hole."""
    audited(tmp_path / "a", n=6, models=("one",))
    audited(tmp_path / "b", n=4, seed=1, models=("two",), change=gappy)
    whole, holed = coverage(tmp_path / "a"), coverage(tmp_path / "b")
    both = coverage([tmp_path / "a", tmp_path / "b"])
    for name in ("n_planned", "n_present", "n_available", "n_holes"):
        assert both[name] == whole[name] + holed[name], name
    assert both["controls"]["n_planned"] == 10
    assert (both["complete"], both["models"]) == (False, ["one", "two"])
    cells = {(c["model"], c["method"], c["setting"], c["protocol"]): c for c in both["cells"]}
    for c in [*whole["cells"], *holed["cells"]]:
        assert cells[c["model"], c["method"], c["setting"], c["protocol"]] == c
    with pytest.raises(RefusedError, match="hold runs of the same sources under the same model"):
        coverage([tmp_path / "a", tmp_path / "a"])


def test_an_audit_of_two_ledgers_has_each_models_numbers(tmp_path):
    audited(tmp_path / "a", n=40, models=("one",))
    audited(tmp_path / "b", n=30, seed=1, models=("two",))
    quick = Options(resamples=300)
    alone = {model: audit(tmp_path / f, quick) for f, model in (("a", "one"), ("b", "two"))}
    both = audit([tmp_path / "a", tmp_path / "b"], quick)
    assert both["n_sources"] == 40  # the made-up ledgers share ids: the same questions under two models
    told = {(d["model"], d["method"], d["setting"]): d for d in both["delta"]}
    for model, found in alone.items():
        for d in found["delta"]:
            other = told[model, d["method"], d["setting"]]
            for name in ("agnostic", "aware", "delta", "n", "n_planned"):
                assert other[name] == pytest.approx(d[name]), name
    pooled = {s["method"]: s for s in both["summary"] if s["model"] is None}
    for method, s in pooled.items():
        parts = [next(x for x in f["summary"] if x["method"] == method) for f in alone.values()]
        assert s["n"] == sum(x["n"] for x in parts)
        assert s["delta"] == pytest.approx(sum(x["delta"] * x["n"] for x in parts) / s["n"])
