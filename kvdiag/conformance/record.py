"""Keeping the suite's verdicts: kvdiag/methods/verified.json."""

import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import kvdiag.methods
from kvdiag.conformance.suite import PACKAGES, Report

PATH = Path(kvdiag.methods.__file__).parent / "verified.json"


def write(reports: Sequence[Report]) -> None:
    """Put the methods that passed in, and take those that failed out."""
    known = json.loads(PATH.read_text(encoding="utf-8"))
    versions = {p: metadata.version(p).split("+")[0] for p in PACKAGES}
    for report in reports:
        known.pop(report.method, None)
        if report.passed:
            known[report.method] = {"digest": report.digest, **versions}
    PATH.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
