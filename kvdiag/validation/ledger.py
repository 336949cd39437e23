"""Checks of a whole ledger: manifest, files, rows, and what holds between tables."""

from pathlib import Path
from typing import Any

import duckdb
import jsonschema

from kvdiag.errors import DataError
from kvdiag.ledger import derive
from kvdiag.ledger.files import sha256
from kvdiag.ledger.intact import CARD_MEND, card_damage, manifest_damage
from kvdiag.ledger.layout import CARD, MANIFEST, read_manifest
from kvdiag.query.connection import table_sql
from kvdiag.query.run import fetch
from kvdiag.records.schema import TABLES, json_schema, schema_version
from kvdiag.validation import rules, tables
from kvdiag.validation.contract import literal
from kvdiag.validation.findings import Finding


def check(ledger: Path) -> list[Finding]:
    """All findings of a ledger folder."""
    try:
        manifest = read_manifest(ledger)
    except DataError as error:
        return [Finding("manifest", str(error), MANIFEST)]
    found = _check_manifest(manifest)
    if found:
        return found
    found = _check_texts(ledger, manifest) + _check_files(ledger, manifest)
    broken = {f.file for f in found if f.rule != "hash"}
    for entry in manifest["files"]:
        if entry["path"] not in broken:
            found += tables.check_parquet(ledger / entry["path"], entry["table"], entry["path"])
    unsound = {"missing_file", "unreadable", "damaged", "missing_column", "column_type", "unknown_column"}
    if any(f.rule in unsound for f in found):
        return found  # what holds between tables cannot be told from half of them
    connection = _connect(ledger, manifest)
    names = {t: _files_of(manifest, t) for t in TABLES}
    found += rules.check(connection, set(TABLES), names)
    found += _check_plan(connection, manifest)
    return found


def _check_manifest(manifest: dict[str, Any]) -> list[Finding]:
    validator = jsonschema.Draft202012Validator(json_schema("manifest"))
    found = []
    for error in sorted(validator.iter_errors(manifest), key=lambda e: list(map(str, e.absolute_path))):
        where = "/".join(map(str, error.absolute_path)) or "(top)"
        found.append(Finding("manifest", f"{where}: {error.message:.200}", MANIFEST, column=where))
    if found:
        return found
    for table, version in manifest["schema_versions"].items():
        if table not in TABLES:
            found.append(Finding("manifest", f"names an unknown table {table}", MANIFEST))
        elif version != schema_version(table):
            message = f"{table} has contract version {version}; this kvdiag reads {schema_version(table)}"
            found.append(Finding("schema_version", message, MANIFEST, table))
    return found


def _check_texts(ledger: Path, manifest: dict[str, Any]) -> list[Finding]:
    """Whether manifest and card are those that were written."""
    altered = manifest_damage(manifest)
    if altered:  # what it says of the card is worth nothing
        return [Finding("hash", f"{altered}; bring it back, or make the ledger anew", MANIFEST)]
    changed = card_damage(ledger, manifest)
    if changed:
        # Not `missing_file`: the rows can be checked without it.
        return [Finding("missing_card" if changed == "is missing" else "hash", f"{changed}; {CARD_MEND}", CARD)]
    return []


def _check_files(ledger: Path, manifest: dict[str, Any]) -> list[Finding]:
    found = []
    listed = set()
    for entry in manifest["files"]:
        path, name = ledger / entry["path"], entry["path"]
        listed.add(path.resolve())
        if not path.is_file():
            found.append(Finding("missing_file", "is in the manifest but not here", name, entry["table"]))
        elif sha256(path) != entry["sha256"]:
            found.append(Finding("hash", "its sha256 is not the manifest's", name, entry["table"]))
    for path in sorted((ledger / "data").rglob("*")):
        if path.is_file() and path.resolve() not in listed:
            found.append(Finding("unlisted_file", "is not in the manifest", str(path.relative_to(ledger))))
    return found


def _files_of(manifest: dict[str, Any], table: str) -> str:
    return ", ".join(f["path"] for f in manifest["files"] if f["table"] == table) or f"data/{table}"


def _connect(ledger: Path, manifest: dict[str, Any]) -> Any:
    connection = duckdb.connect()
    for table in TABLES:
        files = [str(ledger / f["path"]) for f in manifest["files"] if f["table"] == table]
        connection.execute(f"CREATE TABLE {table} AS {table_sql(table, files)}")
    return connection


def _check_plan(connection: Any, manifest: dict[str, Any]) -> list[Finding]:
    """Counts, and that every planned (source, cell) has exactly its row."""
    found = []
    for table in TABLES:
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        if rows != manifest["rows"].get(table):
            message = f"says {manifest['rows'].get(table)} rows of {table}; the files have {rows}"
            found.append(Finding("row_count", message, MANIFEST, table))
    cells = ", ".join(f"({literal(c)})" for c in manifest["cells"])
    planned = f"SELECT source_id, cell_id FROM sources, (VALUES {cells or '(NULL)'}) AS cells(cell_id)"
    missing = connection.execute(
        f"SELECT source_id || ' in ' || cell_id FROM ({planned}) ANTI JOIN runs USING (source_id, cell_id)"
    ).fetchall()
    runs = fetch(connection, "SELECT cell_id FROM runs")
    holes = derive.holes(manifest["rows"]["sources"], manifest["cells"], runs)
    if missing and (manifest["complete"] or holes != manifest["holes"]):
        keys = tuple(m[0] for m in missing[: tables.SHOWN])
        message = "planned run without a row, and the manifest does not say so"
        found.append(
            Finding("planned_run", message, _files_of(manifest, "runs"), "runs", None, keys, len(missing))
        )
    if manifest["complete"] != (not missing):
        found.append(Finding("complete", "complete and the rows disagree", MANIFEST))
    listed = ", ".join(literal(c) for c in manifest["cells"]) or "NULL"
    stray = connection.execute(f"SELECT run_id FROM runs WHERE cell_id NOT IN ({listed})").fetchall()
    if stray:
        keys = tuple(s[0] for s in stray[: tables.SHOWN])
        message, file = "a cell that was not planned", _files_of(manifest, "runs")
        found.append(Finding("planned_cell", message, file, "runs", "cell_id", keys, len(stray)))
    return found
