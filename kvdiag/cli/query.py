"""`kvdiag query`."""

import sys
from pathlib import Path

import click

from kvdiag.cli import options
from kvdiag.errors import UsageError

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
@click.option("--list", "list_objects", is_flag=True, help="List tables, views and macros.")
def query(
    sql: str | None,
    data: str | None,
    file: str | None,
    fmt: str | None,
    out: str | None,
    max_rows: int,
    timeout: float,
    list_objects: bool,
) -> None:
    """Ask a ledger with one SELECT statement. Tables: sources, controls, runs, c2w.

    \b
    Examples:
      kvdiag query "SELECT method, setting, count(*) FROM c2w GROUP BY ALL"
      kvdiag query --data ledgers/demo-smollm2 --csv "FROM failure_rates"
    """
    from kvdiag.ledger.layout import find
    from kvdiag.query import formats, run

    if list_objects:
        _list()
        return
    if fmt == "parquet" and not out:
        raise UsageError("--parquet needs a file to write: -o FILE")
    text = _sql(sql, file)
    ledger = find(data)
    result = run.query(ledger, text, timeout)
    if fmt == "parquet":
        with _reported(out):
            formats.write_parquet(result, Path(str(out)))
    elif out:
        with _reported(out), open(out, "w", encoding="utf-8", newline="") as stream:
            formats.write(result, fmt or "csv", stream)
    else:
        formats.write(result, fmt or "table", sys.stdout, max_rows)


class _reported:
    """Turns a failed write into one line."""

    def __init__(self, out: str | None) -> None:
        self._out = out

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            raise UsageError(f"--out {self._out}: cannot be written ({error.strerror})") from None


def _sql(sql: str | None, file: str | None) -> str:
    if sql and file:
        raise UsageError("SQL twice: as an argument and with --file; give one")
    if file:
        try:
            sql = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--file {file}: cannot be read ({error})") from None
    elif sql == "-":
        sql = sys.stdin.read()
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
