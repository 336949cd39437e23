"""What is wrong with a ledger, a file or a record is caught, and located by file, row and column."""

import json
import shutil

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdiag.errors import UsageError
from kvdiag.ledger.files import sha256, to_json
from kvdiag.ledger.intact import sealed
from kvdiag.ledger.layout import read_manifest
from kvdiag.records.schema import TABLES, json_schema
from kvdiag.validation import records
from kvdiag.validation.validate import validate
from tests.command import kvdiag


@pytest.fixture
def ledger(built_ledger, tmp_path):
    """A copy of a real ledger, to be damaged."""
    shutil.copytree(built_ledger, tmp_path / "ledger")
    return tmp_path / "ledger"


def entry(ledger, table):
    (found,) = [f for f in read_manifest(ledger)["files"] if f["table"] == table]
    return found


def rewrite(ledger, table, change):
    """Change a table's rows and make the manifest agree: only the rows themselves can tell."""
    found = entry(ledger, table)
    path = ledger / found["path"]
    rows = pq.read_table(path)
    changed = change(rows)
    pq.write_table(changed, path, compression="zstd", store_schema=False)
    manifest = read_manifest(ledger)
    for item in manifest["files"]:
        if item["path"] == found["path"]:
            item |= {"sha256": sha256(path), "bytes": path.stat().st_size, "rows": changed.num_rows}
    manifest["rows"][table] = changed.num_rows
    (ledger / "manifest.json").write_bytes(to_json(sealed(manifest), indent=1))
    return found["path"]


def put(column, row, value):
    """A change that sets one cell of a table."""

    def change(rows):
        values = rows[column].to_pylist()
        values[row] = value
        field = rows.schema.field(column).with_nullable(True)
        return rows.set_column(rows.schema.get_field_index(column), field, pa.array(values, field.type))

    return change


def test_a_built_ledger_is_valid(built_ledger):
    assert validate(built_ledger) == []
    files = read_manifest(built_ledger)["files"]
    assert {f["table"] for f in files} == set(TABLES) - {"repairs"}
    for found in files:
        assert validate(built_ledger / found["path"]) == []


FLIPPED = [
    ("runs", "delta_nll", 123.0, "delta_nll"),
    ("runs", "gpr", 9.0, "gpr"),
    ("runs", "correct", True, "transition"),
    ("runs", "transition", "W->C", "transition"),
    ("runs", "err", 1.5, "fraction"),
    ("runs", "kept_tokens_mean", -1.0, "kept_tokens"),
    ("runs", "n_new_tokens", 99, "token_count"),
    ("runs", "cell_id", "tova/keep=0.9/aware", "cell_key"),
    ("runs", "source_id", "ruler_1k/vt/none", "known_source"),
    ("runs", "protocol", "query_blind", "vocabulary"),
    ("runs", "reason", "Out of memory!", "pattern"),
    ("runs", "structurally_addressable", True, "structural"),
    ("runs", "method", None, "not_null"),
    ("controls", "nll", 55.0, "delta_nll"),
    ("controls", "eam", 0.9, "ear"),
    ("retention", "err_slots", [0.25] * 6, "err_slots"),
    ("retention", "kept_slots", [1, 2], "slot_count"),
    ("sources", "prompt_hash", "xyz", "pattern"),
    ("sources", "evidence_ends", [0, 0], "spans"),
    ("c2w", "output", "something else", "c2w_equals_runs"),
    ("c2w", "control_output", "something else", "c2w_control"),
    ("methods", "state", "good", "vocabulary"),
]


@pytest.mark.parametrize(("table", "column", "value", "rule"), FLIPPED)
def test_one_flipped_value_is_located(ledger, table, column, value, rule):
    key = json_schema(table)["x-key"][0]
    row = pq.read_table(ledger / entry(ledger, table)["path"]).slice(0, 1).to_pylist()[0]
    if row[column] == value:
        value = not value if isinstance(value, bool) else value
    path = rewrite(ledger, table, put(column, 0, value))
    findings = validate(ledger)
    named = [f for f in findings if f.rule == rule]
    assert named, findings
    if table in ("runs", "c2w", "retention") or rule in ("pattern", "vocabulary", "spans", "not_null"):
        assert path in named[0].file
        assert any(row[key] in shown or shown == "null key" for shown in named[0].rows), named


def test_a_flipped_value_breaks_the_hash(ledger):
    path = ledger / entry(ledger, "runs")["path"]
    pq.write_table(put("output", 0, "new words")(pq.read_table(path)), path)
    assert [f.rule for f in validate(ledger) if f.file == entry(ledger, "runs")["path"]] == ["hash"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite(ledger, value):
    path = rewrite(ledger, "runs", put("delta_nll", 2, value))
    finding = next(f for f in validate(ledger) if f.rule == "finite")
    assert (finding.file, finding.column, finding.count) == (path, "delta_nll", 1)
    assert len(finding.rows) == 1


def test_a_null_without_reason(ledger):
    path = rewrite(ledger, "runs", put("ecov", 1, None))
    finding = next(f for f in validate(ledger) if f.rule == "missing_value")
    assert (finding.file, finding.column, finding.count) == (path, "ecov", 1)


def test_missing_unknown_and_retyped_columns(ledger):
    path = rewrite(ledger, "runs", lambda rows: rows.drop_columns(["ear"]))
    assert [(f.rule, f.file, f.column) for f in validate(ledger)] == [("missing_column", path, "ear")]
    rewrite(ledger, "controls", lambda rows: rows.append_column("mood", pa.nulls(rows.num_rows, pa.string())))
    assert ("unknown_column", "mood") in [(f.rule, f.column) for f in validate(ledger)]
    rewrite(ledger, "sources", lambda r: r.set_column(0, "source_id", pa.array(range(r.num_rows), pa.int64())))
    assert ("column_type", "source_id") in [(f.rule, f.column) for f in validate(ledger)]


def test_a_truncated_file(ledger):
    path = ledger / entry(ledger, "runs")["path"]
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = {(f.rule, f.file) for f in validate(ledger)}
    assert ("unreadable", entry(ledger, "runs")["path"]) in found
    assert ("hash", entry(ledger, "runs")["path"]) in found


def test_a_damaged_row_group_is_named_with_its_column(ledger):
    path = ledger / entry(ledger, "runs")["path"]
    column = pq.ParquetFile(path).metadata.row_group(0)
    index = next(i for i in range(column.num_columns) if column.column(i).path_in_schema == "nll")
    chunk = column.column(index)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start + chunk.total_compressed_size - 2] ^= 0xFF
    path.write_bytes(bytes(data))
    damaged = [f for f in validate(ledger) if f.rule == "damaged"]
    assert [(f.file, f.column) for f in damaged] == [(entry(ledger, "runs")["path"], "nll")]
    assert "row group 0" in damaged[0].message


def test_rows_that_are_missing_doubled_or_unplanned(ledger):
    rewrite(ledger, "runs", lambda rows: rows.slice(1))
    rules = {f.rule for f in validate(ledger)}
    assert {"planned_run", "complete", "known_run"} <= rules


def test_doubled_rows(ledger):
    rewrite(ledger, "controls", lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]))
    finding = next(f for f in validate(ledger) if f.rule == "unique_key")
    assert (finding.column, finding.count) == ("control_id", 1)


def test_a_cell_that_nobody_planned(ledger):
    manifest = read_manifest(ledger)
    manifest["cells"] = manifest["cells"][1:]
    (ledger / "manifest.json").write_bytes(to_json(manifest))
    assert "planned_cell" in {f.rule for f in validate(ledger)}


def test_c2w_that_lacks_a_failure(ledger):
    rewrite(ledger, "c2w", lambda rows: rows.slice(1))
    assert "c2w_is_whole" in {f.rule for f in validate(ledger)}


def test_missing_and_stray_files(ledger):
    (ledger / entry(ledger, "retention")["path"]).unlink()
    (ledger / "data/runs/copy.parquet").write_bytes(b"")
    found = {(f.rule, f.file) for f in validate(ledger)}
    assert ("missing_file", entry(ledger, "retention")["path"]) in found
    assert ("unlisted_file", "data/runs/copy.parquet") in found


@pytest.mark.parametrize("text", ["", "[]", "{", '{"manifest_version": 1}'])
def test_a_broken_manifest(ledger, text):
    (ledger / "manifest.json").write_text(text)
    findings = validate(ledger)
    assert findings
    assert {f.rule for f in findings} == {"manifest"}


def test_another_contract_version_is_named(ledger):
    manifest = read_manifest(ledger)
    manifest["schema_versions"]["runs"] = "2.0.0"
    (ledger / "manifest.json").write_bytes(to_json(manifest))
    (finding,) = validate(ledger)
    assert finding.rule == "schema_version"
    assert "2.0.0" in finding.message


def test_formats_and_exit_codes(ledger, built_ledger):
    assert kvdiag("validate", built_ledger).code == 0
    path = rewrite(ledger, "runs", put("ecov", 1, None))
    plain, annotated, data = (kvdiag("validate", ledger, "--format", f) for f in ("rich", "github", "json"))
    assert {plain.code, annotated.code, data.code} == {1}
    assert f"{path} column ecov" in plain.out
    assert annotated.out.startswith(f"::error file={path},title=missing_value::")
    parsed = json.loads(data.out)
    assert not parsed["valid"]
    assert parsed["findings"][0]["column"] == "ecov"
    assert kvdiag("validate", ledger / "nowhere").is_one_line_error(2)
    assert kvdiag("validate", ledger / "README.md").is_one_line_error(2)


@pytest.fixture(scope="module")
def run_rows(built_ledger):
    (path,) = [f["path"] for f in read_manifest(built_ledger)["files"] if f["table"] == "runs"]
    return pq.read_table(built_ledger / path).to_pylist()


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_json_lines(run_rows, tmp_path):
    assert validate(write_lines(tmp_path / "runs.jsonl", run_rows)) == []
    broken = [dict(row) for row in run_rows]
    broken[3]["gpr"] = 77.0
    broken[4]["status"] = "lost"
    findings = {f.rule: f for f in validate(write_lines(tmp_path / "bad.jsonl", broken), "runs")}
    assert findings["gpr"].rows[0] == broken[3]["run_id"]
    assert findings["vocabulary"].rows == ("line 5",)


def test_json_lines_that_are_no_records(tmp_path, run_rows):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"a": 1}\n{"b": NaN}\n')
    assert "line 2" in validate(path, "runs")[0].message
    path.write_text('{"a": 1}\n')
    with pytest.raises(UsageError, match="--table"):
        validate(path)
    row = dict(run_rows[0])
    del row["ear"]
    row["n_new_tokens"] = "three"
    found = {(f.rule, f.column) for f in validate(write_lines(path, [row]), "runs")}
    assert found == {("missing_column", "ear"), ("column_type", "n_new_tokens")}


@pytest.mark.parametrize(("value", "taken"), [(2.0, True), (2.5, False), (1e300, False), (10**30, False)])
def test_numbers_in_a_column_of_integers(tmp_path, run_rows, value, taken):
    """JSON has one kind of number: 2.0 is a whole one."""
    row = run_rows[0] | {"n_new_tokens": value}
    found = [(f.rule, f.column) for f in validate(write_lines(tmp_path / "one.jsonl", [row]), "runs")]
    assert (("column_type", "n_new_tokens") in found) is not taken


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5),
    st.floats(0, 3, allow_nan=False),
    st.sampled_from(["available", "failed", "not_measured", "oom", "C->W", "eos", ""]),
    st.just([]),
)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_same_verdict_as_the_json_schema(data, run_rows, tmp_path_factory):
    """The vectorised checks and a JSON Schema validator agree on rows with a changed value."""
    row = dict(run_rows[data.draw(st.integers(0, len(run_rows) - 1))])
    row[data.draw(st.sampled_from(sorted(row)))] = data.draw(VALUES)
    by_schema = jsonschema.Draft202012Validator(json_schema("runs")).is_valid(row)
    path = write_lines(tmp_path_factory.getbasetemp() / "one.jsonl", [row])
    contract = {"not_null", "vocabulary", "pattern", "finite", "elements", "missing_value", "column_type"}
    by_sql = not any(f.rule in contract for f in records.check(path, "runs"))
    assert by_sql == by_schema
