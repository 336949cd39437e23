"""Checks of JSON lines: one record of a table a line."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kvdiag.errors import DataError, UsageError
from kvdiag.importers.jsonl import read
from kvdiag.records.schema import TABLES, arrow_schema, json_schema
from kvdiag.validation import rules, tables
from kvdiag.validation.findings import Finding

_PYTHON: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list}


def check(path: Path, table: str | None) -> list[Finding]:
    """All findings of a JSONL file; rows are named by their line."""
    try:
        lines = list(read(path))
    except DataError as error:
        return [Finding("unreadable", str(error), str(path))]
    if not lines:
        return [Finding("empty", "holds no record", str(path))]
    table = table or tables.guess_table(list(lines[0][1]))
    if table is None:
        raise UsageError(f"{path}: which table? give --table {'|'.join(TABLES)}")
    found = _check_types(lines, table, str(path))
    if found:
        return found
    data = pa.Table.from_pylist([record for _, record in lines], schema=arrow_schema(table))
    data = data.append_column("line__", pa.array([f"line {n}" for n, _ in lines]))
    connection = duckdb.connect()
    connection.register(table, data)
    found = tables.check_rows(connection, table, table, str(path), row="line__")
    return found + rules.check(connection, {table}, {table: str(path)})


def _check_types(lines: list[tuple[int, dict[str, Any]]], table: str, file: str) -> list[Finding]:
    """Missing and unknown fields and values of a wrong JSON type."""
    properties = json_schema(table)["properties"]
    names = set(properties)
    bad: dict[tuple[str, str, str], list[int]] = {}
    for line, record in lines:
        for name in names.symmetric_difference(record):
            rule = (
                ("missing_column", "is missing") if name in names else ("unknown_column", "is not in the contract")
            )
            bad.setdefault((*rule, name), []).append(line)
    for name, prop in properties.items():
        allowed = _allowed(prop)
        for line, record in lines:
            if name in record and not allowed(record[name]):
                message = (
                    f"must be {' or '.join(prop['type'] if isinstance(prop['type'], list) else [prop['type']])}"
                )
                bad.setdefault(("column_type", message, name), []).append(line)
    return [
        Finding(rule, message, file, table, name, tuple(f"line {n}" for n in where[: tables.SHOWN]), len(where))
        for (rule, message, name), where in bad.items()
    ]


def _whole(value: int | float) -> bool:
    """Whether a column of 64-bit integers takes it. To a JSON Schema 3.0 is an integer."""
    return (isinstance(value, int) or value.is_integer()) and -(2**63) <= value < 2**63


def _allowed(prop: dict[str, Any]) -> Any:
    types = prop["type"] if isinstance(prop["type"], list) else [prop["type"]]
    null = "null" in types
    (kind,) = [t for t in types if t != "null"]
    item = _PYTHON[prop["items"]["type"]] if kind == "array" else None

    def one(value: Any, wanted: Any) -> bool:
        if wanted is int and isinstance(value, int | float) and not isinstance(value, bool):
            return _whole(value)
        return isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))

    def allowed(value: Any) -> bool:
        if value is None:
            return null
        if kind == "array":
            return isinstance(value, list) and all(v is None or one(v, item) for v in value)
        return one(value, _PYTHON[kind])

    return allowed
