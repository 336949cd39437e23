"""Reading JSON lines, plain or gzipped, so that a bad line is named."""

import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvdiag.errors import DataError


def find(folder: Path, name: str) -> Path | None:
    """`name.jsonl` or `name.jsonl.gz` in a folder, None when neither is there."""
    for path in (folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"):
        if path.is_file():
            return path
    return None


def read(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers (from 1) and objects; empty lines are passed over.

    Raises DataError naming file and line for anything that is not a JSON object, NaN and Infinity included.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _object(path, number, line)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} line {number + 1}: cannot be read ({error})") from error


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} line {number}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataError(f"{path} line {number}: must be a JSON object")
    return record


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")  # JSON may hold half a surrogate pair, which no file of ours can
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return _is_integer(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


_KINDS: dict[str, Callable[[Any], bool]] = {
    "text": _is_text,
    "flag": lambda value: isinstance(value, bool),
    "number": _is_number,
    "integer": _is_integer,
    "list of text": lambda value: isinstance(value, list) and bool(value) and all(map(_is_text, value)),
}


def field(record: dict[str, Any], name: str, kind: str, path: Path, line: int, null: bool = False) -> Any:
    """A field of a record. Raises DataError naming file, line and field when it is missing or of another kind."""
    if name not in record:
        raise DataError(f"{path} line {line}: field {name!r} is missing")
    value = record[name]
    if value is None and null:
        return None
    if not _KINDS[kind](value):
        raise DataError(f"{path} line {line}: field {name!r} must be a {kind}, not {value!r:.60}")
    return value
