"""Both answers, cut where they part."""

from dataclasses import dataclass
from typing import Any

from kvdiag.analysis.show.run import MARK, NOT_HERE, Shown, gap, visible


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
