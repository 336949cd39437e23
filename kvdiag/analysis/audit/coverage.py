"""What of a planned matrix is there: counts by cell, holes by name, and the label that statements carry."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvdiag.analysis.audit.matrix import ABSENT, HOLES, Matrix, read
from kvdiag.analysis.bootstrap import Bools, Ints
from kvdiag.ledger.layout import read_manifest
from kvdiag.query.connection import connect, rows
from kvdiag.workloads.registry import shortage


@dataclass(frozen=True)
class Coverage:
    """What a statement rests on: units planned and missing, with reasons. unit: sources, or pairs of them."""

    unit: str
    n_planned: int
    n_missing: int
    missing: dict[str, int]
    excused: dict[str, int]
    n_degenerate: int

    @property
    def complete(self) -> bool:
        """Whether no hole is in it."""
        return not self.n_missing

    @property
    def label(self) -> str:
        """`complete`, or what is missing: `incomplete: 3 of 130 sources missing (oom 3)`."""
        text = "complete"
        if self.n_missing:
            text = f"incomplete: {self.n_missing} of {self.n_planned} {self.unit} missing ({_said(self.missing)})"
        if self.excused:
            text += f"; {sum(self.excused.values())} cannot run ({_said(self.excused)})"
        if self.n_degenerate:
            text += f"; {self.n_degenerate} degenerate left out"
        return text

    def columns(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**vars(self), "complete": self.complete, "label": self.label}


def _said(reasons: dict[str, int]) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in reasons.items())


def of_comparison(matrix: Matrix, columns: Sequence[int], left_out: Bools, only: Bools | None = None) -> Coverage:
    """Coverage of a comparison of columns over the same sources. A source counts once, by its first missing side.

    left_out: (sources, columns) rows that are no finding. only: the sources it is about, all when not said.
    """
    chosen = np.flatnonzero(only) if only is not None else np.arange(len(matrix.sources))
    places = list(columns)
    chosen = chosen[matrix.planned[chosen][:, places].all(axis=1)]
    codes = matrix.codes[chosen][:, places]
    is_hole = matrix.holes[chosen][:, places]
    missing = _reasons(matrix, codes, is_hole)
    rest = ~is_hole.any(axis=1)
    excused = _reasons(matrix, codes[rest], codes[rest] != 0)
    whole = (codes == 0).all(axis=1)
    n_degenerate = int((whole & left_out[chosen][:, places].any(axis=1)).sum())
    return Coverage("sources", len(chosen), sum(missing.values()), missing, excused, n_degenerate)


def _reasons(matrix: Matrix, codes: Ints, chosen: Bools) -> dict[str, int]:
    touched = chosen.any(axis=1)
    first = codes[touched, chosen[touched].argmax(axis=1)]
    found = Counter(_word(*matrix.kinds[code]) for code in first.tolist())
    return dict(found.most_common())


def _word(status: str, reason: str | None) -> str:
    return "no row" if status == ABSENT else str(reason)


def together(parts: Sequence[Coverage], unit: str = "pairs") -> Coverage:
    """Coverage of a statement over several comparisons."""
    missing: Counter[str] = Counter()
    excused: Counter[str] = Counter()
    for part in parts:
        missing.update(part.missing)
        excused.update(part.excused)
    return Coverage(
        parts[0].unit if len(parts) == 1 else unit,
        sum(p.n_planned for p in parts),
        sum(p.n_missing for p in parts),
        dict(missing.most_common()),
        dict(excused.most_common()),
        sum(p.n_degenerate for p in parts),
    )


def coverage(ledgers: Path | Sequence[Path], workload: str | None = None) -> dict[str, Any]:
    """Planned against present and answered, by cell and in all, with every hole named.

    Raises UsageError for a workload that the ledger does not have, DataError where it plans nothing.
    """
    matrix = read(ledgers, workload)
    gaps = missing_runs(matrix)
    controls = _controls(matrix)
    holes = [g for g in gaps if g["status"] in HOLES]
    n_holes = sum(h["n"] for h in [*holes, *controls["holes"]])
    cells = [_cell(matrix, i) for i in range(len(matrix.columns))]
    short = [
        r for ledger in ([ledgers] if isinstance(ledgers, Path) else ledgers) for r in _short(ledger, workload)
    ]
    return {
        "complete": not n_holes,
        "label": overall(matrix),
        "n_sources": len(matrix.sources),
        "fewer_than_asked": short,
        "models": matrix.models,
        "n_planned": int(matrix.planned.sum()),
        "n_present": int((matrix.planned & (matrix.codes != 1)).sum()),
        "n_available": int(matrix.available.sum()),
        "n_holes": n_holes,
        "n_degenerate": int(matrix.degenerate.sum()),
        "controls": controls,
        "holes": holes,
        "cannot_run": [g for g in gaps if g["status"] not in HOLES],
        "cells": cells,
    }


def _short(ledger: Path, workload: str | None) -> list[dict[str, Any]]:
    """Tasks of which the recipe asked for more sources than the data had."""
    recipe = read_manifest(ledger)["recipe"]
    if workload is not None or not recipe.get("tasks") or not recipe.get("limit"):
        return []
    tasks = (r["task"] for r in rows(connect(ledger), "SELECT task FROM sources"))
    found = shortage(recipe["tasks"], recipe["limit"], tasks)
    return [{"task": task, "asked": asked, "found": n} for task, (asked, n) in found.items()]


def overall(matrix: Matrix) -> str:
    """The label of a whole ledger: runs and controls."""
    n_runs, n_controls = int(matrix.holes.sum()), int(matrix.control_holes.sum())
    if not n_runs and not n_controls:
        return "complete"
    codes = [*matrix.codes[matrix.holes], *matrix.control_codes[matrix.control_holes]]
    reasons = dict(Counter(_word(*matrix.kinds[code]) for code in codes).most_common())
    n_cells = int(matrix.holes.any(axis=0).sum())
    n_planned, n_columns = int(matrix.planned.sum()), len(matrix.columns)
    text = f"incomplete: {n_runs} of {n_planned} runs missing, in {n_cells} of {n_columns} cells"
    text += f", and {n_controls} controls" if n_controls else ""
    return f"{text} ({_said(reasons)})"


def missing_runs(matrix: Matrix) -> list[dict[str, Any]]:
    """Runs without a score by cell, task, status and reason, with counts."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row, column in zip(*np.nonzero(matrix.planned & (matrix.codes != 0)), strict=True):
        source = matrix.sources[row]
        found[
            (matrix.columns[column], source.workload, source.task, *matrix.kinds[matrix.codes[row, column]])
        ] += 1
    place = {column: i for i, column in enumerate(matrix.columns)}
    ordered = sorted(found.items(), key=lambda item: (place[item[0][0]], *map(str, item[0][1:])))
    return [
        {**vars(column), "workload": workload, "task": task, "status": status, "reason": reason, "n": n}
        for (column, workload, task, status, reason), n in ordered
    ]


def _controls(matrix: Matrix) -> dict[str, Any]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row, model in zip(*np.nonzero(matrix.control_planned & (matrix.control_codes != 0)), strict=True):
        source, kind = matrix.sources[row], matrix.kinds[matrix.control_codes[row, model]]
        found[(matrix.models[model], source.workload, source.task, *kind)] += 1
    names = ("model", "workload", "task", "status", "reason")
    gaps = [dict(zip(names, key, strict=True)) | {"n": n} for key, n in found.items()]
    return {
        "n_planned": int(matrix.control_planned.sum()),
        "n_available": int((matrix.control_codes == 0).sum()),
        "holes": [g for g in gaps if g["status"] in HOLES],
        "cannot_run": [g for g in gaps if g["status"] not in HOLES],
    }


def _cell(matrix: Matrix, column: int) -> dict[str, Any]:
    codes = matrix.codes[matrix.planned[:, column], column]
    n_holes = int(matrix.holes[:, column].sum())
    n_available = int((codes == 0).sum())
    return {
        **vars(matrix.columns[column]),
        "removed": matrix.columns[column].removed,
        "n_planned": len(codes),
        "n_present": int((codes != 1).sum()),
        "n_available": n_available,
        "n_holes": n_holes,
        "n_cannot_run": len(codes) - n_available - n_holes,
        "n_degenerate": int(matrix.degenerate[:, column].sum()),
        "complete": not n_holes,
    }
