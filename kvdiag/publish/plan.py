"""What a push would change: a release's files beside those of a revision on the Hub."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag.ledger.files import sha256
from kvdiag.ledger.layout import CARD
from kvdiag.publish import croissant
from kvdiag.publish.release import Content


@dataclass(frozen=True)
class RemoteFile:
    """A file at a revision. git: its blob id. sha256: of its content, where the Hub stores it apart (LFS, Xet)."""

    size: int
    git: str
    sha256: str | None


@dataclass(frozen=True)
class Change:
    """What becomes of one file. bytes: of the new content; of the old one for `deleted`."""

    path: str
    kind: str  # new, changed, unchanged, deleted
    bytes: int


@dataclass(frozen=True)
class Plan:
    """A release against a head. base: the commit it is compared with, None where there is no repository."""

    repo: str
    version: str
    base: str | None
    files: Mapping[str, Content]
    changes: tuple[Change, ...]

    @property
    def empty(self) -> bool:
        """Whether the head holds this release already."""
        return all(c.kind == "unchanged" for c in self.changes)

    @property
    def differs_in_card_only(self) -> bool:
        """Whether the data are those of this release: the card may have been edited on the Hub since."""
        return all(c.kind == "unchanged" or c.path == CARD for c in self.changes)

    def paths(self, *kinds: str) -> list[str]:
        """Files of these kinds."""
        return [c.path for c in self.changes if c.kind in kinds]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        kinds = ("new", "changed", "unchanged", "deleted")
        return {
            "repo": self.repo,
            "version": self.version,
            "base": self.base,
            **{kind: self.paths(kind) for kind in kinds},
            "bytes_to_send": self.bytes_to_send,
        }

    @property
    def bytes_to_send(self) -> int:
        """Bytes of the files that are new or changed."""
        return sum(c.bytes for c in self.changes if c.kind in ("new", "changed"))


def compare(
    repo: str, version: str, base: str | None, files: Mapping[str, Content], there: Mapping[str, RemoteFile]
) -> Plan:
    """The plan that turns `there` into `files`. Only what push itself wrote is ever deleted; other files stay."""
    changes = [Change(name, _kind(content, there.get(name)), _size(content)) for name, content in files.items()]
    ours = [n for n in there if n.startswith("data/") or n == croissant.FILE]
    changes += [Change(n, "deleted", there[n].size) for n in ours if n not in files]
    return Plan(repo, version, base, files, tuple(sorted(changes, key=lambda c: c.path)))


def _kind(content: Content, there: RemoteFile | None) -> str:
    if there is None:
        return "new"
    if _size(content) != there.size:
        return "changed"
    if there.sha256:
        same = there.sha256 == (
            hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else sha256(content)
        )
    else:
        same = there.git == git_blob_id(content)
    return "unchanged" if same else "changed"


def _size(content: Content) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def git_blob_id(content: Content) -> str:
    """The id git gives a file's content."""
    data = content if isinstance(content, bytes) else Path(content).read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
