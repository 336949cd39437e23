"""`kvdiag build` while it runs and before: its log, signals, failures, where its work goes, its price."""

import json
import os
import shutil
import signal

import pytest

from kvdiag.engine import source as engine_source
from kvdiag.engine.rows import Gap
from kvdiag.query.connection import connect, rows
from tests.command import kvdiag
from tests.faults.harness import contents

SMALL = ("--workload", "ruler_512", "--tasks", "vt", "--methods", "knorm", "--settings", "keep=0.5")


def small(model, out, limit, *more):
    """A build of few sources."""
    common = ("--protocol", "aware", "--max-new-tokens", "2", "--limit", limit, "--model", model, "--out", out)
    return ("build", *SMALL, *common, *more)


def test_events_are_logged_and_the_manifest_has_times_in_its_build_part(model_folder, tmp_path):
    log = tmp_path / "log.jsonl"
    assert kvdiag(*small(model_folder, tmp_path / "x", 3, "--log-json", log)).code == 0
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e["event"] for e in events] == ["planned", *["source_started", "source_done"] * 3, "finished"]
    assert (events[0]["sources"], events[0]["cells"], events[0]["runs"]) == (3, 1, 3)
    stages = {"prefill", "tap", "control", "replay", "decoding", "write"}
    for i, done in enumerate(events[2:-1:2]):
        assert done["seconds"].keys() == stages
        assert (done["done"], done["of"], done["source_id"]) == (i + 1, 3, events[1 + 2 * i]["source_id"])
        assert done["rss_bytes"] > 10**7
    manifest = json.loads((tmp_path / "x" / "manifest.json").read_text())
    assert manifest["build"] == events[-1]["build"]
    assert manifest["build"]["seconds_by_stage"].keys() == stages
    assert manifest["build"]["exceptions"] == {}
    sums = {s: sum(e["seconds"][s] for e in events[2:-1:2]) for s in stages - {"write"}}
    for stage, total in sums.items():
        assert abs(manifest["build"]["seconds_by_stage"][stage] - total) < 2e-3


def test_the_log_can_go_to_stdout_in_place_of_the_summary(model_folder, tmp_path):
    result = kvdiag(*small(model_folder, tmp_path / "x", 1, "--log-json", "-"))
    assert [json.loads(line)["event"] for line in result.out.splitlines()][-1] == "finished"
    assert kvdiag(*small(model_folder, tmp_path / "y", 1, "--log-json", "-", "--json")).is_one_line_error(2)
    nowhere = kvdiag(*small(model_folder, tmp_path / "y", 1, "--log-json", tmp_path / "no" / "log"))
    assert nowhere.is_one_line_error(2) and "--log-json" in nowhere.err
    assert not (tmp_path / "y").exists()


def test_a_source_that_raises_is_rows_a_traceback_and_exit_code_1(model_folder, tmp_path, monkeypatch):
    real, tried = engine_source.run_source, []

    def run_source(plan, prompts, source):
        tried.append(source.source_id)
        if source.source_id == tried[0]:
            raise LookupError("no such thing")
        return real(plan, prompts, source)

    monkeypatch.setattr(engine_source, "run_source", run_source)
    log = tmp_path / "log.jsonl"
    outcome = kvdiag(*small(model_folder, tmp_path / "x", 3, "--log-json", log))
    assert outcome.code == 1
    assert tried[0] == tried[1] != tried[2]
    assert outcome.err.count("Traceback") == 1
    assert "1 sources ended in an exception" in outcome.out
    assert f"{tried[0]}: LookupError: no such thing" in outcome.out
    failures = [e for e in map(json.loads, log.read_text().splitlines()) if e["event"] == "failed"]
    assert [(f["source_id"], f["attempt"], f["error"]) for f in failures] == [
        (tried[0], 1, "LookupError: no such thing"),
        (tried[0], 2, "LookupError: no such thing"),
    ]
    assert "run_source" in failures[0]["traceback"]
    statuses = rows(
        connect(tmp_path / "x"), "SELECT status, reason, count(*) AS n FROM runs GROUP BY ALL ORDER BY ALL"
    )
    assert statuses == [
        {"status": "available", "reason": None, "n": 2},
        {"status": "failed", "reason": "exception", "n": 1},
    ]
    assert kvdiag("validate", tmp_path / "x").code == 0
    assert kvdiag(*small(model_folder, tmp_path / "x", 3)).code == 1  # nothing is done, and it still is not whole


def test_ctrl_c_says_how_to_go_on(model_folder, tmp_path, monkeypatch):
    real = engine_source.run_source

    def run_source(plan, prompts, source):
        os.kill(os.getpid(), signal.SIGINT)
        return real(plan, prompts, source)

    log = tmp_path / "log.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(engine_source, "run_source", run_source)
        stopped = kvdiag(*small(model_folder, tmp_path / "x", 3, "--log-json", log))
    assert stopped.code == 130
    assert "stopped with 1 of 3 sources done; to go on, run again: kvdiag build" in stopped.err
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stopped"
    assert "1 of 3 sources were done before" in kvdiag(*small(model_folder, tmp_path / "x", 3)).err


class Broken:
    """run_source on a machine that breaks after some sources; a source too long for the model needs no machine."""

    def __init__(self, works, long=()):
        self.left, self.long, self.real, self.tried = works, set(long), engine_source.run_source, []

    def __call__(self, plan, prompts, source):
        self.tried.append(source.source_id)
        if len(set(self.tried)) in self.long:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(engine_source, "_too_long", lambda *_: Gap("unsupported", "over_length", "planted"))
                return self.real(plan, prompts, source)
        if self.left == 0:
            raise RuntimeError("CUDA error: device lost")
        self.left -= 1
        return self.real(plan, prompts, source)


def committed(out):
    return len(list((out / ".work" / "sources").glob("*.json")))


def test_ctrl_c_does_not_make_a_broken_machines_failures_final(model_folder, tmp_path, monkeypatch):
    machine = Broken(works=1)

    def run_source(plan, prompts, source):
        if len(machine.tried) == 4:  # the third source, tried again
            os.kill(os.getpid(), signal.SIGINT)
        return machine(plan, prompts, source)

    out = tmp_path / "x"
    with monkeypatch.context() as patch:
        patch.setattr(engine_source, "run_source", run_source)
        stopped = kvdiag(*small(model_folder, out, 6))
    assert stopped.code == 130 and committed(out) == 1
    assert "stopped with 1 of 6 sources done" in stopped.err
    assert kvdiag(*small(model_folder, out, 6)).code == 0


@pytest.mark.parametrize(
    ("works", "long", "kept"),
    [
        (0, (), 0),  # nothing ever ran well
        (2, (), 2),  # it broke before the end, with fewer sources left than make a row
        (1, (2, 4), 3),  # sources too long for the model between the failures show nothing
    ],
)
def test_the_last_sources_are_not_failed_for_the_machine(model_folder, tmp_path, monkeypatch, works, long, kept):
    out = tmp_path / "x"
    with monkeypatch.context() as patch:
        patch.setattr(engine_source, "run_source", Broken(works, long))
        broken = kvdiag(*small(model_folder, out, 4))
        assert broken.code == 1 and committed(out) == kept
        assert f"the last {4 - kept} sources ended in an exception" in broken.err.splitlines()[-1]
        # Gone on with, fewer are left than make a row.
        patch.setattr(engine_source, "run_source", Broken(0))
        assert kvdiag(*small(model_folder, out, 4)).code == 1 and committed(out) == kept
    assert kvdiag(*small(model_folder, out, 4)).code == 0


def test_a_last_source_that_fails_alone_is_failed_for_itself(model_folder, tmp_path, monkeypatch):
    real, seen = engine_source.run_source, {}

    def run_source(plan, prompts, source):
        seen[source.source_id] = len(seen)
        if source.source_id == plan.sources[-1].source_id:
            raise LookupError("its own fault")
        return real(plan, prompts, source)

    with monkeypatch.context() as patch:
        patch.setattr(engine_source, "run_source", run_source)
        assert kvdiag(*small(model_folder, tmp_path / "x", 3)).code == 1
    assert rows(connect(tmp_path / "x"), "SELECT reason, count(*) AS n FROM runs GROUP BY ALL ORDER BY n") == [
        {"reason": "exception", "n": 1},
        {"reason": None, "n": 2},
    ]


def test_flags_of_the_pool_need_the_pool(model_folder, tmp_path):
    result = kvdiag(*small(model_folder, tmp_path / "x", 1, "--workers", "2"))
    assert result.is_one_line_error(2) and "--workers 2: needs --engine ray" in result.err
    assert not (tmp_path / "x").exists()


def test_work_files_elsewhere_end_in_the_same_ledger(model_folder, tmp_path):
    assert kvdiag(*small(model_folder, tmp_path / "x", 2)).code == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of it")
    for name, place in (("y", "memory://kvdiag-build"), ("z", tmp_path / "mine")):
        assert kvdiag(*small(model_folder, tmp_path / name, 2, "--work", place)).code == 0
        assert contents(tmp_path / "x") == contents(tmp_path / name)
    assert [p.name for p in (tmp_path / "mine").rglob("*")] == ["thesis.txt"]


def test_a_plan_is_priced_without_weights(model_folder, tmp_path):
    """By config and tokenizer: a folder without weights will do."""
    bare = shutil.copytree(model_folder, tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    result = kvdiag(*small(bare, tmp_path / "x", 4), "--plan", "--json")
    assert result.code == 0, result
    price = json.loads(result.out)
    assert (price["sources"], price["cells"], price["runs"]) == (4, 1, 4)
    assert 450 < price["prompt_tokens"]["mean"] <= price["prompt_tokens"]["max"] <= 512
    assert price["new_tokens_at_most"] == 2
    assert [c["hardware"] for c in price["cost"]] == ["H200 SXM", "H100 SXM", "A100 SXM 80GB"]
    assert all(0 < c["hours"] < c["cell_by_cell_hours"] and c["fits"] for c in price["cost"])
    assert not (tmp_path / "x").exists()
    longer = kvdiag(*small(bare, tmp_path / "x", 4), "--workload", "ruler_2k", "--plan")
    assert longer.is_one_line_error(2) and "longer than the 1024 positions" in longer.err
    assert kvdiag(*small(bare, tmp_path / "x", 4), "--assume-tokens", "9").is_one_line_error(2)
    unknown = kvdiag(*small("nobody/nothing", tmp_path / "x", 4), "--plan")
    assert unknown.is_one_line_error(2) and "--model nobody/nothing: its config cannot be read" in unknown.err


def test_a_plan_of_a_model_that_is_not_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = kvdiag("build", "--recipe", "ruler_8k", "--plan", "--model", "Qwen/Qwen3-8B")
    assert result.code == 0, result
    for text in ("1,100 sources x 24 cells = 26,400", "8,192 tokens each", "8.19 billion", "H100 SXM", "1.2 GB"):
        assert text in result.out
    lost = kvdiag("build", "--recipe", "qasper", "--plan", "--model", "Qwen/Qwen3-8B")
    assert lost.is_one_line_error(2) and "--assume-tokens N" in lost.err
    told = kvdiag("build", "--recipe", "qasper", "--plan", "--model", "Qwen/Qwen3-8B", "--assume-tokens", "5000")
    assert told.code == 0 and "5,000 tokens each" in told.out
    assert list(tmp_path.iterdir()) == []
