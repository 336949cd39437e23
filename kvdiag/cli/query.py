"""`kvdiag query`."""

import os
import sys
from pathlib import Path
from typing import Any

import click

from kvdiag.cli import options
from kvdiag.errors import DataError, UsageError

_EMPTY = "which SQL? give it as an argument, with --file, or on stdin as -"


@click.command()
@click.argument("sql", required=False)
@options.data
@click.option("--file", "-f", "file", metavar="FILE", help="Read the SQL from a file.")
@click.option("--csv", "fmt", flag_value="csv", help="Comma-separated values, all rows.")
@click.option("--json", "fmt", flag_value="json", help="A JSON list, all rows.")
@click.option("--jsonl", "fmt", flag_value="jsonl", help="One JSON object a line, all rows.")
@click.option("--markdown", "fmt", flag_value="markdown", help="A Markdown table, all rows.")
@click.option("--parquet", "fmt", flag_value="parquet", help="A Parquet file; needs -o.")
@click.option("--out", "-o", metavar="FILE", help="Write to a file instead of the terminal.")
@click.option(
    "--rows", "max_rows", type=click.IntRange(1), default=40, show_default=True, help="Rows a table shows."
)
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=60.0, show_default=True, help="Seconds a query may take."
)
@click.option("--memory", default="2GB", show_default=True, help="Memory a query may take.")
@click.option("--list", "list_objects", is_flag=True, help="List tables, views and macros.")
def query(
    sql: str | None,
    data: str | None,
    file: str | None,
    fmt: str | None,
    out: str | None,
    max_rows: int,
    timeout: float,
    memory: str,
    list_objects: bool,
) -> None:
    """Ask a ledger with one SELECT statement. --list shows its tables, views and macros.

    \b
    Examples:
      kvdiag query "SELECT method, setting, count(*) FROM c2w GROUP BY ALL"
      kvdiag query --data ledgers/demo-smollm2 --csv "FROM failure_rates"
    """
    if list_objects:
        _list()
        return
    if fmt == "parquet" and not out:
        raise UsageError("--parquet needs a file to write: -o FILE")
    text = _sql(sql, file)

    from kvdiag.ledger.layout import find, refuse_own_file
    from kvdiag.query import formats, limits, run

    ledger = find(data)
    if out:
        refuse_own_file(Path(out), ledger, "--out")
    size = limits.parse_size(memory)
    try:
        with limits.address_space(size):
            result = run.query(ledger, text, timeout, memory, _give_up)
            if out:
                _write_file(result, fmt or "csv", Path(out))
            else:
                formats.write(result, fmt or "table", sys.stdout, max_rows)
    except MemoryError:
        raise DataError(run.out_of_memory(memory)) from None


def _give_up(message: str) -> None:
    """End the process: its query listens to nothing else."""
    sys.stderr.write(f"kvdiag: {message}\n")
    sys.stderr.flush()
    os._exit(1)


def _write_file(result: Any, fmt: str, out: Path) -> None:
    """A result as a file, or no file where it cannot be written in full."""
    from kvdiag.query import formats

    try:
        stream: Any = out.open("wb") if fmt == "parquet" else out.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written ({error.strerror or error})") from None
    try:
        with stream:
            if fmt == "parquet":
                formats.write_parquet(result, stream)
            else:
                formats.write(result, fmt, stream)
    except BaseException as error:
        if out.is_file():
            out.unlink()
        if isinstance(error, OSError):
            raise UsageError(f"--out {out}: cannot be written ({error.strerror or error})") from None
        raise


def _sql(sql: str | None, file: str | None) -> str:
    if sql and file:
        raise UsageError("SQL twice: as an argument and with --file; give one")
    if file:
        try:
            sql = Path(file).read_text(encoding="utf-8-sig")  # some editors put a mark first
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--file {file}: cannot be read ({error})") from None
    elif sql == "-":
        try:
            sql = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise UsageError(f"stdin: cannot be read ({error})") from None
    if not sql or not sql.strip():
        raise UsageError(_EMPTY)
    return sql


def _list() -> None:
    from kvdiag.query.library import library
    from kvdiag.records.schema import TABLES, json_schema

    entries = [(t, "table", json_schema(t)["description"]) for t in TABLES]
    entries += [(o.name, o.kind, o.summary) for o in library()]
    width = max(len(name) for name, _, _ in entries)
    for name, kind, text in entries:
        click.echo(f"{name:<{width}}  {kind:<5}  {text}")
