"""Which commit of kvdiag runs, where that can be told."""

import importlib.metadata
import json
import subprocess
from functools import cache
from pathlib import Path


@cache
def kvdiag_commit() -> str | None:
    """The commit that was installed from a repository, or is checked out where this file lies.

    `+changes` follows when tracked files of the package differ from it. None for a released wheel, or without git.
    """
    return _installed() or _checked_out(Path(__file__).resolve().parent)


def _installed() -> str | None:
    """What pip recorded for `pip install git+...` (PEP 610)."""
    try:
        text = importlib.metadata.distribution("kvdiag").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    return (json.loads(text).get("vcs_info") or {}).get("commit_id") if text else None


def _checked_out(package: Path) -> str | None:
    """The checkout's commit. Only where it tracks the package: a wheel may lie inside another's."""
    if not _git(package, "ls-files", "__init__.py"):
        return None
    commit = _git(package, "rev-parse", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no", ".")
    if commit is None or changed is None:  # a commit that may not be what runs is worse than none
        return None
    return f"{commit}+changes" if changed else commit


def _git(folder: Path, *command: str) -> str | None:
    """Output of a git command, None where it fails or there is no git."""
    try:
        done = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
