"""Numbers in text, by value."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

_NAMES = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|"
    "seventeen|eighteen|nineteen|twenty"
)
_VALUES = {name: Decimal(value) for value, name in enumerate(_NAMES.split("|"))}
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_RUN = re.compile(r"(?<!\w)(?:\d[\d,.]*|\.\d+)")
_WORD = re.compile(rf"(?<![\w-])(?:{_NAMES})(?![\w-])", re.IGNORECASE)
_PLAIN = re.compile(r"\d*(?:\.\d+)?")
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_BEFORE = re.compile(r"(?:(?<![\w)%])(?P<sign>[-−+]))?(?:(?P<mark>[$€£¥]) ?(?P<inner>[-−+])?)?\Z")
_AFTER = re.compile(
    rf"(?:[ -](?P<scale>{'|'.join(_SCALES)})(?!\w))?(?:\s?(?P<percent>%|per ?cent(?!\w)))?(?P<mark>\s?[€£¥])?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Number:
    """A value, its mark ("%", a currency sign) if any, and where it stands."""

    value: Decimal
    mark: str | None
    start: int
    end: int

    def agrees(self, other: "Number") -> bool:
        """Equal values; marks must be equal where both have one."""
        return self.value == other.value and (not self.mark or not other.mark or self.mark == other.mark)


def _parts(run: re.Match[str], text: str) -> Iterator[tuple[Decimal, int, int]]:
    """The numbers of a run of digits, commas and dots: one, or several parted by commas ("4,5")."""
    core, start = run[0].rstrip(".,"), run.start()
    if text[start + len(core) : start + len(core) + 1].isalnum():
        return  # 12th, 5k, 3x and 10² are words
    pieces = [core.replace(",", "")] if _THOUSANDS.fullmatch(core) else core.split(",")
    if len(pieces) == 1:
        if _PLAIN.fullmatch(pieces[0]):
            yield Decimal(pieces[0]), start, start + len(core)
        return
    for piece in pieces:
        if piece and _PLAIN.fullmatch(piece):
            yield Decimal(piece), start, start + len(piece)
        start += len(piece) + 1


def _dress(text: str, value: Decimal, start: int, end: int) -> Number:
    """The number with the sign, scale and mark around it."""
    before = _BEFORE.search(text[max(0, start - 6) : start])  # long enough to see what is before the sign
    after = _AFTER.match(text, end)
    assert before and after  # both match the empty text
    if after["scale"]:
        value = value.scaleb(_SCALES[after["scale"].lower()])
    if (before["sign"] or before["inner"] or "+") != "+":
        value = value.copy_negate()
    mark = "%" if after["percent"] else before["mark"] or (after["mark"] or "").strip() or None
    return Number(value, mark, start - len(before[0]), after.end())


def numbers_in(text: str) -> list[Number]:
    """Numbers of a text in order: digits with commas, decimals, sign, currency or percent mark; zero to twenty.

    A number that touches a letter (12th, 5k) or has two dots (3.1.2) is none; "5 million" is 5000000.
    """
    found = [part for run in _RUN.finditer(text) for part in _parts(run, text)]
    found += [(_VALUES[m[0].lower()], m.start(), m.end()) for m in _WORD.finditer(text)]
    return [_dress(text, *part) for part in sorted(found, key=lambda part: part[1])]


def whole_number(text: str) -> Number | None:
    """The number a text consists of (a final full stop aside), or None. Number words: one word only."""
    text = text.strip().removesuffix(".").rstrip()
    found = numbers_in(text)
    return found[0] if len(found) == 1 and (found[0].start, found[0].end) == (0, len(text)) else None
