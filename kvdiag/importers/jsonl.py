"""Reading JSON lines, plain or gzipped, so that a bad line is named."""

import gzip
import json
import math
from collections.abc import Iterator
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
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path} line {number + 1}: cannot be read ({error})") from error


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refuse)
    except ValueError as error:
        raise DataError(f"{path} line {number}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise DataError(f"{path} line {number}: must be a JSON object")
    return record


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


_TYPES: dict[str, Any] = {"text": str, "flag": bool, "number": (int, float), "list": list}


def field(record: dict[str, Any], name: str, kind: str, path: Path, line: int, null: bool = False) -> Any:
    """A field of a record. Raises DataError naming file, line and field when it is missing or of another type."""
    if name not in record:
        raise DataError(f"{path} line {line}: field {name!r} is missing")
    value = record[name]
    if value is None and null:
        return None
    wrong = not isinstance(value, _TYPES[kind]) or (kind == "number" and isinstance(value, bool))
    if wrong or (kind == "number" and not math.isfinite(value)):
        raise DataError(f"{path} line {line}: field {name!r} must be a {kind}, not {value!r:.60}")
    return value
