"""Two methods on the same sources: who does better, by how much, and who fails where alone."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvdiag.analysis import paired
from kvdiag.analysis.bootstrap import LEVEL, Bools, Floats
from kvdiag.analysis.cells import Cell, Choice, pairs
from kvdiag.errors import UsageError
from kvdiag.query.connection import connect, rows

DIAGNOSTICS = (
    "err",
    "ecov",
    "delta_nll",
    "gpr",
    "top50_overlap",
    "kl",
    "gold_rank_shift",
    "eam",
    "ear",
    "prefix_agreement",
)
COLUMNS = ("status", "reason", "degenerate", "score", "correct", "transition", *DIAGNOSTICS)


def compare(
    ledger: Path, choice: Choice, resamples: int = paired.RESAMPLES, seed: int = 0
) -> list[dict[str, Any]]:
    """A comparison for each pair of cells that differ in the method (or setting) only.

    Raises UsageError when the ledger has no such pair, or no source that both answered.
    """
    connection = connect(ledger)
    try:
        found = [
            comparison(a, b, _sources(connection, a, b, choice.workload), resamples, seed)
            for a, b in pairs(connection, choice)
        ]
    finally:
        connection.close()
    if not any(c["sources"]["common"] for c in found):
        left_out = "; ".join(_said(c) for c in found[:3])
        raise UsageError(f"{choice.method_a} and {choice.method_b} have no answered sources in common: {left_out}")
    return found


def _said(found: dict[str, Any]) -> str:
    counts = found["sources"]
    return (
        f"{found['a']['cell_id']} answered {counts['answered_a']}, "
        f"{found['b']['cell_id']} {counts['answered_b']} of {counts['planned']}"
    )


def _sources(connection: Any, a: Cell, b: Cell, workload: str | None) -> list[dict[str, Any]]:
    """A row a source that either cell has, with both sides' columns as a_… and b_…"""
    columns = ", ".join(f"{side}.{name} AS {side}_{name}" for side in "ab" for name in COLUMNS)
    own = "SELECT * FROM runs WHERE method = ? AND setting = ? AND protocol = ? AND model = ?"
    own += "" if workload is None else " AND workload = ?"
    sql = (
        f"WITH a AS ({own}), b AS ({own}) SELECT source_id, coalesce(a.workload, b.workload) AS workload, "
        f"coalesce(a.task, b.task) AS task, {columns} FROM a FULL JOIN b USING (source_id) ORDER BY source_id"
    )
    only = [] if workload is None else [workload]
    parameters = [p for c in (a, b) for p in (c.method, c.setting, c.protocol, c.model, *only)]
    return rows(connection, sql, parameters)


def comparison(
    a: Cell, b: Cell, sources: Sequence[dict[str, Any]], resamples: int = paired.RESAMPLES, seed: int = 0
) -> dict[str, Any]:
    """Two cells over the sources that both answered. sources: a row each, with a_… and b_… columns."""
    common = [s for s in sources if s["a_status"] == s["b_status"] == "available"]
    scores, accuracy, c2w = _measures(common, resamples, seed)
    return {
        "a": _side(a, "a", sources),
        "b": _side(b, "b", sources),
        "protocol": a.protocol,
        "model": a.model,
        "sources": _counts(sources, common),
        "level": LEVEL,
        "resamples": resamples,
        "seed": seed,
        "score": scores.columns(),
        "accuracy": accuracy.columns(),
        "mcnemar": _mcnemar(common),
        "c2w_rate": c2w.columns(),
        "failures": _failures(common),
    }


def _side(cell: Cell, side: str, sources: Sequence[dict[str, Any]]) -> dict[str, Any]:
    labels = Counter(s[f"{side}_degenerate"] for s in sources if s[f"{side}_degenerate"] is not None)
    return {
        "method": cell.method,
        "setting": cell.setting,
        "cell_id": cell.cell_id,
        "degenerate": dict(labels.most_common()),
    }


def _counts(sources: Sequence[dict[str, Any]], common: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How many sources there are and why some are left out. A source that a side never planned counts as such."""

    def why(side: str) -> list[dict[str, Any]]:
        gaps = Counter((s[f"{side}_status"], s[f"{side}_reason"]) for s in sources)
        return [
            {"status": status or "not_planned", "reason": reason, "n": n}
            for (status, reason), n in gaps.most_common()
            if status != "available"
        ]

    return {
        "planned": len(sources),
        "common": len(common),
        "left_out": len(sources) - len(common),
        "answered_a": sum(s["a_status"] == "available" for s in sources),
        "answered_b": sum(s["b_status"] == "available" for s in sources),
        "missing_a": why("a"),
        "missing_b": why("b"),
    }


def _numbers(values: Sequence[Any]) -> Floats:
    """Null as NaN: it never counts."""
    return np.array([np.nan if v is None else float(v) for v in values], dtype=float)


def _column(common: Sequence[dict[str, Any]], name: str) -> tuple[Floats, Floats]:
    return _numbers([s[f"a_{name}"] for s in common]), _numbers([s[f"b_{name}"] for s in common])


def _turned(transition: str | None) -> bool | None:
    """Whether a right answer turned wrong; None unless the control is right and the run answered."""
    return transition == "C->W" if transition in ("C->W", "C->C") else None


def _failed(common: Sequence[dict[str, Any]]) -> tuple[Floats, Floats]:
    return (
        _numbers([_turned(s["a_transition"]) for s in common]),
        _numbers([_turned(s["b_transition"]) for s in common]),
    )


def _measures(common: Sequence[dict[str, Any]], resamples: int, seed: int) -> list[paired.Difference]:
    workloads = sorted({s["workload"] for s in common})
    groups = np.array([workloads.index(s["workload"]) for s in common], dtype=np.int64)
    sides = [_column(common, "score"), _column(common, "correct"), _failed(common)]
    return paired.differences(sides, groups, resamples, seed)


def _mcnemar(common: Sequence[dict[str, Any]]) -> dict[str, Any]:
    a, b = _column(common, "correct")
    both = np.isfinite(a) & np.isfinite(b)
    only_a, only_b = int((a[both] > b[both]).sum()), int((b[both] > a[both]).sum())
    return {
        "n": int(both.sum()),
        "only_a_right": only_a,
        "only_b_right": only_b,
        "p": paired.mcnemar_exact(only_a, only_b),
    }


def _failures(common: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Who turned right answers wrong where, among the sources whose control is right."""
    a, b = _failed(common)
    judged = np.isfinite(a) & np.isfinite(b)
    eligible = [s for s, j in zip(common, judged, strict=True) if j]
    fa, fb = a[judged] == 1, b[judged] == 1
    kinds = {"only_a": fa & ~fb, "only_b": fb & ~fa, "both": fa & fb}
    return {
        "n_control_right": len(eligible),
        **{kind: int(chosen.sum()) for kind, chosen in kinds.items()},
        "jaccard": paired.jaccard(fa, fb),
        "by_task": _by_task(eligible, kinds),
        "source_ids": {kind: [s["source_id"] for s in _where(eligible, c)] for kind, c in kinds.items()},
        "shared": _shared(_where(eligible, kinds["both"])),
    }


def _where(sources: Sequence[dict[str, Any]], chosen: Bools) -> list[dict[str, Any]]:
    return [s for s, c in zip(sources, chosen, strict=True) if c]


def _by_task(eligible: Sequence[dict[str, Any]], kinds: dict[str, Bools]) -> list[dict[str, Any]]:
    tasks = sorted({(s["workload"], s["task"]) for s in eligible})
    all_of = Counter((s["workload"], s["task"]) for s in eligible)
    counts = {k: Counter((s["workload"], s["task"]) for s in _where(eligible, c)) for k, c in kinds.items()}
    return [
        {"workload": t[0], "task": t[1], "n_control_right": all_of[t], **{k: counts[k][t] for k in kinds}}
        for t in tasks
    ]


def _shared(both: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean diagnostics of each side over the failures of both, each with the number of values it rests on."""
    found = []
    for name in DIAGNOSTICS:
        a, b = _column(both, name)
        found.append({"diagnostic": name, "n_sources": len(both), **_mean("a", a), **_mean("b", b)})
    return found


def _mean(side: str, values: Floats) -> dict[str, Any]:
    there = values[np.isfinite(values)]
    return {side: float(there.mean()) if len(there) else None, f"n_{side}": len(there)}
