"""A verdict on a screen."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvdiag.records.keys import PROTOCOLS

_SAYS = {
    "query_agnostic": "the method saw the context only",
    "query_aware": "the method saw context and question",
}


def lines(verdict: Mapping[str, Any]) -> list[str]:
    """The whole verdict."""
    controls, runs = verdict["controls"], verdict["runs"]
    found = [
        f"{verdict['method']} ({_state(verdict)}) on {controls['n']} sources of {verdict['reference']}, "
        f"{verdict['model']}",
        f"full cache: {controls['n_right']} of {controls['n_answered']} answers right; it gave the ledger's own "
        f"answers but for {controls['n_disagree']} sources",
        f"runs answered: {runs['n_answered']} of {runs['n']}{_gaps(runs['missing'])}",
    ]
    if verdict["environment_differs"]:
        found.append(f"this machine is not the ledger's: {'; '.join(verdict['environment_differs'])}")
    for protocol in PROTOCOLS:
        cells = [c for c in verdict["cells"] if c["protocol"] == protocol]
        if cells:
            found += ["", f"{protocol.removeprefix('query_')}: {_SAYS[protocol]}"]
            for cell in cells:
                found += _cell(cell)
    return [
        *found,
        "",
        "against each method of the ledger at its setting nearest in bytes, over the sources that both answered;",
        "bytes: of the uncompressed cache; wrong: right answers turned wrong / control right, 95 % Wilson",
        f"interval; less: share turned wrong less the other's, {verdict['level']:.0%} of {verdict['resamples']} "
        "draws of sources;",
        "Jaccard: of the answers that either turned wrong, those that both did",
    ]


def _state(verdict: Mapping[str, Any]) -> str:
    if verdict["state"] == "verified":
        return f"verified, report {verdict['verification']}"
    return str(verdict["state_reason"] or verdict["state"])


def _gaps(missing: Sequence[Mapping[str, Any]]) -> str:
    told = ", ".join(f"{m['n']} {m['status']}: {m['reason']}" for m in missing)
    return f"; without an answer: {told}" if told else ""


def _cell(cell: Mapping[str, Any]) -> list[str]:
    found = [
        "",
        f"{cell['cell_id']}: {percent(cell['bytes'])} of the bytes; turned wrong {shared(cell['turned_wrong'])}; "
        f"turned right {cell['turned_right']}; answered {cell['n_answered']}/{cell['n']}{_gaps(cell['missing'])}",
    ]
    if cell["degenerate"]:
        labels = ", ".join(f"{n} {label}" for label, n in cell["degenerate"].items())
        found.append(f"  no finding (degenerate): {labels} of {cell['n']} runs")
    tasks = "; ".join(
        f"{t['task']} {number(t['score'])} ({number(t['control_score'])} full, n {t['n_scored']}/{t['n']})"
        for t in cell["tasks"]
    )
    found.append(f"  scores: {tasks}")
    total = sum(s["n"] for s in cell["signatures"])
    if total:
        found.append("  why: " + ", ".join(f"{s['signature']} {s['n']}/{total}" for s in cell["signatures"]))
    if not cell["n_answered"]:
        return found
    header = ("against", "bytes", "its bytes", "sources", "wrong", "its wrong", "less", "Jaccard")
    table = [header, *(_row(other) for other in cell["against"])]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return found + [
        "  "
        + "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True)))
        for r in table
    ]


def _row(other: Mapping[str, Any]) -> tuple[str, ...]:
    rate, failures = other["c2w_rate"], other["failures"]
    union = failures["only_a"] + failures["only_b"] + failures["both"]
    difference = "-"
    if rate["difference"] is not None:
        difference = f"{rate['difference']:+.0%}"
        if rate["low"] is not None:
            difference += f" ({rate['low']:+.0%} to {rate['high']:+.0%})"
    label = f"{other['method']} {other['setting']}" + (" (degenerate)" if other["degenerate_other"] else "")
    return (
        label,
        percent(other["bytes_own"]),
        percent(other["bytes_other"]),
        str(other["n_common"]),
        shared(other["turned_wrong_own"]),
        shared(other["turned_wrong_other"]),
        difference,
        f"{number(failures['jaccard'], '.2f')} ({failures['both']}/{union})",
    )


def shared(found: Mapping[str, Any]) -> str:
    """`3/9 (33%, 12% to 65%)`."""
    if found["share"] is None:
        return f"{found['k']}/{found['n']}"
    return f"{found['k']}/{found['n']} ({found['share']:.0%}, {found['low']:.0%} to {found['high']:.0%})"


def percent(value: float | None) -> str:
    """A share as a percentage, - where there is none."""
    return "-" if value is None else f"{value:.1%}"


def number(value: float | None, form: str = ".2f") -> str:
    """A number, - where there is none."""
    return "-" if value is None else format(value, form)
