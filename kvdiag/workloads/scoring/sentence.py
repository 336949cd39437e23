"""The first sentence of an output: where short answers are looked for."""

import re

# Skipped before the sentence: blank, markdown marks, list bullets, an "Answer:" label.
_LEAD = re.compile(r"[\s#>*_`~…:]+|[-+•]\s|\.{2,}|(?:the )?(?:final )?answer ?[*_]{0,3} ?:", re.IGNORECASE)
_END = re.compile(r"[\n\r\x0b\x0c\x85\u2028\u2029]|(?<![.!?])[.!?]+[\"'”’)\]*_`]*(?=\s|$)")
_LETTERS = re.compile(r"(?:[^\W\d_]\.-?)*[^\W\d_]")  # J | U.S | e.g | J.-P, the last dot being the mark itself
_ABBREVIATION = re.compile(
    "al|approx|ca|capt|cf|col|dr|etc|eqs?|figs?|gen|gov|jr|lt|mrs?|ms|mt|prof|rep|resp|rev|sec|sen|sgt|sr|st|vol|vs|"
    "jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec",
    re.IGNORECASE,
)
_BEFORE_NUMBERS = ("no", "nos", "pp")


def _is_no_end(text: str, mark: re.Match[str]) -> bool:
    """Whether the full stop belongs to an initial, an abbreviation or a list number."""
    if mark[0] != ".":
        return False
    before, after = text[max(0, mark.start() - 40) : mark.start()], text[mark.end() : mark.end() + 8]
    words = before.split()
    word = words[-1].lstrip("\"'“‘([*_") if words else ""
    if _LETTERS.fullmatch(word) or _ABBREVIATION.fullmatch(word):
        return True
    if word.casefold() in _BEFORE_NUMBERS:
        return re.match(r"\s*\d", after) is not None
    return re.fullmatch(r"\d{1,2}", before) is not None and re.match(r"[ \t]+\S", after) is not None


def first_sentence(output: str) -> str:
    """The output's first sentence, without what leads up to it; empty when there is none."""
    start = 0
    while lead := _LEAD.match(output, start):
        start = lead.end()
    text = output[start:]
    for mark in _END.finditer(text):
        if not _is_no_end(text, mark):
            return text[: mark.end()].strip()
    return text.strip()
