"""Parquet as every ledger file is written: one explicit schema, the same bytes for the same rows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvdiag.ledger.files import whole_file
from kvdiag.records.schema import arrow_schema, json_schema

# Rows in a row group; well below the 100 MB that dataset viewers accept.
ROWS_PER_GROUP = 50_000


def write_table(table: str, data: pa.Table, path: Path) -> None:
    """Rows sorted by the table's key into one file, whole or not at all.

    zstd, page index and content-defined chunking, so that readers skip and uploads share what they can. An empty
    file cannot be loaded by `datasets` and is refused.
    """
    if not data.num_rows:
        raise ValueError(f"{table}: no rows to write to {path.name}")
    if not data.schema.equals(arrow_schema(table)):
        raise ValueError(f"{table}: its columns are not those of the contract")
    data = data.sort_by([(key, "ascending") for key in json_schema(table)["x-sort"]])
    with whole_file(path) as scratch:
        pq.write_table(
            data,
            scratch,
            compression="zstd",
            compression_level=6,
            write_page_index=True,
            write_page_checksum=True,
            use_content_defined_chunking=True,
            row_group_size=ROWS_PER_GROUP,
            store_schema=False,
        )
