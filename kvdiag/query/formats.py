"""Results as people and programs want them."""

import csv
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from kvdiag.errors import DataError

FORMATS = ("table", "csv", "json", "jsonl", "markdown", "parquet")


# Rows turned into Python objects at a time: they take many times the memory of the Arrow table.
_BATCH = 10_000


def write(result: pa.Table, fmt: str, out: TextIO, max_rows: int | None = None) -> None:
    """Write a result. max_rows cuts a table for a terminal and says so; other formats are never cut.

    Raises DataError for a value that has no form here.
    """
    if fmt == "table":
        _table(result, out, max_rows)
    elif fmt == "csv":
        _csv(result, out)
    elif fmt == "json":
        opening = "["
        for record in _records(result):
            out.write(opening + _json(record))
            opening = ", "
        out.write("]\n" if result.num_rows else "[]\n")
    elif fmt == "jsonl":
        for record in _records(result):
            out.write(_json(record) + "\n")
    elif fmt == "markdown":
        _markdown(result, out)
    else:
        raise ValueError(f"unknown format {fmt}")


def write_parquet(result: pa.Table, out: BinaryIO) -> None:
    """Write a result as Parquet. Raises DataError for a type that Parquet has no form for."""
    try:
        pq.write_table(result, out, compression="zstd")
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise DataError(f"the result has no form in Parquet; cast its column to VARCHAR ({error})") from None


def _rows(result: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows as dictionaries. The first batch is turned now, so that most errors come before any output."""
    batches = map(_turned, result.to_batches(_BATCH))
    return chain.from_iterable(chain([next(batches, [])], batches))


def _turned(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return batch.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException) as error:  # dates beyond the year 9999 and the like
        raise DataError(f"a value cannot be shown; cast its column to VARCHAR ({error})") from None


def _records(result: pa.Table) -> Iterator[dict[str, Any]]:
    for record in _rows(result):
        yield {k: _plain(v) for k, v in record.items()}


def _json(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, default=str)


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
    for row in _rows(shown):
        table.add_row(*(Text(_text(v, "NULL", 4)) for v in row.values()))
    console = Console(file=out)
    console.print(table)
    if shown.num_rows < result.num_rows:
        out.write(f"showing {shown.num_rows} of {result.num_rows} rows; --rows N shows more, --csv all\n")
    else:
        out.write(f"{result.num_rows} row{'' if result.num_rows == 1 else 's'}\n")


def _csv(result: pa.Table, out: TextIO) -> None:
    rows = _rows(result)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(result.column_names)
    for row in rows:
        writer.writerow([_text(v, "", None) for v in row.values()])


def _markdown(result: pa.Table, out: TextIO) -> None:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", "<br>") for c in cells) + " |\n"

    rows = _rows(result)
    out.write(line(result.column_names))
    out.write(line(["---"] * result.num_columns))
    for row in rows:
        out.write(line([_text(v, "NULL", 4) for v in row.values()]))
