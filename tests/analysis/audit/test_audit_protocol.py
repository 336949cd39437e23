"""The audit over ledgers with planted effects, against plain Python over the rows."""

import json
from collections import defaultdict

import numpy as np
import pytest

from kvdiag.analysis.audit.desk import Options
from kvdiag.analysis.audit.protocol import audit
from kvdiag.errors import DataError, RefusedError, UsageError
from tests.audit_ledgers import audited, number
from tests.rows import without_answer

QUICK = 1_000


def options(**chosen):
    return Options(**{"resamples": QUICK, **chosen})


def by(rows, **keys):
    """The one row with these values."""
    (found,) = [r for r in rows if all(r[k] == v for k, v in keys.items())]
    return found


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    runs = audited(folder)
    return folder, runs, audit(folder, options())


def means(runs):
    scores = defaultdict(list)
    for r in runs:
        if r["status"] == "available":
            scores[r["method"], r["setting"], r["protocol"]].append(r["score"])
    return {key: np.mean(values) for key, values in scores.items()}


def test_delta_is_aware_less_agnostic(planted):
    _, runs, found = planted
    expected = means(runs)
    assert len(found["delta"]) == 5 * 2
    for d in found["delta"]:
        agnostic, aware = (expected[d["method"], d["setting"], f"query_{p}"] for p in ("agnostic", "aware"))
        assert (d["agnostic"], d["aware"]) == (pytest.approx(agnostic), pytest.approx(aware))
        assert d["delta"] == pytest.approx(aware - agnostic)
        assert (d["n"], d["n_planned"], d["n_sources"]) == (60, 60, 60)
        assert d["removed"] == 1 - float(d["setting"][5:])
    assert found["complete"]
    assert found["label"] == "complete"


def test_a_method_that_needs_the_question_is_found_out_and_a_blind_one_is_not(planted):
    """Planted: snapkv +0.5, keydiff 0, over both settings."""
    _, runs, found = planted
    expected = means(runs)
    seen, blind = (by(found["summary"], method=m) for m in ("snapkv", "keydiff"))
    for s in (seen, blind):
        gaps = [
            expected[s["method"], k, "query_aware"] - expected[s["method"], k, "query_agnostic"]
            for k in s["settings"]
        ]
        assert s["delta"] == pytest.approx(np.mean(gaps))
        assert (s["n"], s["n_planned"], s["n_sources"]) == (120, 120, 60)
    for kind in ("percentile", "bca"):
        assert seen[kind][0] > 0.3
        assert blind[kind][0] < 0 < blind[kind][1]


def test_the_interval_that_tables_show_is_the_one_asked_for(planted):
    folder, _, found = planted
    other = audit(folder, options(interval="bca"))
    for p, b in zip(found["delta"], other["delta"], strict=True):
        assert (p["percentile"], p["bca"]) == (b["percentile"], b["bca"])
        assert (p["low"], p["high"]) == p["percentile"]
        assert (b["low"], b["high"]) == b["bca"]


def test_sources_of_a_summary_are_clusters(tmp_path):
    """Both settings give a source the same scores: twice the rows are no more evidence."""

    def alike(rng, i, cell):
        return float((i * 7 % 10) < (8 if cell[2] == "query_aware" else 3))

    audited(tmp_path, scores=alike)
    found = audit(tmp_path, options())
    one, both = found["delta"][0], found["summary"][0]
    assert (both["n"], one["n"]) == (120, 60)
    assert both["percentile"] == pytest.approx(one["percentile"])
    assert both["bca"] == pytest.approx(one["bca"])


def test_wins_are_against_the_best_baseline_of_the_same_cell(planted):
    _, runs, found = planted
    groups = {"retrieval": ("niah_single_1", "niah_multiquery"), "tracing": ("vt",), "aggregation": ("cwe",)}
    groups["qa"] = ("qa_1",)
    cells = found["wins"]["cells"]
    assert len(cells) == 2 * 2 * 2 * 4  # method, setting, protocol, group
    for c in cells:
        own = [
            r
            for r in runs
            if (r["setting"], r["protocol"]) == (c["setting"], c["protocol"]) and r["task"] in groups[c["group"]]
        ]
        scores = {
            m: np.mean([r["score"] for r in own if r["method"] == m])
            for m in (c["method"], "random", "knorm", "streaming_llm")
        }
        score = scores.pop(c["method"])
        best = max(scores.values())
        assert c["score"] == pytest.approx(score)
        assert c["baselines"] == pytest.approx(scores)
        assert scores[c["best_baseline"]] == pytest.approx(best)
        assert c["difference"] == pytest.approx(score - best)
        assert c["outcome"] == ("tie" if abs(score - best) < 1e-9 else "win" if score > best else "loss")
        assert c["n"] == c["n_planned"] == 12 * len(groups[c["group"]])
        assert c["p_holm"] >= c["p"]
    for m in found["wins"]["methods"]:
        own = [c for c in cells if (c["method"], c["protocol"]) == (m["method"], m["protocol"])]
        assert m["n_cells"] == len(own) == 8
        for outcome in ("win", "tie", "loss"):
            assert m[f"n_{outcome}"] == sum(c["outcome"] == outcome for c in own)
        assert m["n_sure_win"] == sum(c["outcome"] == "win" and c["p_holm"] < 0.05 for c in own)
    aware = by(found["wins"]["methods"], method="snapkv", protocol="query_aware")
    agnostic = by(found["wins"]["methods"], method="snapkv", protocol="query_agnostic")
    assert aware["n_win"] == 8
    assert agnostic["n_loss"] >= 6


def test_holm_counts_all_cells_of_a_protocol(planted):
    cells = planted[2]["wins"]["cells"]
    for protocol in ("query_agnostic", "query_aware"):
        own = sorted((c for c in cells if c["protocol"] == protocol), key=lambda c: c["p"])
        assert own[0]["p_holm"] == pytest.approx(min(1, own[0]["p"] * len(own)))


def test_a_tie_is_a_tie(tmp_path):
    audited(tmp_path, {"keydiff": (0, 0), "knorm": (0, 0)}, scores=lambda rng, i, cell: (i % 3) / 3)
    wins = audit(tmp_path, options())["wins"]
    assert {c["outcome"] for c in wins["cells"]} == {"tie"}
    assert {c["p_holm"] for c in wins["cells"]} == {1.0}
    assert by(wins["methods"], method="keydiff", protocol="query_aware")["n_tie"] == 8


def test_cells_may_be_tasks(planted):
    cells = audit(planted[0], options(by="task"))["wins"]["cells"]
    assert {c["group"] for c in cells} == {"niah_single_1", "niah_multiquery", "vt", "cwe", "qa_1"}
    assert {c["n"] for c in cells} == {12}


def test_the_gap_to_start_and_recent(planted):
    _, runs, found = planted
    expected = means(runs)
    gap = by(found["wins"]["start_recent"], method="snapkv", protocol="query_agnostic")
    gaps = [
        expected["snapkv", k, "query_agnostic"] - expected["streaming_llm", k, "query_agnostic"]
        for k in ("keep=0.5", "keep=0.25")
    ]
    assert gap["gap"] == pytest.approx(np.mean(gaps))
    assert gap["gap"] < gap["high"] < 0
    assert len(found["wins"]["start_recent"]) == 4 * 2


def test_ranks_leave_out_baselines_and_what_has_no_rank(tmp_path):
    chances = {
        "snapkv": (0.2, 0.9),
        "h2o": (0.4, 0.6),
        "keydiff": (0.7, 0.7),
        "quest": (0.8, 0.8),
        "knorm": (0.3, 0.3),
    }
    audited(tmp_path, chances)
    ranks = audit(tmp_path, options())["ranks"]
    assert [(o["method"], o["rank_name"]) for o in ranks["order"]] == [
        ("snapkv", "high"),
        ("h2o", "low"),
        ("keydiff", "none"),
    ]
    assert (ranks["tau_b"], ranks["p"], ranks["n_methods"]) == (1.0, pytest.approx(2 / 6), 3)
    assert [m["method"] for m in ranks["left_out"]] == ["quest"]
    assert ranks["reading"] == "ordinal evidence over 3 methods, not a law"


# -- holes -------------------------------------------------------------------------------------------------------


def oom_in_one_protocol(run):
    hit = run["method"] == "snapkv" and run["setting"] == "keep=0.5" and run["protocol"] == "query_aware"
    return without_answer(run, "failed", "oom") if hit and number(run) < 3 else run


def oom_in_all(run):
    return without_answer(run, "failed", "oom") if run["setting"] == "keep=0.5" and number(run) < 3 else run


def test_unequal_sources_are_refused(tmp_path):
    audited(tmp_path, change=oom_in_one_protocol)
    with pytest.raises(RefusedError) as refused:
        audit(tmp_path, options())
    for part in (
        "snapkv/keep=0.5/aware 57, snapkv/keep=0.5/agnostic 60",
        "incomplete: 3 of 60 sources missing (oom 3)",
        "--allow-incomplete",
    ):
        assert part in str(refused.value)


def test_allowed_the_intersection_is_used_and_said(tmp_path):
    runs = audited(tmp_path, change=oom_in_one_protocol)
    found = audit(tmp_path, options(allow_incomplete=True))
    own = [r for r in runs if (r["method"], r["setting"]) == ("snapkv", "keep=0.5") and number(r) >= 3]
    agnostic, aware = (
        np.mean([r["score"] for r in own if r["protocol"] == f"query_{p}"]) for p in ("agnostic", "aware")
    )
    d = by(found["delta"], method="snapkv", setting="keep=0.5")
    assert (d["n"], d["agnostic"], d["aware"]) == (57, pytest.approx(agnostic), pytest.approx(aware))
    assert d["coverage"]["label"] == "incomplete: 3 of 60 sources missing (oom 3)"
    assert by(found["delta"], method="snapkv", setting="keep=0.25")["coverage"]["label"] == "complete"
    s = by(found["summary"], method="snapkv")
    assert (s["n"], s["coverage"]["label"]) == (117, "incomplete: 3 of 120 pairs missing (oom 3)")
    assert by(found["summary"], method="keydiff")["coverage"]["complete"]
    first = found["unequal"][0]
    assert first == {
        "model": "made-up",
        "answered": {"snapkv/keep=0.5/aware": 57, "snapkv/keep=0.5/agnostic": 60},
        "n_common": 57,
        "n_planned": 60,
    }
    assert not found["complete"]
    assert found["label"] == "incomplete: 3 of 1200 runs missing, in 1 of 20 cells (oom 3)"


def test_a_hole_on_all_sides_is_no_refusal_and_still_said(tmp_path):
    audited(tmp_path, change=oom_in_all)
    found = audit(tmp_path, options())
    assert found["unequal"] == []
    for d in found["delta"]:
        hit = d["setting"] == "keep=0.5"
        assert d["coverage"]["label"] == ("incomplete: 3 of 60 sources missing (oom 3)" if hit else "complete")
        assert d["n"] == (57 if hit else 60)
    assert not found["ranks"]["coverage"]["complete"]
    assert all(not m["coverage"]["complete"] for m in found["wins"]["methods"])


def test_a_row_that_is_not_there_is_a_hole(tmp_path):
    audited(tmp_path, change=lambda r: None if r["method"] == "knorm" and number(r) == 1 else r)
    found = audit(tmp_path, options(allow_incomplete=True))
    assert by(found["delta"], method="knorm", setting="keep=0.5")["coverage"]["label"] == (
        "incomplete: 1 of 60 sources missing (no row 1)"
    )


def test_what_cannot_run_is_no_hole(tmp_path):
    def short(run):
        return without_answer(run, "unsupported", "context_too_short") if run["method"] == "snapkv" else run

    audited(tmp_path, change=short)
    found = audit(tmp_path, options())
    assert found["complete"]
    d = by(found["delta"], method="snapkv", setting="keep=0.5")
    assert (d["delta"], d["low"], d["n"], d["interval_note"]) == (None, None, 0, "no_source")
    assert d["coverage"]["label"] == "complete; 60 cannot run (context_too_short 60)"
    assert {c["method"] for c in found["wins"]["not_tried"]} == {"snapkv"}
    json.dumps(found, allow_nan=False)


def test_degenerate_rows_are_left_out_of_both_sides(tmp_path):
    def within(run):
        hit = run["method"] == "snapkv" and run["protocol"] == "query_agnostic" and number(run) < 5
        return run | {"degenerate": "kept_within_window"} if hit else run

    audited(tmp_path, change=within)
    found = audit(tmp_path, options())  # one-sided labels are no refusal: the source leaves both sides
    d = by(found["delta"], method="snapkv", setting="keep=0.5")
    assert (d["n"], d["coverage"]["label"]) == (55, "complete; 5 degenerate left out")
    assert found["n_degenerate"] == 10
    whole = audit(tmp_path, options(with_degenerate=True))
    d = by(whole["delta"], method="snapkv", setting="keep=0.5")
    assert (d["n"], d["coverage"]["label"]) == (60, "complete")


# -- ledgers that lack something ---------------------------------------------------------------------------------


def test_one_protocol_is_one_clear_line(tmp_path):
    audited(tmp_path, protocols=("query_agnostic",))
    with pytest.raises(UsageError, match=r"has query_agnostic only, an audit needs query_aware too: kvdiag build"):
        audit(tmp_path, options())


def test_missing_baselines_are_named(tmp_path):
    audited(tmp_path, {"snapkv": (0.3, 0.8), "keydiff": (0.7, 0.7)})
    found = audit(tmp_path, options())
    assert found["wins"]["missing_baselines"] == ["random", "knorm", "streaming_llm"]
    assert found["wins"]["methods"] == found["wins"]["cells"] == found["wins"]["start_recent"] == []
    assert found["summary"]


def test_some_baselines_do_for_the_best_of_those_and_it_is_said(tmp_path):
    audited(tmp_path, {"snapkv": (0.3, 0.8), "knorm": (0.4, 0.4)})
    wins = audit(tmp_path, options())["wins"]
    assert wins["missing_baselines"] == ["random", "streaming_llm"]
    assert {c["best_baseline"] for c in wins["cells"]} == {"knorm"}
    assert wins["without_baseline"][0]["missing"] == ["random", "streaming_llm"]


def test_a_method_with_one_protocol_is_left_out_and_said(tmp_path):
    audited(tmp_path, change=lambda r: None if r["method"] == "h2o" else r)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["cells"].append("h2o/keep=0.5/agnostic")
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    found = audit(tmp_path, options(allow_incomplete=True))
    assert found["one_protocol_only"] == [
        {"model": "made-up", "method": "h2o", "setting": "keep=0.5", "protocol": "query_agnostic"}
    ]
    assert found["label"] == "incomplete: 60 of 1260 runs missing, in 1 of 21 cells (no row 60)"


def test_a_workload_is_chosen_or_named_wrongly(tmp_path):
    audited(tmp_path)
    assert audit(tmp_path, options(workload="ruler_1k"))["n_sources"] == 60
    with pytest.raises(UsageError, match=r"--workload ruler_2k: not in this ledger; did you mean ruler_1k"):
        audit(tmp_path, options(workload="ruler_2k"))


def test_a_ledger_without_sources_is_a_data_error(tmp_path):
    audited(tmp_path, n=0)
    with pytest.raises(DataError, match="plans no runs"):
        audit(tmp_path, options())


def test_a_single_source_has_no_interval(tmp_path):
    audited(tmp_path, n=1)
    found = audit(tmp_path, options())
    assert {d["interval_note"] for d in found["delta"]} == {"single_source"}
    assert all(d["low"] is None and d["percentile"] is None for d in found["delta"])
    assert found["n_strata_of_one"] == 1
    json.dumps(found, allow_nan=False)


def test_constant_scores_have_an_interval_without_width(tmp_path):
    audited(tmp_path, scores=lambda rng, i, cell: 0.25 if cell[2] == "query_aware" else 0.0)
    found = audit(tmp_path, options())
    for d in found["delta"]:
        assert (d["delta"], d["interval_note"]) == (0.25, "zero_variance")
        assert d["percentile"] == d["bca"] == (0.25, 0.25)
    assert (found["ranks"]["tau_b"], found["ranks"]["p"]) == (None, None)


def test_models_are_audited_apart_and_together(tmp_path):
    audited(tmp_path, models=("llama", "qwen"))
    found = audit(tmp_path, options())
    assert len(found["delta"]) == 20
    assert [(s["model"], s["n"], s["n_sources"]) for s in found["summary"] if s["method"] == "snapkv"] == [
        (None, 240, 60),
        ("llama", 120, 60),
        ("qwen", 120, 60),
    ]
    assert by(found["wins"]["methods"], method="snapkv", protocol="query_aware")["n_cells"] == 16
    assert [f["n"] for f in found["full_cache"]] == [60, 60]


def test_the_same_seed_gives_the_same_audit(planted):
    folder, _, found = planted
    assert audit(folder, options()) == found
    assert audit(folder, options(seed=1))["delta"] != found["delta"]
