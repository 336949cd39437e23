"""Data-quality flags of a ledger, found by rule (kvdiag/query/quality.sql)."""

from pathlib import Path
from typing import Any

from kvdiag.query.connection import connect, rows


def flags(ledger: Path) -> list[dict[str, Any]]:
    """Flags: `flag`, `workload`, `subject`, `n_found` of `n_checked`, C->W rows touched, and what it means."""
    return rows(connect(ledger), "FROM quality_flags")
