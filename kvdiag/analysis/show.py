"""One run and everything its ledger says of it, gathered for a person to read. What it looks like is elsewhere."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvdiag.analysis.rules import READINGS, Rule, rules
from kvdiag.diagnostics.signatures import Thresholds
from kvdiag.errors import DataError, UsageError
from kvdiag.ledger.layout import MANIFEST, read_manifest
from kvdiag.query.connection import connect, rows
from kvdiag.records.schema import json_schema, metric_names

# Failures come before the rest, and real ones before those of degenerate cells.
_FAILED = "coalesce(transition = 'C->W', false) DESC, degenerate IS NULL DESC"
WORDS = {
    "first": f"SELECT run_id FROM runs ORDER BY {_FAILED}, run_id LIMIT 1",
    "worst": f"SELECT run_id FROM runs ORDER BY {_FAILED}, delta_nll DESC NULLS LAST, run_id LIMIT 1",
}
_LISTED = 3
MARK = "▸"
NOT_HERE = "not in the ledger"


@dataclass(frozen=True)
class Shown:
    """Rows of one run. failure: its row of c2w. What is None has no row."""

    run: dict[str, Any]
    control: dict[str, Any] | None
    source: dict[str, Any] | None
    retention: dict[str, Any] | None
    failure: dict[str, Any] | None
    thresholds: Thresholds


def gather(ledger: Path, which: str) -> Shown:
    """Everything about a run. which: its run_id, a part that only it has, `first` or `worst`.

    Raises UsageError when no run or several match.
    """
    connection = connect(ledger)
    run_id = _find(connection, which)

    def one(table: str, key: str, value: str) -> dict[str, Any] | None:
        found = rows(connection, f"SELECT * FROM {table} WHERE {key} = ? LIMIT 1", [value])
        return found[0] if found else None

    run = one("runs", "run_id", run_id)
    assert run is not None
    return Shown(
        run=run,
        control=one("controls", "control_id", run["control_id"]),
        source=one("sources", "source_id", run["source_id"]),
        retention=one("retention", "run_id", run_id),
        failure=one("c2w", "run_id", run_id),
        thresholds=_thresholds(ledger),
    )


def _find(connection: Any, which: str) -> str:
    if which in WORDS:
        found = rows(connection, WORDS[which])
        if not found:
            raise UsageError(f"{which}: the ledger has no runs")
        return found[0]["run_id"]
    if rows(connection, "SELECT 1 FROM runs WHERE run_id = ? LIMIT 1", [which]):
        return which
    sql = "SELECT run_id, count(*) OVER () AS n FROM runs WHERE contains(run_id, ?) ORDER BY run_id LIMIT ?"
    found = rows(connection, sql, [which, _LISTED])
    if not found:
        raise UsageError(f'no run {which!r}; kvdiag query "SELECT run_id FROM runs" lists them')
    if found[0]["n"] > 1:
        listed = ", ".join(row["run_id"] for row in found) + (", …" if found[0]["n"] > _LISTED else "")
        raise UsageError(f"{which!r} is part of {found[0]['n']} run ids ({listed}); give more of one")
    return found[0]["run_id"]


def _thresholds(ledger: Path) -> Thresholds:
    """Those the ledger's signatures were told by."""
    given = read_manifest(ledger).get("thresholds")
    if not isinstance(given, dict) or given.keys() != {f.name for f in fields(Thresholds)}:
        raise DataError(f"{ledger / MANIFEST}: its thresholds are not those of the signature rules")
    return Thresholds(**given)


def visible(text: str) -> str:
    """Text on one line, with control characters and changes of direction written out: it may come from a model."""

    def one(char: str) -> str:
        odd = unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or "\u202a" <= char <= "\u202e"
        if odd or "\u2066" <= char <= "\u2069":
            return char.encode("unicode_escape").decode("ascii")
        return char

    return "".join(map(one, text))


def gap(row: dict[str, Any], name: str = "") -> str:
    """Why a row, or a metric of it, has no value."""
    status, reason = (f"{name}__status", f"{name}__reason") if name else ("status", "reason")
    return f"{row[status]} ({row[reason]})"


# --- Metrics


@dataclass(frozen=True)
class Metric:
    """A metric of the run: text is its value, or status and reason; control is the control's, where it has one."""

    name: str
    text: str
    available: bool
    control: str
    unit: str
    better: str
    meaning: str


def metrics(shown: Shown) -> list[Metric]:
    """All metrics of the runs table, in its order."""
    of_control = metric_names("controls") if shown.control else []
    found = []
    for name in metric_names("runs"):
        prop = json_schema("runs")["properties"][name]
        better = prop.get("x-direction", "none")
        found.append(
            Metric(
                name=name,
                text=_measure(shown.run, name),
                available=shown.run[name] is not None,
                control=_measure(shown.control, name) if shown.control and name in of_control else "",
                unit=prop.get("x-unit", ""),
                better="" if better == "none" else better,
                meaning=prop["description"],
            )
        )
    return found


def _measure(row: dict[str, Any], name: str) -> str:
    return gap(row, name) if row[name] is None else f"{row[name]:.4g}"


# --- Answers


@dataclass(frozen=True)
class Piece:
    """A stretch of text. kind: plain, same (both answers have it), other (from where they part), missing."""

    text: str
    kind: str = "plain"


def answers(shown: Shown) -> tuple[list[Piece], list[Piece], str]:
    """The control's answer and the run's, cut where their texts part, and in words where that is."""
    both = [_answer(shown.control), _answer(shown.run)]
    texts = [piece.text for piece in both if piece.kind == "plain"]
    if len(texts) < 2:
        return [both[0]], [both[1]], ""
    at = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    if texts[0] == texts[1]:
        note = "the same text" + _token_note(shown.run, "; their tokens part at {}, from 0")
        return (
            [Piece(visible(texts[0]) or "(empty)", "same")],
            [Piece(visible(texts[1]) or "(empty)", "same")],
            note,
        )
    note = f"they part at {MARK}: character {at}" + _token_note(shown.run, ", token {}") + ", from 0"
    cut = [[Piece(visible(t[:at]), "same"), Piece(MARK + visible(t[at:]), "other")] for t in texts]
    return cut[0], cut[1], note


def _answer(row: dict[str, Any] | None) -> Piece:
    """The raw text of an answer, or why there is none."""
    if row is None:
        return Piece(NOT_HERE, "missing")
    if row["status"] != "available":
        detail = f": {visible(row['detail'])}" if row["detail"] else ""
        return Piece(f"no answer: {gap(row)}{detail}", "missing")
    return Piece(NOT_HERE, "missing") if row["output"] is None else Piece(row["output"])


def _token_note(run: dict[str, Any], form: str) -> str:
    return "" if run["first_divergence"] is None else form.format(int(run["first_divergence"]))


# --- Evidence


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


# --- Layers and heads


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
        mean=f"mean {_measure(run, 'eam')}, the control's {_measure(shown.control, 'eam')}"
        if shown.control
        else f"mean {_measure(run, 'eam')}",
        kept_note="" if slots else (gap(run, "err") if run["err"] is None else f"by slot: {NOT_HERE}"),
        attention_note="" if attention else (gap(run, "eam") if run["eam"] is None else f"by layer: {NOT_HERE}"),
    )


def _slots(shown: Shown) -> list[float] | None:
    """Share of evidence kept by each slot. Structural methods keep all positions: that says nothing, so None."""
    row = shown.retention
    if row is None or shown.run["err"] is None or not row["err_slots"]:
        return None
    return row["err_slots"] if len(row["err_slots"]) == row["n_layers"] * row["n_kv_heads"] else None


# --- Signature


@dataclass(frozen=True)
class Verdict:
    """The signature with its reading (or why there is none), and the rules that decided.

    rules: those that fired; where none fired, all of them, with what they lack.
    """

    text: str
    fired: bool
    rules: list[Rule]


def verdict(shown: Shown) -> Verdict:
    """Signature of the run and the rules behind it."""
    failure = shown.failure
    if failure is None:
        change = f"is {shown.run['transition']}" if shown.run["transition"] else "has no transition"
        return Verdict(f"none: only C->W runs have one; this run {change}", False, [])
    if failure["signature"] is None:
        return Verdict(f"none: {gap(failure, 'signature')}", False, [])
    text = f"{failure['signature']}: {READINGS.get(failure['signature'], '')}"
    found, flags = rules(failure, shown.thresholds), failure["signature_flags"]
    return Verdict(text, bool(flags), [rule for rule in found if rule.name in flags] if flags else found)


# --- At a glance


def facts(shown: Shown) -> list[tuple[str, list[Piece]]]:
    """The run in a few labelled lines: what a build's summary prints, and how a page begins."""
    run, source = shown.run, shown.source
    control_answer, run_answer, note = answers(shown)
    question = source["question"] if source else None
    found = [
        ("run", [Piece(run["run_id"])]),
        ("outcome", [Piece(_outcome(run))]),
        ("question", [_or_why(question, source)]),
        ("gold", [Piece(", ".join(map(visible, source["references"])) if source else NOT_HERE)]),
        ("full cache", control_answer),
        ("compressed", run_answer),
    ]
    if note:
        found.append(("", [Piece(note)]))
    if run["status"] == "available":
        found += [(label, [Piece(text)]) for label, text in _numbers(shown)]
    if run["degenerate"]:
        found.append(("degenerate", [Piece(f"{run['degenerate']}: the cell is no finding")]))
    return [*found, ("signature", [Piece(verdict(shown).text)])]


def _or_why(text: str | None, source: dict[str, Any] | None) -> Piece:
    """A text of the source, or why it is not there."""
    if text is not None:
        return Piece(visible(text.strip()))
    why = f": {source['text_status']} ({source['text_reason']})" if source and source["text_reason"] else ""
    return Piece(NOT_HERE + why, "missing")


def _outcome(run: dict[str, Any]) -> str:
    words = {True: "right", False: "wrong", None: "without a verdict"}
    parts = [run["transition"] or ("no answer" if run["status"] != "available" else "no transition")]
    if run["status"] == "available":
        parts.append(f"the answer is {words[run['correct']]}, score {_measure(run, 'score')}")
    if run["extracted_answer"] and run["extracted_answer"].strip() != (run["output"] or "").strip():
        parts.append(f"scored as {visible(run['extracted_answer'])}")
    if run["n_new_tokens"] is not None:
        ends = {"eos": "with a stop token", "length": "at the most tokens allowed"}
        ending = f", ended {ends.get(run['finish_reason'], run['finish_reason'])}" if run["finish_reason"] else ""
        parts.append(f"{run['n_new_tokens']} tokens{ending}")
    return "; ".join(parts)


def _numbers(shown: Shown) -> list[tuple[str, str]]:
    run = shown.run

    def told(name: str, form: str, called: str) -> str:
        """A metric in a phrase, or its name and why it has no value."""
        return form.format(run[name]) + f" ({called})" if run[name] is not None else f"{called} {gap(run, name)}"

    return [
        ("kept", kept(run)),
        (
            "evidence",
            told("err", "{:.0%} of its positions kept", "ERR")
            + ", "
            + told("ecov", "{:.0%} of (slot, span) pairs hold at least half of the span", "ECov"),
        ),
        (
            "likelihood",
            told("delta_nll", "gold answer {:+.2f} nats a token", "delta NLL")
            + ", "
            + told("gpr", "likelihood ratio {:.3g}", "GPR")
            + ", "
            + told("top50_overlap", "{:.0%} of the top 50 shared", "top50_overlap"),
        ),
        ("attention", told("ear", "{:.0%} of the control's attention on the evidence", "EAR")),
    ]


def kept(run: dict[str, Any]) -> str:
    """Positions and bytes kept, as measured."""
    label = f"; labelled {run['setting']}" + (
        f", {run['origin_label']} in its origin" if run["origin_label"] else ""
    )
    if run["kept_tokens_mean"] is None or run["n_compressed"] is None:
        return f"positions and bytes are {NOT_HERE}{label}"
    text = f"{run['kept_tokens_mean']:.0f} of {run['n_compressed']} positions a head"
    if run["kept_tokens_min"] != run["kept_tokens_max"]:
        text += f" ({run['kept_tokens_min']} to {run['kept_tokens_max']})"
    if run["kv_bytes"] is not None and run["kv_bytes_full"]:
        share = run["kv_bytes"] / run["kv_bytes_full"]
        text += f", {_bytes(run['kv_bytes'])} of {_bytes(run['kv_bytes_full'])} ({share:.0%} of the bytes)"
    return text + label


def _bytes(n: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"
