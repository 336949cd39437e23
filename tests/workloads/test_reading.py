"""Rows of files of every kind, and one clear line for those that are not."""

import gzip
import json
import zipfile
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvdiag.errors import UsageError
from kvdiag.workloads import reading
from kvdiag.workloads.base import Source

ROWS = [{"a": "one\u2028line"}, {"a": "two\r\n"}]
LINES = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)


def read(*paths, select=list):
    return list(reading.read(paths, "a thing", select))


def complaint(*paths, select=list):
    with pytest.raises(UsageError) as caught:
        read(*paths, select=select)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"--file {paths[0]}")
    return message


def row(**data):
    return reading.Row("f.json item 1", data)


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def parquet(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("x.jsonl", LINES, "line 3"),
        ("x.json", LINES, "line 3"),
        ("x.JSONL", "\ufeff" + LINES, "line 3"),
        ("x.jsonl.gz", gzip.compress(LINES.encode(), mtime=0), "line 3"),
        ("x.json", json.dumps(ROWS), "item 2"),
        ("x.json", json.dumps(ROWS, indent=1), "item 2"),
        ("x.json.gz", gzip.compress(json.dumps(ROWS).encode(), mtime=0), "item 2"),
    ],
)
def test_text_files(write, name, content, place):
    path = write(name, content)
    rows = read(path)
    assert [r.data for r in rows] == ROWS
    assert rows[1].where == f"{path} {place}"
    assert {r.stem for r in rows} == {"x"}


def test_a_mapping_of_objects_gives_keyed_rows(write):
    path = write("x.json", json.dumps({"p1": {"a": 1}, "p2": {"a": 2}}))
    assert [(r.key, r.where, r.data) for r in read(path)] == [
        ("p1", f"{path} p1", {"a": 1}),
        ("p2", f"{path} p2", {"a": 2}),
    ]


def test_one_object_is_one_row(write):
    path = write("x.json", '{"a": {"b": 1}, "c": 2}')
    assert [(r.key, r.where, r.data) for r in read(path)] == [("", str(path), {"a": {"b": 1}, "c": 2})]


def test_parquet(parquet):
    rows = read(parquet)
    assert [r.data for r in rows] == ROWS
    assert rows[1].where == f"{parquet} row 2"


def test_folders_and_archives_are_read_by_name(write, parquet, tmp_path):
    write("sub/b.jsonl", '{"n": "b"}')
    write("sub/a.json", '[{"n": "a"}]')
    write("sub/deep/c.jsonl", '{"n": "c"}')
    write("sub/.hidden/d.jsonl", '{"n": "d"}')
    write("sub/notes.md", "not data")
    archive = tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for file in sorted((tmp_path / "sub").rglob("*"), reverse=True):
            if file.is_file():
                out.write(file, file.relative_to(tmp_path / "sub"))
        out.write(parquet, "data/z.parquet")
        out.writestr("__MACOSX/data/._b.jsonl", "junk")
    assert [r.data["n"] for r in read(tmp_path / "sub")] == ["a", "b", "c"]
    rows = read(archive)
    assert [r.data.get("n") or r.data["a"] for r in rows] == ["a", "b", ROWS[0]["a"], ROWS[1]["a"], "c"]
    assert rows[1].where == f"{archive}:b.jsonl line 1"
    assert {r.stem for r in rows} == {"a", "b", "c", "z"}
    chosen = read(archive, select=lambda names: [n for n in names if n.endswith("c.jsonl")])
    assert [r.data for r in chosen] == [{"n": "c"}]


def test_files_are_read_in_the_order_given(write):
    b, a = write("b.jsonl", '{"n": 1}'), write("a.jsonl", '{"n": 2}')
    assert [r.data["n"] for r in read(b, a)] == [1, 2]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", '{"a": 1}\n{"a":', "line 2: not valid JSON"),
        ("x.json", '{"a": 1,\n "b" 2}', "not valid JSON (Expecting ':' delimiter: line 2"),
        ("x.jsonl", '{"a": 1}\n[1]', "line 2: must be a JSON object; expected a thing"),
        ("x.json", "[1]", "item 1: must be a JSON object; expected a thing"),
        ("x.json", '"words"', "must be a JSON object"),
        ("x.jsonl", b'{"a": "\xff"}', "line 1: not UTF-8 text"),
        ("x.jsonl", '{"a": "\\ud83d"}', "line 1: holds half a surrogate pair"),
        ("x.jsonl", "\n\n", "holds no rows"),
        ("x.json", "", "not valid JSON"),
        ("x.json", "[]", "holds no rows"),
        ("x.json", "{}", "holds no rows"),
        ("x.jsonl", "[" * 100_000, "line 1: not valid JSON"),
        ("x.csv", "a,b", "must end in .json, .jsonl"),
        ("x.jsonl.gz", b"not gzip", "cannot be read"),
        ("x.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)[:-9], "cannot be read"),
        ("x.zip", b"not a zip", "cannot be read"),
        ("x.parquet", b"not parquet", "not a readable Parquet file"),
    ],
)
def test_bad_files(write, name, content, words):
    assert words in complaint(write(name, content))


def test_whole_surrogate_pairs_are_characters(write):
    assert read(write("x.jsonl", '{"a": "\\ud83d\\ude00"}'))[0].data == {"a": "\U0001f600"}


def test_missing_file_empty_folder_and_nested_archive(tmp_path):
    assert "no such file or folder; expected a thing" in complaint(tmp_path / "nope.json")
    (tmp_path / "empty").mkdir()
    assert "holds no file to read" in complaint(tmp_path / "empty")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as out:
        out.writestr("inner.zip", b"")
    assert "archive inside an archive" in complaint(tmp_path / "x.zip")
    assert "holds no file to read" in complaint(tmp_path / "x.zip", select=lambda names: [])


def test_fields():
    given = row(t="x", n=None, many=["a"], o={"b": "c"}, bad=3)
    assert given.text("t") == "x"
    assert (given.optional("n"), given.optional("gone"), given.optional("t")) == ("", "", "x")
    assert (given.texts("many"), given.texts("n")) == (["a"], [])
    assert given.row("o").text("b") == "c"


@pytest.mark.parametrize("name", ["bad", "n", "gone"])
def test_a_field_that_must_be_text(name):
    with pytest.raises(UsageError, match=f"^--file f.json item 1: field `{name}` must be text$"):
        row(bad=3, n=None).text(name)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda r: r.texts("bad"), "`bad` must be a list of texts"),
        (lambda r: r.texts("mixed"), "`mixed` must be a list of texts"),
        (lambda r: r.row("bad"), "`bad` must be an object"),
        (lambda r: r.rows("bad"), "`bad` must be a list of objects"),
        (lambda r: r.rows("gone"), "`gone` must be a list of objects"),
        (lambda r: r.rows("uneven"), "`uneven` must hold lists of equal length"),
        (lambda r: r.rows("o"), "`o` must hold lists of equal length"),
        (lambda r: r.optional("bad"), "`bad` must be text"),
    ],
)
def test_fields_of_another_kind(ask, words):
    with pytest.raises(UsageError, match=words):
        ask(row(bad=3, mixed=["a", 1], uneven={"a": [1], "b": []}, o={"a": 1}))


def test_columns_and_rows_are_the_same():
    columns, objects = row(x={"a": [1, 2], "b": ["p", "q"]}), row(x=[{"a": 1, "b": "p"}, {"a": 2, "b": "q"}])
    assert columns.rows("x") == objects.rows("x")
    assert [r.where for r in objects.rows("x")] == ["f.json item 1, x 1", "f.json item 1, x 2"]
    assert row(x={}).rows("x") == row(x={"a": [], "b": []}).rows("x") == []


def test_a_misplaced_file_is_told_from_a_broken_one():
    with pytest.raises(UsageError, match="looks like --workload hotpotqa; --workload qasper expects papers"):
        row(question="", answer="", context=[], supporting_facts=[]).require("qasper", ["qas"], "papers")
    with pytest.raises(UsageError, match="has no field `qas`; --workload qasper expects papers"):
        row(title="", full_text=[]).require("qasper", ["title", "qas"], "papers")
    assert row(qas=[]).require("qasper", ["qas"], "papers") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [("data/qasper_e.jsonl.gz", "qasper_e"), ("x.JSON", "x"), ("a.b.parquet", "a.b"), ("plain", "plain")],
)
def test_stem(name, expected):
    assert reading.stem(name) == expected


def source(key, task="t", **changes):
    base = Source(key, "w", task, 0, None, "c", "q", "", "g", ("g",), 8, origin_id=key, flags=("z",))
    return replace(base, **changes)


def test_in_order_counts_within_each_task():
    out = reading.in_order([source("a"), source("b", "u"), source("c"), source("d", "u")])
    assert [(s.source_id, s.index) for s in out] == [("a", 0), ("b", 0), ("c", 1), ("d", 1)]


def test_a_repeated_item_is_kept_once_and_flagged():
    out = reading.in_order([source("a"), source("b"), source("a"), source("c")])
    assert [(s.source_id, s.index, s.flags) for s in out] == [
        ("a", 0, ("repeated_item", "z")),
        ("b", 1, ("z",)),
        ("c", 2, ("z",)),
    ]


@pytest.mark.parametrize("change", [{"gold": "h"}, {"references": ("g", "h")}, {"evidence": ((0, 1),)}])
def test_one_item_with_two_answers_is_refused(change):
    with pytest.raises(UsageError, match="item a is there twice"):
        reading.in_order([source("a"), source("a", **change)])
