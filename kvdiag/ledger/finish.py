"""From rows to a finished ledger: Parquet files, card, and the manifest last of all."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kvdiag import __version__
from kvdiag.ledger import card, derive
from kvdiag.ledger.files import sha256, to_json, write_atomic
from kvdiag.ledger.layout import CARD, MANIFEST, table_file
from kvdiag.ledger.parquet import write_rows
from kvdiag.records.schema import TABLES, schema_version

MANIFEST_VERSION = 1


def write_ledger(
    ledger: Path,
    sources: list[dict[str, Any]],
    controls: list[dict[str, Any]],
    runs: list[dict[str, Any]],
    plan: dict[str, Any],
    build: dict[str, Any],
) -> dict[str, Any]:
    """Write all tables of a ledger; returns its manifest.

    plan: {"recipe", "environment", "cells"}, the same for the same build. build: times and the like, kept
    apart from it. Splits are named after workloads. A table without rows in a split has no file.
    """
    rows = {
        "sources": sources,
        "controls": controls,
        "runs": runs,
        "c2w": derive.c2w_rows(sources, controls, runs),
    }
    files = []
    for table in TABLES:
        by_split: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows[table]:
            by_split[row["workload"]].append(row)
        for split in sorted(by_split):
            name = table_file(table, split)
            write_rows(table, by_split[split], ledger / name)
            files.append(_describe(ledger, name, table, split))
    missing = derive.holes(len(sources), plan["cells"], runs)
    manifest = {
        "manifest_version": MANIFEST_VERSION,
        "kvdiag_version": __version__,
        "schema_versions": {table: schema_version(table) for table in TABLES},
        **plan,
        "complete": not missing,
        "holes": missing,
        "rows": {table: len(rows[table]) for table in TABLES},
        "files": files,
        "build": build,
    }
    write_atomic(ledger / CARD, card.render(manifest).encode("utf-8"))
    write_atomic(ledger / MANIFEST, to_json(manifest, indent=1))
    return manifest


def _describe(ledger: Path, name: str, table: str, split: str) -> dict[str, Any]:
    path = ledger / name
    return {
        "path": name,
        "table": table,
        "split": split,
        "rows": pq.read_metadata(path).num_rows,
        "bytes": path.stat().st_size,
        "sha256": sha256(path),
    }
