"""Work in progress: the plan, and one committed file a source. A kill loses at most the source in hand."""

import errno
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kvdiag import recipes
from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.ledger import faults
from kvdiag.ledger.files import make_folder, seal, to_json, unseal
from kvdiag.ledger.intact import refuse_altered
from kvdiag.ledger.layout import MANIFEST, WORK, read_manifest
from kvdiag.ledger.store import LocalStore, Store, open_store
from kvdiag.records.keys import content_hash

PLAN = "plan.json"
LOCK = ".lock"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WorkFolder:
    """The work files of a ledger under construction: in its `.work` folder, or in `kvdiag-work` at `address` (any
    fsspec path).

    damaged: committed files that were found damaged; their sources are to be done again.
    """

    def __init__(self, ledger: Path, address: str | None = None) -> None:
        self.ledger = ledger
        self.folder = ledger / WORK
        self.damaged: list[str] = []
        self._here = LocalStore(self.folder)  # says that a build is under way, wherever its files are
        self._store: Store = open_store(address, self.folder)
        # Which sources are committed, as far as they were asked for: a store that fails cannot be asked again.
        self._kept: dict[str, bool] = {}
        self._named = f"--out {ledger}" + (f" or --work {address}" if address else "")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the ledger. Raises RefusedError while another build holds it, UsageError when not writable."""
        try:
            make_folder(self.folder)
            # The file stays until the ledger is finished: if it went with each build, one that waits for it and
            # one that makes it anew could both hold "the" lock.
            lock = FileLock(self.ledger / LOCK)
            lock.acquire(timeout=0)
        except Timeout:
            raise RefusedError(f"--out {self.ledger}: another build is writing there; wait for it") from None
        except OSError as error:
            raise UsageError(f"--out {self.ledger}: cannot be written ({error.strerror or error})") from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def writing(self, source_ids: Sequence[str]) -> Iterator[None]:
        """A disk that is full or fails is one line that says how many of the sources are kept (DataError)."""
        try:
            yield
        except OSError as error:
            # Nothing was asked for yet where the plan could not be written. Reads may well fail too.
            with suppress(DataError):
                for source_id in source_ids:
                    if source_id not in self._kept:
                        self.load(source_id)
            n = sum(self._kept.get(source_id, False) for source_id in source_ids)
            kept = f"{n}" if self._kept.keys() >= set(source_ids) else f"at least {n}"
            mend = "make room" if error.errno in _NO_ROOM else "see that it can be written"
            raise DataError(
                f"{self._named}: cannot be written ({error.strerror or error}); {kept} of {len(source_ids)} "
                f"sources are kept: {mend} and run the same command again"
            ) from error

    def adopt(self, plan: dict[str, Any]) -> None:
        """Begin or go on with a plan. Raises RefusedError when the folder holds another one."""
        plan = json.loads(to_json(plan))
        for store in dict.fromkeys((self._here, self._store)):
            old = _read_plan(store, self._named)
            if old is not None:
                refuse_other(self.ledger, old, plan)
            else:
                store.write(PLAN, seal("plan", plan))

    def load(self, source_id: str) -> dict[str, Any] | None:
        """The committed records of a source; None when it is to do, its file damaged included (see `damaged`).

        Raises DataError when the store cannot be read.
        """
        name = f"{self._store.place}/{_file(source_id)}"
        try:
            data = self._store.read(_file(source_id))
        except OSError as error:
            raise DataError(
                f"{self._named}: {name} cannot be read ({error.strerror or error}); of the sources read so far "
                f"{sum(self._kept.values())} are kept: see that it can be read (or remove it: its source is run "
                "again) and run the same command again"
            ) from error
        records = None if data is None else self._opened(source_id, name, data)
        self._kept[source_id] = records is not None
        return records

    def _opened(self, source_id: str, name: str, data: bytes) -> dict[str, Any] | None:
        """The records in a committed file; None when they are damaged."""
        try:
            records = unseal("records", data)
            if records["source"]["source_id"] != source_id:
                raise ValueError("holds another source")
        except (ValueError, KeyError, TypeError) as error:
            self.damaged.append(f"{name}: damaged ({error}); {source_id} is done again")
            return None
        return dict(records)

    def commit(self, records: dict[str, Any]) -> None:
        """Keep a source's rows: {"source": row, "control": row, "runs": [rows]}, and what else belongs to it."""
        source_id = records["source"]["source_id"]
        self._store.write(_file(source_id), seal("records", records))
        self._kept[source_id] = True

    def remove(self) -> str | None:
        """The ledger is whole; the lock's file and the work files go. Another call ends what a kill left.

        What stays because the store does not answer is told, no error: the ledger is there.
        """
        faults.point("work:finished")
        with suppress(OSError):
            (self.ledger / LOCK).unlink(missing_ok=True)
        faults.point("work:unlocked")
        try:
            self._store.remove()
        except OSError as error:
            return (
                f"{self._store.place}: cannot be removed ({error.strerror or error}); the ledger {self.ledger} is "
                "whole: remove it, or run the same command again"
            )
        self._here.remove()
        faults.point("work:removed")
        return None


def _file(source_id: str) -> str:
    return f"sources/{content_hash(source_id, length=24)}.json"


def _read_plan(store: Store, named: str) -> dict[str, Any] | None:
    """The plan of a build under way. Raises DataError when its file is damaged: what it holds is then unknown.

    named: the flags that say where it is.
    """
    try:
        data = store.read(PLAN)
    except OSError as error:
        raise DataError(
            f"{named}: {store.place}/{PLAN} cannot be read ({error.strerror or error}); see that it can be read "
            "and run the same command again"
        ) from error
    if data is None:
        return None
    try:
        return unseal("plan", data)
    except ValueError as error:
        raise DataError(
            f"{store.place}/{PLAN}: damaged ({error}); remove {store.place} to build its sources anew"
        ) from error


def refuse_other(ledger: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise RefusedError when two plans differ, saying in what."""
    for part in ("recipe", "environment"):
        a, b = ({k: v for k, v in p.get(part, {}).items() if k != "name"} for p in (old, new))
        changed = recipes.differences(a, b)
        if changed:
            shown = "; ".join(changed[:3]) + (" …" if len(changed) > 3 else "")
            raise RefusedError(
                f"--out {ledger}: holds a build of another {part} ({shown}); choose another --out or remove it"
            )


def check_recipe(ledger: Path, recipe: dict[str, Any]) -> None:
    """Refuse another recipe's folder before anything is loaded."""
    old = _read_plan(LocalStore(ledger / WORK), f"--out {ledger}")
    if old is None and (ledger / MANIFEST).is_file():
        old = read_manifest(ledger)
        refuse_altered(ledger, old)
    if old is None:
        if ledger.exists() and not ledger.is_dir():
            raise UsageError(f"--out {ledger}: is a file; name a folder")
        if ledger.is_dir() and any(p.name not in (WORK, LOCK) for p in ledger.iterdir()):
            raise RefusedError(f"--out {ledger}: holds other files; choose another --out")
        return
    refuse_other(ledger, {"recipe": old["recipe"]}, {"recipe": recipe})
