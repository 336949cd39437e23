"""Work in progress: the plan, and one committed file a source. A kill loses at most the source in hand."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kvdiag import recipes
from kvdiag.errors import RefusedError, UsageError
from kvdiag.ledger.files import to_json, write_atomic
from kvdiag.ledger.layout import MANIFEST, WORK, read_json, read_manifest
from kvdiag.records.keys import content_hash


class WorkFolder:
    """The `.work` folder of a ledger under construction."""

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger
        self.folder = ledger / WORK
        self._plan = self.folder / "plan.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the ledger. Raises RefusedError while another build holds it, UsageError when not writable."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.ledger / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise RefusedError(f"--out {self.ledger}: another build is writing there; wait for it") from None
        except OSError as error:
            raise UsageError(f"--out {self.ledger}: cannot be written ({error.strerror or error})") from error
        try:
            yield
        finally:
            # Before the release: after it, the file may already be another build's.
            (self.ledger / ".lock").unlink(missing_ok=True)
            lock.release()

    def adopt(self, plan: dict[str, Any]) -> None:
        """Begin or go on with a plan. Raises RefusedError when the folder holds another one."""
        plan = json.loads(to_json(plan))
        if self._plan.is_file():
            refuse_other(self.ledger, read_json(self._plan), plan)
        else:
            write_atomic(self._plan, to_json(plan, indent=1))

    def _file(self, source_id: str) -> Path:
        return self.folder / "sources" / f"{content_hash(source_id, length=24)}.json"

    def load(self, source_id: str) -> dict[str, Any] | None:
        """The committed records of a source, or None when it is still to do (or its file is damaged)."""
        path = self._file(source_id)
        try:
            records = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return None
        return records if records.get("source", {}).get("source_id") == source_id else None

    def commit(self, records: dict[str, Any]) -> None:
        """Keep a source's rows: {"source": row, "control": row, "runs": [rows]}."""
        write_atomic(self._file(records["source"]["source_id"]), to_json(records))

    def remove(self) -> None:
        """The ledger is whole; the work files go."""
        shutil.rmtree(self.folder)


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
    plan = ledger / WORK / "plan.json"
    if plan.is_file():
        old = read_json(plan)
    elif (ledger / MANIFEST).is_file():
        old = read_manifest(ledger)
    else:
        if ledger.exists() and not ledger.is_dir():
            raise UsageError(f"--out {ledger}: is a file; name a folder")
        if ledger.is_dir() and any(p.name != WORK and p.name != ".lock" for p in ledger.iterdir()):
            raise RefusedError(f"--out {ledger}: holds other files; choose another --out")
        return
    refuse_other(ledger, {"recipe": old["recipe"]}, {"recipe": recipe})
