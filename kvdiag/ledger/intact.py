"""Whether a finished ledger's files are those that its manifest describes, and the manifest is as it was written.

The manifest holds the digest of every data file in `files`, that of README.md in `card`, and in `seal` one of its
own content. Manifests of earlier versions have neither of the last two, and those that travel with a card of their
own (releases, submissions) no `card`: that is no damage.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvdiag.errors import DataError
from kvdiag.ledger import card
from kvdiag.ledger.files import sha256, to_json, write_atomic
from kvdiag.ledger.layout import CARD, MANIFEST

# What the seal leaves out: itself, and the times in which two equal builds differ.
_UNSEALED = ("seal", "build")
CARD_MEND = (
    "bring it back; where kvdiag build or evaluate wrote the ledger, you may remove it and run the same command "
    "again, which writes it anew (text of your own belongs in another file); after a kvdiag repair that was "
    "killed, repair again"
)


def describe_card(text: bytes) -> dict[str, Any]:
    """A manifest's `card` for this text of README.md."""
    return {"path": CARD, "bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with the seal of its content, in place of an older one."""
    as_read = json.loads(to_json(manifest))
    return {**{k: v for k, v in manifest.items() if k != "seal"}, "seal": _seal_of(as_read)}


def with_another_card(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a copy that has a README.md of its own; without a seal where this one has none."""
    kept = {k: v for k, v in manifest.items() if k != "card"}
    return sealed(kept) if "seal" in manifest else kept


def manifest_damage(manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with a manifest as it was read; None when it is as it was written."""
    if "seal" not in manifest:
        return "lacks its seal" if "card" in manifest else None
    if manifest["seal"] == _seal_of(manifest):
        return None
    return "was changed or damaged since it was written (its seal is not that of its content)"


def card_damage(ledger: Path, manifest: Mapping[str, Any]) -> str | None:
    """What is wrong with README.md; None when it is as it was written, or the manifest does not say."""
    if "card" not in manifest:
        return None
    path = ledger / CARD
    if not path.is_file():
        return "is missing"
    wanted = manifest["card"]["sha256"]
    return None if sha256(path) == wanted else "was changed or damaged since it was written"


def damage(ledger: Path, manifest: dict[str, Any]) -> list[str]:
    """What is wrong with the files of a ledger, a line each; nothing when all are as they were written."""
    altered = manifest_damage(manifest)
    if altered:
        return [f"{MANIFEST} {altered}"]  # what it says of the others is worth nothing
    found = _data_damage(ledger, manifest)
    changed = card_damage(ledger, manifest)
    return [*found, *([f"{CARD} {changed}"] if changed else [])]


def refuse_damaged(ledger: Path, manifest: dict[str, Any]) -> None:
    """Raise DataError when a file of a finished ledger is missing or damaged.

    A README.md that was removed is written anew, which is how one that was edited is mended.
    """
    found = damage(ledger, manifest)
    if found == [f"{CARD} is missing"] and _renew_card(ledger, manifest):
        return
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        only_card = found[0].startswith(f"{CARD} was ")
        mend = CARD_MEND if only_card else f"bring the file back, or remove {ledger} and build again"
        raise DataError(f"--out {ledger}: {found[0]}{more}; {mend}")


def refuse_altered(ledger: Path, manifest: Mapping[str, Any], flag: str = "--out ") -> None:
    """Raise DataError when the manifest is not as it was written: what it says must not be compared or kept."""
    altered = manifest_damage(manifest)
    if altered:
        raise DataError(
            f"{flag}{ledger}: {MANIFEST} {altered}; bring the file back, or remove {ledger} and build again"
        )


def _seal_of(manifest: Mapping[str, Any]) -> str:
    content = {k: v for k, v in manifest.items() if k not in _UNSEALED}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def _data_damage(ledger: Path, manifest: Mapping[str, Any]) -> list[str]:
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


def _renew_card(ledger: Path, manifest: dict[str, Any]) -> bool:
    """Write README.md from the manifest, if that gives the text that was there; whether it did."""
    text = card.render(manifest).encode("utf-8")
    if describe_card(text) != manifest["card"]:
        return False
    with suppress(OSError):
        write_atomic(ledger / CARD, text)
        return True
    return False
