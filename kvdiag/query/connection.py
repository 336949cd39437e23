"""A DuckDB connection on a ledger, for reading only.

Tables are loaded into memory, then the door to files and network is shut and the configuration locked. This
guards against accidents on the user's own machine; it is no boundary against hostile SQL.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kvdiag.errors import DataError
from kvdiag.ledger.layout import read_manifest
from kvdiag.query.library import SqlObject, library
from kvdiag.records.schema import TABLES, arrow_schema

_SETTINGS = (
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET allow_community_extensions=false",
    "SET python_enable_replacements=false",  # else SQL could read Python variables in scope
    "SET temp_directory=''",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


def connect(ledger: Path, sql: str | None = None, memory_limit: str = "4GB") -> Any:
    """An in-memory connection with the ledger's tables, views and macros.

    sql: load only what this text can name (all when None): most questions touch one table.
    """
    manifest = read_manifest(ledger)
    connection = duckdb.connect(":memory:", config={"memory_limit": memory_limit})
    wanted, objects = _needed(sql)
    for table in wanted:
        _load(connection, ledger, manifest, table)
    for item in objects:
        connection.execute(item.sql)
    for setting in _SETTINGS:
        connection.execute(setting)
    return connection


def _load(connection: Any, ledger: Path, manifest: dict[str, Any], table: str) -> None:
    files = [str(ledger / f["path"]) for f in manifest["files"] if f["table"] == table]
    if files:
        try:
            connection.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet(?)", [files])
        except duckdb.Error as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{ledger}: table {table} cannot be read ({reason})") from error
        return
    empty = pa.Table.from_pylist([], schema=arrow_schema(table))
    connection.register("kvdiag_empty", empty)
    connection.execute(f"CREATE TABLE {table} AS SELECT * FROM kvdiag_empty")
    connection.unregister("kvdiag_empty")


def _needed(sql: str | None) -> tuple[list[str], list[SqlObject]]:
    """Tables and library objects whose names occur in the text, with what those rest on."""
    objects = library()
    if sql is None:
        return list(TABLES), objects
    names = _words([sql])
    chosen: list[SqlObject] = []
    for item in reversed(objects):  # an object rests on earlier ones only
        if item.name in names:
            chosen.append(item)
            names |= _words([item.sql])
    tables = [t for t in TABLES if t in names]
    if re.search(r"(?i)\b(show|information_schema|duckdb_\w+|pragma_\w+)\b|\bdescribe\s*;?\s*$", sql):
        return list(TABLES), objects
    return tables, list(reversed(chosen))


def _words(texts: Iterable[str]) -> set[str]:
    return {w.lower() for text in texts for w in re.findall(r"\w+", text)}


def rows(connection: Any, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Rows of a query as dictionaries."""
    cursor = connection.execute(sql, list(parameters))
    names = [d[0] for d in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
