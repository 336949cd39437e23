"""What an evaluation found: the method beside every method of the ledger, at the same measured bytes.

Every comparison is over the sources that both answered; every share has its denominator. For each of the ledger's
methods the setting is taken whose cache is nearest in bytes to the evaluated one's over those sources, and both
numbers are said: the same label means other bytes for tokens, channels and bits.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvdiag.analysis.bootstrap import LEVEL
from kvdiag.analysis.cells import Cell
from kvdiag.analysis.compare import COLUMNS, comparison
from kvdiag.ledger.layout import read_manifest
from kvdiag.query.connection import connect, rows

RESAMPLES = 2_000

Row = dict[str, Any]
# Runs of one cell by source.
Runs = Mapping[str, Row]

_FIELDS = (
    "source_id",
    "workload",
    "task",
    "method",
    "setting",
    "protocol",
    "cell_id",
    "kv_bytes",
    "kv_bytes_full",
)


def verdict(reference: Path, evaluation: Path, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Findings of an evaluation against the ledger it was made on, for JSON and for verdict_text.

    resamples, seed: of the bootstrap behind differences; shares have Wilson intervals.
    """
    own, controls, signatures, model, method = _evaluated(evaluation)
    others = _others(reference, model, {r["source_id"] for r in own})
    cells = _cells(own)
    return {
        "method": method["method"],
        "state": method["state"],
        "state_reason": method["state_reason"],
        "verification": method["verification"],
        "model": model,
        "reference": str(reference),
        "evaluation": str(evaluation),
        "level": LEVEL,
        "resamples": resamples,
        "seed": seed,
        "environment_differs": read_manifest(evaluation)["build"].get("environment_differs", []),
        "controls": _controls(controls, own),
        "runs": _answers(own),
        "cells": [
            {
                **_cell(runs, controls, signatures),
                "against": [
                    _against(runs, settings, model, resamples, seed)
                    for settings in _of_protocol(others, next(iter(runs.values()))["protocol"])
                ],
            }
            for runs in cells
        ],
    }


def share(k: int, n: int) -> dict[str, Any]:
    """k of n as a share with its 95 % Wilson interval; null without a denominator."""
    from scipy.stats import binomtest

    if not n:
        return {"k": k, "n": n, "share": None, "low": None, "high": None}
    interval = binomtest(k, n).proportion_ci(LEVEL, method="wilson")
    return {"k": k, "n": n, "share": k / n, "low": float(interval.low), "high": float(interval.high)}


def _evaluated(
    evaluation: Path,
) -> tuple[list[Row], dict[str, Row], dict[str, Counter[str]], str, Row]:
    """Runs, controls by source, signatures by cell, model, and the method's row."""
    names = ", ".join(dict.fromkeys([*_FIELDS, *COLUMNS]))
    connection = connect(evaluation)
    try:
        own = rows(connection, f"SELECT model, {names} FROM runs ORDER BY protocol, keep DESC, setting, source_id")
        controls = rows(connection, "SELECT source_id, status, score, correct FROM controls")
        named = rows(
            connection,
            "SELECT cell_id, coalesce(signature, signature__status || ': ' || signature__reason) AS signature "
            "FROM c2w",
        )
        (method,) = rows(connection, "FROM methods")
    finally:
        connection.close()
    signatures: dict[str, Counter[str]] = defaultdict(Counter)
    for row in named:
        signatures[row["cell_id"]][row["signature"]] += 1
    return own, {c["source_id"]: c for c in controls}, signatures, own[0]["model"], method


def _others(reference: Path, model: str, sources: set[str]) -> list[Row]:
    names = ", ".join(dict.fromkeys([*_FIELDS, *COLUMNS]))
    connection = connect(reference)
    try:
        sql = f"SELECT {names} FROM runs WHERE model = ? ORDER BY method, keep DESC, setting, source_id"
        return [r for r in rows(connection, sql, [model]) if r["source_id"] in sources]
    finally:
        connection.close()


def _cells(runs: Sequence[Row]) -> list[Runs]:
    found: dict[str, dict[str, Row]] = {}
    for row in runs:
        found.setdefault(row["cell_id"], {})[row["source_id"]] = row
    return list(found.values())


def _of_protocol(runs: Sequence[Row], protocol: str) -> list[list[Runs]]:
    """For each method its cells under a protocol."""
    methods: dict[str, list[Runs]] = {}
    for cell in _cells([r for r in runs if r["protocol"] == protocol]):
        methods.setdefault(next(iter(cell.values()))["method"], []).append(cell)
    return list(methods.values())


def _controls(controls: Mapping[str, Row], own: Sequence[Row]) -> dict[str, int]:
    """How many controls there are, answered, right, and left out since they disagree with the stored ones."""
    return {
        "n_disagree": len({r["source_id"] for r in own if r["reason"] == "control_disagrees"}),
        "n": len(controls),
        "n_answered": sum(c["status"] == "available" for c in controls.values()),
        "n_right": sum(c["correct"] is True for c in controls.values()),
    }


def _answers(runs: Sequence[Row]) -> dict[str, Any]:
    """Runs planned and answered, and why the others have no answer."""
    gaps = Counter((r["status"], r["reason"]) for r in runs if r["status"] != "available")
    missing = [{"status": s, "reason": reason, "n": n} for (s, reason), n in gaps.most_common()]
    return {"n": len(runs), "n_answered": len(runs) - sum(gaps.values()), "missing": missing}


def _turned(runs: Sequence[Row]) -> dict[str, Any]:
    """Right answers turned wrong, of those whose control is right and that were answered."""
    wrong = sum(r["transition"] == "C->W" for r in runs)
    return share(wrong, wrong + sum(r["transition"] == "C->C" for r in runs))


def bytes_share(runs: Sequence[Row]) -> float | None:
    """Bytes of the compressed caches over those of the same positions uncompressed; None where not measured."""
    known = [r for r in runs if r["kv_bytes"] is not None and r["kv_bytes_full"]]
    full = sum(r["kv_bytes_full"] for r in known)
    return sum(r["kv_bytes"] for r in known) / full if full else None


def _cell(runs: Runs, controls: Mapping[str, Row], signatures: Mapping[str, Counter[str]]) -> dict[str, Any]:
    """One cell by itself."""
    all_runs = list(runs.values())
    first = all_runs[0]
    labels = Counter(r["degenerate"] for r in all_runs if r["degenerate"] is not None)
    return {
        "cell_id": first["cell_id"],
        "setting": first["setting"],
        "protocol": first["protocol"],
        **_answers(all_runs),
        "bytes": bytes_share(all_runs),
        "turned_wrong": _turned(all_runs),
        "turned_right": sum(r["transition"] == "W->C" for r in all_runs),
        "degenerate": dict(labels.most_common()),
        "signatures": [
            {"signature": s, "n": n} for s, n in signatures.get(first["cell_id"], Counter()).most_common()
        ],
        "tasks": _tasks(all_runs, controls),
    }


def _tasks(runs: Sequence[Row], controls: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Mean scores by task, of the method and of the full cache, over the sources that have both."""
    found = []
    for workload, task in sorted({(r["workload"], r["task"]) for r in runs}):
        own = [r for r in runs if (r["workload"], r["task"]) == (workload, task)]
        both = [r for r in own if r["score"] is not None and controls[r["source_id"]]["score"] is not None]
        n = len(both)
        found.append(
            {
                "workload": workload,
                "task": task,
                "n": len(own),
                "n_scored": n,
                "score": sum(r["score"] for r in both) / n if n else None,
                "control_score": sum(controls[r["source_id"]]["score"] for r in both) / n if n else None,
                "turned_wrong": _turned(own),
            }
        )
    return found


def _against(runs: Runs, settings: Sequence[Runs], model: str, resamples: int, seed: int) -> dict[str, Any]:
    """The cell against one method of the ledger, at the setting nearest in bytes."""
    other = min(settings, key=lambda cell: _distance(runs, cell))
    own, theirs = _common(runs, other)
    sides = [next(iter(cell.values())) for cell in (runs, other)]
    a, b = (Cell(r["method"], r["setting"], r["protocol"], model, r["setting"]) for r in sides)
    sources = [_joined(runs.get(s), other.get(s)) for s in sorted({*runs, *other})]
    found = comparison(a, b, sources, resamples, seed)
    found["failures"].pop("shared")
    return {
        "method": b.method,
        "setting": b.setting,
        "cell_id": b.cell_id,
        "n_common": len(own),
        "bytes_own": bytes_share(own),
        "bytes_other": bytes_share(theirs),
        "turned_wrong_own": _turned_in_common(own, theirs),
        "turned_wrong_other": _turned_in_common(theirs, own),
        **{name: found[name] for name in ("score", "c2w_rate", "mcnemar", "failures")},
        "missing_other": found["sources"]["missing_b"],
        "degenerate_other": found["b"]["degenerate"],
    }


def _distance(runs: Runs, other: Runs) -> tuple[float, bool]:
    """How far apart in bytes over common sources; where that is not known, the same label goes first."""
    own, theirs = (bytes_share(side) for side in _common(runs, other))
    alike = next(iter(runs.values()))["setting"] == next(iter(other.values()))["setting"]
    return (float("inf") if own is None or theirs is None else abs(own - theirs), not alike)


def _common(runs: Runs, other: Runs) -> tuple[list[Row], list[Row]]:
    """Rows of both on the sources that both answered."""
    both = [
        (row, other[s])
        for s, row in runs.items()
        if s in other and row["status"] == other[s]["status"] == "available"
    ]
    return [a for a, _ in both], [b for _, b in both]


def _turned_in_common(own: Sequence[Row], theirs: Sequence[Row]) -> dict[str, Any]:
    known = ("C->W", "C->C")
    return _turned([a for a, b in zip(own, theirs, strict=True) if b["transition"] in known])


def _joined(own: Row | None, other: Row | None) -> Row:
    """A source's row as a comparison reads it: both sides' columns as a_… and b_…"""
    there = own or other
    assert there is not None
    joined: Row = {name: there[name] for name in ("source_id", "workload", "task")}
    for side, row in (("a", own), ("b", other)):
        joined |= {f"{side}_{name}": None if row is None else row[name] for name in COLUMNS}
    return joined
