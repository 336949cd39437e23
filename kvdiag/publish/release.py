"""What a release of a ledger consists of: checked, stripped of texts that may not be handed on, described."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvdiag.errors import DataError
from kvdiag.ledger import card
from kvdiag.ledger.coverage import coverage
from kvdiag.ledger.files import sha256, to_json
from kvdiag.ledger.intact import with_another_card
from kvdiag.ledger.layout import CARD, MANIFEST, read_manifest
from kvdiag.ledger.parquet import write_table
from kvdiag.publish import croissant, licences
from kvdiag.publish.licences import Redistributable
from kvdiag.publish.texts import TEXTS, withhold
from kvdiag.records.schema import arrow_schema
from kvdiag.validation.findings import Finding
from kvdiag.validation.validate import validate

LICENCE = "LICENSE"  # of an imported ledger; travels with it
# Data set viewers refuse row groups beyond some 286 MB.
MOST_GROUP_BYTES = 100_000_000

Content = Path | bytes


@dataclass(frozen=True)
class Contents:
    """The part of a release that does not depend on its version.

    texts: whether a workload's texts are in it. own: names of the user's own files that texts come from.
    """

    manifest: dict[str, Any]
    files: Mapping[str, Content]
    coverage: list[dict[str, Any]]
    texts: Mapping[str, bool]
    own: Sequence[str]

    def at(self, repo: str, version: str, notes: str) -> dict[str, Content]:
        """All files of the release with this version, by name."""
        sources = licences.prompt_sources(dict(self.texts), self.own)
        release = card.Release(repo, version, self.coverage, sources, notes)
        readme = card.render(self.manifest, release).encode("utf-8")
        return {
            **self.files,
            CARD: readme,
            croissant.FILE: to_json(croissant.describe(self.manifest, release), indent=1),
        }


def check(ledger: Path) -> None:
    """Raise DataError with the first finding unless the ledger may be published."""
    found = validate(ledger) or _footers(ledger)
    if found:
        more = f" (and {len(found) - 1} more; kvdiag validate {ledger} lists them)" if len(found) > 1 else ""
        raise DataError(f"{ledger}: not published, since it is not valid: {found[0].line()}{more}")


def _footers(ledger: Path) -> list[Finding]:
    """What loaders choke on, though the rows are right."""
    manifest = read_manifest(ledger)
    found = []
    if not manifest["files"]:
        found.append(Finding("empty", "the ledger has no rows", MANIFEST))
    for entry in manifest["files"]:
        footer = pq.read_metadata(ledger / entry["path"])
        name, table = entry["path"], entry["table"]
        if not footer.num_rows:
            found.append(Finding("empty", "has no rows, and cannot be loaded", name, table))
        if b"huggingface" in (footer.metadata or {}):
            message = "carries a `huggingface` key in its footer, which older `datasets` cannot read"
            found.append(Finding("footer_key", message, name, table))
        for group in range(footer.num_row_groups):
            size = footer.row_group(group).total_byte_size
            if size > MOST_GROUP_BYTES:
                message = f"row group {group} has {size} bytes; viewers read {MOST_GROUP_BYTES}"
                found.append(Finding("row_group_size", message, name, table))
    return found


def gather(ledger: Path, scratch: Path, redistributable: Redistributable, own_texts: bool = False) -> Contents:
    """The files of a ledger as they may be published. scratch: a folder for those that differ from the ledger's.

    own_texts: publish texts of the user's own files too. File names stay, so that unchanged ones cost no upload.
    """
    raw = read_manifest(ledger)
    own, manifest = licences.own_texts(raw["recipe"]), _public(raw)
    barred_all = bool(own) and not own_texts
    names = _workloads(ledger, manifest)
    barred = {w for w in names if barred_all or not redistributable(w)}
    files: dict[str, Content] = {}
    present = set()
    for entry in manifest["files"]:
        path = ledger / entry["path"]
        if entry["table"] in TEXTS:
            data = pq.read_table(path, schema=arrow_schema(entry["table"]))
            stripped = withhold(entry["table"], data, barred)
            if not stripped.equals(data):
                path = scratch / entry["path"]
                write_table(entry["table"], stripped, path)
                entry |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
            if entry["table"] == "sources":
                kept = stripped.filter(pc.field("text_status") == "available")
                present |= set(pc.unique(kept["workload"]).to_pylist())
        files[entry["path"]] = path
    manifest = with_another_card(manifest)
    files[MANIFEST] = to_json(manifest, indent=1)
    if (ledger / LICENCE).is_file():
        files[LICENCE] = ledger / LICENCE
    runs = [ledger / f["path"] for f in manifest["files"] if f["table"] == "runs"]
    shown = [licences.without_folder(name) for name in own]
    return Contents(manifest, files, coverage(runs), {w: w in present for w in names}, shown)


def _workloads(ledger: Path, manifest: dict[str, Any]) -> list[str]:
    found = set()
    for entry in manifest["files"]:
        if entry["table"] == "sources":
            found |= set(pq.read_table(ledger / entry["path"], columns=["workload"])["workload"].to_pylist())
    return sorted(found)


def _public(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest without what two equal builds differ in, nor folders of the machine that built."""
    return copy.deepcopy(manifest) | {
        "build": {},
        "recipe": licences.public_recipe(manifest["recipe"]),
        "environment": licences.public_environment(manifest["environment"]),
    }
