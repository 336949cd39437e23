"""What a page is made of: sections, their figures and the tables behind these."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvdiag.analysis.report.tables import Data, Row


@dataclass(frozen=True)
class Table:
    """Text as shown: the first `left` columns are names, the others numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@dataclass(frozen=True)
class Panel:
    """A figure: its file's stem, title, alt text, what draws it, and the numbers behind it."""

    name: str
    title: str
    alt: str
    draw: Callable[[], Any]
    table: Table
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """A part of the report. empty: why there is nothing to show, None where there is.

    table: one of its own; folded: the words it hides behind, None where it stands open. terms: words explained.
    """

    key: str
    title: str
    read: str
    empty: str | None = None
    notes: tuple[str, ...] = ()
    panels: tuple[Panel, ...] = ()
    table: Table | None = None
    folded: str | None = None
    terms: tuple[tuple[str, str], ...] = ()


def percent(value: float | None) -> str:
    """A share as text, - where there is none."""
    return "-" if value is None else f"{value:.1%}"


def of(part: int, whole: int) -> str:
    """`12/345`: a number with its denominator."""
    return f"{part}/{whole}"


def span(low: float | None, high: float | None, form: str) -> str:
    """An interval as text, - where there is none."""
    return "-" if low is None or high is None else f"{low:{form}} to {high:{form}}"


def plural(n: int, word: str, words: str | None = None) -> str:
    """`1 cell`, `2 cells`, `2,000 cells`."""
    return f"{n:,} {word if n == 1 else words or word + 's'}"


def short_protocol(protocol: str) -> str:
    """query_aware as the page says it."""
    return protocol.removeprefix("query_").replace("_", " ")


def groups(rows: Sequence[Row], *keys: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows by some of their columns, in order of appearance."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[k] for k in keys), []).append(row)
    return found


def stem(*parts: str) -> str:
    """A file name from parts: what is no letter, digit, dot or dash becomes an underscore."""
    text = "-".join(parts)
    return "".join(c if c.isascii() and (c.isalnum() or c in "-.") else "_" for c in text)[:120]


def heading(parts: Sequence[str], model: str, models: Sequence[str]) -> str:
    """A panel's title; the model is said where a ledger has several."""
    return ", ".join([*parts, *([model] if len(models) > 1 else [])])


def no_findings(data: Data) -> list[str]:
    """A note where cells take part that are no finding."""
    n = sum(r["no_finding"] is not None for r in data.rates)
    return [f"{plural(n, 'cell')} called degenerate by the data-quality rules take part."] if n else []
