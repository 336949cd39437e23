"""Whether a finished ledger's files are those that its manifest describes."""

from pathlib import Path
from typing import Any

from kvdiag.errors import DataError
from kvdiag.ledger.files import sha256


def damage(ledger: Path, manifest: dict[str, Any]) -> list[str]:
    """What is wrong with the files of a ledger, a line each; nothing when all are as they were written."""
    found = []
    for entry in manifest["files"]:
        path = ledger / entry["path"]
        if not path.is_file():
            found.append(f"{entry['path']} is missing")
        elif path.stat().st_size != entry["bytes"]:
            found.append(f"{entry['path']} has {path.stat().st_size} bytes; the manifest says {entry['bytes']}")
        elif sha256(path) != entry["sha256"]:
            found.append(f"{entry['path']} is damaged (its sha256 is not the manifest's)")
    return found


def refuse_damaged(ledger: Path, manifest: dict[str, Any]) -> None:
    """Raise DataError when a file of a finished ledger is missing or damaged."""
    found = damage(ledger, manifest)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise DataError(
            f"--out {ledger}: {found[0]}{more}; bring the file back, or remove {ledger} and build again"
        )
