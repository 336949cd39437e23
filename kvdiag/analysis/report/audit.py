"""What a report takes from the protocol audit (kvdiag.analysis.audit): Delta and coverage."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag.analysis.audit.coverage import coverage as count
from kvdiag.analysis.audit.desk import Options
from kvdiag.analysis.audit.protocol import audit
from kvdiag.errors import DataError, UsageError


@dataclass(frozen=True)
class Asked:
    """What the audit found, or why it has nothing to say of this ledger."""

    found: dict[str, Any] | None
    why: str | None = None


def protocol_delta(ledger: Path, resamples: int, seed: int) -> Asked:
    """The audit of both protocols. Holes are allowed: each line says what it rests on."""
    return _ask(lambda: audit(ledger, Options(resamples=resamples, seed=seed, allow_incomplete=True)))


def coverage(ledger: Path) -> Asked:
    """Planned against present and answered, by cell."""
    return _ask(lambda: count(ledger))


def _ask(question: Callable[[], dict[str, Any]]) -> Asked:
    try:
        return Asked(question())
    except (UsageError, DataError) as error:
        return Asked(None, f"Nothing to show: {error}.")
