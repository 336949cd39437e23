"""What every task yields before its text has a size."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from kvdiag.workloads.base import Source, Span
from kvdiag.workloads.ruler.ingredients import Ingredients

# Prompt tokens of a Source under a model's tokenizer and template.
TokenCounter = Callable[[Source], int]


@dataclass(frozen=True)
class Request:
    """Which source is wanted. `length` is in tokens and counts prompt and new tokens."""

    workload: str
    task: str
    index: int
    seed: int
    length: int
    max_new_tokens: int
    ingredients: Ingredients

    def rng(self, *parts: object) -> random.Random:
        """The source's own generator, the same in any process; parts name a second one."""
        return random.Random("/".join(str(p) for p in (self.seed, self.task, self.index, *parts)))


@dataclass(frozen=True)
class Context:
    """A text with the places of what is asked and of what distracts."""

    text: str
    evidence: tuple[Span, ...]
    distractors: tuple[Span, ...]


class Writer:
    """Puts a context together and keeps the places of its pieces."""

    def __init__(self, start: str = "") -> None:
        self._pieces = [start]
        self._length = len(start)
        self._evidence: list[Span] = []
        self._distractors: list[Span] = []

    def add(self, text: str) -> None:
        """Text that is neither asked nor distracts."""
        self._pieces.append(text)
        self._length += len(text)

    def add_evidence(self, text: str) -> None:
        """Text that holds what is asked."""
        self._evidence.append((self._length, self._length + len(text)))
        self.add(text)

    def add_distractor(self, text: str) -> None:
        """Text that looks like evidence and is not."""
        self._distractors.append((self._length, self._length + len(text)))
        self.add(text)

    def context(self) -> Context:
        """What was written."""
        return Context("".join(self._pieces), tuple(self._evidence), tuple(self._distractors))


class Measure(Protocol):
    """Tokens of contexts and of pieces of text, each piece counted once."""

    def used(self, draft: "Draft", context: Context) -> int:
        """Prompt tokens and new tokens of a draft with this context."""

    def piece(self, text: str) -> int:
        """Tokens of a piece of text that stands on lines of its own."""


@dataclass(frozen=True)
class Draft:
    """A task instance before its context has a size: how to ask, and how to write a context of n units.

    render: the context with n units (noise lines, words, list words …); it must not shrink when n grows.
    least, most: fewest units that make sense, and how many there are (None: any number).
    fill: makes the context for a number of tokens itself, where units are unlike (documents).
    """

    question: str
    answer_prefix: str
    references: tuple[str, ...]
    gold: str
    max_new_tokens: int
    render: Callable[[int], Context]
    least: int = 0
    most: int | None = None
    fill: Callable[["Draft", int, Measure], Context] | None = None
    origin_id: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """A task's settings. unit: what the length is approached by; unit_tokens: the most tokens one takes."""

    name: str
    max_new_tokens: int
    unit: str
    draft: Callable[[Request], Draft]
    unit_tokens: Callable[[Request, Measure], int]


def numbered(words: list[str], separator: str = " ") -> Iterator[tuple[str, str]]:
    """Pairs (what stands before a word, word) of a numbered list."""
    for i, word in enumerate(words, 1):
        yield f"{separator if i > 1 else ''}{i}. ", word
