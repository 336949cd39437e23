"""Audits on a screen of 100 columns."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from kvdiag.cli import text

_WIDTH = 100
_WHY = {
    "no_source": "no common source",
    "single_source": "no interval: a single source",
    "one_source_per_stratum": "no interval: one source in each stratum, so replicates cannot differ",
    "zero_variance": "no variance: all replicates are alike, BCa is the percentile interval",
    "bias_undefined": "BCa is undefined (all replicates on one side), the percentile interval stands in",
}
_SHORT = {"query_agnostic": "agnostic", "query_aware": "aware"}


def protocol_lines(found: dict[str, Any], cells: bool = False) -> list[str]:
    """What `kvdiag audit protocol` prints. cells: every cell of the wins too."""
    return [
        *_head(found),
        *_unequal(found),
        *(line for model in found["models"] for line in _deltas(found, model)),
        *_summary(found),
        *_wins(found),
        *(_cells(found) if cells else []),
        *_start_recent(found),
        *_ranks(found["ranks"]),
    ]


def _head(found: dict[str, Any]) -> list[str]:
    several = len(found["models"]) > 1
    full = ", ".join(
        (f"{f['model']} " if several else "") + f"{text.number(f['score'])} ({f['n']}/{f['n_planned']})"
        for f in found["full_cache"]
    )
    draws = (
        f"intervals: {found['level']:.0%} {found['interval']}, {found['resamples']} draws of sources within "
        f"{found['n_strata']} strata (workload x task group), seed {found['seed']}"
    )
    alone = found["n_strata_of_one"]
    return [
        *_wrapped(f"{found['n_sources']} sources, {', '.join(found['models'])}; full cache {full}"),
        *_wrapped(f"planned matrix: {found['label']}"),
        *_wrapped(draws),
        *([f"{alone} strata hold one source, which never varies: intervals are too narrow"] if alone else []),
        _degenerate(found),
        *_wrapped_list("in one protocol only, left out: ", (_cell(c) for c in found["one_protocol_only"])),
    ]


def _cell(c: dict[str, Any]) -> str:
    return f"{c['method']}/{c['setting']}/{c['protocol'].removeprefix('query_')}"


def _degenerate(found: dict[str, Any]) -> str:
    if not found["n_degenerate"]:
        return "no row is labelled degenerate"
    done = "included" if found["degenerate_included"] else "left out (--with-degenerate includes them)"
    return f"{found['n_degenerate']} rows labelled degenerate are {done}"


def _unequal(found: dict[str, Any]) -> list[str]:
    if not found["unequal"]:
        return []
    lines = [f"UNEQUAL SOURCES in {len(found['unequal'])} comparisons; only common ones are compared:"]
    for u in found["unequal"][:10]:
        counts = ", ".join(f"{cell} {n}" for cell, n in u["answered"].items())
        lines += _wrapped(f"  {counts}: {u['n_common']} in common ({u['model']})", "    ")
    more = len(found["unequal"]) - 10
    return [*lines, f"  and {more} more (--json has all)"] if more > 0 else lines


def _deltas(found: dict[str, Any], model: str) -> list[str]:
    own = [d for d in found["delta"] if d["model"] == model]
    if not own:
        return []
    header = ("method", "removed", "agnostic", "aware", "Delta", "interval", "sources", "rests on")
    rows = [
        (
            d["method"],
            _removed(d),
            *_numbers(d),
            f"{d['n']}/{d['n_planned']}",
            _mark(d["coverage"]),
        )
        for d in own
    ]
    name = f" ({model})" if len(found["models"]) > 1 else ""
    return [
        "",
        f"Delta = aware less agnostic, over sources answered in both{name}",
        *text.table(header, rows, left=2),
        *_footnotes(own, _removed),
    ]


def _removed(d: dict[str, Any]) -> str:
    """Share removed; the setting itself where it is no share."""
    return d["setting"] if d["removed"] is None else f"{100 * d['removed']:.4g}%"


def _numbers(d: dict[str, Any]) -> tuple[str, str, str, str]:
    return (
        text.number(d["agnostic"]),
        text.number(d["aware"]),
        text.number(d["delta"], "+.3f"),
        text.span(d["low"], d["high"], "+.3f"),
    )


def _mark(coverage: dict[str, Any]) -> str:
    return "complete" if coverage["complete"] else "incomplete"


def _footnotes(rows: Sequence[dict[str, Any]], key: Any) -> list[str]:
    """What rows rest on, where that is not simply all, and why intervals are missing."""
    said: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        notes = [] if row["coverage"]["label"] == "complete" else [row["coverage"]["label"]]
        notes += [_WHY[row["interval_note"]]] if row.get("interval_note") else []
        for note in notes:
            said.setdefault((row["method"], note), []).append(key(row))
    return [
        line
        for (method, note), where in said.items()
        for line in _wrapped(f"  {method} {', '.join(dict.fromkeys(where))}: {note}".replace(" : ", ": "), "    ")
    ]


def _summary(found: dict[str, Any]) -> list[str]:
    own = found["summary"]
    several = len(found["models"]) > 1
    header = ("method", "question", "agnostic", "aware", "Delta", "interval", "pairs", "rests on")
    rows = [
        (
            s["method"] if s["model"] is None else f"  {s['model']}",
            s["query_visibility"] or "-",
            *_numbers(s),
            f"{s['n']}/{s['n_planned']}",
            _mark(s["coverage"]),
        )
        for s in own
    ]
    return [
        "",
        f"Delta over all settings{' and models' if several else ''}; question: what the score sees of it",
        *text.table(header, rows, left=2),
        *_footnotes(own, lambda s: s["model"] or ""),
    ]


def _wins(found: dict[str, Any]) -> list[str]:
    wins = found["wins"]
    lines = [
        "",
        f"against the best of {', '.join(wins['baselines'])}: cells (model x setting x task {found['by']})",
    ]
    if wins["missing_baselines"]:
        lines.append(f"not in this ledger: {', '.join(wins['missing_baselines'])}")
    if not wins["methods"]:
        return [*lines, "no method has a baseline at its setting, so there is nothing to win"]
    header = ("method", "protocol", "above best", "tied", "below", "sure above", "sure below", "rests on")
    rows = [
        (
            m["method"],
            _SHORT[m["protocol"]],
            f"{m['n_win']} of {m['n_cells']}",
            *(str(m[n]) for n in ("n_tie", "n_loss", "n_sure_win", "n_sure_loss")),
            _mark(m["coverage"]),
        )
        for m in wins["methods"]
    ]
    tests = {p: sum(c["protocol"] == p for c in wins["cells"]) for p in _SHORT}
    counts = ", ".join(f"{n} {_SHORT[p]}" for p, n in tests.items() if n)
    sure = (
        f"sure: p < {wins['level']:g} by a two-sided sign-flip test on paired scores, "
        f"after Holm's correction for all cells of a protocol ({counts})"
    )
    lacking = (f"{_cell(c)} ({', '.join(c['missing'])})" for c in wins["without_baseline"])
    return [
        *lines,
        *text.table(header, rows, left=2),
        *_footnotes(wins["methods"], lambda m: _SHORT[m["protocol"]]),
        *_wrapped(sure),
        *_wrapped(wins["selection"]),
        *(_wrapped_list("baselines missing at: ", lacking) if len(wins["missing_baselines"]) < 3 else []),
        *_wrapped_list("no common source: ", (f"{_cell(c)} {c['group']}" for c in wins["no_common_source"])),
        *_wrapped_list("no score that is a finding: ", (f"{_cell(c)} ({c['label']})" for c in wins["not_tried"])),
    ]


def _cells(found: dict[str, Any]) -> list[str]:
    """A table for each model, workload, protocol and method."""
    own = found["wins"]["cells"]
    several, workloads = len(found["models"]) > 1, len({c["workload"] for c in own}) > 1
    lines = []
    for key in dict.fromkeys((c["method"], c["model"], c["workload"], c["protocol"]) for c in own):
        part = [c for c in own if (c["method"], c["model"], c["workload"], c["protocol"]) == key]
        method, model, workload, protocol = key
        where = [method, _SHORT[protocol]] + ([workload] if workloads else []) + ([model] if several else [])
        lines += ["", ", ".join(where), *text.table(_CELL, [_cell_row(c) for c in part], left=2)]
    if any(not c["coverage"]["complete"] for c in own):
        lines.append("*: rests on an incomplete matrix")
    return lines


_CELL = ("setting", "tasks", "score", "best baseline", "gap", "interval", "p Holm", "", "sources")


def _cell_row(c: dict[str, Any]) -> tuple[str, ...]:
    return (
        c["setting"],
        c["group"],
        text.number(c["score"]),
        c["best_baseline"],
        text.number(c["difference"], "+.3f"),
        text.span(c["low"], c["high"], "+.3f"),
        f"{c['p_holm']:.2g}",
        c["outcome"] + ("" if c["coverage"]["complete"] else "*"),
        f"{c['n']}/{c['n_planned']}",
    )


def _start_recent(found: dict[str, Any]) -> list[str]:
    own = found["wins"]["start_recent"]
    if not own:
        return ["", "no gaps to start + recent: streaming_llm is not in this ledger at the methods' settings"]
    rows = [
        (
            g["method"],
            _SHORT[g["protocol"]],
            text.number(g["gap"], "+.3f"),
            text.span(g["low"], g["high"], "+.3f"),
            str(g["n"]),
            str(g["n_sources"]),
            _mark(g["coverage"]),
        )
        for g in own
    ]
    header = ("method", "protocol", "gap", "interval", "pairs", "sources", "rests on")
    return [
        "",
        "mean gap to start + recent (streaming_llm), over all settings and models",
        *text.table(header, rows, left=2),
        *_footnotes(own, lambda g: _SHORT[g["protocol"]]),
    ]


def _ranks(ranks: dict[str, Any]) -> list[str]:
    order = (f"{o['method']} {o['delta']:+.3f} ({_seen(o)})" for o in ranks["order"])
    if ranks["tau_b"] is None:
        said = f"no rank correlation: {ranks['n_methods']} methods, and Delta or visibility does not vary"
    else:
        kind = f"exact, {ranks['n_orders']} orders" if ranks["p_exact"] else "Monte Carlo"
        said = f"Kendall tau-b = {ranks['tau_b']:+.3f}, two-sided p = {ranks['p']:.3g} ({kind})"
    rest = f"; {ranks['coverage']['label']}" if ranks["coverage"] else ""
    left = (f"{m['method']} ({m['query_visibility'] or 'visibility unknown'})" for m in ranks["left_out"])
    return [
        "",
        "order of Delta against how much of the score the question makes (baselines take no part)",
        *_wrapped_list("", order),
        *_wrapped(f"{said}: {ranks['reading']}{rest}"),
        *_wrapped_list("left out, without a rank or a Delta: ", left),
    ]


def _seen(o: dict[str, Any]) -> str:
    """How visible the question is, with the catalogue's word where that is another."""
    rank, word = o["rank_name"], o["query_visibility"]
    return rank if rank == word else f"{rank}: {word}"


def coverage_lines(found: dict[str, Any]) -> list[str]:
    """What `kvdiag audit coverage` prints."""
    n_cells = len(found["cells"])
    controls = found["controls"]
    lines = [
        *_wrapped(
            f"planned: {found['n_sources']} sources x {n_cells} cells (method, setting, protocol, model) = "
            f"{found['n_planned']} runs; {found['n_present']} have a row, {found['n_available']} a score"
        ),
        f"controls: {controls['n_available']}/{controls['n_planned']} have a score",
    ]
    if found["fewer_than_asked"]:
        told = ", ".join(f"{r['found']} of {r['asked']} {r['task']}" for r in found["fewer_than_asked"])
        lines += _wrapped(f"the recipe asked for more sources than its data had: {told}")
    if found["n_degenerate"]:
        lines.append(
            f"{found['n_degenerate']} of the scores are of rows labelled degenerate, which are no finding"
        )
    several = len(found["models"]) > 1
    for name, key in (("holes", "holes"), ("cannot run, no holes", "cannot_run")):
        gaps = [*({**g, "method": "full cache", "setting": "-", "protocol": "query_-"} for g in controls[key])]
        gaps += found[key]
        if gaps:
            lines += ["", f"{name}: {sum(g['n'] for g in gaps)}", *_gap_table(gaps, several)]
    return [*lines, "", *_wrapped(found["label"])]


def _gap_table(gaps: Sequence[dict[str, Any]], several: bool) -> list[str]:
    header = ["method", "setting", "protocol", "workload", "task", "status", "reason", "n"]
    rows = [
        [
            *(g["method"], g["setting"], g["protocol"].removeprefix("query_"), g["workload"], g["task"]),
            *(g["status"], g["reason"] or "no row", str(g["n"])),
        ]
        for g in gaps
    ]
    if several:
        header.insert(0, "model")
        rows = [[g["model"], *row] for g, row in zip(gaps, rows, strict=True)]
    return text.table(header, rows, left=len(header) - 1)


def _wrapped(line: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [line]


def _wrapped_list(name: str, parts: Iterable[str]) -> list[str]:
    """A list on as many lines as it needs; nothing where it is empty."""
    listed = list(parts)
    return _wrapped(name + ", ".join(listed)) if listed else []
