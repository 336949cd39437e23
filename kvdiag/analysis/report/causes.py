"""Sections on which failures these are: overlap between methods, and signatures."""

from functools import partial

from kvdiag.analysis.report import figures, tables
from kvdiag.analysis.report.figures import Bar
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
    stem,
)
from kvdiag.analysis.report.tables import Data, Row
from kvdiag.analysis.rules import READINGS

_NO_C2W = "No right answer turned wrong in this ledger: there are no C→W rows."

# -- overlap -----------------------------------------------------------------------------------------------------


def overlap(data: Data) -> Section:
    """Jaccard of C->W sets between methods at the same setting, workloads together."""
    read = (
        "Each square compares two methods at the same setting: 1 means they fail on the very same sources, 0 on "
        "entirely different ones; darker is more alike."
    )
    notes = [
        "Jaccard = sources that both turned wrong / sources that either turned wrong, over sources that both "
        "answered, all workloads together; – where neither turned any wrong."
    ]
    found = groups(data.overlap, "model", "protocol", "tier")
    panels: list[Panel] = []
    bare = []
    for key in sorted(found, key=lambda k: (k[0], k[1], *tables.by_strength(k[2]))):
        model, protocol, tier = key
        title = heading([tier, short_protocol(protocol)], model, data.models)
        if any(r["n_union"] for r in found[key]):
            name = stem("overlap", f"{len(panels) + 1:02d}", tier, protocol)
            panels.append(_overlap_panel(found[key], title, name))
        else:
            bare.append(title)
    if bare:
        notes.append(f"Not drawn, since no right answer turned wrong: {'; '.join(bare)}.")
    empty = None
    if not panels:
        empty = (
            _NO_C2W if data.overlap else "No two methods share a setting, protocol and model with answered runs."
        )
    title = "Do methods fail on the same questions?"
    return Section("overlap", title, read, empty, (*notes, *no_findings(data)), tuple(panels))


def _overlap_panel(own: list[Row], title: str, name: str) -> Panel:
    names = sorted({r["method_a"] for r in own} | {r["method_b"] for r in own})
    known = {frozenset((r["method_a"], r["method_b"])): r["jaccard"] for r in own}
    values = [[known.get(frozenset((a, b))) for b in names] for a in names]
    most = max((r for r in own if r["jaccard"] is not None), key=lambda r: r["jaccard"])
    table = Table(
        ("method", "and", "Jaccard", "both C→W", "either C→W", "first C→W", "second C→W", "sources both answered"),
        tuple(
            (
                r["method_a"],
                r["method_b"],
                "-" if r["jaccard"] is None else f"{r['jaccard']:.3f}",
                *(str(r[n]) for n in ("n_both", "n_union", "n_a", "n_b", "n_sources")),
            )
            for r in own
        ),
        left=2,
    )
    alt = (
        f"Overlap of failures, {title}: most alike are {most['method_a']} and {most['method_b']} with Jaccard "
        f"{most['jaccard']:.2f} ({of(most['n_both'], most['n_union'])})."
    )
    return Panel(name, title, alt, partial(figures.heat, names, values), table, wide=len(names) > 9)


# -- signatures --------------------------------------------------------------------------------------------------


def signatures(data: Data) -> Section:
    """Shares of failure signatures by workload, and by method and setting."""
    read = (
        "Each bar is 100 % of the right answers that turned wrong; its parts say which rule explains how many of "
        "them, and the number at its end is how many there are."
    )
    degenerate = sum(r["n_c2w"] for r in data.signatures if r["is_degenerate"])
    notes = ["A part named by a missing status could not be told. Thresholds: docs/metrics.md."]
    if len({r["workload"] for r in data.signatures}) > 1:
        notes.append("By method and setting, the workloads of the ledger are taken together.")
    if degenerate:
        notes.append(f"{plural(degenerate, 'C→W row')} labelled degenerate are no finding and are left out.")
    kinds = sorted({r["signature"] for r in data.signatures if not r["is_degenerate"]}, key=_known_first)
    panels = []
    for i, ((model, protocol), own) in enumerate(groups(data.signatures, "model", "protocol").items(), 1):
        if all(r["is_degenerate"] for r in own):
            continue
        for key, said in (("workload", "by workload"), ("method", "by method and setting")):
            title = heading([said, short_protocol(protocol)], model, data.models)
            panels.append(_signature_panel(own, key, kinds, title, stem("signatures", f"{i:02d}", key, protocol)))
    empty = None
    if not panels:
        empty = "All C→W rows of this ledger are labelled degenerate." if data.signatures else _NO_C2W
    title = "What explains the failures"
    terms = tuple(
        (f"{figures.letter(i)} {k}", READINGS.get(k, "no signature, for this reason")) for i, k in enumerate(kinds)
    )
    return Section("signatures", title, read, empty, tuple(notes), tuple(panels), terms=terms)


def _known_first(signature: str) -> tuple[int, str]:
    order = list(READINGS)
    return (order.index(signature) if signature in order else len(order), signature)


def _signature_panel(own: list[Row], key: str, kinds: list[str], title: str, name: str) -> Panel:
    keys = ("workload",) if key == "workload" else ("method", "setting")
    pooled = tables.shares(own, keys)
    pooled.sort(key=lambda r: (r[keys[0]], *(tables.by_strength(r["setting"]) if key == "method" else ())))
    bars = [
        Bar(
            r["method"] if key == "method" else "",
            r[keys[-1]],
            tuple(r["counts"].get(k, 0) / r["n"] for k in kinds),
            f"n = {r['n']:,}",
        )
        for r in pooled
    ]
    table = Table(
        (*keys, "C→W", *(f"{figures.letter(i)} {k}" for i, k in enumerate(kinds))),
        tuple(
            (
                *(r[k] for k in keys),
                str(r["n"]),
                *(f"{r['counts'].get(k, 0)} ({percent(r['counts'].get(k, 0) / r['n'])})" for k in kinds),
            )
            for r in pooled
        ),
        left=len(keys),
    )
    total = {k: sum(r["counts"].get(k, 0) for r in pooled) for k in kinds}
    n = sum(total.values())
    top = sorted(kinds, key=lambda k: -total[k])[:3]
    alt = f"Shares of signatures {title}: " + "; ".join(f"{k} {of(total[k], n)}" for k in top) + "."
    return Panel(name, title, alt, partial(figures.stacked, bars, kinds, "share of the C→W rows"), table)
