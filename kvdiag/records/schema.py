"""Table schemas. `schema/<table>.json` is the single source; Arrow schemas are derived from it here."""

import json
from functools import cache
from typing import Any

import pyarrow as pa

from kvdiag.resources import folder

TABLES = ("sources", "controls", "runs", "c2w", "retention", "methods", "repairs")

_ARROW = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}


@cache
def json_schema(table: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a table's rows. Do not change the returned object."""
    return json.loads((folder("schema") / f"{table}.json").read_text(encoding="utf-8"))


def schema_version(table: str) -> str:
    """Version of a table's contract, as in its JSON Schema."""
    return json_schema(table)["x-version"]


def column_names(table: str) -> list[str]:
    """Columns of a table in file order."""
    return list(json_schema(table)["properties"])


def metric_names(table: str) -> list[str]:
    """Columns that carry a `__status` and a `__reason` column beside them."""
    return [n for n, p in json_schema(table)["properties"].items() if p.get("x-metric")]


def _arrow_type(prop: dict[str, Any]) -> tuple[pa.DataType, bool]:
    types = prop["type"] if isinstance(prop["type"], list) else [prop["type"]]
    nullable = "null" in types
    (name,) = [t for t in types if t != "null"]
    if name == "array":
        return pa.list_(_ARROW[prop["items"]["type"]]), nullable
    return _ARROW[name], nullable


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema every file of a table is written with. Never inferred from rows."""
    fields = []
    for name, prop in json_schema(table)["properties"].items():
        arrow_type, nullable = _arrow_type(prop)
        fields.append(pa.field(name, arrow_type, nullable=nullable))
    return pa.schema(fields)


def to_table(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as an Arrow table with the contract's schema.

    Raises ValueError when a row lacks a column or has one too many: Arrow itself would fill or drop it in
    silence.
    """
    expected = set(column_names(table))
    for row in rows:
        if row.keys() != expected:
            wrong = sorted(expected.symmetric_difference(row.keys()))
            raise ValueError(f"{table}: row with missing or unknown columns {wrong}")
    return pa.Table.from_pylist(rows, schema=arrow_schema(table))
