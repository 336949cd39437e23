"""The command line, run in this process or in one of its own."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from kvdiag.cli import main

# Threads are part of a ledger's environment: both kinds of process must have the same number.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}


@dataclass(frozen=True)
class Outcome:
    """What a user sees."""

    code: int
    out: str
    err: str

    def is_one_line_error(self, code: int) -> bool:
        """Whether this is one line on stderr that kvdiag wrote, with that exit code."""
        lines = self.err.splitlines()
        return self.code == code and not self.out and len(lines) == 1 and lines[0].startswith("kvdiag: ")


def kvdiag(*args: Any) -> Outcome:
    """`kvdiag args` in this process: torch need not be imported again."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with patch.object(sys, "argv", ["kvdiag", *map(str, args)]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return Outcome(code, out.getvalue(), err.getvalue())


def start(*args: Any, **options: Any) -> subprocess.Popen[str]:
    """`kvdiag args` as a process of its own, for tests that kill it or look at the whole of its output."""
    return subprocess.Popen(
        [sys.executable, "-m", "kvdiag", *map(str, args)],
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )
