"""Checks of one table in one file: columns, types, readable pages, and the contract's predicates."""

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kvdiag.errors import first_line
from kvdiag.records.schema import TABLES, arrow_schema, json_schema
from kvdiag.validation.contract import Predicate, literal, predicates
from kvdiag.validation.findings import Finding

SHOWN = 3  # row keys a finding names


def guess_table(columns: list[str]) -> str | None:
    """The table whose columns are most like these; None when none is near."""
    given = set(columns)
    wanted = {t: set(arrow_schema(t).names) for t in TABLES}
    scores = {t: len(given & names) / len(given | names) for t, names in wanted.items()}
    best = max(scores, key=lambda t: scores[t])
    return best if scores[best] > 0.5 else None


def check_columns(schema: pa.Schema, table: str, file: str) -> list[Finding]:
    """Missing, unknown and wrongly typed columns."""
    want, found = arrow_schema(table), []
    for entry in want:
        if entry.name not in schema.names:
            found.append(Finding("missing_column", "is missing", file, table, entry.name))
        elif schema.field(entry.name).type != entry.type:
            message = f"has type {schema.field(entry.name).type}, must be {entry.type}"
            found.append(Finding("column_type", message, file, table, entry.name))
    for name in schema.names:
        if name not in want.names:
            found.append(Finding("unknown_column", "is not in the contract", file, table, name))
    return found


def check_parquet(path: Path, table: str, name: str) -> list[Finding]:
    """Everything that one Parquet file can tell by itself."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        schema = file.schema_arrow
    except (OSError, pa.ArrowException) as error:
        return [Finding("unreadable", f"cannot be read as Parquet ({first_line(error)})", name, table)]
    found = check_columns(schema, table, name)
    if found:
        return found
    found = _check_pages(file, table, name)
    if found:
        return found
    connection = duckdb.connect()
    source = f"read_parquet({literal(str(path))})"
    return check_rows(connection, source, table, name)


def _check_pages(file: Any, table: str, name: str) -> list[Finding]:
    """Read every page with its checksum; a damaged one is named by row group and column."""
    found = []
    for group in range(file.metadata.num_row_groups):
        try:
            file.read_row_group(group)
            continue
        except (OSError, pa.ArrowException):
            pass
        for column in file.schema_arrow.names:
            try:
                file.read_row_group(group, columns=[column])
            except (OSError, pa.ArrowException) as error:
                message = f"row group {group} is damaged ({first_line(error)})"
                found.append(Finding("damaged", message, name, table, column))
    return found


def check_rows(connection: Any, source: str, table: str, file: str, row: str | None = None) -> list[Finding]:
    """The contract's predicates and unique keys over `source`, a SQL table expression.

    row: SQL that names a row in findings; the table's key by default.
    """
    key = row or " || '/' || ".join(f'"{k}"' for k in json_schema(table)["x-key"])
    found = _check_predicates(connection, source, table, file, key)
    for column in json_schema(table)["x-key"]:
        doubled = connection.execute(
            f'SELECT "{column}", count(*) FROM {source} GROUP BY 1 HAVING count(*) > 1 ORDER BY 1'
        ).fetchall()
        if doubled:
            keys = tuple(str(k) for k, _ in doubled[:SHOWN])
            found.append(Finding("unique_key", "must be unique", file, table, column, keys, len(doubled)))
    return found


def _check_predicates(connection: Any, source: str, table: str, file: str, key: str) -> list[Finding]:
    rules = predicates(table)
    counts = connection.execute(
        f"SELECT {', '.join(f'count(*) FILTER (WHERE {_broken(r)})' for r in rules)} FROM {source}"
    ).fetchone()
    found = []
    for rule, count in zip(rules, counts, strict=True):
        if count:
            rows = connection.execute(
                f"SELECT coalesce(({key})::VARCHAR, 'null key') FROM {source} WHERE {_broken(rule)} LIMIT {SHOWN}"
            ).fetchall()
            keys = tuple(r[0] for r in rows)
            found.append(Finding(rule.rule, rule.message, file, table, rule.column, keys, count))
    return found


def _broken(rule: Predicate) -> str:
    return f"NOT coalesce({rule.sql}, false)"
