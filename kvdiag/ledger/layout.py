"""Where things are in a ledger, and which ledger is meant."""

import json
from pathlib import Path
from typing import Any

from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.ledger.remote import resolve

MANIFEST = "manifest.json"
CARD = "README.md"
WORK = ".work"


def table_file(table: str, split: str, shard: int = 0) -> str:
    """Path of a shard inside a ledger. Zero-padded, since globs sort as text."""
    return f"data/{table}/{split}-{shard:05d}.parquet"


def newest(folder: Path) -> Path:
    """The ledger of this folder: itself, or the newest in it or in its `ledgers/`."""
    if (folder / MANIFEST).is_file():
        return folder
    found = [*folder.glob(f"*/{MANIFEST}"), *folder.glob(f"ledgers/*/{MANIFEST}")]
    if not found:
        raise UsageError("no ledger here; name one with --data DIR, or make one with kvdiag build")
    return max(found, key=lambda path: path.stat().st_mtime_ns).parent


def find(data: str | None, local: bool = False) -> Path:
    """The ledger a user named with --data (a folder, or org/name[@revision] on the Hub), or the newest here.

    local: folders only, for what writes into the ledger: a snapshot of a release is never changed.
    """
    if data is None:
        return newest(Path.cwd())
    path = Path(data) if local else resolve(data)
    if not path.is_dir():
        raise UsageError(f"--data {data}: no such folder")
    if not (path / MANIFEST).is_file():
        if (path / WORK).is_dir():
            raise DataError(f"--data {data}: its build is not finished; run the same kvdiag build again")
        raise UsageError(f"--data {data}: not a ledger (it has no {MANIFEST})")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises DataError naming the file when it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise DataError(f"{path}: must hold a JSON object")
    return data


def read_manifest(ledger: Path) -> dict[str, Any]:
    """The manifest of a ledger. Raises DataError when the file is another program's."""
    manifest = read_json(ledger / MANIFEST)
    if not {"manifest_version", "recipe", "rows", "files"} <= manifest.keys():
        raise DataError(f"{ledger / MANIFEST}: not a manifest of kvdiag")
    return manifest


def refuse_own_file(out: Path, ledger: Path, flag: str) -> None:
    """Raise when `out` is a file of the ledger itself: nothing that asks may change the answer."""
    own = [MANIFEST, CARD, *(f["path"] for f in read_manifest(ledger)["files"])]
    if out.resolve() in {(ledger / name).resolve() for name in own}:
        raise RefusedError(f"{flag} {out}: is a file of the ledger; choose another")
