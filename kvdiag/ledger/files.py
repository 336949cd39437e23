"""Files that are there whole or not at all."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: bytes) -> None:
    """Write to a temporary name, flush to disk, rename. A kill leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.tmp")
    with scratch.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish(scratch, path)


def publish(scratch: Path, path: Path) -> None:
    """Rename a finished temporary file, and make the rename last."""
    os.replace(scratch, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def to_json(data: Any, indent: int | None = None) -> bytes:
    """UTF-8 JSON; a number that is not finite is an error, never a NaN in a file."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, indent=indent)
    return text.encode("utf-8") + b"\n"


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
