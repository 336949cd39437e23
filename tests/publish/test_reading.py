"""What was pushed is what readers get: datasets, pandas, DuckDB and kvdiag, each the real one, from a fake Hub."""

import io
import json
import re
from pathlib import Path

import huggingface_hub
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi

from kvdiag.errors import KvdiagError, UsageError
from kvdiag.ledger.layout import find, read_manifest
from kvdiag.ledger.remote import resolve
from kvdiag.query.run import query
from kvdiag.records.schema import TABLES
from kvdiag.validation.validate import validate
from tests.publish import made
from tests.publish.conftest import REPO

READ = """
import json
from datasets import load_dataset
tables = {tables!r}
found = {{"default": load_dataset("{repo}", revision="v1.0.0")}}
found |= {{t: load_dataset("{repo}", t, revision="v1.0.0") for t in tables}}
streamed = {{t: load_dataset("{repo}", t, streaming=True, revision="v1.0.0") for t in ("c2w", "sources")}}
rows = lambda splits: {{name: list(split) for name, split in splits.items()}}
newest = load_dataset("{repo}", "sources")
with open("read.json", "w") as file:
    json.dump({{
        "loaded": {{t: rows(s) for t, s in found.items()}},
        "streamed": {{t: rows(s) for t, s in streamed.items()}},
        "newest": rows(newest),
    }}, file)
"""


def released(hub, commit=None):
    """Rows by table and split, as the files of a commit on the Hub have them."""
    files = (commit or hub.repos[REPO].head).files
    tables = {}
    for name, oid in sorted(files.items()):
        if name.startswith("data/"):
            _, table, file = name.split("/")
            split = file.rsplit("-", 1)[0]
            tables.setdefault(table, {})[split] = pq.read_table(io.BytesIO(hub.stored[oid])).to_pylist()
    return tables


def test_every_configuration_loads_by_tag_and_streams(hub, publish, ledger, python, tmp_path):
    publish(ledger)
    expected = released(hub)
    assert set(expected) == set(TABLES)
    made.write(tmp_path / "two", made.valid_rows(4))
    publish(tmp_path / "two")
    python(READ.format(tables=TABLES, repo=REPO))
    read = json.loads((tmp_path / "read.json").read_text())
    assert read["loaded"].pop("default") == expected["c2w"]
    assert read["loaded"] == expected
    assert read["streamed"] == {t: expected[t] for t in ("c2w", "sources")}
    assert {s: len(r) for s, r in read["newest"].items()} == {"ruler_1k": 4}
    # The texts of one workload may be published, those of the other not; their numbers are there all the same.
    assert {r["context"] for r in expected["sources"]["longbench"]} == {None}
    assert {r["question"] for r in expected["c2w"]["longbench"]} == {None}
    assert None not in {r["context"] for r in expected["sources"]["ruler_1k"]}
    assert expected["runs"]["longbench"][0]["delta_nll"] == 0.0


def test_snippets_run_as_they_stand(hub, publish, ledger, python):
    """Those of the card and of docs/using-the-dataset.md."""
    publish(ledger)
    card = hub.blobs[hub.repos[REPO].head.files["README.md"]].decode()
    page = (Path(__file__).parents[2] / "docs" / "using-the-dataset.md").read_text(encoding="utf-8")
    load, pandas, duckdb = re.findall(r"(?s)```python\n(.*?)```", card)
    more = re.findall(r"(?s)```python\n(.*?)```", page)
    assert len(more) >= 4
    checks = 'assert failures["ruler_1k"].num_rows == 6', "assert len(runs) == 8"
    again = "duckdb.unregister_filesystem('hf')"
    shown = python("\n".join([load, checks[0], pandas, checks[1], duckdb, again, *more]))
    assert re.search(r"snapkv\W+keep=0.25\W+5", shown), shown  # sources in both workloads
    command, submitting = re.findall(r"(?s)```sh\n(.*?)```", card)
    assert "--data kvdiag/c2w@v1.0.0 " in submitting and " kvdiag/c2w --contact" in submitting
    assert command == 'kvdiag query --data kvdiag/c2w@v1.0.0 "FROM failure_rates"\n'


RESOLVE = """
import sys
from kvdiag.ledger.remote import resolve
print(resolve("kvdiag/c2w@v1.0.0"))
print(resolve("kvdiag/c2w"))
"""
NOWHERE = "http://127.0.0.1:9"


def test_kvdiag_reads_a_release_once(hub, publish, ledger, python):
    """Fetched with one listing, then without the network by tag, and without it by branch where there is none."""
    publish(ledger)
    hub.log.clear()
    first = python(RESOLVE)
    assert len(hub.requests("/tree/")) <= 2 and hub.requests("/resolve/")
    hub.log.clear()
    python(RESOLVE.replace('print(resolve("kvdiag/c2w"))', ""))
    assert not hub.log
    assert python(RESOLVE, HF_HUB_OFFLINE="1") == python(RESOLVE, HF_ENDPOINT=NOWHERE) == first
    snapshot = Path(first.splitlines()[0])
    n = len(released(hub)["c2w"]["ruler_1k"] + released(hub)["c2w"]["longbench"])
    assert query(snapshot, "SELECT count(*) AS n FROM c2w").to_pylist() == [{"n": n}]
    assert validate(snapshot) == []
    assert read_manifest(snapshot)["rows"] == read_manifest(ledger)["rows"]


def test_a_snapshot_in_part_is_not_taken_for_a_ledger(hub, publish, ledger, python):
    """Another program, or a cut download, left some of a release's files in the cache."""
    publish(ledger)
    python("""
    from huggingface_hub import snapshot_download
    snapshot_download("kvdiag/c2w", repo_type="dataset", revision="v1.0.0", allow_patterns=["manifest.json"])
    """)
    said = python(RESOLVE, expect=1, HF_ENDPOINT=NOWHERE)
    assert "DataError: --data kvdiag/c2w@v1.0.0: " in said
    assert Path(python(RESOLVE).splitlines()[0], "data", "runs", "ruler_1k-00000.parquet").is_file()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("kvdiag/nothing", "no such folder, and no data set of that name"),
        ("kvdiag/c2w@v9.9.9", "kvdiag/c2w has no revision v9.9.9"),
        ("kvdiag/c2w@", "no such folder (and no data set id: org/name[@revision])"),
        ("ledgers", "no such folder"),
        ("kvdiag/empty", "not a ledger (it has no manifest.json)"),
    ],
)
def test_what_is_no_ledger_on_the_hub(hub, publish, ledger, data, message, monkeypatch):
    publish(ledger)
    hub.create("kvdiag/empty")
    api = HfApi(endpoint=hub.endpoint)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", api.snapshot_download)
    with pytest.raises(KvdiagError) as raised:
        resolve(data)
    assert message in str(raised.value) and f"--data {data}" in str(raised.value)


def test_a_mistyped_path_is_not_looked_up_on_the_hub(hub, tmp_path, monkeypatch):
    made.write(tmp_path / "mine" / "one")
    (tmp_path / "file.parquet").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for data in ("ledgers/typo", "mine/typo", "./a/b/c", "../x", "file.parquet", str(tmp_path / "none")):
        with pytest.raises(UsageError, match="no such folder"):
            find(data)
    with pytest.raises(UsageError, match="no such folder"):
        find(REPO, local=True)
    assert not hub.log
