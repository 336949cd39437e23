"""Results as people and programs want them."""

import csv
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

FORMATS = ("table", "csv", "json", "jsonl", "markdown", "parquet")


def write(result: pa.Table, fmt: str, out: TextIO, max_rows: int | None = None) -> None:
    """Write a result. max_rows cuts a table for a terminal and says so; other formats are never cut."""
    if fmt == "table":
        _table(result, out, max_rows)
    elif fmt == "csv":
        _csv(result, out)
    elif fmt == "json":
        out.write(json.dumps(list(_records(result)), ensure_ascii=False, allow_nan=False, default=str) + "\n")
    elif fmt == "jsonl":
        for record in _records(result):
            out.write(json.dumps(record, ensure_ascii=False, allow_nan=False, default=str) + "\n")
    elif fmt == "markdown":
        _markdown(result, out)
    else:
        raise ValueError(f"unknown format {fmt}")


def write_parquet(result: pa.Table, path: Path) -> None:
    """A result as a Parquet file."""
    pq.write_table(result, path, compression="zstd")


def _records(result: pa.Table) -> Iterator[dict[str, Any]]:
    for record in result.to_pylist():
        yield {k: _plain(v) for k, v in record.items()}


def _plain(value: Any) -> Any:
    """A value as JSON knows it. SQL makes what no ledger holds: 1/0 is infinite, a sum of integers a decimal."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _text(value: Any, null: str, digits: int | None) -> str:
    if value is None:
        return null
    if isinstance(value, float):
        return repr(value) if digits is None else f"{value:.{digits}g}"
    if isinstance(value, list):
        return "[" + ", ".join(_text(v, "NULL", digits) for v in value) + "]"
    return str(value)


def _table(result: pa.Table, out: TextIO, max_rows: int | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = result if max_rows is None else result.slice(0, max_rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for field in result.schema:
        kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
        right = any(is_kind(field.type) for is_kind in kinds)
        table.add_column(Text(field.name), justify="right" if right else "left", overflow="fold")
    for row in shown.to_pylist():
        table.add_row(*(Text(_text(v, "NULL", 4)) for v in row.values()))
    console = Console(file=out)
    console.print(table)
    if shown.num_rows < result.num_rows:
        out.write(f"showing {shown.num_rows} of {result.num_rows} rows; --rows N shows more, --csv all\n")
    else:
        out.write(f"{result.num_rows} row{'' if result.num_rows == 1 else 's'}\n")


def _csv(result: pa.Table, out: TextIO) -> None:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.column_names)
    for row in result.to_pylist():
        writer.writerow([_text(v, "", None) for v in row.values()])


def _markdown(result: pa.Table, out: TextIO) -> None:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", "<br>") for c in cells) + " |\n"

    out.write(line(result.column_names))
    out.write(line(["---"] * result.num_columns))
    for row in result.to_pylist():
        out.write(line([_text(v, "NULL", 4) for v in row.values()]))
