"""Numbers and tables as plain text, alike on a terminal and in a file."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a table: the first `left` columns to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return [
        "  ".join(_cell(c, w, i < left) for i, (c, w) in enumerate(zip(r, widths, strict=True))).rstrip()
        for r in (header, *rows)
    ]


def _cell(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left else text.rjust(width)


def number(value: float | None, form: str = ".3f") -> str:
    """A number, - where there is none."""
    return "-" if value is None else format(value, form)


def span(low: float | None, high: float | None, form: str = ".3f") -> str:
    """An interval, - where there is none."""
    return "-" if low is None or high is None else f"{low:{form}} to {high:{form}}"


def gaps(missing: Sequence[dict[str, object]]) -> str:
    """Why values are missing, with counts: `3 failed (oom), 2 unsupported (bits_not_offered)`."""
    return ", ".join(f"{m['n']} {m['status']}" + (f" ({m['reason']})" if m["reason"] else "") for m in missing)
