"""Run one SELECT-like statement on a ledger, within limits."""

import threading
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kvdiag.errors import DataError, RefusedError
from kvdiag.query.connection import connect

_ALLOWED = {"SELECT", "EXPLAIN"}


def query(ledger: Path, sql: str, timeout: float = 60.0) -> pa.Table:
    """The result of one statement as an Arrow table.

    Raises RefusedError for more than one statement or one that is not a SELECT (DESCRIBE, SHOW, SUMMARIZE, FROM
    and VALUES count as such), DataError when the SQL is wrong or runs into a limit.
    """
    check(sql)
    connection = connect(ledger)
    timer = threading.Timer(timeout, connection.interrupt)
    timer.start()
    try:
        return fetch(connection, sql)
    except duckdb.InterruptException:
        raise DataError(f"the query took longer than {timeout:g} s and was stopped; see --timeout") from None
    except duckdb.Error as error:
        raise DataError(f"SQL: {_one_line(error)}") from None
    finally:
        timer.cancel()
        connection.close()


def check(sql: str) -> None:
    """Raise unless the text is exactly one statement that only reads."""
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise DataError(f"SQL: {_one_line(error)}") from None
    if len(statements) != 1:
        raise RefusedError(f"one statement at a time, please; this is {len(statements)}")
    kind = statements[0].type.name
    if kind not in _ALLOWED:
        raise RefusedError(
            f"{kind} is refused: kvdiag query only reads (SELECT, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN)"
        )


def fetch(connection: Any, sql: str) -> pa.Table:
    """The result as an Arrow table, under DuckDB 1.5 and 2 alike, its columns with distinct names."""
    relation = connection.sql(sql)
    table = relation.to_arrow_table() if hasattr(relation, "to_arrow_table") else relation.arrow()
    table = table.read_all() if hasattr(table, "read_all") else table
    return table.rename_columns(_distinct(table.column_names))


def _distinct(names: list[str]) -> list[str]:
    """`a, a` as `a, a_1`: a join of two tables repeats names, and rows as dictionaries would lose columns."""
    taken = set(names)
    done: list[str] = []
    for name in names:
        new, n = name, 0
        while new in done or (n and new in taken):
            n += 1
            new = f"{name}_{n}"
        done.append(new)
    return done


def _one_line(error: Exception) -> str:
    """DuckDB's message without its picture of the statement."""
    text = str(error).split("\n\nLINE ")[0]
    return " ".join(text.split())
