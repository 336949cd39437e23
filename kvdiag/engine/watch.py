"""Who is told what a build does: the command line, a log, or nobody."""

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import torch

from kvdiag.engine.plan import Plan
from kvdiag.engine.source import Failure
from kvdiag.workloads.base import Source


class Watcher:
    """Told of what a build does. Each method does nothing here."""

    def planned(self, plan: Plan, done: int) -> None:
        """The plan stands; `done` sources were committed by an earlier run."""

    def source_started(self, source: Source, worker: str | None = None) -> None:
        """A source is in hand; worker: whose, where there are several."""

    def source_done(self, source: Source, seconds: dict[str, float]) -> None:
        """A source was committed."""

    def failed(self, failure: Failure) -> None:
        """A try of a source ended in an exception."""

    def warned(self, text: str) -> None:
        """Something is not as it should be, and the build goes on."""

    def finished(self, manifest: dict[str, Any]) -> None:
        """The ledger is whole."""


class Watchers(Watcher):
    """Several watchers as one."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def planned(self, plan: Plan, done: int) -> None:
        for watcher in self._watchers:
            watcher.planned(plan, done)

    def source_started(self, source: Source, worker: str | None = None) -> None:
        for watcher in self._watchers:
            watcher.source_started(source, worker)

    def source_done(self, source: Source, seconds: dict[str, float]) -> None:
        for watcher in self._watchers:
            watcher.source_done(source, seconds)

    def failed(self, failure: Failure) -> None:
        for watcher in self._watchers:
            watcher.failed(failure)

    def warned(self, text: str) -> None:
        for watcher in self._watchers:
            watcher.warned(text)

    def finished(self, manifest: dict[str, Any]) -> None:
        for watcher in self._watchers:
            watcher.finished(manifest)


class EventLog(Watcher):
    """One JSON object a line for each event, with the time and the memory in use.

    A log that can no longer be written (a full disk, a reader that has gone) is given up with a line on stderr:
    the build is worth more than its log.
    """

    def __init__(self, target: str) -> None:
        """target: a file to add to, or `-` for stdout. Raises OSError when it cannot be opened."""
        path = Path(target)
        self._target = target
        self._file: IO[str] | None = sys.stdout if target == "-" else path.open("a", encoding="utf-8")
        self._started = time.monotonic()
        self._done = self._total = 0

    def _write(self, event: str, **fields: Any) -> None:
        if self._file is None:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        seconds = round(time.monotonic() - self._started, 3)
        line = json.dumps({"event": event, "time": now, "elapsed_seconds": seconds, **fields})
        try:
            print(line, file=self._file, flush=True)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Say so once, and write no more."""
        file, self._file = self._file, None
        with suppress(OSError):  # stderr may be as full
            print(
                f"warning: --log-json {self._target}: cannot be written ({error.strerror or error}); "
                "the build goes on without its log",
                file=sys.stderr,
                flush=True,
            )
        if file is sys.stdout:
            _discard_stdout()
        elif file is not None:
            with suppress(OSError):  # what is left in its buffer
                file.close()

    def planned(self, plan: Plan, done: int) -> None:
        self._done, self._total = done, len(plan.sources)
        self._write(
            "planned",
            out=str(plan.out),
            sources=self._total,
            done=done,
            cells=len(plan.cells),
            runs=plan.n_runs,
            recipe=plan.recipe.as_dict(),
            environment=plan.environment,
        )

    def source_started(self, source: Source, worker: str | None = None) -> None:
        self._write("source_started", source_id=source.source_id, task=source.task, worker=worker)

    def source_done(self, source: Source, seconds: dict[str, float]) -> None:
        self._done += 1
        stages = {stage: round(spent, 4) for stage, spent in seconds.items()}
        progress = {"done": self._done, "of": self._total}
        self._write("source_done", source_id=source.source_id, seconds=stages, **progress, **memory())

    def failed(self, failure: Failure) -> None:
        self._write("failed", **asdict(failure))

    def warned(self, text: str) -> None:
        self._write("warning", text=text)

    def finished(self, manifest: dict[str, Any]) -> None:
        names = ("complete", "holes", "rows", "build")
        self._write("finished", **{name: manifest[name] for name in names}, **memory())

    def stopped(self, reason: str) -> None:
        """The build ended before it was whole."""
        self._write("stopped", reason=reason, done=self._done, of=self._total)

    def close(self) -> None:
        """Close the file."""
        if self._file is None or self._file is sys.stdout:
            return
        try:
            self._file.close()
        except OSError as error:  # some file systems tell only now that there was no room
            self._give_up(error)


def _discard_stdout() -> None:
    """Lead stdout nowhere: what is left in its buffer would fail again at the program's end."""
    with suppress(OSError, ValueError):
        stdout = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout)
        os.close(nowhere)


def memory() -> dict[str, int]:
    """Bytes of memory that this process holds, and at most held on its GPU."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        found = {"rss_bytes": pages * os.sysconf("SC_PAGE_SIZE")}
    except (OSError, ValueError, IndexError):  # no such file outside Linux: the peak instead
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = {"rss_bytes": peak * (1 if sys.platform == "darwin" else 1024)}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["gpu_peak_bytes"] = torch.cuda.max_memory_allocated()
    return found
