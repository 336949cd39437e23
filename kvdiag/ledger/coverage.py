"""How much of a ledger was measured: counts of runs by status, for the card."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_KEYS = ["model", "method", "workload", "task"]


def coverage(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Runs by model, method, workload and task, from the files of `runs`.

    total: all rows. eligible: those with a meaning here. supported: those the method can run. attempted: those
    tried. available: those with an answer, right or wrong. reasons: `3 failed (oom)` for the rest.
    """
    if not files:
        return []
    runs = pa.concat_tables([pq.read_table(path, columns=[*_KEYS, "status", "reason"]) for path in files])
    counted = runs.group_by([*_KEYS, "status", "reason"]).aggregate([([], "count_all")]).to_pylist()
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in counted:
        cells.setdefault(tuple(row[k] for k in _KEYS), []).append(row)
    return [dict(zip(_KEYS, key, strict=True)) | _counts(cells[key]) for key in sorted(cells)]


def _counts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def n(*without: str) -> int:
        return sum(r["count_all"] for r in rows if r["status"] not in without)

    missing = sorted(
        (r for r in rows if r["status"] != "available"), key=lambda r: (r["status"], r["reason"] or "")
    )
    return {
        "total": n(),
        "eligible": n("not_applicable"),
        "supported": n("not_applicable", "unsupported"),
        "attempted": n("not_applicable", "unsupported", "not_measured"),
        "available": sum(r["count_all"] for r in rows if r["status"] == "available"),
        "reasons": ", ".join(f"{r['count_all']} {r['status']} ({r['reason']})" for r in missing),
    }
