"""What a build found, at a glance: the failure table, and the failure to explain (kvdiag.analysis.show)."""

from pathlib import Path
from typing import Any

from kvdiag.query.connection import connect, rows

_TABLE = """
SELECT method, setting, protocol, n_runs, n_answered, n_eligible, n_c2w, c2w_rate, c2w_low, c2w_high
FROM failure_rates ORDER BY method, protocol, setting DESC
"""

# The clearest case first: evidence evicted or ignored, and gold made unlikely.
_EXAMPLE = """
SELECT * FROM c2w WHERE degenerate IS NULL AND delta_nll IS NOT NULL AND ecov IS NOT NULL
ORDER BY signature = 'low_mapped_coverage' DESC, keep DESC, delta_nll DESC, run_id LIMIT 1
"""


def failure_table(ledger: Path) -> list[dict[str, Any]]:
    """Failure rates by method, setting and protocol, each with its denominators."""
    return rows(connect(ledger), _TABLE)


def example(ledger: Path) -> dict[str, Any] | None:
    """One telling C->W row, None where nothing turned wrong."""
    found = rows(connect(ledger), _EXAMPLE)
    return found[0] if found else None


def controls(ledger: Path) -> dict[str, Any]:
    """How many controls there are, answered, judged (summaries have no right answer) and right."""
    sql = (
        "SELECT count(*) AS n, count(*) FILTER (WHERE status = 'available') AS n_answered, "
        "count(correct) AS n_judged, count(*) FILTER (WHERE correct) AS n_correct FROM controls"
    )
    return rows(connect(ledger), sql)[0]
