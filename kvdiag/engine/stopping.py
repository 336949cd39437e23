"""Ctrl-C and SIGTERM: the first asks a build to stop after the source in hand, the second stops it at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SAID = b"\nstopping after the source in hand; once more (Ctrl-C) stops at once\n"


class Stopped(KeyboardInterrupt):
    """A build was stopped by a signal. exit_code: 130 for Ctrl-C, 143 for SIGTERM, as shells have it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


class StopSwitch:
    """Holds signals back while a source is in hand. Without `with`, or in another thread, it never asks."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self._deferring = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSwitch":
        if threading.current_thread() is threading.main_thread():
            self._before = {signum: signal.signal(signum, self._handle) for signum in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """While this lasts a first signal only sets `asked`."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def check(self) -> None:
        """Raise Stopped when a signal has asked for it."""
        if self.asked is not None:
            raise Stopped(self.asked)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if not self._deferring or self.asked is not None:
            raise Stopped(signum)
        self.asked = signum
        os.write(2, _SAID)  # no lock, whatever was interrupted
