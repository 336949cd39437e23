"""Sections on what the numbers rest on: separation and data quality."""

from functools import partial

from kvdiag.analysis.report import figures
from kvdiag.analysis.report.figures import Point
from kvdiag.analysis.report.parts import Panel, Section, Table, of, plural, span
from kvdiag.analysis.report.tables import Data, Row

_WHY_NOT = {
    "no_value": "no row has a value",
    "no_value_in_c2c": "no C→C row has a value",
    "no_value_in_c2w": "no C→W row has a value",
    "no_stratum_with_both": "no stratum has both kinds",
}


def separation(data: Data) -> Section:
    """AUROC of each diagnostic with its interval."""
    found = data.separation
    read = (
        "Each dot says how well a diagnostic tells answers that turned wrong from those that stayed right: 1 "
        "tells all, 0.5 (dashed) is a coin toss; the bar is the 95 % interval."
    )
    notes = (
        f"AUROC within workload × method × setting × protocol × model, weighted by comparable pairs; "
        f"{plural(found['n_c2w'], 'C→W row')} and {plural(found['n_c2c'], 'C→C row')} in "
        f"{found['n_strata']} strata"
        + (f", {plural(found['n_degenerate'], 'degenerate row')} left out" if found["n_degenerate"] else "")
        + f". Intervals: {plural(found['resamples'], 'draw')} of sources, seed {found['seed']}.",
    )
    rows = found["diagnostics"]
    empty = None
    if all(d["auroc"] is None for d in rows):
        empty = _no_separation(found)
    panels = () if empty else (_separation_panel(rows),)
    table = _separation_table(rows) if empty and (found["n_c2w"] and found["n_c2c"]) else None
    return Section(
        "separation",
        "Which diagnostics tell failures apart",
        read,
        empty,
        notes if not empty else (),
        panels,
        table,
    )


def _no_separation(found: Row) -> str:
    if not found["n_c2w"]:
        return "No right answer turned wrong in this ledger (no C→W rows), so there is nothing to tell apart."
    if not found["n_c2c"]:
        return "No right answer stayed right in this ledger (no C→C rows), so there is nothing to tell apart."
    return "No diagnostic has values for both C→W and C→C rows of any one stratum."


def _separation_panel(rows: list[Row]) -> Panel:
    points = [
        Point(
            "",
            d["diagnostic"],
            d["auroc"],
            d["low"],
            d["high"],
            _WHY_NOT[d["reason"]]
            if d["auroc"] is None
            else f"{d['auroc']:.3f} ({span(d['low'], d['high'], '.3f')})",
        )
        for d in rows
    ]
    known = sorted((d for d in rows if d["auroc"] is not None), key=lambda d: -d["auroc"])
    said = ", ".join(f"{d['diagnostic']} {d['auroc']:.3f}" for d in known)
    draw = partial(figures.forest, points, "AUROC (0.5: tells nothing)", reference=0.5, zero=False)
    alt = f"AUROC of the diagnostics, best first: {said}."
    return Panel("separation", "AUROC, C→W against C→C", alt, draw, _separation_table(rows))


def _separation_table(rows: list[Row]) -> Table:
    return Table(
        (
            "diagnostic",
            "AUROC",
            "95 % interval",
            "strata",
            "pairs",
            "C→W",
            "C→C",
            "sources",
            "available",
            "remark",
        ),
        tuple(
            (
                d["diagnostic"],
                "-" if d["auroc"] is None else f"{d['auroc']:.3f}",
                span(d["low"], d["high"], ".3f"),
                *(str(d[n]) for n in ("n_strata", "n_pairs", "n_c2w", "n_c2c", "n_sources")),
                of(d["n_available"], d["n_eligible"]),
                _remark(d),
            )
            for d in rows
        ),
    )


def _remark(d: Row) -> str:
    missing = ", ".join(f"{m['n']} {m['status']} ({m['reason']})" for m in d["missing"])
    parts = [_WHY_NOT[d["reason"]] if d["reason"] else "", f"without a value: {missing}" if missing else ""]
    return "; ".join(p for p in parts if p)


def quality(data: Data) -> Section:
    """The data-quality flags as a table."""
    read = "Each line is a rule that found something which makes numbers above doubtful, and how much it touches."
    if not data.flags:
        return Section(
            "quality", "Doubts about the data", read, "No data-quality rule found anything in this ledger."
        )
    table = Table(
        ("flag", "where", "found", "C→W rows touched", "what"),
        tuple(
            (
                f["flag"],
                " ".join(str(f[k]) for k in ("workload", "subject") if f[k] is not None) or "-",
                _found(f),
                "-" if f["n_c2w"] is None else str(f["n_c2w"]),
                f["what"],
            )
            for f in data.flags
        ),
        left=2,
    )
    return Section("quality", "Doubts about the data", read, None, (), (), table)


def _found(flag: Row) -> str:
    if flag["n_found"] is None:
        return "-"
    return str(flag["n_found"]) if flag["n_checked"] is None else of(flag["n_found"], flag["n_checked"])
