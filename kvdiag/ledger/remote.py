"""Ledgers on the Hugging Face Hub: `org/name` or `org/name@revision` in place of a folder."""

import json
import re
from pathlib import Path

from kvdiag.errors import DataError, UsageError, first_line
from kvdiag.network import hub_reachable

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# Tags of releases and full commit ids mean the same files for ever; a branch has to be looked up.
_FIXED = re.compile(r"v\d+\.\d+\.\d+|[0-9a-f]{40}")
_PARTS = ["manifest.json", "README.md", "croissant.json", "LICENSE", "data/**"]


def resolve(data: str) -> Path:
    """The local folder of what a user named: itself, or the snapshot of a Hub data set.

    A release (`@vX.Y.Z`) or commit is fetched once, then read without the network. No revision means the newest,
    or the last one fetched where the Hub cannot be reached.
    """
    path = Path(data)
    if path.is_dir():
        return path
    repo, at, revision = data.partition("@")
    if _mistyped(path) or not _REPO.fullmatch(repo) or (at and not revision):
        raise UsageError(f"--data {data}: no such folder (and no data set id: org/name[@revision])")
    return _snapshot(data, repo, revision or None)


def _mistyped(path: Path) -> bool:
    """Whether a name that could be a data set's is rather a path: to a file, or to a folder among ledgers."""
    beside = path.parent
    return path.exists() or (
        beside != Path() and (beside.name == "ledgers" or any(beside.glob("*/manifest.json")))
    )


def _snapshot(data: str, repo: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    def fetch(local: bool) -> Path:
        return Path(
            snapshot_download(
                repo, repo_type="dataset", revision=revision, allow_patterns=_PARTS, local_files_only=local
            )
        )

    if revision and _FIXED.fullmatch(revision):
        try:
            found = fetch(local=True)
            if _whole(found):
                return found
        except FileNotFoundError:
            pass
    try:
        found = fetch(local=not hub_reachable())
    except RepositoryNotFoundError:
        raise UsageError(
            f"--data {data}: no such folder, and no data set of that name on the Hub that this login may read"
        ) from None
    except RevisionNotFoundError:
        raise UsageError(f"--data {data}: {repo} has no revision {revision}") from None
    except LocalEntryNotFoundError as error:
        raise DataError(
            f"--data {data}: no such folder, not in the Hub's cache, and the Hub cannot be reached"
        ) from error
    except Exception as error:
        raise DataError(f"--data {data}: cannot be fetched ({first_line(error)})") from error
    if not (found / "manifest.json").is_file():
        raise DataError(f"--data {data}: not a ledger (it has no manifest.json)")
    if not _whole(found):
        raise DataError(f"--data {data}: only in part in the cache, and the Hub cannot be reached")
    return found


def _whole(folder: Path) -> bool:
    """Whether a snapshot holds all that its manifest names: one may be there in part, for another program."""
    try:
        files = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]
        return all((folder / f["path"]).is_file() for f in files)
    except (OSError, ValueError, KeyError, TypeError):
        return False
