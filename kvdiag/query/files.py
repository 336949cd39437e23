"""The ledger's files as DuckDB may see them: for reading, and no others.

DuckDB's own way to leave a file open to SQL (`allowed_paths`) lets SQL write to it too, and a statement that
counts as a SELECT can hold a COPY. So the local file system is shut altogether, and the files are handed out
through an object that cannot write, whatever the SQL.
"""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec

PROTOCOL = "ledger"


class LedgerFiles(fsspec.AbstractFileSystem):
    """Files of one ledger as `ledger://data/runs/ruler_8k-00000.parquet`."""

    protocol = PROTOCOL
    cachable = False  # else a second ledger would be served the first one's files

    def __init__(self, ledger: Path, names: list[str]) -> None:
        super().__init__()
        self._paths = {f"{PROTOCOL}://{name}": ledger / name for name in names}

    def names(self) -> list[str]:
        """All files, as SQL names them."""
        return list(self._paths)

    def _path(self, name: str) -> Path:
        if name not in self._paths:
            raise FileNotFoundError(f"{name} is no file of the ledger")
        return self._paths[name]

    def open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        """A file for reading. Raises PermissionError for anything else."""
        if mode != "rb":
            raise PermissionError("a ledger is only read")
        return _File(self._path(path))

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and kind of a file."""
        return {"name": path, "size": self._path(path).stat().st_size, "type": "file"}

    def modified(self, path: str) -> Any:
        """Time of the last change."""
        return datetime.fromtimestamp(self._path(path).stat().st_mtime, UTC)

    def glob(self, path: str, **_: Any) -> list[str]:
        """The file itself: names of a ledger's files are no patterns."""
        return [path] if path in self._paths else []

    def exists(self, path: str, **_: Any) -> bool:
        """Whether the ledger has the file."""
        return path in self._paths and self._paths[path].is_file()


class _File:
    """A file that many threads read at once through one handle, each with a position of its own.

    DuckDB's threads share a handle: one seeks, then reads. With a common position another thread's seek would come
    in between, and the bytes would be those of another place.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._lock = threading.Lock()
        self._positions: dict[int, int] = {}

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set this thread's position."""
        with self._lock:
            start = (0, self._positions.get(threading.get_ident(), 0), self._file.seek(0, 2))[whence]
            self._positions[threading.get_ident()] = start + offset
        return start + offset

    def read(self, size: int = -1) -> bytes:
        """Bytes from this thread's position on."""
        with self._lock:
            self._file.seek(self._positions.get(threading.get_ident(), 0))
            data = self._file.read(size)
            self._positions[threading.get_ident()] = self._file.tell()
        return data

    def tell(self) -> int:
        """This thread's position."""
        return self._positions.get(threading.get_ident(), 0)

    def seekable(self) -> bool:
        """Yes."""
        return True

    def close(self) -> None:
        """Close the file."""
        self._file.close()
