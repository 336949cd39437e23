"""`kvdiag build` from the flags to the files, on a tiny model."""

import hashlib
import json
import os
import shutil
import signal
import time
from collections import Counter

import pytest
from jsonschema import Draft202012Validator

from kvdiag.ledger import card
from kvdiag.query.connection import connect, rows
from kvdiag.records.schema import TABLES, json_schema, metric_names
from tests.command import kvdiag, start
from tests.folder import MAX_POSITIONS, save_model

N_SOURCES = 9
TASKS = "niah_single_1,niah_multikey_1,vt"
METHODS = ("snapkv", "keydiff", "knorm", "streaming_llm", "tova")
N_CELLS = 20


def flags(model, out):
    """The build that the tests share."""
    return (
        *("build", "--workload", "ruler_512", "--limit", N_SOURCES, "--seed", "5", "--model", model, "--out", out),
        *("--methods", ",".join(METHODS), "--settings", "keep=0.5,keep=0.125", "--protocol", "both"),
        *("--tasks", TASKS, "--max-new-tokens", "6"),
    )


@pytest.fixture(scope="module")
def built(model_folder, tmp_path_factory):
    """A finished ledger and what its build said. Not to be written to."""
    ledger = tmp_path_factory.mktemp("built") / "ledger"
    return ledger, kvdiag(*flags(model_folder, ledger))


@pytest.fixture(scope="module")
def ledger(built):
    return built[0]


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def same_but_for_times(one, two):
    """Whether two ledgers are byte-equal; the manifest may differ in `build`, which holds times."""
    one, two = files(one), files(two)
    manifests = [json.loads(f.pop("manifest.json")) for f in (one, two)]
    for manifest in manifests:
        del manifest["build"]
    return one == two and manifests[0] == manifests[1]


def ask(ledger, sql):
    return rows(connect(ledger), sql)


def test_the_plan_is_printed_then_progress_then_the_findings(built):
    ledger, outcome = built
    assert outcome.code == 0
    plan = (
        f"{N_SOURCES} of ruler_512",
        "x 2 protocols = 20",
        "= 180, and the controls",
        str(ledger),
    )
    for text in plan:
        assert text in outcome.err
    assert f"source {N_SOURCES}/{N_SOURCES}" in outcome.err
    assert f"of {N_SOURCES} answers right" in outcome.out
    assert f"kvdiag query --data {ledger}" in outcome.out


def test_every_planned_run_has_a_row(ledger):
    counts = ask(ledger, "SELECT cell_id, count(*) AS n, count(DISTINCT source_id) AS s FROM runs GROUP BY ALL")
    assert len(counts) == N_CELLS
    assert all((row["n"], row["s"]) == (N_SOURCES, N_SOURCES) for row in counts)
    (controls,) = ask(ledger, "SELECT count(*) AS n, count(DISTINCT source_id) AS s FROM controls")
    assert controls == {"n": N_SOURCES, "s": N_SOURCES}
    tasks = Counter(row["task"] for row in ask(ledger, "SELECT task FROM sources"))
    assert tasks == {"niah_single_1": 3, "niah_multikey_1": 3, "vt": 3}
    orphans = "SELECT count(*) AS n FROM runs r ANTI JOIN controls c ON c.control_id = r.control_id"
    assert ask(ledger, orphans) == [{"n": 0}]


def test_the_manifest_is_right(ledger, model_folder):
    manifest = json.loads((ledger / "manifest.json").read_text())
    assert manifest["complete"] is True
    assert len(manifest["cells"]) == N_CELLS
    assert manifest["recipe"]["model"] == str(model_folder)
    assert {t: manifest["rows"][t] for t in ("sources", "controls", "runs")} == {
        "sources": N_SOURCES,
        "controls": N_SOURCES,
        "runs": N_SOURCES * N_CELLS,
    }
    listed = {entry["path"]: entry for entry in manifest["files"]}
    on_disk = {name: data for name, data in files(ledger).items() if name.startswith("data/")}
    assert listed.keys() == on_disk.keys()
    for path, entry in listed.items():
        assert entry["sha256"] == hashlib.sha256(on_disk[path]).hexdigest()
        assert entry["rows"] == ask(ledger, f"SELECT count(*) AS n FROM {entry['table']}")[0]["n"]
    assert files(ledger).keys() == {*listed, "README.md", "manifest.json"}
    assert (ledger / "README.md").read_text(encoding="utf-8") == card.render(manifest)


@pytest.mark.parametrize("table", TABLES)
def test_rows_follow_the_contract(ledger, table):
    validator = Draft202012Validator(json_schema(table))
    for row in ask(ledger, f"FROM {table}"):
        validator.validate(row)


def inconsistent(ledger, table, metric):
    (row,) = ask(
        ledger,
        f"SELECT count(*) FILTER (({metric} IS NOT NULL) <> ({metric}__status = 'available')"
        f" OR ({metric}__reason IS NULL) <> ({metric}__status = 'available')"
        f" OR NOT coalesce(isfinite({metric}::DOUBLE), true)) AS n FROM {table}",
    )
    return row["n"]


@pytest.mark.parametrize(("table", "metric"), [(t, m) for t in ("controls", "runs") for m in metric_names(t)])
def test_metric_status_and_reason_agree_over_the_whole_file(ledger, table, metric):
    assert inconsistent(ledger, table, metric) == 0
    (row,) = ask(ledger, f"SELECT count(DISTINCT {metric}__status) AS n FROM {table}")
    assert row["n"] >= 1


def test_measured_numbers_are_in_range(ledger):
    (row,) = ask(
        ledger,
        "SELECT count(*) FILTER (err BETWEEN 0 AND 1) AS err, count(*) FILTER (ecov BETWEEN 0 AND 1) AS ecov,"
        " count(*) FILTER (top50_overlap BETWEEN 0 AND 1) AS top50, count(*) FILTER (gpr > 0) AS gpr,"
        " count(*) FILTER (abs(gpr - exp(-delta_nll)) < 1e-9 * gpr) AS gpr_is,"
        " count(*) FILTER (kept_tokens_min <= kept_tokens_mean AND kept_tokens_mean <= kept_tokens_max) AS kept,"
        " count(*) FILTER (kept_tokens_max < n_compressed AND kv_bytes < kv_bytes_full) AS smaller FROM runs",
    )
    assert row == dict.fromkeys(row, N_SOURCES * N_CELLS)


def test_runs_pair_with_their_control(ledger):
    sql = (
        "SELECT r.transition, c.correct AS control, r.correct AS run, r.delta_nll - (r.nll - c.nll) AS gap"
        " FROM runs r JOIN controls c USING (control_id)"
    )
    letter = {True: "C", False: "W"}
    for row in ask(ledger, sql):
        assert row["transition"] == f"{letter[row['control']]}->{letter[row['run']]}"
        assert abs(row["gap"]) < 1e-12


def test_json_prints_the_manifest(model_folder, tmp_path):
    result = kvdiag(
        *("build", "--workload", "ruler_512", "--tasks", "vt", "--limit", "1", "--model", model_folder),
        *("--methods", "knorm", "--settings", "keep=0.5", "--protocol", "aware", "--max-new-tokens", "2"),
        *("--out", tmp_path / "x", "--json"),
    )
    assert json.loads(result.out) == json.loads((tmp_path / "x" / "manifest.json").read_text())


def test_a_plan_writes_nothing(model_folder, tmp_path):
    result = kvdiag(*flags(model_folder, tmp_path / "x"), "--plan")
    assert result.code == 0
    assert "= 180, and the controls" in result.out
    assert list(tmp_path.iterdir()) == []


def test_a_killed_build_goes_on_and_ends_the_same(built, model_folder, tmp_path):
    ledger, _ = built
    out = tmp_path / "ledger"
    command = flags(model_folder, out)
    process = start(*command)
    try:
        while len(list((out / ".work" / "sources").glob("*.json"))) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    committed = {p.name: p.stat().st_mtime_ns for p in (out / ".work" / "sources").glob("*.json")}
    assert 2 <= len(committed) < N_SOURCES
    assert not (out / "manifest.json").exists()
    assert kvdiag("query", "--data", out, "FROM runs").is_one_line_error(1)

    # A file cut in the middle, as a full disk may leave it, is done again too.
    damaged = out / ".work" / "sources" / sorted(committed)[0]
    damaged.write_bytes(damaged.read_bytes()[:100])
    outcome = kvdiag(*command)
    assert outcome.code == 0
    assert f"{len(committed) - 1} of {N_SOURCES} sources were done before" in outcome.err
    assert f"warning: {damaged}: damaged" in outcome.err
    assert outcome.err.count("\nsource ") == N_SOURCES - len(committed) + 1
    assert same_but_for_times(out, ledger)


def test_a_build_stopped_while_it_finishes_ends_the_same(built, model_folder, tmp_path, monkeypatch):
    """The card is written last but one: Parquet files are there, the manifest is not."""
    ledger, _ = built

    def stop(manifest):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(card, "render", stop)
        stopped = kvdiag(*flags(model_folder, tmp_path / "x"))
    assert stopped.code == 130
    assert "Traceback" not in stopped.err
    assert f"{N_SOURCES} of {N_SOURCES} sources done; to go on, run again: kvdiag build" in stopped.err
    assert not (tmp_path / "x" / "manifest.json").exists()
    assert kvdiag(*flags(model_folder, tmp_path / "x")).code == 0
    assert same_but_for_times(tmp_path / "x", ledger)


def test_the_same_command_again_does_nothing(built, model_folder):
    ledger, _ = built
    before = {p: p.stat().st_mtime_ns for p in ledger.rglob("*")}
    outcome = kvdiag(*flags(model_folder, ledger))
    assert outcome.code == 0
    assert f"{N_SOURCES} of {N_SOURCES} sources were done before" in outcome.err
    assert {p: p.stat().st_mtime_ns for p in ledger.rglob("*")} == before


def test_a_finished_ledger_that_was_damaged_is_named(built, model_folder, tmp_path):
    shutil.copytree(built[0], tmp_path / "x")
    (file,) = (tmp_path / "x" / "data" / "runs").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    result = kvdiag(*flags(model_folder, tmp_path / "x"))
    assert result.is_one_line_error(1), result
    assert f"data/runs/{file.name} has" in result.err
    checked = kvdiag("validate", tmp_path / "x")
    assert checked.code == 1
    assert file.name in checked.out + checked.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--seed", "6"), "another recipe (seed: 5 -> 6)"),
        (("--limit", "3"), "another recipe (limit: 9 -> 3)"),
        (("--methods", "knorm"), "another recipe (methods: "),
        (("--max-new-tokens", "7"), "another recipe (max_new_tokens: 6 -> 7)"),
        (("--dtype", "bfloat16"), "another recipe (dtype: auto -> bfloat16)"),
    ],
)
def test_a_changed_recipe_is_refused(built, model_folder, change, message):
    ledger, _ = built
    before = files(ledger)
    result = kvdiag(*flags(model_folder, ledger), *change)
    assert result.is_one_line_error(3), result
    assert message in result.err
    assert files(ledger) == before


def test_a_changed_model_is_refused(built, tmp_path):
    """Another model under the same path: the recipe is the same, the numbers would not be."""
    model = save_model(tmp_path / "tiny")
    out = tmp_path / "out"
    small = (
        "--workload",
        "ruler_512",
        "--tasks",
        "vt",
        "--limit",
        "1",
        "--methods",
        "knorm",
        "--max-new-tokens",
        "2",
    )
    assert kvdiag("build", *small, "--model", model, "--out", out).code == 0
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    before = files(out)
    result = kvdiag("build", *small, "--model", model, "--out", out)
    assert result.is_one_line_error(3), result
    assert "another environment (model_digest: " in result.err
    assert files(out) == before


def test_a_model_without_finite_answers_gives_failed_rows(tmp_path):
    model = save_model(tmp_path / "broken", broken=True)
    out = tmp_path / "out"
    outcome = kvdiag(
        *("build", "--workload", "ruler_512", "--tasks", "vt", "--limit", "2", "--model", model, "--out", out),
        *("--methods", "snapkv,knorm", "--settings", "keep=0.5", "--protocol", "both", "--max-new-tokens", "2"),
    )
    assert outcome.code == 0
    assert ask(out, "SELECT status, reason, transition, count(*) AS n FROM runs GROUP BY ALL") == [
        {"status": "failed", "reason": "nonfinite", "transition": None, "n": 8}
    ]
    assert json.loads((out / "manifest.json").read_text())["complete"] is True
    for metric in metric_names("runs"):
        assert inconsistent(out, "runs", metric) == 0
    (pairs,) = ask(out, "SELECT DISTINCT delta_nll__status AS s, delta_nll__reason AS r FROM runs")
    assert pairs == {"s": "failed", "r": "both:nonfinite"}
    for table in ("controls", "runs"):
        validator = Draft202012Validator(json_schema(table))
        for row in ask(out, f"FROM {table}"):
            validator.validate(row)


def test_a_method_that_needs_more_positions_is_unsupported(model_folder, tmp_path):
    """SnapKV needs 65 positions; in plain text with no line of noise a short source has fewer."""
    out = tmp_path / "out"
    outcome = kvdiag(
        *("build", "--workload", "ruler_115", "--tasks", "niah_single_1", "--limit", "1", "--model", model_folder),
        *(
            "--methods",
            "snapkv,knorm",
            "--settings",
            "keep=0.5",
            "--protocol",
            "agnostic",
            "--max-new-tokens",
            "2",
        ),
        *("--prompt", "plain", "--out", out),
    )
    assert outcome.code == 0, outcome.err
    found = ask(out, "SELECT method, status, reason, err__status, delta_nll__reason, detail FROM runs ORDER BY 1")
    assert [(r["method"], r["status"], r["reason"]) for r in found] == [
        ("knorm", "available", None),
        ("snapkv", "unsupported", "context_too_short"),
    ]
    assert found[1]["err__status"] == "unsupported"
    assert found[1]["delta_nll__reason"] == "run:context_too_short"
    assert "snapkv needs 65" in found[1]["detail"]


BAD_INPUT = [
    (("--workload", "rular_512"), 2, "did you mean ruler_"),
    (("--workload", "ruler"), 2, "needs a length"),
    (("--methods", "snapvk"), 2, "did you mean snapkv"),
    (("--settings", "keep=half"), 2, "must look like keep=0.5"),
    (("--settings", "keep=1.5"), 2, "keep must lie between 0 and 1"),
    (("--protocol", "blind"), 2, "must be agnostic, aware or both"),
    (("--tasks", "vtt"), 2, "did you mean vt"),
    (("--limit", "0"), 2, "--limit 0"),
    (("--limit", "many"), 2, "--limit"),
    (("--recipe", "dmeo"), 2, "did you mean demo"),
    (("--prompt", "poem"), 2, "must be one of chat, plain"),
    (("--dtype", "int4"), 2, "--dtype int4"),
    (("--device", "abacus"), 2, "--device abacus"),
    (("--model", "./no-such-folder"), 2, "no such folder or file"),
    (("--model", "none.gguf"), 2, "no such file"),
    (("--model", "nobody/nothing"), 2, "--model nobody/nothing: cannot be loaded"),
    (("--workload", "ruler_2k"), 2, f"--length 2048: longer than the {MAX_POSITIONS} positions"),
    (("--workload", "ruler_50"), 2, "needs at least"),
    (("--max-new-tokens", "600"), 2, "needs at least"),
]


@pytest.mark.parametrize(
    ("change", "code", "message"), BAD_INPUT, ids=lambda v: "-".join(v) if isinstance(v, tuple) else ""
)
def test_bad_input_is_one_line_and_writes_nothing(model_folder, tmp_path, monkeypatch, change, code, message):
    monkeypatch.chdir(tmp_path)
    result = kvdiag(*flags(model_folder, tmp_path / "out"), *change)
    assert result.is_one_line_error(code), result
    assert message in result.err
    assert "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_no_model_is_one_line(model_folder, tmp_path):
    for name, content in {"empty": {}, "text": {"notes.txt": "hello"}, "half": {"config.json": "{"}}.items():
        folder = tmp_path / name
        folder.mkdir()
        for file, text in content.items():
            (folder / file).write_text(text)
        result = kvdiag(*flags(folder, tmp_path / "out"))
        assert result.is_one_line_error(2), result
        assert f"--model {folder}" in result.err
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"model_type": "bert"}')
    result = kvdiag(*flags(other, tmp_path / "out"))
    assert result.is_one_line_error(2)
    assert "architecture bert is not supported" in result.err
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_one_line(model_folder, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file" / "ledger", tmp_path / "file"):
        result = kvdiag(*flags(model_folder, out))
        assert result.is_one_line_error(2) or "file" in result.err, result
        assert result.code == 2
        assert result.err.splitlines()[-1].startswith(f"kvdiag: --out {out}")
        assert "Traceback" not in result.err
    assert files(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize("content", ["thesis.txt", "manifest.json"])
def test_a_folder_of_other_things_is_left_alone(model_folder, tmp_path, content):
    (tmp_path / content).write_text("{}")
    result = kvdiag(*flags(model_folder, tmp_path))
    assert result.code in (1, 3)
    assert result.is_one_line_error(result.code), result
    assert files(tmp_path) == {content: b"{}"}


def test_a_process_of_its_own_ends_with_one_line_too(model_folder, tmp_path):
    """What libraries print when they load would show here: the streams of the process, not only Python's."""
    process = start(*flags(model_folder, tmp_path / "out"), "--workload", "ruler_2k")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("kvdiag: --length 2048: longer than the 1024 positions of tiny")
    assert os.listdir(tmp_path) == []


def hotpot_file(folder, sentences):
    """A HotpotQA file of one question, whose passage has so many sentences."""
    passages = [
        ["Colours", ["The box is red.", *[" The sky is blue."] * sentences]],
        ["Box", ["A box has no lid."]],
    ]
    row = {
        "_id": "q1",
        "question": "Which colour has the box?",
        "answer": "red",
        "type": "bridge",
        "level": "easy",
        "context": passages,
        "supporting_facts": [["Colours", 0], ["Box", 0]],
    }
    path = folder / "hotpot.json"
    path.write_text(json.dumps([row]))
    return path


def of_hotpotqa(model, out, file):
    return (
        *("build", "--workload", "hotpotqa", "--file", file, "--limit", "3", "--model", model, "--out", out),
        *("--recipe", "default", "--methods", "snapkv,knorm", "--settings", "keep=0.5", "--max-new-tokens", "4"),
    )


def test_a_source_past_the_positions_is_a_row_and_never_cut(model_folder, tmp_path):
    out = tmp_path / "out"
    outcome = kvdiag(*of_hotpotqa(model_folder, out, hotpot_file(tmp_path, 400)))
    assert outcome.code == 0, outcome.err
    assert "1 of hotpotqa (hotpotqa) (asked for 3; the data has no more: 1 of 3 hotpotqa)" in outcome.err
    expected = {"status": "unsupported", "reason": "over_length", "transition": None, "n": 4}
    assert ask(out, "SELECT status, reason, transition, count(*) AS n FROM runs GROUP BY ALL") == [expected]
    (control,) = ask(out, "SELECT status, reason, detail, correct, score__status, n_prompt_tokens FROM controls")
    assert control["n_prompt_tokens"] > MAX_POSITIONS
    assert (control["status"], control["reason"], control["score__status"]) == (
        "unsupported",
        "over_length",
        "unsupported",
    )
    assert f"has {MAX_POSITIONS} positions" in control["detail"]
    assert json.loads((out / "manifest.json").read_text())["complete"] is True
    assert kvdiag("validate", out).code == 0
    # The failure rate counts it nowhere: no control was right.
    (rate,) = ask(out, "SELECT DISTINCT n_eligible, n_c2w FROM failure_rates")
    assert rate == {"n_eligible": 0, "n_c2w": 0}


def test_another_text_under_the_same_name_is_another_build(model_folder, tmp_path):
    file, out = hotpot_file(tmp_path, 2), tmp_path / "out"
    assert kvdiag(*of_hotpotqa(model_folder, out, file)).code == 0
    (row,) = ask(out, "SELECT evidence_status, origin_id, answer_types FROM sources")
    assert row == {"evidence_status": "available", "origin_id": "q1", "answer_types": ["span"]}
    hotpot_file(tmp_path, 3)
    result = kvdiag(*of_hotpotqa(model_folder, out, file))
    assert result.is_one_line_error(3), result
    assert "another environment (files: " in result.err


def test_a_changed_file_in_a_folder_is_another_build(model_folder, tmp_path):
    folder, out = tmp_path / "data=v3", tmp_path / "out"
    folder.mkdir()
    hotpot_file(folder, 2)
    assert kvdiag(*of_hotpotqa(model_folder, out, folder)).code == 0
    text = (folder / "hotpot.json").read_text()
    (folder / "hotpot.json").write_text(text.replace('"answer": "red"', '"answer": "blue"'))
    result = kvdiag(*of_hotpotqa(model_folder, out, folder))
    assert result.is_one_line_error(3), result
    assert "another environment (files: " in result.err
