"""Files that are there whole or not at all."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kvdiag.ledger import faults


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name to write to. After the block it is flushed to disk and renamed; after an error it is gone.

    A kill leaves the old file or the new one.
    """
    make_folder(path.parent)
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        faults.point(f"{path.parent.name}/{path.name}:begun")
        yield scratch
        faults.point(f"{path.parent.name}/{path.name}:written")
        _flush(scratch)
        faults.point(f"{path.parent.name}/{path.name}:flushed")
        os.replace(scratch, path)
        faults.point(f"{path.parent.name}/{path.name}:renamed")
        _flush(path.parent)
        faults.point(f"{path.parent.name}/{path.name}:kept")
    except BaseException:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file, or leave the old one."""
    with whole_file(path) as scratch:
        scratch.write_bytes(data)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and make their names last: a file needs its folder after a crash."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        _flush(made.parent)


def _flush(path: Path) -> None:
    """What was written to a file, or the names in a folder, from memory to disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def to_json(data: Any, indent: int | None = None) -> bytes:
    """UTF-8 JSON; a number that is not finite is an error, never a NaN in a file."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, indent=indent)
    return text.encode("utf-8") + b"\n"


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_SEALED = b'{"sha256": "%s", "%s": '
_END = b"}\n"


def seal(name: str, data: Any) -> bytes:
    """JSON of `data` under `name`, with the sha256 of its own text in front: one wrong byte is noticed."""
    text = to_json(data).rstrip()
    return _SEALED % (hashlib.sha256(text).hexdigest().encode(), name.encode()) + text + _END


def unseal(name: str, sealed: bytes) -> Any:
    """What was sealed. Raises ValueError when a byte is wrong or missing."""
    length = len(_SEALED % (b"0" * 64, name.encode()))
    text = sealed[length : -len(_END)]
    if sealed != _SEALED % (hashlib.sha256(text).hexdigest().encode(), name.encode()) + text + _END:
        raise ValueError("its checksum is wrong")
    return json.loads(text)
