"""Finds `schema/`, `builders/` and `cards/`, in a wheel and in an editable install alike."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def folder(name: str) -> Path:
    """Path of a shipped folder: `kvdiag/_data/<name>` in a wheel, the repository's `<name>` otherwise."""
    for candidate in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"kvdiag was installed without its {name}/ folder")
