"""Made-up ledgers that the whole contract accepts: what `kvdiag push` takes."""

from pathlib import Path
from typing import Any

from tests import rows

_PAIRED = {
    **dict.fromkeys(("delta_nll", "delta_nll_first", "delta_nll_control", "gold_rank_shift"), 0.0),
    **dict.fromkeys(("gpr", "ear", "length_ratio"), 1.0),
}
_KEPT = {"n_compressed": 10, "kept_tokens_min": 3, "kept_tokens_mean": 3.5, "kept_tokens_max": 4}
_SLOTS = {"kept_slots": [3, 4], "err_slots": [0.5, 0.5], "ecov_slots": [0.5, 0.5], "eam_layers": [0.5, 0.5]}


def valid_rows(n_sources: int = 3, workload: str = rows.WORKLOAD, right: bool = False) -> dict[str, Any]:
    """Rows of a ledger in which all derived numbers agree; one run of the last source ran out of memory."""
    found = rows.made_up_rows(n_sources, all_right=right)
    text = rows.WORKLOAD + "/", workload + "/"
    for table, table_rows in found.items():
        for row in table_rows:
            for name in row:
                if name.endswith("_id") and isinstance(row[name], str):
                    row[name] = row[name].replace(*text)
                if name == "workload":
                    row[name] = workload
            if table == "sources":
                row |= {"evidence_token_starts": [1], "evidence_token_ends": [3], "n_context_tokens": 10}
            elif table in ("controls", "runs") and row["status"] == "available":
                row["n_new_tokens"] = 2
            elif table == "retention":
                row |= _SLOTS
            if table == "runs":
                row |= _KEPT | (_PAIRED if row["status"] == "available" else {})
    silent = next(r for r in found["runs"] if r["status"] != "available")
    state = {"slots_status": "failed", "slots_reason": "oom", "n_layers": None, "n_kv_heads": None}
    found["retention"].append(rows.retention_row(silent) | state | dict.fromkeys(_SLOTS))
    return found


def write(folder: Path, *parts: dict[str, Any], **recipe: Any) -> dict[str, Any]:
    """A ledger of these rows, one part a workload; returns its manifest."""
    together: dict[str, Any] = {}
    for part in parts or (valid_rows(),):
        for table, table_rows in part.items():
            known = {str(r) for r in together.get(table, [])}
            together[table] = together.get(table, []) + [r for r in table_rows if str(r) not in known]
    return rows.write_made_up(folder, together, **recipe)
