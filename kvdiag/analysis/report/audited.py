"""Sections from the protocol audit: what seeing the question is worth, and which runs are there."""

from functools import partial

from kvdiag.analysis.report import figures
from kvdiag.analysis.report.figures import Bar, Point
from kvdiag.analysis.report.parts import (
    Panel,
    Section,
    Table,
    groups,
    heading,
    of,
    plural,
    short_protocol,
    span,
    stem,
)
from kvdiag.analysis.report.tables import Data, Row, by_strength


def delta(data: Data) -> Section:
    """Score with the question visible less score with it hidden, by method and by cell."""
    title = "What seeing the question is worth"
    read = (
        "Each line is how much higher a method scores when it may read the question before it compresses (aware "
        "less agnostic): at 0 (dashed) it needs no question, far to the right its score lives on the question."
    )
    found = data.delta.found
    if found is None:
        return Section("delta", title, read, data.delta.why)
    rows = [r for r in found["delta"] if r["delta"] is not None]
    if not rows:
        return Section("delta", title, read, "No source was answered in both protocols of any cell.")
    notes = [
        f"Paired over the sources that both protocols answered; matrix: {found['label']}. Intervals: "
        f"{plural(found['resamples'], 'draw')} of sources within task groups, seed {found['seed']}, "
        f"{found['interval']}; kvdiag audit protocol has more."
    ]
    notes.append("All workloads of the ledger are taken together; kvdiag audit protocol --workload shows one.")
    if found["n_degenerate"]:
        notes.append(f"{plural(found['n_degenerate'], 'degenerate run')} left out.")
    if len(rows) < len(found["delta"]):
        without = len(found["delta"]) - len(rows)
        notes.append(f"{plural(without, 'pair of cells', 'pairs of cells')} without a common source.")
    if found["one_protocol_only"]:
        notes.append(f"{plural(len(found['one_protocol_only']), 'cell')} in one protocol only.")
    panels = []
    models = found["models"]
    for i, model in enumerate(models, 1):
        summary = [s for s in found["summary"] if s["model"] == (model if len(models) > 1 else None)]
        own = [r for r in found["delta"] if r["model"] == model]
        own.sort(key=lambda r: (r["method"], *by_strength(r["setting"])))
        for kind, said, shown in (
            ("methods", "by method, settings together", summary),
            ("cells", "by method and setting", own),
        ):
            if shown:
                panels.append(_delta_panel(shown, heading([said], model, models), stem("delta", f"{i:02d}", kind)))
    return Section("delta", title, read, None, tuple(notes), tuple(panels))


def _delta_panel(rows: list[Row], title: str, name: str) -> Panel:
    by_cell = "setting" in rows[0]
    points = [
        Point(
            r["method"] if by_cell else "",
            r["setting"] if by_cell else r["method"],
            r["delta"],
            r["low"],
            r["high"],
            "no common source" if r["delta"] is None else f"{r['delta']:+.3f} (n = {r['n']:,})",
        )
        for r in rows
    ]
    table = Table(
        (
            *("method", "setting" if by_cell else "settings", "Δ", "95 % interval"),
            *("aware", "agnostic", "pairs", "of planned", "remark"),
        ),
        tuple(
            (
                r["method"],
                r["setting"] if by_cell else ", ".join(r["settings"]),
                "-" if r["delta"] is None else f"{r['delta']:+.3f}",
                span(r["low"], r["high"], "+.3f"),
                *("-" if r[side] is None else f"{r[side]:.3f}" for side in ("aware", "agnostic")),
                str(r["n"]),
                str(r["n_planned"]),
                r["coverage"]["label"],
            )
            for r in rows
        ),
        left=2,
    )
    known = sorted((r for r in rows if r["delta"] is not None), key=lambda r: -r["delta"])
    said = [f"{r['method']} {r['setting']}" if by_cell else r["method"] for r in known]
    alt = f"Score with the question visible less hidden, {title}: " + (
        f"largest {said[0]} {known[0]['delta']:+.3f}, smallest {said[-1]} {known[-1]['delta']:+.3f}."
        if known
        else "no value."
    )
    draw = partial(figures.forest, points, "Δ score: aware less agnostic", reference=0.0)
    return Panel(name, title, alt, draw, table)


_GAP = ("model", "method", "setting", "protocol", "workload", "status", "reason")
_STATES = ("answered", "cannot run", "no value though a row says why", "no row at all")


def coverage(data: Data) -> Section:
    """Which planned runs have a score, by cell."""
    title = "Are all runs there?"
    read = (
        "Each bar is all runs that were planned for a method and setting; a bar that is wholly dark has every "
        "answer, and numbers elsewhere on this page rest on the dark part only."
    )
    found = data.coverage.found
    if found is None:
        return Section("coverage", title, read, data.coverage.why)
    notes = (
        f"Matrix: {found['label']}. Runs with a score: {of(found['n_available'], found['n_planned'])}; controls: "
        f"{of(found['controls']['n_available'], found['controls']['n_planned'])}.",
    )
    panels = tuple(
        _coverage_panel(
            own,
            heading([short_protocol(protocol)], model, found["models"]),
            stem("coverage", f"{i:02d}", protocol),
        )
        for i, ((model, protocol), own) in enumerate(groups(found["cells"], "model", "protocol").items(), 1)
    )
    gaps = _gaps(found)
    folded = None if gaps is None else f"What is missing, and why ({plural(len(gaps.rows), 'line')})"
    return Section("coverage", title, read, None, notes, panels, gaps, folded)


def _gaps(found: Row) -> Table | None:
    """Why runs have no score, by cell and workload."""
    gaps = groups([*found["holes"], *found["cannot_run"]], *_GAP)
    lines = tuple(
        (model, f"{method}/{setting}/{short_protocol(protocol)}", workload, status, reason or "-", str(n))
        for (model, method, setting, protocol, workload, status, reason), own in gaps.items()
        for n in [sum(g["n"] for g in own)]
    )
    return Table(("model", "missing in", "workload", "status", "reason", "runs"), lines, left=5) if lines else None


def _coverage_panel(cells: list[Row], title: str, name: str) -> Panel:
    ordered = sorted(cells, key=lambda c: (c["method"], *by_strength(c["setting"])))
    counts = [_states(c) for c in ordered]
    used = [k for k in range(len(_STATES)) if k == 0 or any(n[k] for n in counts)]
    bars = [
        Bar(
            c["method"],
            c["setting"],
            tuple(n[k] / c["n_planned"] for k in used),
            of(c["n_available"], c["n_planned"]),
        )
        for c, n in zip(ordered, counts, strict=True)
    ]
    table = Table(
        ("method", "setting", "planned", *_STATES, "degenerate"),
        tuple(
            (c["method"], c["setting"], str(c["n_planned"]), *map(str, n), str(c["n_degenerate"]))
            for c, n in zip(ordered, counts, strict=True)
        ),
        left=2,
    )
    n_whole = sum(c["n_available"] == c["n_planned"] for c in cells)
    alt = f"Runs with a score by cell, {title}: {n_whole} of {len(cells)} cells have all."
    draw = partial(figures.stacked, bars, [_STATES[k] for k in used], "share of the planned runs")
    return Panel(name, title, alt, draw, table)


def _states(cell: Row) -> tuple[int, int, int, int]:
    """Counts of a cell's planned runs by _STATES."""
    absent = cell["n_planned"] - cell["n_present"]
    return cell["n_available"], cell["n_cannot_run"], cell["n_holes"] - absent, absent
