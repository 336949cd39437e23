"""What went wrong in other people's data sets does not pass here.

Each test names the public issue it comes from. The rest of that list: concurrent pushes, Xet, half commits and
repeated uploads in test_push.py and test_xet.py, one listing for a snapshot in test_reading.py.
"""

import ast
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import kvdiag
from kvdiag.errors import DataError
from kvdiag.ledger.files import sha256, to_json
from kvdiag.ledger.intact import sealed
from kvdiag.ledger.layout import read_manifest
from kvdiag.publish import release
from kvdiag.records.schema import metric_names, to_table
from tests import rows
from tests.publish import made
from tests.publish.conftest import REPO


@pytest.fixture
def ledger(tmp_path):
    """A valid ledger, to be damaged."""
    made.write(tmp_path / "ledger")
    return tmp_path / "ledger"


def path_of(ledger, table):
    return next(ledger / f["path"] for f in read_manifest(ledger)["files"] if f["table"] == table)


def replace(ledger, path, data, **options):
    """Write a file in another program's way and make the manifest agree: only the file itself can tell."""
    pq.write_table(data, path, **options)
    manifest = read_manifest(ledger)
    name = str(path.relative_to(ledger))
    for entry in manifest["files"]:
        if entry["path"] == name:
            entry |= {"rows": data.num_rows, "bytes": path.stat().st_size, "sha256": sha256(path)}
    (ledger / "manifest.json").write_bytes(to_json(sealed(manifest)))


def add_shard(ledger, table, change):
    """Move a table's last row to a second shard, changed."""
    path = path_of(ledger, table)
    data = pq.read_table(path)
    second = path.with_name(path.name.replace("00000", "00001"))
    manifest = read_manifest(ledger)
    entry = next(f for f in manifest["files"] if f["path"] == str(path.relative_to(ledger)))
    manifest["files"].append(entry | {"path": str(second.relative_to(ledger))})
    (ledger / "manifest.json").write_bytes(to_json(sealed(manifest)))
    replace(ledger, path, data.slice(0, data.num_rows - 1), store_schema=False)
    replace(ledger, second, change(data.slice(data.num_rows - 1)), store_schema=False)
    return second.relative_to(ledger)


def refused(ledger, *words):
    """The ledger is not published, and the one line says these words."""
    with pytest.raises(DataError) as raised:
        release.check(ledger)
    text = str(raised.value)
    assert text.startswith(f"{ledger}: not published, since it is not valid: ") and "\n" not in text
    for word in words:
        assert str(word) in text, (word, text)


def test_a_second_shard_as_such_is_fine(ledger):
    add_shard(ledger, "runs", lambda part: part)
    release.check(ledger)


def test_a_field_that_only_one_shard_has(ledger):
    """datasets#7449."""
    name = add_shard(ledger, "runs", lambda part: part.append_column("extra", pa.array([1.0])))
    refused(ledger, name, "column extra", "is not in the contract")


def test_a_column_without_a_value_keeps_its_type(ledger):
    """datasets#7222, #7549."""
    schema = pq.read_schema(path_of(ledger, "runs"))
    assert pq.read_table(path_of(ledger, "runs"))["degenerate"].null_count == 12
    assert schema.field("degenerate").type == pa.string()
    path = path_of(ledger, "runs")
    data = pq.read_table(path)
    index = data.schema.get_field_index("degenerate")
    replace(ledger, path, data.set_column(index, "degenerate", pa.nulls(12)), store_schema=False)
    refused(ledger, path.relative_to(ledger), "column degenerate", "must be string")


def test_a_column_that_a_later_shard_lacks(ledger):
    """`datasets` would fill it with nulls and say nothing."""
    name = add_shard(ledger, "runs", lambda part: part.drop_columns(["kl"]))
    refused(ledger, name, "column kl", "is missing")


def test_a_footer_that_old_readers_cannot_read(ledger):
    """datasets#7676, #7739."""
    path = path_of(ledger, "runs")
    assert b"huggingface" not in (pq.read_metadata(path).metadata or {})
    data = pq.read_table(path)
    replace(ledger, path, data.replace_schema_metadata({"huggingface": "{}"}))
    refused(ledger, path.relative_to(ledger), "huggingface")


def test_counts_in_the_card_follow_a_rebuild(hub, publish, ledger):
    """datasets#7867, #6918."""
    for n in (3, 4):
        made.write(ledger, made.valid_rows(n))
        publish(ledger)
        files = hub.repos[REPO].head.files
        front = yaml.safe_load(hub.blobs[files["README.md"]].decode().split("---\n")[1])
        for info in front["dataset_info"]:
            (split,) = info["splits"]
            path = f"data/{info['config_name']}/{split['name']}-00000.parquet"
            assert split["num_examples"] == pq.read_metadata(pa.BufferReader(hub.stored[files[path]])).num_rows
            assert split["num_bytes"] == len(hub.stored[files[path]])


@pytest.fixture
def load(tmp_path, monkeypatch):
    """load_dataset with a cache of its own."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets_cache")

    def run(folder, *config):
        return datasets.load_dataset(str(folder), *config, cache_dir=str(tmp_path / "datasets_cache"))

    return run


def put_release(ledger, folder, version):
    """A release's files in a folder."""
    contents = release.gather(ledger, folder / "scratch", lambda workload: True)
    for name, content in contents.at(REPO, version, "").items():
        path = folder / "release" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return folder / "release"


def test_names_with_split_words_lose_no_rows(tmp_path, load):
    """datasets#5021, #4895: paths with `test`, `dev` or `eval` made other files vanish."""
    parts = [made.valid_rows(2, name) for name in ("ruler_1k", "dev_test_eval", "train")]
    made.write(tmp_path / "ledger", *parts)
    folder = put_release(tmp_path / "ledger", tmp_path, "1.0.0")
    loaded = load(folder, "runs")
    assert {s: d.num_rows for s, d in loaded.items()} == {"ruler_1k": 8, "dev_test_eval": 8, "train": 8}


def test_a_new_release_in_the_same_folder_is_seen(tmp_path, load):
    """datasets#2956, #2187: the cache's key ignores content."""
    for n, version in ((3, "1.0.0"), (4, "1.0.1")):
        made.write(tmp_path / "ledger", made.valid_rows(n))
        folder = put_release(tmp_path / "ledger", tmp_path, version)
        assert load(folder, "sources")["ruler_1k"].num_rows == n
        assert load(folder)["ruler_1k"].num_rows == len(pq.read_table(folder / "data" / "c2w"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", ["kl", "score", "keep"])
def test_a_number_that_is_not_finite(ledger, column, value):
    """duckdb#25521, #7803: filters on columns with NaN give wrong rows."""
    path = path_of(ledger, "runs")
    data = pq.read_table(path)
    numbers = [value, *data[column].to_pylist()[1:]]
    index = data.schema.get_field_index(column)
    field = data.schema.field(column)
    replace(ledger, path, data.set_column(index, field, pa.array(numbers, pa.float64())), store_schema=False)
    refused(ledger, path.relative_to(ledger), f"column {column}", "must be finite")


def test_every_number_is_checked_for_being_finite():
    from kvdiag.validation.contract import predicates

    for table in ("controls", "runs", "c2w", "repairs"):
        checked = {p.column for p in predicates(table) if p.rule == "finite"}
        numbers = {m for m in metric_names(table) if m != "signature"}
        assert numbers <= checked, table


def test_files_of_another_contract(ledger):
    """duckdb#13245, #15375: a glob over two versions takes the first one's types."""
    manifest = read_manifest(ledger)
    version = manifest["schema_versions"]["runs"]
    manifest["schema_versions"]["runs"] = "0.9.0"
    (ledger / "manifest.json").write_bytes(to_json(sealed(manifest)))
    refused(ledger, "runs has contract version 0.9.0", f"this kvdiag reads {version}")


def test_a_key_that_only_later_records_have():
    """arrow#40124: from_pylist takes its columns from the first row."""
    first, second = rows.source_row(0), rows.source_row(1)
    with pytest.raises(ValueError, match="late"):
        to_table("sources", [first, second | {"late": 1}])
    del first["gold"]
    with pytest.raises(ValueError, match="gold"):
        to_table("sources", [first, second])


def test_pandas_is_not_on_the_write_path():
    """arrow#47238, #41812: it guesses types, and makes nulls of NaN."""
    for part in ("records", "ledger", "publish", "engine", "importers"):
        for path in (Path(kvdiag.__file__).parent / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
                assert not [n for n in names if n.split(".")[0] == "pandas"], path


def test_a_row_group_that_viewers_refuse(ledger, monkeypatch):
    """dataset-viewer#1519."""
    most = max(pq.read_metadata(p).row_group(0).total_byte_size for p in (ledger / "data").rglob("*.parquet"))
    assert most < release.MOST_GROUP_BYTES == 100_000_000
    monkeypatch.setattr(release, "MOST_GROUP_BYTES", most - 1)
    refused(ledger, "row group 0 has", "viewers read")


def test_a_file_without_rows(ledger):
    """`load_dataset` cannot read one: BatchSize must be greater than 0."""
    path = path_of(ledger, "repairs")
    replace(ledger, path, pq.read_table(path).slice(0, 0), store_schema=False)
    at = [f["table"] for f in read_manifest(ledger)["files"]].index("repairs")
    refused(ledger, f"files/{at}/rows", "0 is less than the minimum of 1")


def test_a_file_without_rows_that_the_manifest_hides(ledger):
    path = path_of(ledger, "repairs")
    replace(ledger, path, pq.read_table(path).slice(0, 0), store_schema=False)
    manifest = read_manifest(ledger)
    entry = next(f for f in manifest["files"] if f["table"] == "repairs")
    entry["rows"], manifest["rows"]["repairs"] = 1, 0
    (ledger / "manifest.json").write_bytes(to_json(sealed(manifest)))
    refused(ledger, path.relative_to(ledger), "has no rows")


def test_a_ledger_without_any_rows(tmp_path):
    tables = {t: to_table(t, []) for t in ("sources", "controls", "runs", "retention", "methods")}
    from kvdiag.ledger.finish import write_ledger

    write_ledger(tmp_path, tables, rows.plan(), build={})
    refused(tmp_path, "the ledger has no rows")


def test_a_method_without_a_run_leaves_no_empty_file(tmp_path):
    """The methods table names it; it has no split of its own, so none can be empty."""
    found = made.valid_rows()
    found["runs"] = [r for r in found["runs"] if r["method"] != "knorm"]
    ids = {r["run_id"] for r in found["runs"]}
    for table in ("retention", "repairs"):
        found[table] = [r for r in found[table] if r["run_id"] in ids]
    manifest = made.write(tmp_path / "ledger", found)
    assert not manifest["complete"]
    release.check(tmp_path / "ledger")
    assert "NOT complete: knorm/keep=0.5/agnostic: 3 missing" in (tmp_path / "ledger" / "README.md").read_text()


def test_strings_are_strings_everywhere(ledger):
    """pandas 3 and some writers make large_string of them."""
    for path in (ledger / "data").rglob("*.parquet"):
        assert "large_string" not in str(pq.read_schema(path))
    path = path_of(ledger, "methods")
    data = pq.read_table(path)
    large = pa.schema([pa.field(f.name, pa.large_string()) if f.type == pa.string() else f for f in data.schema])
    replace(ledger, path, data.cast(large))
    refused(ledger, path.relative_to(ledger), "has type large_string, must be string")


def test_a_damaged_file_is_never_sent(hub, publish, ledger):
    path = path_of(ledger, "runs")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="not published"):
        publish(ledger)
    assert not hub.log


def test_json_has_no_nan():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"score": math.nan})
    assert json.loads(to_json({"score": None})) == {"score": None}
