"""Sections on how often right answers turn wrong: rates, and rates against the bytes kept."""

from functools import partial

from kvdiag.analysis.report import figures
from kvdiag.analysis.report.figures import Line, Point
from kvdiag.analysis.report.parts import (
    Panel,
    Section,
    Table,
    groups,
    heading,
    no_findings,
    of,
    percent,
    plural,
    short_protocol,
    span,
    stem,
)
from kvdiag.analysis.report.tables import Data, Row

_NO_RIGHT = "No run of this ledger has a right control and an answer, so nothing could turn wrong."
_PANEL = ("model", "protocol", "workload")

# -- rates -------------------------------------------------------------------------------------------------------


def rates(data: Data) -> Section:
    """C->W rate of each cell with its interval."""
    read = (
        "Each line is one method at one setting: the dot is the share of right full-cache answers that turned "
        "wrong under compression (C→W), the bar its 95 % interval, the text that share and the counts behind it; "
        "further left is better."
    )
    panels: list[Panel] = []
    bare = []
    for (model, protocol, workload), own in groups(data.rates, *_PANEL).items():
        title = heading([workload, short_protocol(protocol)], model, data.models)
        if any(r["n_eligible"] for r in own):
            panels.append(_rate_panel(own, title, stem("failures", f"{len(panels) + 1:02d}", workload, protocol)))
        else:
            bare.append(title)
    notes = ["Denominator: runs that answered and whose control is right. Intervals: Wilson score."]
    hollow = sum(r["no_finding"] is not None for r in data.rates)
    if hollow:
        notes.append(
            f"Hollow dots are no finding: {plural(hollow, 'cell')}, counted by workload, that the data-quality "
            "rules call degenerate."
        )
    if bare:
        notes.append(f"Not drawn, since no run has a right control and an answer: {'; '.join(bare)}.")
    empty = None if panels else _NO_RIGHT
    return Section("failures", "How often right answers turn wrong", read, empty, tuple(notes), tuple(panels))


def _rate_panel(own: list[Row], title: str, name: str) -> Panel:
    points = [
        Point(
            r["method"],
            r["setting"],
            r["rate"],
            r["low"],
            r["high"],
            _rate_text(r),
            r["no_finding"] is not None,
        )
        for r in own
    ]
    table = Table(
        ("method", "setting", "C→W rate", "95 % interval", "C→W", "control right", "answered", "runs", "remark"),
        tuple(
            (
                r["method"],
                r["setting"],
                percent(r["rate"]),
                span(r["low"], r["high"], ".1%"),
                str(r["n_c2w"]),
                str(r["n_eligible"]),
                str(r["n_answered"]),
                str(r["n_runs"]),
                f"no finding: {r['no_finding']}" if r["no_finding"] else "",
            )
            for r in own
        ),
        left=2,
    )
    return Panel(
        name,
        title,
        f"C→W rates, {title}: {_extremes(own, 'rate')}.",
        partial(figures.forest, points, "C→W rate (share of right answers turned wrong)", percent=True),
        table,
    )


def _rate_text(row: Row) -> str:
    """The rate with its counts, or why there is none."""
    if row["n_eligible"]:
        return f"{percent(row['rate'])} ({of(row['n_c2w'], row['n_eligible'])})"
    if row["n_answered"]:
        return "no right control"
    return "not judged" if row["mostly"] == "available" else str(row["mostly"]).replace("_", " ")


def _extremes(own: list[Row], value: str) -> str:
    """Lowest and highest of some rows in words."""
    known = [r for r in own if r[value] is not None]
    if not known:
        return "no value"
    low, high = min(known, key=lambda r: r[value]), max(known, key=lambda r: r[value])
    said = [
        f"{word} {r['method']} {r['setting']} with {percent(r[value])}"
        for word, r in (("lowest", low), ("highest", high))
    ]
    return "; ".join(said) if low is not high else said[0].removeprefix("lowest ")


# -- bytes -------------------------------------------------------------------------------------------------------


def against_bytes(data: Data) -> Section:
    """C->W rate against the measured share of the full cache's bytes."""
    read = (
        "Each line is a method, each mark one of its settings: how much of the full cache's memory it keeps (to "
        "the right) against how often right answers turn wrong (upwards); a line further down loses less for the "
        "same memory."
    )
    notes = [
        "Bytes kept are measured on the cells' keys and values, not the setting's nominal share, and averaged "
        "over the runs that have them."
    ]
    unmeasured = sum(not r["n_bytes"] for r in data.rates)
    unjudged = sum(bool(r["n_bytes"]) and not r["n_eligible"] for r in data.rates)
    panels: list[Panel] = []
    for (model, protocol, workload), own in groups(data.rates, *_PANEL).items():
        drawn = [r for r in own if r["n_bytes"] and r["n_eligible"]]
        if drawn:
            title = heading([workload, short_protocol(protocol)], model, data.models)
            panels.append(_bytes_panel(drawn, title, stem("bytes", f"{len(panels) + 1:02d}", workload, protocol)))
    if unmeasured or unjudged:
        notes.append(
            f"Not drawn, of {plural(len(data.rates), 'cell')} counted by workload: {unmeasured} without measured "
            f"bytes, {unjudged} without a right control."
        )
    empty = None
    if not panels:
        all_bare = unmeasured == len(data.rates)
        empty = "No run of this ledger has measured KV bytes (kv_bytes is missing)." if all_bare else _NO_RIGHT
    return Section("bytes", "What memory buys", read, empty, (*notes, *no_findings(data)), tuple(panels))


def _bytes_panel(own: list[Row], title: str, name: str) -> Panel:
    series = []
    for (method,), mine in groups(own, "method").items():
        ordered = sorted(mine, key=lambda r: (r["bytes_share"], r["rate"]))
        series.append(Line(method, tuple(r["bytes_share"] for r in ordered), tuple(r["rate"] for r in ordered)))
    table = Table(
        ("method", "setting", "bytes kept", "runs measured", "C→W rate", "C→W", "control right"),
        tuple(
            (
                r["method"],
                r["setting"],
                percent(r["bytes_share"]),
                str(r["n_bytes"]),
                percent(r["rate"]),
                str(r["n_c2w"]),
                str(r["n_eligible"]),
            )
            for r in own
        ),
        left=2,
    )
    alt = (
        f"C→W rate against the share of full-cache bytes kept, {title}: {plural(len(series), 'method')}; "
        f"{_extremes(own, 'rate')}."
    )
    draw = partial(figures.lines, series, "KV bytes kept (share of the full cache, measured)", "C→W rate")
    return Panel(name, title, alt, draw, table)
