"""Haystacks: noise lines, needle lines and prose, with needles put into them."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path

from kvdiag.workloads.ruler.draft import Context, Writer
from kvdiag.workloads.ruler.ingredients import Ingredients, prose, read_haystack

NOISE_LINE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

_END = re.compile(r"[.!?…][\"'”’)\]»]*$")
_OPENERS = "\"'“‘(["
_ABBREVIATIONS = frozenset({"mr", "mrs", "ms", "dr", "st", "prof", "rev", "hon", "gen", "col", "capt", "vs", "cf"})


@dataclass(frozen=True)
class Needle:
    """A line to be hidden. depth: place in the haystack, in [0, 1)."""

    depth: float
    line: str
    asked: bool


def _ends_sentence(word: str, following: str) -> bool:
    """Whether a sentence ends with `word`: it is closed, and what follows could start one."""
    if not _END.search(word):
        return False
    bare = word.strip(_OPENERS + ".")
    if word.endswith(".") and (bare.lower() in _ABBREVIATIONS or re.fullmatch(r"[A-Z](\.[A-Z])*", bare)):
        return False  # a title, or initials
    start = following.lstrip(_OPENERS)[:1]
    return start.isupper() or start.isdigit()


def split_sentences(text: str) -> list[str]:
    """Sentences of a text, white space squeezed; a blank line ends a sentence too."""
    sentences = []
    for paragraph in re.split(r"\n\s*\n", text):
        found = paragraph.split()
        start = 0
        for i, word in enumerate(found, 1):
            if i == len(found) or _ends_sentence(word, found[i]):
                sentences.append(" ".join(found[start:i]))
                start = i
    return sentences


@dataclass(frozen=True)
class Text:
    """A text in sentences, from which any number of words can be taken; it starts again when it is too short."""

    sentences: tuple[str, ...]

    @cached_property
    def _counts(self) -> list[int]:
        """Words up to the end of each sentence."""
        return list(accumulate(len(s.split()) for s in self.sentences))

    @cached_property
    def lower(self) -> str:
        """The whole text in lower case, to look for strings that must not be in it."""
        return " ".join(self.sentences).lower()

    @cached_property
    def long_words(self) -> list[str]:
        """The 200 longest words."""
        return sorted({w for s in self.sentences for w in s.split()}, key=lambda w: (-len(w.encode()), w))[:200]

    def take(self, n: int) -> tuple[list[str], str]:
        """The first n words: whole sentences, and the begun one (may be empty)."""
        rounds, rest = divmod(n, self._counts[-1])
        whole = bisect_right(self._counts, rest)
        left = rest - (self._counts[whole - 1] if whole else 0)
        tail = " ".join(self.sentences[whole].split()[:left]) if left else ""
        return [*self.sentences * rounds, *self.sentences[:whole]], tail


@cache
def _prose() -> Text:
    return Text(tuple(split_sentences(prose())))


@cache
def _file(path: str, _stamp: tuple[int, int]) -> Text:
    return Text(tuple(split_sentences(read_haystack(path))))


def load_text(haystack: str | Path) -> Text:
    """The prose, or the text of a file. Raises UsageError naming --haystack."""
    if haystack in ("published", "prose"):
        return _prose()
    try:
        stat = Path(haystack).stat()
        stamp = (stat.st_mtime_ns, stat.st_size)
    except OSError:
        stamp = (0, 0)
    return _file(str(haystack), stamp)


def essay_text(ingredients: Ingredients) -> Text | None:
    """What stands for RULER's essays; None is noise."""
    return None if ingredients.haystack == "noise" else load_text(ingredients.haystack)


def _by_place(needles: Iterable[Needle], gaps: int) -> dict[int, list[Needle]]:
    at: dict[int, list[Needle]] = {}
    for needle in needles:
        at.setdefault(int(needle.depth * gaps), []).append(needle)
    return at


def in_lines(intro: str, needles: Sequence[Needle], line: Callable[[int], str], distract: bool, n: int) -> Context:
    """n lines with the needles between them. distract: the lines themselves are distractors."""
    writer, at, first = Writer(intro), _by_place(needles, n + 1), True

    def add(text: str, put: Callable[[str], None]) -> None:
        nonlocal first
        if not first:
            writer.add("\n")
        put(text)
        first = False

    for i in range(n + 1):
        for needle in at.get(i, []):
            add(needle.line, writer.add_evidence if needle.asked else writer.add_distractor)
        if i < n:
            add(line(i), writer.add_distractor if distract else writer.add)
    return writer.context()


def in_prose(intro: str, needles: Sequence[Needle], text: Text, n: int) -> Context:
    """n words of a text with the needles between its sentences; the last sentence may be cut, as RULER cuts it."""
    sentences, tail = text.take(n)
    writer, at = Writer(intro), _by_place(needles, len(sentences) + 1)
    space = ""
    for i in range(len(sentences) + 1):
        for needle in at.get(i, []):
            writer.add(space)
            (writer.add_evidence if needle.asked else writer.add_distractor)(needle.line)
            space = " "
        if i < len(sentences):
            writer.add(space + sentences[i])
            space = " "
    if tail:
        writer.add(space + tail)
    return writer.context()
