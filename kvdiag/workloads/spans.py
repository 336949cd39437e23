"""Texts built with known places, and annotated strings found again in them: by equality, never by likeness."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvdiag.workloads.base import Span


@dataclass
class Builder:
    """Text that grows at its end and tells where each piece lies."""

    text: str = ""

    def add(self, piece: str) -> Span:
        """The span of the piece just added."""
        start = len(self.text)
        self.text += piece
        return start, len(self.text)


def trimmed(text: str, span: Span) -> Span | None:
    """The span without blanks at its ends; None when nothing is left."""
    piece = text[slice(*span)]
    start = span[0] + len(piece) - len(piece.lstrip())
    end = span[0] + len(piece.rstrip())
    return (start, end) if end > start else None


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in order of place, those that share a character made one. Spans that only touch stay apart."""
    out: list[Span] = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = out[-1][0], max(end, out[-1][1])
        else:
            out.append((start, end))
    return tuple(out)


def normalized(text: str) -> str:
    """NFC, each run of white space one space, none at the ends: all that equality is allowed to overlook."""
    return " ".join(unicodedata.normalize("NFC", text).split())


@dataclass
class Places:
    """Where the units of a text lie: paragraphs, and title lines."""

    text: str
    paragraphs: Sequence[Span]
    titles: Sequence[Span] = ()
    _by_text: dict[tuple[int, str], list[Span]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for kind, spans in enumerate((self.paragraphs, self.titles)):
            for span in spans:
                piece = self.text[slice(*span)]
                self._by_text.setdefault((2 * kind, piece), []).append(span)
                self._by_text.setdefault((2 * kind + 1, normalized(piece)), []).append(span)

    def find(self, wanted: str) -> tuple[list[Span], str | None]:
        """Every place that holds `wanted`, or none and the reason: `not_found`, `ambiguous_place`.

        Tried in turn: a paragraph's very text; its text after `normalized`; a title line's, likewise; the very
        text inside one paragraph. Equal paragraphs are all meant, since the annotation names a text. A part of a
        paragraph that stands in several places is not: which one was meant is not known.
        """
        clean = normalized(wanted)
        if not clean:
            return [], "not_found"
        for key in ((0, wanted), (1, clean), (2, wanted), (3, clean)):
            if key in self._by_text:
                return list(self._by_text[key]), None
        inside = [place for span in self.paragraphs for place in _occurrences(self.text, wanted, span)]
        if len(inside) > 1:
            return [], "ambiguous_place"
        return inside, None if inside else "not_found"


def _occurrences(text: str, wanted: str, span: Span) -> list[Span]:
    found, at = [], text.find(wanted, *span)
    while at >= 0:
        found.append((at, at + len(wanted)))
        at = text.find(wanted, at + 1, span[1])
    return found
