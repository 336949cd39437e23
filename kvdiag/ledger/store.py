"""Where work files are kept: a folder of this machine, or any address that fsspec knows (s3://, gs://, memory://)."""

import posixpath
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from kvdiag.errors import UsageError, first_line
from kvdiag.ledger.files import write_atomic

# In a folder that a user names, files are kept in one of our own: what else is there is not ours to remove.
OWN = "kvdiag-work"


class Store(Protocol):
    """Small named files. `place` names it in messages. What goes wrong with them is an OSError."""

    place: str

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None when it is not there."""

    def write(self, name: str, data: bytes) -> None:
        """Keep a file, whole."""

    def remove(self) -> None:
        """Take away all files."""


class LocalStore:
    """A folder that is ours alone. Files are flushed to disk before they take their name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, str(folder)

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None when it is not there."""
        try:
            return (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, data: bytes) -> None:
        """Keep a file, whole."""
        write_atomic(self.folder / name, data)

    def remove(self) -> None:
        """Take away the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


class RemoteStore:
    """OWN at an fsspec address. Object stores put a file whole; elsewhere its checksum tells a torn one."""

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self._system, root = fsspec.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(f"--work {url}: cannot be reached ({error})") from error
        self._root, self.place = posixpath.join(root, OWN), posixpath.join(url, OWN)

    def _path(self, name: str) -> str:
        return posixpath.join(self._root, name)

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None when it is not there."""
        try:
            with _answering():
                data: Any = self._system.cat_file(self._path(name))
        except FileNotFoundError:
            return None
        return bytes(data)

    def write(self, name: str, data: bytes) -> None:
        """Keep a file, whole."""
        with _answering():
            self._system.makedirs(posixpath.dirname(self._path(name)), exist_ok=True)
            self._system.pipe_file(self._path(name), data)

    def remove(self) -> None:
        """Take away our folder; what else is at the address stays."""
        with suppress(FileNotFoundError), _answering():
            self._system.rm(self._root, recursive=True)


@contextmanager
def _answering() -> Iterator[None]:
    """File systems' own errors (no login, no connection) are OSErrors, whichever library raises them."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {first_line(error)}") from error


def open_store(address: str | None, ledger_work: Path) -> Store:
    """The store at an address: OWN in what a user named, a plain path or a URL; `ledger_work` where None."""
    if address is None:
        return LocalStore(ledger_work)
    if "://" not in address:
        return LocalStore(Path(address) / OWN)
    return RemoteStore(address)
