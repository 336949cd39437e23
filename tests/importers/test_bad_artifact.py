"""A bad artifact: the error names file and line in one line, and nothing is written."""

import gzip
import json
import math

import pytest

from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.importers.kvdiagnosis import import_artifact
from tests.command import kvdiag
from tests.importers import mini

RUNS = mini.runs("qasper")
FAILURES = mini.failures("qasper")


def refused(records, tmp_path, name, line, *words, ending=".jsonl.gz"):
    """Importing fails, naming the line of a file and the words, and leaves no trace."""
    folder = mini.write(tmp_path / "artifact", records, ending)
    assert_refused(folder, tmp_path, f"{folder / name}{ending} line {line}:", *words)


def assert_refused(folder, tmp_path, *words):
    out = tmp_path / "ledger"
    with pytest.raises(DataError) as raised:
        import_artifact(folder, out)
    message = str(raised.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    assert not out.exists()


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "not valid JSON"),
        ("not json", "not valid JSON"),
        ('{"a": 1} {"b": 2}', "not valid JSON"),
        ("[1, 2]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "is missing"),
    ],
)
@pytest.mark.parametrize("name", [mini.FULL, RUNS, FAILURES])
def test_a_bad_line(records, tmp_path, name, text, word, ending):
    folder = mini.write(tmp_path / "artifact", records, ending)
    lines = [json.dumps(r) for r in records[name]]
    lines.insert(1, text)
    mini.write_text(folder / f"{name}{ending}", "\n".join(lines))
    assert_refused(folder, tmp_path, f"{folder / name}{ending} line 2:", word)


def first(rows, **known):
    """Index of the first record with these values."""
    return next(i for i, row in enumerate(rows) if all(row[k] == v for k, v in known.items()))


FIELDS = {
    mini.FULL: {
        "fullcache_key": "text",
        "sample_id": "text",
        "official_task_name": "text",
        "prompt_hash": "text",
        "raw_output_full": "text",
        "model_id": "text",
        "model_revision": "text",
        "reference_answer": "list",
        "full_correct": "flag",
        "full_score": "number",
        "full_gold_NLL": "number",
        "context_length_tokens": "integer",
    },
    RUNS: {
        "fullcache_key": "text",
        "sample_id": "text",
        "dataset": "text",
        "prompt_hash": "text",
        "model_id": "text",
        "support_status": "text",
        "raw_output_compressed": "text",
        "compressed_correct": "flag",
        "compressed_score": "number",
        "compressed_gold_NLL": "number",
        "delta_NLL": "number",
        "GPR": "number",
    },
    FAILURES: {
        "dataset": "text",
        "sample_id": "text",
        "ERR_slot": "number or null",
        "ECov_slot": "number or null",
        "EAR": "number or null",
        "TopK": "number or null",
        "KL": "number or null",
        "gold_rank_shift": "number or null",
    },
}
WRONG = {
    "text": [None, 3, ["a"], "half a \ud83d"],
    "flag": [None, 1, "true"],
    "number": [None, "0.5", True, [0.5], 10**400],
    "number or null": ["0.5", False, {}],
    "integer": [None, 1.5, "8", True, 2**70],
    "list": [None, [], "text", [3], [None], [["a"]]],
}


@pytest.mark.parametrize(("name", "field"), [(n, f) for n, fields in FIELDS.items() for f in fields])
def test_a_missing_field(records, tmp_path, name, field):
    del records[name][2][field]
    refused(records, tmp_path, name, 3, repr(field), "is missing")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [(n, f, value) for n, fields in FIELDS.items() for f, kind in fields.items() for value in WRONG[kind]],
)
def test_a_wrong_type(records, tmp_path, name, field, value):
    records[name][2][field] = value
    refused(records, tmp_path, name, 3, repr(field), "must be a", ending=".jsonl")


@pytest.mark.parametrize("value", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_number_that_is_not_finite(records, tmp_path, value):
    folder = mini.write(tmp_path / "artifact", records, ".jsonl")
    records[RUNS][4]["delta_NLL"] = math.pi
    text = "".join(json.dumps(r) + "\n" for r in records[RUNS]).replace(repr(math.pi), value)
    mini.write_text(folder / f"{RUNS}.jsonl", text)
    assert_refused(folder, tmp_path, f"{RUNS}.jsonl line 5:")


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        (mini.FULL, "dataset", ["qaspar", None, ["qasper"], 3]),
        (RUNS, "method_name", ["PyramidKVPress", None, ["SnapKVPress"], {}]),
        (RUNS, "retained_budget", [0.3, "0.25", None, [0.25], True]),
        (FAILURES, "method_name", ["PyramidKVPress"]),
        (FAILURES, "retained_budget", [0.1]),
    ],
)
def test_an_unknown_name(records, tmp_path, name, field, values):
    for value in values:
        records[name][1][field] = value
        refused(records, tmp_path, name, 2, repr(field), "must be one of")


def test_an_unknown_support_status(records, tmp_path):
    records[RUNS][1]["support_status"] = "maybe"
    refused(records, tmp_path, RUNS, 2, "'maybe'")


def test_an_answer_of_an_unsupported_run(records, tmp_path):
    at = first(records[RUNS], support_status="unsupported")
    records[RUNS][at] |= {"compressed_correct": True, "outcome_transition": "C->C"}
    refused(records, tmp_path, RUNS, at + 1, "unsupported")


def test_a_key_twice(records, tmp_path):
    for name in (mini.FULL, RUNS, FAILURES):
        spoiled = {n: list(rows) for n, rows in records.items()}
        spoiled[name].append(spoiled[name][0])
        refused(spoiled, tmp_path, name, len(spoiled[name]), "already" if name != mini.FULL else "twice")


def test_a_run_without_a_control(records, tmp_path):
    gone = records[RUNS][0]["fullcache_key"]
    records[mini.FULL] = [c for c in records[mini.FULL] if c["fullcache_key"] != gone]
    refused(records, tmp_path, RUNS, 1, repr(gone), "no full-cache run")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sample_id", "qasper_999999"),
        ("dataset", "hotpotqa"),
        ("prompt_hash", "0" * 16),
        ("model_revision", "main"),
    ],
)
def test_a_run_that_is_not_its_controls(records, tmp_path, field, value):
    records[RUNS][3][field] = value
    refused(records, tmp_path, RUNS, 4, repr(field), repr(value), "its full-cache run has")


def test_two_models(records, tmp_path):
    records[mini.FULL][5]["model_id"] = "another/model"
    refused(records, tmp_path, mini.FULL, 6, "another/model", "one model")


@pytest.mark.parametrize("said", ["C->C", "C->W", "W->C", None, "c->w"])
def test_a_transition_that_disagrees(records, tmp_path, said):
    at = first(records[RUNS], outcome_transition="W->W")
    records[RUNS][at]["outcome_transition"] = said
    refused(records, tmp_path, RUNS, at + 1, "outcome_transition", repr(said), "'W->W'")


def test_a_selected_failure_that_did_not_fail(records, tmp_path):
    fine = records[RUNS][first(records[RUNS], outcome_transition="W->W")]
    records[FAILURES].append(records[FAILURES][0] | {"sample_id": fine["sample_id"]})
    for name in ("sample_id", "method_name", "retained_budget"):
        records[FAILURES][-1][name] = fine[name]
    refused(records, tmp_path, FAILURES, len(records[FAILURES]), "no C->W run")


@pytest.mark.parametrize("name", [mini.FULL, RUNS, FAILURES])
@pytest.mark.parametrize("damage", ["half", "flipped", "text", "tail"])
def test_a_damaged_archive(records, tmp_path, name, damage):
    folder = mini.write(tmp_path / "artifact", records)
    path = folder / f"{name}.jsonl.gz"
    data = bytearray(path.read_bytes())
    if damage == "half":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[len(data) // 2 :] = bytes(b ^ 0xFF for b in data[len(data) // 2 :])
    elif damage == "text":
        data = bytearray(b"no gzip at all")
    else:
        data[-8:-4] = bytes(b ^ 0xFF for b in data[-8:-4])  # the checksum
    path.write_bytes(data)
    assert_refused(folder, tmp_path, f"{path} line ")


def test_bytes_that_are_no_utf8(records, tmp_path):
    folder = mini.write(tmp_path / "artifact", records)
    path = folder / f"{RUNS}.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(gzip.compress(b"".join([*lines[:3], b'{"a": "\xff"}\n', *lines[3:]])))
    assert_refused(folder, tmp_path, f"{path} line ")


def test_what_is_no_artifact(records, tmp_path):
    out = tmp_path / "ledger"
    with pytest.raises(UsageError, match="not the KVDiagnosis artifact"):
        import_artifact(tmp_path, out)
    folder = mini.write(tmp_path / "artifact", records)
    (folder / f"{mini.runs('ruler16k')}.jsonl.gz").unlink()
    with pytest.raises(UsageError, match=r"ruler16k\.jsonl\[\.gz\] is missing"):
        import_artifact(folder, out)
    empty = mini.write(tmp_path / "empty", {n: [] for n in (mini.FULL, *map(mini.runs, mini.DATASETS))})
    with pytest.raises(DataError, match="no runs"):
        import_artifact(empty, out)
    assert not out.exists()


def test_a_folder_that_is_in_use_is_left_alone(records, tmp_path):
    folder = mini.write(tmp_path / "artifact", records)
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(RefusedError, match="not empty"):
        import_artifact(folder, out)
    with pytest.raises(RefusedError, match="not empty"):
        import_artifact(folder, out / "mine.txt")
    assert [p.name for p in out.iterdir()] == ["mine.txt"]
    assert (out / "mine.txt").read_text() == "mine"


def test_the_command_says_it_in_one_line(records, tmp_path):
    records[RUNS][0]["method_name"] = "PyramidKVPress"
    folder = mini.write(tmp_path / "artifact", records)
    result = kvdiag("import", "kvdiagnosis", folder, "--out", tmp_path / "ledger")
    assert result.is_one_line_error(1), result
    assert "qasper.jsonl.gz line 1" in result.err
    assert kvdiag("import", "kvdiagnosis", tmp_path / "none", "--out", tmp_path / "x").is_one_line_error(2)
    assert not (tmp_path / "ledger").exists()
