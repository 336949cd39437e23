"""The c2w table, derived from runs, controls and sources; and what a ledger lacks."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kvdiag.diagnostics.signatures import FROZEN, Thresholds, signature, signature_flags
from kvdiag.records.schema import column_names


def transition(control_correct: bool | None, run_correct: bool | None) -> str | None:
    """`C->W` and its kin; None when either side has no answer."""
    if control_correct is None or run_correct is None:
        return None
    return f"{'C' if control_correct else 'W'}->{'C' if run_correct else 'W'}"


def c2w_rows(
    sources: Iterable[Mapping[str, Any]],
    controls: Iterable[Mapping[str, Any]],
    runs: Iterable[Mapping[str, Any]],
    thresholds: Thresholds = FROZEN,
) -> list[dict[str, Any]]:
    """Runs whose control is right and whose own answer is wrong, each with its question and signature."""
    by_source = {s["source_id"]: s for s in sources}
    by_control = {c["control_id"]: c for c in controls}
    shared = column_names("runs")
    rows = []
    for run in runs:
        if run["transition"] != "C->W":
            continue
        source, control = by_source[run["source_id"]], by_control[run["control_id"]]
        flags = signature_flags(
            run["coverage_type"], run["ecov"], run["delta_nll"], run["ear"], run["top50_overlap"], thresholds
        )
        rows.append(
            {
                **{name: run[name] for name in shared},
                "question": source["question"],
                "references": source["references"],
                "control_output": control["output"],
                "signature": signature(flags),
                "signature_flags": flags,
            }
        )
    return rows


def holes(n_sources: int, cell_ids: Iterable[str], runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Planned (source, cell) pairs without a row, as `cell: n missing`."""
    planned = Counter(dict.fromkeys(cell_ids, n_sources))
    planned.subtract(Counter(run["cell_id"] for run in runs))
    return [f"{cell}: {n} missing" for cell, n in planned.items() if n > 0]
