"""Finished ledgers: the same bytes for the same rows, a card that `datasets` reads, a manifest that is right."""

import hashlib
import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from jsonschema import Draft202012Validator

from kvdiag.ledger import card
from kvdiag.ledger.parquet import write_table
from kvdiag.records.schema import TABLES, arrow_schema, json_schema, to_table
from kvdiag.resources import folder
from tests import rows


def data_files(ledger):
    return {p.relative_to(ledger): p.read_bytes() for p in (ledger / "data").rglob("*") if p.is_file()}


def front_matter(ledger):
    text = (ledger / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", maxsplit=2)
    assert body.strip()
    return yaml.safe_load(front)


def two_workloads():
    """Rows of the made-up ledger, and the same again under another workload."""
    found = rows.made_up_rows()
    source = rows.source_row(0, workload="ruler_4k")
    control = rows.control_row(source)
    runs = [rows.run_row(source, control, False, *cell) for cell in rows.CELLS]
    found["sources"].append(source)
    found["controls"].append(control)
    found["runs"] += runs
    found["retention"] += [rows.retention_row(run) for run in runs]
    return found


def test_rows_in_any_order_give_the_same_bytes(tmp_path):
    found = rows.made_up_rows()
    rows.write_made_up(tmp_path / "one", found)
    for table in found.values():
        random.Random(4).shuffle(table)
    rows.write_made_up(tmp_path / "two", found)
    assert data_files(tmp_path / "one") == data_files(tmp_path / "two")
    for name in ("README.md", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("table", TABLES)
def test_files_are_as_the_contract_says(made_up, table):
    path = made_up / json.loads((made_up / "manifest.json").read_text())["files"][TABLES.index(table)]["path"]
    file = pq.ParquetFile(path)
    assert file.schema_arrow.equals(arrow_schema(table))
    found = file.read().to_pylist()
    keys = [[row[k] for k in json_schema(table)["x-sort"]] for row in found]
    assert keys == sorted(keys)
    column = file.metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert column.has_column_index
    assert column.has_offset_index
    validator = Draft202012Validator(json_schema(table))
    for row in found:
        validator.validate(row)


def test_only_right_answers_turned_wrong_are_in_c2w(made_up):
    runs = pq.read_table(made_up / "data" / "runs").to_pylist()
    c2w = pq.read_table(made_up / "data" / "c2w").to_pylist()
    expected = [r for r in runs if r["transition"] == "C->W"]
    assert 0 < len(expected) < len(runs)
    assert [{k: row[k] for k in runs[0]} for row in c2w] == expected
    assert {row["question"] for row in c2w} == {"Which number?"}
    assert {row["control_output"] for row in c2w} == {"12"}
    assert all(row["signature"] for row in c2w)


def test_the_manifest_describes_every_file(made_up):
    manifest = json.loads((made_up / "manifest.json").read_text())
    schema = json.loads((folder("schema") / "manifest.json").read_text())
    Draft202012Validator(schema).validate(manifest)
    assert {f["path"] for f in manifest["files"]} == {str(p) for p in map(str, data_files(made_up))}
    for entry in manifest["files"]:
        data = (made_up / entry["path"]).read_bytes()
        assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        assert entry["bytes"] == len(data)
        assert entry["rows"] == pq.read_metadata(made_up / entry["path"]).num_rows
    for table, n in manifest["rows"].items():
        assert n == sum(f["rows"] for f in manifest["files"] if f["table"] == table)
    assert manifest["complete"] is True
    assert manifest["holes"] == []


def test_a_ledger_with_holes_says_which(tmp_path):
    found = rows.made_up_rows()
    lost = found["runs"].pop()
    manifest = rows.write_made_up(tmp_path, found)
    assert manifest["complete"] is False
    assert manifest["holes"] == [f"{lost['cell_id']}: 1 missing"]
    assert "NOT complete" in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_files_without_rows_or_of_another_schema_are_refused(tmp_path):
    path = tmp_path / "x.parquet"
    with pytest.raises(ValueError, match="no rows"):
        write_table("runs", arrow_schema("runs").empty_table(), path)
    with pytest.raises(ValueError, match="contract"):
        write_table("runs", pa.table({"run_id": ["a"]}), path)
    assert not path.exists()


def test_a_null_where_none_may_be_is_refused(tmp_path):
    row = rows.filled("runs") | {"source_id": None}
    with pytest.raises((pa.ArrowException, OSError, ValueError)):
        write_table("runs", to_table("runs", [row]), tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()


def test_the_cards_configurations(tmp_path):
    rows.write_made_up(tmp_path, two_workloads())
    configs = front_matter(tmp_path)["configs"]
    assert [c["config_name"] for c in configs if c.get("default")] == ["c2w"]
    assert configs[0]["config_name"] == "c2w"
    assert {c["config_name"] for c in configs} == set(TABLES)
    for config in configs:
        assert config["version"].count(".") == 2
        assert all(part.isdigit() for part in config["version"].split("."))
        for entry in config["data_files"]:
            assert "-" not in entry["split"]
            assert entry["path"]
            for path in entry["path"]:
                assert (tmp_path / path).is_file()
    runs = next(c for c in configs if c["config_name"] == "runs")
    assert [d["split"] for d in runs["data_files"]] == ["ruler_1k", "ruler_4k"]


def test_the_card_is_rendered_the_same_twice_and_needs_every_field(made_up):
    manifest = json.loads((made_up / "manifest.json").read_text())
    assert card.render(manifest) == card.render(manifest) == (made_up / "README.md").read_text(encoding="utf-8")
    del manifest["recipe"]["seed"]
    with pytest.raises(Exception, match="seed"):
        card.render(manifest)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """`load_dataset` with a cache of its own."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()

    def load(ledger, *name):
        return load_dataset(str(ledger), *name, cache_dir=str(tmp_path / "cache"))

    return load


def test_load_dataset_gives_c2w_and_every_other_table(made_up, load):
    assert load(made_up)["ruler_1k"].to_list() == pq.read_table(made_up / "data" / "c2w").to_pylist()
    for table in TABLES:
        (split,) = load(made_up, table).values()
        assert split.to_list() == pq.read_table(made_up / "data" / table).to_pylist()


def test_load_dataset_has_a_split_for_each_workload(tmp_path, load):
    rows.write_made_up(tmp_path / "ledger", two_workloads())
    loaded = load(tmp_path / "ledger", "runs")
    assert {name: split.num_rows for name, split in loaded.items()} == {"ruler_1k": 12, "ruler_4k": 4}


def test_load_dataset_sees_a_rebuild_in_the_same_folder(tmp_path, load):
    """Nor may equal file times, which copies and checkouts give, lead to stale rows."""
    ledger = tmp_path / "ledger"
    versions = []
    for n in (3, 4):
        rows.write_made_up(ledger, rows.made_up_rows(n))
        for path in ledger.rglob("*"):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        assert load(ledger, "sources")["ruler_1k"].num_rows == n
        assert load(ledger)["ruler_1k"].num_rows == len(pq.read_table(ledger / "data" / "c2w"))
        versions.append({config["version"] for config in front_matter(ledger)["configs"]})
    assert len(versions[0]) == len(versions[1]) == 1
    assert versions[0] != versions[1]


def test_a_ledger_without_failures_loads_its_runs(tmp_path, load):
    manifest = rows.write_made_up(tmp_path / "ledger", rows.made_up_rows(all_right=True))
    assert manifest["rows"]["c2w"] == 0
    assert [c["config_name"] for c in front_matter(tmp_path / "ledger")["configs"] if c.get("default")] == ["runs"]
    assert load(tmp_path / "ledger")["ruler_1k"].num_rows == manifest["rows"]["runs"] == 12
