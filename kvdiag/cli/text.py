"""Numbers and tables as plain text, alike on a terminal and in a file."""

import json
from collections.abc import Sequence
from typing import Any

import click


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a table: the first `left` columns to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(_cell(c, w, i < left) for i, (c, w) in enumerate(zip(r, widths, strict=True))).rstrip()
        for r in (header, *rows)
    ]


def _cell(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def number(value: float | None, form: str = ".3f") -> str:
    """A number, - where there is none."""
    return "-" if value is None else format(value, form)


def span(low: float | None, high: float | None, form: str = ".3f") -> str:
    """An interval, - where there is none."""
    return "-" if low is None or high is None else f"{low:{form}} to {high:{form}}"


def gaps(missing: Sequence[dict[str, object]]) -> str:
    """Why values are missing, with counts: `3 failed (oom), 2 unsupported (bits_not_offered)`."""
    return ", ".join(f"{m['n']} {m['status']}" + (f" ({m['reason']})" if m["reason"] else "") for m in missing)


def catalogue(entries: list[dict[str, Any]], columns: dict[str, str], as_json: bool) -> None:
    """Print entries as JSON, or these columns of them as a table: key -> title."""
    if as_json:
        click.echo(json.dumps(entries, ensure_ascii=False))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file has no edge to fold at
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in columns.values():
        table.add_column(title, overflow="fold", no_wrap=title in ("method", "family", "sees", "workload"))
    for entry in entries:
        cells = (entry[key] for key in columns)
        table.add_row(*(", ".join(c) if isinstance(c, list | tuple) else str(c) for c in cells))
    console.print(table)
