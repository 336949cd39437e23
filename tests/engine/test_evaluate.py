"""One more method on a ledger's own sources: what it gives, what it outlives, and when it stops."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
import torch

from kvdiag import recipes
from kvdiag.analysis.verdict import verdict
from kvdiag.commit import kvdiag_commit
from kvdiag.conformance import foreign
from kvdiag.engine import against, evaluate, stored
from kvdiag.engine import source as engine_source
from kvdiag.engine.build import Watcher, build
from kvdiag.engine.candidate import Candidate
from kvdiag.engine.evaluate import Choice
from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.ledger import faults
from kvdiag.ledger.files import sha256
from kvdiag.ledger.intact import sealed
from kvdiag.ledger.layout import read_manifest
from kvdiag.ledger.parquet import write_table
from kvdiag.methods.settings import Setting
from kvdiag.query.connection import connect, rows
from kvdiag.records.schema import arrow_schema, to_table
from kvdiag.validation.validate import validate
from tests.faults.harness import At, disk_full

METHODS = "tests.engine.foreign_methods"
PASSED = {"passed": True, "digest": "0" * 16, "failed": [], "versions": {}}
ONE_CELL = Choice(settings=("keep=0.5",), protocols=("query_agnostic",))


def candidate(name, code="a" * 64, **conformance):
    spec = name if ":" in name else f"{METHODS}:{name}"
    method, make, _ = foreign.load(spec)
    return Candidate(spec, method, make, code, PASSED | conformance)


def run(ledger, name, out, choice=ONE_CELL, watcher=None, **conformance):
    return evaluate.evaluate(ledger, candidate(name, **conformance), choice, out, watcher)[0]


def ask(ledger, sql):
    connection = connect(ledger)
    try:
        return rows(connection, sql)
    finally:
        connection.close()


def changed(ledger, copy, table, change):
    """A copy of a ledger with rows of a table changed."""
    shutil.copytree(ledger, copy)
    manifest = read_manifest(copy)
    for entry in manifest["files"]:
        if entry["table"] == table:
            path = copy / entry["path"]
            data = pq.read_table(path, schema=arrow_schema(table)).to_pylist()
            for i, row in enumerate(data):
                change(i, row)
            path.unlink()
            write_table(table, to_table(table, data), path)
            entry |= {"sha256": sha256(path), "bytes": path.stat().st_size}
    (copy / "manifest.json").write_text(json.dumps(sealed(manifest)))
    return copy


@pytest.fixture(scope="module")
def done(built_ledger, tmp_path_factory):
    """A sound press in all cells of the ledger. Not to be written to."""
    out = tmp_path_factory.mktemp("evaluations") / "longest"
    return run(built_ledger, "LongestKeys", out, Choice())


def test_it_is_a_valid_ledger_of_the_same_sources_and_controls(done, built_ledger):
    assert validate(done) == []
    manifest, of = read_manifest(done), read_manifest(built_ledger)
    assert manifest["complete"]
    assert {t: manifest["rows"][t] for t in ("sources", "controls", "runs", "methods")} == {
        "sources": 3,
        "controls": 3,
        "runs": 12,
        "methods": 1,
    }
    for table in ("sources", "controls"):
        assert ask(done, f"FROM {table} ORDER BY source_id") == ask(
            built_ledger, f"FROM {table} ORDER BY source_id"
        )
    assert manifest["recipe"]["settings"] == ["keep=0.5", "keep=0.25"]  # the ledger's
    assert manifest["recipe"]["protocols"] == of["recipe"]["protocols"]
    about = manifest["recipe"]["evaluation"]
    assert (about["method"], about["code_sha256"]) == (f"{METHODS}:LongestKeys", "a" * 64)
    assert about["of"] == evaluate.reference_digest(stored.read(built_ledger))
    assert manifest["environment"]["model_digest"] == of["environment"]["model_digest"]
    (method,) = ask(done, "FROM methods")
    assert (method["method"], method["state"], method["verification"]) == ("longestkeys", "verified", "0" * 16)
    assert ("a" * 64) in method["implementation"]


def test_its_manifest_says_which_code_ran_and_where_memory_was_short(done, built_ledger, tmp_path, monkeypatch):
    assert read_manifest(done)["environment"].get("kvdiag_commit") == kvdiag_commit()
    assert read_manifest(done)["build"]["out_of_memory"] == read_manifest(done)["build"]["halved"] == {}
    whole, texts = engine_source.run_matrix, []

    def run_matrix(model, prompt, cells, *rest, **known):
        texts.append(prompt.text)
        if cells and prompt.text == texts[0]:
            raise torch.OutOfMemoryError("planted")
        return whole(model, prompt, cells, *rest, **known)

    monkeypatch.setattr(engine_source, "run_matrix", run_matrix)
    out = run(built_ledger, "LongestKeys", tmp_path / "short")
    (lost,) = ask(out, "SELECT source_id, status FROM runs WHERE reason = 'oom'")
    facts = read_manifest(out)["build"]
    assert (lost["status"], facts["out_of_memory"]) == ("failed", {lost["source_id"]: 1})
    assert facts["halved"] == {lost["source_id"]: ["cells"]}
    assert validate(out) == []


def test_rows_are_those_a_build_gives(built_ledger, model_folder, tmp_path):
    """kvpress' own class through the foreign door, against the same method through a build."""
    wanted = recipes.load(
        workload="ruler_512",
        tasks="niah_single_1,niah_multikey_1,vt",
        limit=3,
        model=str(model_folder),
        methods="keydiff",
        settings="keep=0.5",
        protocols="both",
        max_new_tokens=6,
    )
    build(wanted, tmp_path / "built")
    choice = Choice(settings=("keep=0.5",))
    out = run(built_ledger, "kvpress:KeyDiffPress", tmp_path / "evaluated", choice)
    exact = ("source_id", "protocol", "output_tokens", "kept_tokens_min", "kept_tokens_max", "kv_bytes", "correct")
    near = ("nll", "delta_nll", "kl", "err", "ecov", "ear", "prefix_agreement", "gold_rank_shift")
    sql = f"SELECT {', '.join((*exact, *near))} FROM runs ORDER BY source_id, protocol"
    ours, theirs = ask(out, sql), ask(tmp_path / "built", sql)
    assert len(ours) == 6
    for a, b in zip(ours, theirs, strict=True):
        assert [a[n] for n in exact] == [b[n] for n in exact]
        for name in near:
            assert a[name] == pytest.approx(b[name], abs=2e-4), name


def test_runs_are_paired_with_the_stored_control(built_ledger, tmp_path):
    """An NLL within the bound is taken as the same control, and the ledger's own number counts."""

    def nudge(i, row):
        row["nll"] += 4e-4

    ledger = changed(built_ledger, tmp_path / "nudged", "controls", nudge)
    out = run(ledger, "LongestKeys", tmp_path / "out")
    assert validate(out) == []
    joined = ask(
        out, "SELECT r.delta_nll - (r.nll - c.nll) AS gap, r.status FROM runs r JOIN controls c USING (control_id)"
    )
    assert all(row["status"] == "available" and abs(row["gap"]) < 1e-9 for row in joined)


@pytest.mark.parametrize(
    ("change", "said"),
    [({"output_tokens": [5, 6, 2], "n_new_tokens": 3}, "the full cache answers"), ({"nll": 99.0}, "bound 0.001")],
)
def test_a_control_that_disagrees_fails_its_source(built_ledger, tmp_path, monkeypatch, change, said):
    ledger = changed(
        built_ledger, tmp_path / "other", "controls", lambda i, row: row.update(change if i == 1 else {})
    )
    with pytest.raises(DataError, match=r"1 of 3 sources \(more than 20%\)") as stopped:
        run(ledger, "LongestKeys", tmp_path / "stopped")
    assert said in str(stopped.value) and "\n" not in str(stopped.value)
    monkeypatch.setattr(evaluate, "MOST_DISAGREE", 0.5)
    out = run(ledger, "LongestKeys", tmp_path / "out")
    found = ask(
        out, "SELECT status, reason, detail, delta_nll__reason AS why FROM runs WHERE status <> 'available'"
    )
    assert [(r["status"], r["reason"], r["why"]) for r in found] == [
        ("failed", "control_disagrees", "run:control_disagrees")
    ]
    assert said in found[0]["detail"]
    assert read_manifest(out)["build"]["controls_that_disagree"] == 1
    assert verdict(ledger, out, resamples=100)["controls"]["n_disagree"] == 1
    assert validate(out) == []


def test_sources_without_texts_say_so(built_ledger, tmp_path):
    missing = {"text_status": "not_measured", "text_reason": "licence"} | dict.fromkeys(
        ("context", "question", "answer_prefix")
    )
    ledger = changed(
        built_ledger, tmp_path / "some", "sources", lambda i, row: row.update(missing if i == 0 else {})
    )
    out = run(ledger, "LongestKeys", tmp_path / "out")
    found = ask(out, "SELECT reason, count(*) AS n FROM runs GROUP BY ALL ORDER BY n")
    assert found == [{"reason": "no_text", "n": 1}, {"reason": None, "n": 2}]
    assert validate(out) == []
    none = changed(built_ledger, tmp_path / "none", "sources", lambda i, row: row.update(missing))
    with pytest.raises(DataError, match="lacks the texts of its sources \\(licence\\)"):
        run(none, "LongestKeys", tmp_path / "never")


@pytest.mark.parametrize(
    ("fault", "status", "reason", "said"),
    [
        ("GivesNaN", "failed", "nonfinite", "not finite"),
        ("ChangesShapes", "unsupported", "probe_failed", "ValueError: gives values as"),
        ("WantsAttention", "unsupported", "probe_failed", "AssertionError"),
        ("RaisesWhenMade", "unsupported", "probe_failed", "no statistics for this model"),
        ("WrongWidth", "unsupported", "probe_failed", "ValueError: gives kept as"),
        ("SaysNothing", "unsupported", "probe_failed", "gives choices for 0 of 3 layers"),
        ("RaisesOurError", "unsupported", "probe_failed", "RuntimeError: DataError: planted"),
        ("Leaves", "unsupported", "probe_failed", "RuntimeError: SystemExit: 3"),
    ],
)
def test_faults_of_a_method_become_rows(built_ledger, tmp_path, fault, status, reason, said):
    out = run(built_ledger, fault, tmp_path / "out")
    found = ask(out, "SELECT status, reason, detail FROM runs")
    assert [(r["status"], r["reason"]) for r in found] == [(status, reason)] * 3
    assert all(said in r["detail"] for r in found)
    assert (
        fault not in ("GivesNaN", "ChangesShapes") or validate(out) == []
    )  # one of each status: it takes a second


def test_faults_past_the_probe_become_rows_too(built_ledger, tmp_path, monkeypatch):
    monkeypatch.setattr(against, "_PROBED", 0)
    out = run(built_ledger, "WrongWidth", tmp_path / "out")
    assert ask(out, "SELECT DISTINCT status, reason FROM runs") == [{"status": "failed", "reason": "exception"}]


def test_a_crash_on_the_third_source_costs_that_source(built_ledger, tmp_path):
    from tests.engine.foreign_methods import CrashesOnThird

    CrashesOnThird.made = 0
    out = run(built_ledger, "CrashesOnThird", tmp_path / "out")
    found = ask(out, "SELECT status, reason, detail FROM runs WHERE status <> 'available'")
    assert [(r["status"], r["reason"]) for r in found] == [("failed", "exception")]
    assert "planted crash" in found[0]["detail"]
    assert ask(out, "SELECT count(*) AS n FROM runs WHERE status = 'available'") == [{"n": 2}]


def test_a_method_that_writes_to_the_shared_cache_is_found_out(built_ledger, tmp_path, monkeypatch):
    """By the probe; past it the control it spoils is no longer the stored one."""
    out = run(built_ledger, "WritesInPlace", tmp_path / "out")
    (found,) = ask(out, "SELECT DISTINCT status, reason, detail FROM runs")
    assert (found["status"], found["reason"]) == ("unsupported", "probe_failed")
    assert "writes to the shared keys" in found["detail"]
    monkeypatch.setattr(against, "_PROBED", 0)
    with pytest.raises(DataError, match="the method may change what others see"):
        run(built_ledger, "WritesInPlace", tmp_path / "again")


class StopsAfterOne(Watcher):
    """Presses Ctrl-C when the first source is committed."""

    def source_done(self, source, seconds):
        raise KeyboardInterrupt


class Counts(Watcher):
    """How many sources had been done, and how many were done now."""

    done = 0
    now = 0

    def planned(self, plan, done):
        self.done = done

    def source_done(self, source, seconds):
        self.now += 1


def contents(folder):
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    manifest = json.loads(found.pop("manifest.json"))
    del manifest["build"]
    return found, manifest


def test_ctrl_c_loses_only_the_source_in_hand(built_ledger, tmp_path):
    whole = run(built_ledger, "LongestKeys", tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(built_ledger, "LongestKeys", tmp_path / "again", watcher=StopsAfterOne())
    counts = Counts()
    again = run(built_ledger, "LongestKeys", tmp_path / "again", watcher=counts)
    assert (counts.done, counts.now) == (1, 2)
    assert contents(again) == contents(whole)
    before = contents(whole)
    assert contents(run(built_ledger, "LongestKeys", whole)) == before  # a finished one is read, not run


def test_a_full_disk_is_one_line(built_ledger, tmp_path, monkeypatch):
    out = tmp_path / "out"
    for moment, kept in (("plan.json:written", 0), ("manifest.json:begun", 3)):
        monkeypatch.setattr(faults, "hook", At(moment, 1, disk_full))
        with pytest.raises(DataError) as full:
            run(built_ledger, "LongestKeys", out)
        said = f"--out {out}: cannot be written (No space left on device); {kept} of 3 sources are kept"
        assert said in str(full.value)
        assert not (out / "manifest.json").exists()
    monkeypatch.setattr(faults, "hook", None)
    assert validate(run(built_ledger, "LongestKeys", out)) == []


@pytest.mark.parametrize("works", [0, 1])
def test_a_broken_machines_failures_are_not_kept(built_ledger, tmp_path, monkeypatch, works):
    """Past the method: whatever runs there raises."""
    real, out, left = against.run_source, tmp_path / "out", [works]

    def run_source(*given):
        if left[0] == 0:
            raise RuntimeError("CUDA error: device lost")
        left[0] -= 1
        return real(*given)

    counts = Counts()
    with monkeypatch.context() as patch:
        patch.setattr(against, "run_source", run_source)
        with pytest.raises(DataError, match=f"the last {3 - works} sources .* device lost, and none before"):
            run(built_ledger, "LongestKeys", out)
    run(built_ledger, "LongestKeys", out, watcher=counts)
    assert (counts.done, counts.now) == (works, 3 - works)
    assert ask(out, "SELECT DISTINCT status FROM runs") == [{"status": "available"}]


def test_a_source_that_raises_past_the_method_is_rows(built_ledger, tmp_path, monkeypatch):
    real = against.run_source

    def run_source(plan, prompts, source):
        if source.source_id == plan.sources[-1].source_id:
            raise LookupError("its own fault")
        return real(plan, prompts, source)

    monkeypatch.setattr(against, "run_source", run_source)
    out = run(built_ledger, "LongestKeys", tmp_path / "out")
    found = ask(out, "SELECT reason, detail FROM runs WHERE status <> 'available'")
    assert found == [{"reason": "exception", "detail": "LookupError: its own fault"}]


def test_other_code_reuses_nothing(done, built_ledger):
    with pytest.raises(RefusedError, match="another recipe"):
        evaluate.evaluate(built_ledger, candidate("LongestKeys", code="b" * 64), Choice(), done)


def test_unverified_stands_in_every_row(built_ledger, tmp_path):
    out = run(built_ledger, "FirstHalf", tmp_path / "out", passed=False, failed=["budget"])
    assert {r["detail"] for r in ask(out, "SELECT detail FROM runs")} == {"unverified"}
    (method,) = ask(out, "FROM methods")
    assert (method["state"], method["state_reason"], method["verification"]) == (
        "available",
        "unverified: fails budget",
        None,
    )
    assert validate(out) == []


def test_limits_take_tasks_in_turn(built_ledger, tmp_path):
    tasks = [s["task"] for s in stored.read(built_ledger, limit=2).sources]
    assert len(set(tasks)) == 2
    assert [s["source_id"] for s in stored.read(built_ledger, 2).sources] == [
        s["source_id"] for s in stored.read(built_ledger).sources[:2]
    ]


@pytest.mark.parametrize(
    ("name", "choice", "said"),
    [
        (
            "LongestKeys",
            Choice(settings=("bits=4",)),
            "--setting bits=4: longestkeys takes settings like keep=0.5",
        ),
        ("LongestKeys", Choice(settings=("half",)), "must look like keep=0.5"),
        ("kvdiag.methods.adapters.quest:QuestAdapter", Choice(model="/no/such"), "no such folder or file"),
    ],
)
def test_choices_that_do_not_fit(built_ledger, tmp_path, name, choice, said):
    with pytest.raises(UsageError, match=said):
        run(built_ledger, name, tmp_path / "out", choice)
    assert not (tmp_path / "out").exists()


def test_ledgers_that_do_not_fit(done, made_up, built_ledger, tmp_path):
    with pytest.raises(UsageError, match="is itself an evaluation"):
        run(done, "FirstHalf", tmp_path / "out")
    with pytest.raises(DataError, match="has no source with a control"):
        run(made_up, "FirstHalf", tmp_path / "out")
    with pytest.raises(UsageError, match="has runs of a method longestkeys already"):
        evaluate._check_name(built_ledger, candidate("LongestKeys"), {"longestkeys"})


def test_another_model_is_no_match(built_ledger, tmp_path):
    from tests.folder import save_model

    other = save_model(tmp_path / "other", broken=True)
    with pytest.raises(DataError, match="was built with other weights of tiny"):
        run(built_ledger, "LongestKeys", tmp_path / "out", Choice(model=str(other)))


def test_rows_run_again_are_the_same(done, built_ledger):
    wanted = ask(done, "FROM runs ORDER BY run_id LIMIT 5")
    base = stored.read(built_ledger)
    assert against.rerun(base, candidate("LongestKeys"), wanted) == []
    wanted[1] |= {"output_tokens": [1, 2, 3]}
    wanted[2] |= {"nll": wanted[2]["nll"] + 1}
    differs = against.rerun(base, candidate("LongestKeys"), wanted)
    assert sorted(line.split(": ")[0] for line in differs) == sorted(row["run_id"] for row in wanted[1:3])


def test_a_setting_is_as_ledgers_spell_it():
    found = evaluate._settings(candidate("LongestKeys").method, ["keep=0.50", "keep=0.5", "keep=0.75"], [])
    assert found == [Setting("keep", 0.75), Setting("keep", 0.5)]
    assert [str(s) for s in evaluate._settings(candidate("LongestKeys").method, None, ["75%", "bits=4"])] == [
        "keep=0.75",
        "keep=0.5",
        "keep=0.25",
    ]
