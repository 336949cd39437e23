"""What a build found, at a glance: the failure table, and one failure explained."""

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
    """How many controls there are, answered and right."""
    sql = (
        "SELECT count(*) AS n, count(*) FILTER (WHERE status = 'available') AS n_answered, "
        "count(*) FILTER (WHERE correct) AS n_correct FROM controls"
    )
    return rows(connect(ledger), sql)[0]


_READINGS = {
    "low_mapped_coverage": "most of the evidence was evicted",
    "partial_mapped_coverage": "part of the evidence was evicted",
    "high_mapped_coverage_likelihood_drift": "the evidence was kept, yet the gold answer became unlikely",
    "structural_position_likelihood_drift": "all positions stayed, yet the gold answer became unlikely",
    "low_ear_candidate": "the evidence was kept, but attention left it",
    "decode_scorer_candidate": "evidence and likelihood are intact: decoding or scoring decided",
    "conflicting_diagnostic_signals": "several rules fired",
    "ambiguous": "no rule fired",
}


def explain(row: dict[str, Any]) -> list[str]:
    """A failure in a few lines of words and numbers."""

    def number(name: str, form: str) -> str:
        value = row[name]
        return form.format(value) if value is not None else f"{row[name + '__status']} ({row[name + '__reason']})"

    return [
        f"run        {row['run_id']}",
        f"question   {row['question'].strip()}",
        f"gold       {', '.join(row['references'])}",
        f"full cache {row['control_output'].strip()!r}",
        f"compressed {row['output'].strip()!r}",
        f"kept       {row['kept_tokens_mean']:.0f} of {row['n_compressed']} positions a head "
        f"({row['kv_bytes'] / row['kv_bytes_full']:.0%} of the bytes)",
        f"evidence   {number('err', '{:.0%}')} of its positions kept (ERR), "
        f"{number('ecov', '{:.0%}')} of slots hold at least half of it (ECov)",
        f"likelihood gold answer {number('delta_nll', '{:+.2f}')} nats a token (delta NLL), "
        f"likelihood ratio {number('gpr', '{:.3f}')} (GPR), "
        f"{number('top50_overlap', '{:.0%}')} of the top 50 shared",
        f"attention  {number('ear', '{:.0%}')} of the control's attention on the evidence (EAR)",
        f"signature  {row['signature']}: {_READINGS[row['signature']]}",
    ]
