"""What was kept of the evidence, and what attention it got: by span, by layer and by head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvdiag.analysis.show.run import NOT_HERE, Shown, gap, measure, visible


@dataclass(frozen=True)
class Span:
    """An evidence span: its text (None where the ledger has none) and how much of it is kept, in words."""

    text: str | None
    kept: str


@dataclass(frozen=True)
class Evidence:
    """Evidence spans, and what their numbers are (or why there are none)."""

    spans: list[Span]
    note: str


def evidence(shown: Shown) -> Evidence:
    """The evidence and how much of each span survived.

    The ledger stores each slot's share of all evidence together. Of one span among several that leaves bounds:
    a slot that keeps k of N positions keeps at most k, and at least k - (N - n), of a span of n.
    """
    source, run = shown.source, shown.run
    if source is None:
        return Evidence([], f"the source is {NOT_HERE}")
    texts = _span_texts(source)
    if source["evidence_status"] != "available":
        return Evidence([Span(t, "") for t in texts], f"{source['evidence_status']} ({source['evidence_reason']})")
    if run["err"] is None:
        return Evidence([Span(t, "") for t in texts], f"share kept: {gap(run, 'err')}")
    if len(texts) == 1:
        note = "share of its tokens kept, mean over all layer x head slots"
        return Evidence([Span(texts[0], f"{run['err']:.0%} kept")], note)
    slots = _slots(shown)
    spans = list(zip(source["evidence_token_starts"], source["evidence_token_ends"], strict=True))
    if slots is None or len(spans) != len(texts):
        note = f"only the mean over all evidence is known: {run['err']:.0%} kept"
        return Evidence([Span(t, "share of its own not known") for t in texts], note)
    note = (
        f"{run['err']:.0%} of all evidence tokens kept, mean over slots; of one span the ledger tells "
        "bounds only, since slots store their share of all spans together"
    )
    return Evidence([Span(t, _between(*b)) for t, b in zip(texts, span_bounds(slots, spans), strict=True)], note)


def _span_texts(source: dict[str, Any]) -> list[str | None]:
    ends = zip(source["evidence_starts"], source["evidence_ends"], strict=True)
    context = source["context"]
    return [None if context is None else visible(context[a:b].strip()) for a, b in ends]


def span_bounds(shares: Sequence[float], spans: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
    """Least and most of each span that slots with these shares of all spans can keep, mean over slots."""
    total = len({p for a, b in spans for p in range(a, b)})  # as ERR counts: a shared position once
    found = []
    for a, b in spans:
        kept = [round(share * total) for share in shares]
        low = sum(max(0, k - (total - (b - a))) for k in kept)
        high = sum(min(b - a, k) for k in kept)
        found.append((low / (b - a) / len(shares), high / (b - a) / len(shares)))
    return found


def _between(low: float, high: float) -> str:
    return f"{low:.0%} kept" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%} kept"


@dataclass(frozen=True)
class Layer:
    """A layer: share of evidence kept by each KV head and evidence attention mass; None where not known."""

    index: int
    kept: list[float] | None
    attention: float | None


@dataclass(frozen=True)
class Layers:
    """The layer x head map, and the mean attention mass. Notes say why a half of it is missing."""

    layers: list[Layer]
    mean: str
    kept_note: str
    attention_note: str


def layers(shown: Shown) -> Layers:
    """Evidence retention by layer and head, and evidence attention mass by layer."""
    run, row, slots = shown.run, shown.retention, _slots(shown)
    attention = row["eam_layers"] if row and run["eam"] is not None else None
    n = (row["n_layers"] or 0) if row else 0
    attention = attention if attention and len(attention) == n else None
    heads = len(slots) // n if slots else 0
    found = [
        Layer(i, slots[i * heads : (i + 1) * heads] if slots else None, attention[i] if attention else None)
        for i in range(n)
    ]
    return Layers(
        layers=found if slots or attention else [],
        mean=f"mean {measure(run, 'eam')}, the control's {measure(shown.control, 'eam')}"
        if shown.control
        else f"mean {measure(run, 'eam')}",
        kept_note="" if slots else (gap(run, "err") if run["err"] is None else f"by slot: {NOT_HERE}"),
        attention_note="" if attention else (gap(run, "eam") if run["eam"] is None else f"by layer: {NOT_HERE}"),
    )


def _slots(shown: Shown) -> list[float] | None:
    """Share of evidence kept by each slot. Structural methods keep all positions: that says nothing, so None."""
    row = shown.retention
    if row is None or shown.run["err"] is None or not row["err_slots"]:
        return None
    return row["err_slots"] if len(row["err_slots"]) == row["n_layers"] * row["n_kv_heads"] else None
