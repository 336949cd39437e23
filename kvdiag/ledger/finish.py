"""From rows to a finished ledger: Parquet files, card, and the manifest last of all."""

from collections.abc import Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvdiag import __version__
from kvdiag.diagnostics.signatures import FROZEN, Thresholds
from kvdiag.ledger import card, derive
from kvdiag.ledger.files import sha256, to_json, write_atomic
from kvdiag.ledger.intact import describe_card, manifest_damage, sealed
from kvdiag.ledger.layout import CARD, MANIFEST, read_manifest, table_file
from kvdiag.ledger.parquet import write_table
from kvdiag.records.schema import TABLES, arrow_schema, schema_version

MANIFEST_VERSION = 1
# Of tables that belong to no workload. "all" would be refused: `datasets` keeps it for the union of splits.
ALL_SPLIT = "catalogue"


def write_ledger(
    ledger: Path,
    tables: dict[str, pa.Table],
    plan: dict[str, Any],
    build: dict[str, Any],
    origin: dict[str, Any] | None = None,
    thresholds: Thresholds = FROZEN,
    undetermined: Collection[str] = (),
) -> dict[str, Any]:
    """Write all tables of a ledger; returns its manifest.

    tables: sources, controls, runs, retention and methods, each with its contract's schema; c2w is derived.
    plan: {"recipe", "environment", "cells"}, the same for the same build. build: times and the like, kept apart
    from it. origin: where imported rows come from. undetermined: runs without a signature (derive.c2w_table).
    Splits are named after workloads; a table without rows has no file.
    """
    c2w = derive.c2w_table(tables["sources"], tables["controls"], tables["runs"], thresholds, undetermined)
    contents = {"repairs": arrow_schema("repairs").empty_table(), **tables, "c2w": c2w}
    files = []
    for table in TABLES:
        for split, part in _splits(contents[table]):
            name = table_file(table, split)
            write_table(table, part, ledger / name)
            files.append(_describe(ledger, name, table, split))
    missing = derive.holes(tables["sources"].num_rows, plan["cells"], tables["runs"])
    manifest = {
        "manifest_version": MANIFEST_VERSION,
        "kvdiag_version": __version__,
        "schema_versions": {table: schema_version(table) for table in TABLES},
        "origin": origin,
        **plan,
        "thresholds": asdict(thresholds),
        "complete": not missing,
        "holes": missing,
        "rows": {table: contents[table].num_rows for table in TABLES},
        "files": files,
        "build": build,
    }
    return _write_texts(ledger, manifest)


def add_table(ledger: Path, table: str, data: pa.Table) -> dict[str, Any]:
    """Put a table into a finished ledger, in place of one of the same name; returns the new manifest.

    Files first, card and manifest last: killed before them, the ledger is the old one with a file it does not
    name; killed between the two, its card is named as changed until the table is added again.
    """
    manifest = read_manifest(ledger)
    intact = manifest_damage(manifest) is None  # a new seal would hide what is wrong with one that is not
    files = [f for f in manifest["files"] if f["table"] != table]
    for split, part in _splits(data):
        name = table_file(table, split)
        write_table(table, part, ledger / name)
        files.append(_describe(ledger, name, table, split))
    manifest["files"] = files
    manifest["rows"][table] = data.num_rows
    manifest["schema_versions"][table] = schema_version(table)
    return _write_texts(ledger, manifest, reseal=intact)


def _write_texts(ledger: Path, manifest: dict[str, Any], reseal: bool = True) -> dict[str, Any]:
    """Write card and manifest; returns the manifest, with the digests of both."""
    text = card.render(manifest).encode("utf-8")
    manifest = manifest | {"card": describe_card(text)}
    if reseal:
        manifest = sealed(manifest)
    write_atomic(ledger / CARD, text)
    write_atomic(ledger / MANIFEST, to_json(manifest, indent=1))
    return manifest


def _splits(data: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Parts of a table by workload, those with rows."""
    if "workload" not in data.column_names:
        if data.num_rows:
            yield ALL_SPLIT, data
        return
    for split in sorted(pc.unique(data["workload"]).to_pylist()):
        yield split, data.filter(pc.field("workload") == split)


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
