"""A DuckDB connection on a ledger, for reading only.

Tables are views over the ledger's Parquet files, so that a question reads the columns it names and no more. The
files are open for reading only (kvdiag.query.files); the door to all others and to the network is shut and the
configuration locked. This guards against accidents on the user's own machine; it is no boundary against hostile
SQL.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import duckdb

from kvdiag.errors import DataError
from kvdiag.ledger.layout import read_manifest
from kvdiag.query.files import LedgerFiles
from kvdiag.query.library import library
from kvdiag.records.schema import TABLES, arrow_schema

_SETTINGS = (
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET allow_community_extensions=false",
    "SET allow_persistent_secrets=false",
    "SET python_enable_replacements=false",  # else SQL could read Python variables in scope
    "SET temp_directory=''",
    "SET allowed_paths={paths}",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


MEMORY_LIMIT = "4GB"


def connect(ledger: Path, memory_limit: str = MEMORY_LIMIT) -> Any:
    """An in-memory connection with the ledger's tables, views and macros.

    memory_limit: what DuckDB may hold, as it spells it. What it does not count, kvdiag.query.limits bounds.
    """
    manifest = read_manifest(ledger)
    _check_files(ledger, manifest)
    files = LedgerFiles(ledger, [f["path"] for f in manifest["files"]])
    connection = duckdb.connect(":memory:", config={"memory_limit": memory_limit})
    connection.register_filesystem(files)
    try:
        for table in TABLES:
            own = [n for n, f in zip(files.names(), manifest["files"], strict=True) if f["table"] == table]
            connection.execute(f"CREATE VIEW {table} AS {table_sql(table, own)}")
        for item in library():
            connection.execute(item.sql)
    except duckdb.Error as error:
        reason = one_line(error)
        raise DataError(f"{ledger}: cannot be read as a ledger; kvdiag validate says more ({reason})") from None
    for setting in _SETTINGS:
        connection.execute(setting.format(paths=_list(files.names())))
    return connection


def _check_files(ledger: Path, manifest: dict[str, Any]) -> None:
    """Raise unless the manifest's files are here, inside the ledger."""
    for name in (f["path"] for f in manifest["files"]):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise DataError(f"{ledger}: its manifest names {name}, which is outside the ledger")
        if not (ledger / name).is_file():
            raise DataError(f"{ledger}: {name} is missing; kvdiag validate says more")


def one_line(error: Exception) -> str:
    """DuckDB's message without its picture of the statement, and without a traceback of our files' object."""
    text = str(error).split("\n\nLINE ")[0].strip()
    if text.startswith("Traceback"):
        text = text.splitlines()[-1]
    return " ".join(text.split())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _list(texts: Sequence[str]) -> str:
    return "[" + ", ".join(_quoted(t) for t in texts) + "]"


def table_sql(table: str, files: list[str]) -> str:
    """SQL of a table's rows. A table without files still has its columns."""
    if files:
        return f"SELECT * FROM read_parquet({_list(files)})"
    columns = (f"NULL::{_sql_type(str(f.type))} AS {_name(f.name)}" for f in arrow_schema(table))
    return f"SELECT {', '.join(columns)} WHERE false"


def _name(column: str) -> str:
    return '"' + column + '"'


def _sql_type(arrow_type: str) -> str:
    scalar = {"string": "VARCHAR", "int64": "BIGINT", "double": "DOUBLE", "bool": "BOOLEAN"}
    if arrow_type.startswith("list<"):
        return scalar[arrow_type.split(": ")[1].rstrip(">")] + "[]"
    return scalar[arrow_type]


def rows(connection: Any, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Rows of a query as dictionaries."""
    cursor = connection.execute(sql, list(parameters))
    names = [d[0] for d in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
