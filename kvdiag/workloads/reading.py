"""Rows of data files: JSON, JSON lines, Parquet, gzip of the first two, folders and .zip archives of all.

Every error is a UsageError that begins with `--file PATH` and names the line, row or item.
"""

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from kvdiag.errors import UsageError
from kvdiag.workloads.base import Source

TEXT = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
KNOWN = (*TEXT, ".parquet", ".zip")

Select = Callable[[Sequence[str]], Sequence[str]]

# Fields that give a data set away, to name the workload that a misplaced file belongs to.
_MARKS = {
    "longbench": {"input", "context", "answers"},
    "hotpotqa": {"question", "answer", "context", "supporting_facts"},
    "qasper": {"title", "full_text", "qas"},
}


@dataclass(frozen=True)
class Row:
    """An object of a file. `where` says its place; `key` its name in a mapping; `stem` the file's bare name."""

    where: str
    data: Mapping[str, Any]
    key: str = ""
    stem: str = ""

    def error(self, message: str) -> UsageError:
        """To be raised: what is wrong at this place."""
        return UsageError(f"--file {self.where}: {message}")

    def require(self, workload: str, fields: Sequence[str], expected: str) -> None:
        """Raises UsageError when a field is missing: which one, or which workload the file belongs to."""
        missing = [name for name in fields if name not in self.data]
        if not missing:
            return
        other = next((n for n, marks in _MARKS.items() if n != workload and marks <= self.data.keys()), None)
        found = f"looks like --workload {other}" if other else f"has no field `{missing[0]}`"
        raise self.error(f"{found}; --workload {workload} expects {expected}")

    def text(self, name: str) -> str:
        """A field that must be text."""
        value = self.data.get(name)
        if not isinstance(value, str):
            raise self.error(f"field `{name}` must be text")
        return value

    def optional(self, name: str) -> str:
        """A field that may be missing or null: an empty text then."""
        return "" if self.data.get(name) is None else self.text(name)

    def texts(self, name: str) -> list[str]:
        """A field that must be a list of texts; missing or null is an empty one."""
        return self._all(name, str, "a list of texts")

    def rows(self, name: str) -> list["Row"]:
        """Objects of a field: a list of them, or the Hub's columns (an object of equally long lists)."""
        value = self.data.get(name)
        if isinstance(value, Mapping):
            columns = list(value.values())
            if not all(isinstance(c, list) for c in columns) or len({len(c) for c in columns}) > 1:
                raise self.error(f"field `{name}` must hold lists of equal length")
            value = [dict(zip(value, cells, strict=True)) for cells in zip(*columns, strict=True)]
        if not isinstance(value, list) or not all(isinstance(v, Mapping) for v in value):
            raise self.error(f"field `{name}` must be a list of objects, or an object of lists")
        return [replace(self, where=f"{self.where}, {name} {i}", data=v) for i, v in enumerate(value, start=1)]

    def row(self, name: str) -> "Row":
        """A field that must be an object."""
        value = self.data.get(name)
        if not isinstance(value, Mapping):
            raise self.error(f"field `{name}` must be an object")
        return replace(self, data=value)

    def _all(self, name: str, kind: type, words: str) -> list[Any]:
        value = self.data.get(name)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(v, kind) for v in value):
            raise self.error(f"field `{name}` must be {words}")
        return value


def read(paths: Sequence[Path], expected: str, select: Select = list) -> Iterator[Row]:
    """All rows of the files, in order; a folder's and an archive's files by name.

    expected: what the workload needs, for messages. select: which of a folder's or archive's files are meant.
    Raises UsageError for a missing, unreadable or empty file, for another kind of file, and for bad JSON.
    """
    for path in paths:
        if path.is_dir():
            names = sorted(
                name
                for file in path.rglob("*")
                if file.is_file() and _is_data(name := file.relative_to(path).as_posix())
            )
            for name in _selected(str(path), names, expected, select):
                yield from _file(path / name, expected, select)
        elif path.exists():
            yield from _file(path, expected, select)
        else:
            raise UsageError(f"--file {path}: no such file or folder; expected {expected}")


def in_order(sources: Sequence[Source]) -> list[Source]:
    """Sources with `index` counted in each task. An item that is there again is left out and the first one
    flagged `repeated_item`. Raises UsageError when the same question on the same text has two answers."""
    kept: dict[str, Source] = {}
    again: set[str] = set()
    for source in sources:
        first = kept.setdefault(source.source_id, source)
        if first is not source:
            again.add(source.source_id)
            if replace(first, flags=source.flags) != source:
                raise UsageError(
                    f"--file: item {source.origin_id} is there twice, with different answers or evidence"
                )
    counts: dict[str, int] = {}
    out = []
    for key, source in kept.items():
        index = counts[source.task] = counts.get(source.task, -1) + 1
        flags = (*source.flags, "repeated_item") if key in again else source.flags
        out.append(replace(source, index=index, flags=tuple(sorted(flags))))
    return out


def stem(name: str) -> str:
    """A file's bare name: `qasper_e` of `data/qasper_e.jsonl.gz`."""
    bare = PurePosixPath(name).name
    suffix = next((s for s in sorted(KNOWN, key=len, reverse=True) if bare.lower().endswith(s)), "")
    return bare.removesuffix(bare[len(bare) - len(suffix) :]) if suffix else bare


def _is_data(name: str) -> bool:
    """Whether a file of a folder or archive is one of ours; hidden ones and macOS' copies are not."""
    parts = PurePosixPath(name).parts
    return name.lower().endswith(KNOWN) and not any(p.startswith((".", "__MACOSX")) for p in parts)


def _selected(where: str, names: Sequence[str], expected: str, select: Select) -> Sequence[str]:
    chosen = select(names)
    if not chosen:
        raise UsageError(f"--file {where}: holds no file to read; expected {expected}")
    return chosen


def _file(path: Path, expected: str, select: Select) -> Iterator[Row]:
    where = str(path)
    if not where.lower().endswith(KNOWN):
        raise UsageError(f"--file {where}: must end in {', '.join(KNOWN)}; expected {expected}")
    try:
        if not where.lower().endswith(".zip"):
            with path.open("rb") as stream:
                yield from _stream(stream, where, expected)
            return
        with zipfile.ZipFile(path) as archive:
            names = [name for name in sorted(archive.namelist()) if _is_data(name)]
            for name in _selected(where, names, expected, select):
                with archive.open(name) as member:
                    yield from _stream(member, f"{where}:{name}", expected)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise UsageError(f"--file {where}: cannot be read ({error}); expected {expected}") from error


def _stream(stream: IO[bytes], where: str, expected: str) -> Iterator[Row]:
    """Rows of an open file; its kind is told by the name in `where`."""
    name = where.lower()
    if name.endswith(".zip"):
        raise UsageError(f"--file {where}: an archive inside an archive is not read; unpack it first")
    if name.endswith(".parquet"):
        found = _parquet(stream, where)
    else:
        plain = gzip.GzipFile(fileobj=stream) if name.endswith(".gz") else stream
        found = _lines(plain, where) if ".jsonl" in name[-9:] else _json(plain.read(), where)
    count = 0
    for place, key, value in found:
        count += 1
        if not isinstance(value, Mapping):
            raise UsageError(f"--file {place}: must be a JSON object; expected {expected}")
        yield Row(place, value, key, stem(where.rpartition(":")[2]))
    if not count:
        raise UsageError(f"--file {where}: holds no rows; expected {expected}")


Found = Iterator[tuple[str, str, Any]]  # place, key in a mapping, value


def _lines(stream: Any, where: str) -> Found:
    for number, line in enumerate(stream, start=1):
        if line.strip():
            place = f"{where} line {number}"
            yield place, "", _parse(line, place)


def _json(data: bytes, where: str) -> Found:
    try:
        value = _parse(data, where)
    except UsageError as error:
        if "Extra data" not in str(error):
            raise
        yield from _lines(io.BytesIO(data), where)  # JSON lines under the name .json
        return
    if isinstance(value, list):
        yield from ((f"{where} item {i}", "", v) for i, v in enumerate(value, start=1))
    elif isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
        yield from ((f"{where} {key}", key, v) for key, v in value.items())
    elif value:
        yield where, "", value


def _parse(data: bytes, place: str) -> Any:
    try:
        value = json.loads(data.decode("utf-8-sig"))
        if b"\\ud" in data or b"\\uD" in data:  # JSON may hold half a surrogate pair, which no record of ours can
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise UsageError(f"--file {place}: not UTF-8 text ({error.reason})") from error
    except UnicodeEncodeError as error:
        raise UsageError(f"--file {place}: holds half a surrogate pair, which is no character") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--file {place}: not valid JSON ({error})") from error
    return value


def _parquet(stream: IO[bytes], where: str) -> Found:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(pa.BufferReader(stream.read())).iter_batches(batch_size=256):
            for value in batch.to_pylist():
                number += 1
                yield f"{where} row {number}", "", value
    except pa.ArrowException as error:
        raise UsageError(f"--file {where}: not a readable Parquet file ({error})") from error
