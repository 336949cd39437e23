"""Run one SELECT-like statement on a ledger, within limits of time and memory."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from kvdiag.errors import DataError, RefusedError
from kvdiag.query.connection import MEMORY_LIMIT, connect, one_line

# Seconds that an interrupted query has to end. Most end at once; a function busy with one long value may not.
_GRACE = 10.0

# What a question begins with. DuckDB's own kinds do not tell enough: 1.5 counts some PRAGMAs as SELECT.
_SELECTS = ("SELECT", "FROM", "WITH", "VALUES", "TABLE", "(", "PIVOT", "UNPIVOT")
_QUESTIONS = (*_SELECTS, "DESCRIBE", "DESC", "SHOW", "SUMMARIZE")
_EXPLAIN = re.compile(r"EXPLAIN\b(?:\s+ANALYZE\b)?", re.IGNORECASE)
_OPTIONS = re.compile(r"\s*\([\w\s,]*\)")


def query(
    ledger: Path,
    sql: str,
    timeout: float = 60.0,
    memory_limit: str = MEMORY_LIMIT,
    stuck: Callable[[str], None] | None = None,
) -> pa.Table:
    """The result of one statement as an Arrow table.

    stuck: called from another thread, with the message, for a query that goes on after it was interrupted.
    Raises RefusedError for more than one statement or one that is not a SELECT (DESCRIBE, SHOW, SUMMARIZE, FROM
    and VALUES count as such), DataError when the SQL is wrong or runs into a limit.
    """
    connection = connect(ledger, memory_limit)
    late = f"the query took longer than {timeout:g} s and was stopped; see --timeout"
    done = threading.Event()
    try:
        text = check(connection, sql)
        watch = threading.Thread(target=_watch, args=(done, connection, timeout, late, stuck), daemon=True)
        watch.start()
        return fetch(connection, text)
    except duckdb.InterruptException:
        raise DataError(late) from None
    except (duckdb.OutOfMemoryException, MemoryError):
        raise DataError(out_of_memory(memory_limit)) from None
    except duckdb.Error as error:
        raise DataError(f"SQL: {one_line(error)}") from None
    finally:
        done.set()
        connection.close()


def out_of_memory(memory_limit: str) -> str:
    """What to say when a query needs more."""
    return f"the query needs more than {memory_limit} of memory and was stopped; see --memory"


def _watch(
    done: threading.Event, connection: Any, timeout: float, late: str, stuck: Callable[[str], None] | None
) -> None:
    if done.wait(timeout):
        return
    connection.interrupt()
    if stuck and not done.wait(_GRACE):
        stuck(late)


def check(connection: Any, sql: str) -> str:
    """The statement to run. Raises unless the text is exactly one statement that only reads.

    EXPLAIN ANALYZE runs what it explains, so what follows EXPLAIN must pass by itself.
    """
    text = sql[_start(sql) :]
    word = _first_word(text)
    if not word:
        raise RefusedError("one statement at a time, please; there is none")
    if word != "EXPLAIN":
        return _check_question(connection, text)
    head = _end(_EXPLAIN, text)
    options = _end(_OPTIONS, text[head:])
    for explained in (text[head + options :], text[head:]):  # EXPLAIN (FORMAT json) SELECT 1, EXPLAIN (SELECT 1)
        try:
            if _first_word(explained) in _SELECTS and _kinds(connection, explained) == ["SELECT"]:
                return text
        except DataError:
            if not options:
                raise
    raise RefusedError("EXPLAIN of anything but one SELECT is refused (a PIVOT's columns must be named with IN)")


def _check_question(connection: Any, text: str) -> str:
    word = _first_word(text)
    kinds = _kinds(connection, text)
    if len(kinds) > 1:
        raise RefusedError(f"one statement at a time, please; this is {len(kinds)}")
    if word not in _QUESTIONS or kinds not in (["SELECT"], ["PIVOT"]):
        raise RefusedError(
            f"{word} is refused: kvdiag query only reads (SELECT, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN)"
        )
    return text


def _start(text: str) -> int:
    """Where the statement starts: after spaces, semicolons and comments, which may hold comments."""
    at = 0
    while at < len(text):
        if text.startswith("--", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text.startswith("/*", at):
            depth = 0
            for mark in re.finditer(r"/\*|\*/", text[at:]):
                depth += 1 if mark[0] == "/*" else -1
                if not depth:
                    break
            at = len(text) if depth else at + mark.end()
        elif text[at].isspace() or text[at] == ";":
            at += 1
        else:
            break
    return at


def _first_word(text: str) -> str:
    match = re.compile(r"\w+|\S").match(text, _start(text))
    return match[0].upper() if match else ""


def _end(pattern: re.Pattern[str], text: str) -> int:
    match = pattern.match(text)
    return match.end() if match else 0


def _kinds(connection: Any, text: str) -> list[str]:
    """Kinds of the statements in a text, as DuckDB parses it. Raises DataError for what it cannot parse."""
    if "\0" in text:  # to DuckDB the text would end there
        raise DataError("SQL: has a NUL character")
    try:
        text.encode("utf-8")
        statements = connection.extract_statements(text)
    except UnicodeEncodeError:
        raise DataError("SQL: not valid UTF-8") from None
    except duckdb.Error as error:
        raise DataError(f"SQL: {one_line(error)}") from None
    kinds = [_kind(s) for s in statements]
    if kinds == ["MULTI"]:
        return ["PIVOT"]
    # DuckDB 1.5 shows what it makes of a PIVOT: a type for the columns, then the SELECT, neither with a text.
    if len(kinds) > 1 and {*kinds[:-1]} == {"CREATE"} and kinds[-1] == "SELECT" and not statements[0].query:
        return ["PIVOT"]
    return kinds


def _kind(statement: Any) -> str:
    try:
        return statement.type.name
    except ValueError:  # a kind that DuckDB's Python side has no name for
        return "UNKNOWN"


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
