"""The run in a few labelled lines, and its signature."""

from dataclasses import dataclass
from typing import Any

from kvdiag.analysis.rules import READINGS, Rule, rules
from kvdiag.analysis.show.answers import Piece, answers
from kvdiag.analysis.show.run import NOT_HERE, Shown, gap, measure, visible


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
        parts.append(f"the answer is {words[run['correct']]}, score {measure(run, 'score')}")
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
