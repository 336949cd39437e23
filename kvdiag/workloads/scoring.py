"""Scores of answers, and the separate rule for `correct`."""

import re
from collections.abc import Sequence


def clean_output(text: str) -> str:
    """RULER's cleaning before scoring: control characters become newlines, ends are stripped."""
    return re.sub(r"[\x00-\x1f]", "\n", text.strip()).strip()


def string_match_all(output: str, references: Sequence[str]) -> float:
    """RULER's score: share of references that occur in the output, case ignored, no word bounds."""
    text = clean_output(output).lower()
    return sum(ref.lower() in text for ref in references) / len(references)


def contains_word(text: str, word: str) -> bool:
    """Whether `word` occurs in `text` as a whole, case ignored: "12" is not in "3125"."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, flags=re.IGNORECASE) is not None


def all_words_present(output: str, references: Sequence[str]) -> bool:
    """The rule for `correct` in retrieval tasks: every reference occurs as a whole word."""
    text = clean_output(output)
    return all(contains_word(text, ref) for ref in references)
