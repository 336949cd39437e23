"""`kvdiag validate`: a ledger folder, one Parquet file, or JSON lines."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from kvdiag.errors import UsageError
from kvdiag.records.schema import TABLES
from kvdiag.validation import ledger, records, rules, tables
from kvdiag.validation.contract import literal
from kvdiag.validation.findings import Finding


def validate(path: Path, table: str | None = None) -> list[Finding]:
    """All findings at a path; an empty list means valid.

    table: the table of a single file, where its columns do not tell. Raises UsageError when there is nothing to
    check at the path.
    """
    if table is not None and table not in TABLES:
        raise UsageError(f"--table {table}: must be one of {', '.join(TABLES)}")
    if path.is_dir():
        return ledger.check(path)
    if not path.is_file():
        raise UsageError(f"{path}: no such file or folder")
    if path.suffix == ".parquet":
        return _check_parquet(path, table)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return records.check(path, table)
    raise UsageError(f"{path}: must be a ledger folder, a .parquet file or a .jsonl[.gz] file")


def _check_parquet(path: Path, table: str | None) -> list[Finding]:
    try:
        columns = pq.read_schema(path).names
    except (OSError, pa.ArrowException) as error:
        return [Finding("unreadable", f"cannot be read as Parquet ({error})", str(path))]
    table = table or tables.guess_table(columns)
    if table is None:
        raise UsageError(f"{path}: which table? give --table {'|'.join(TABLES)}")
    found = tables.check_parquet(path, table, str(path))
    if found:
        return found
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE {table} AS SELECT * FROM read_parquet({literal(str(path))})")
    return rules.check(connection, {table}, {table: str(path)})
