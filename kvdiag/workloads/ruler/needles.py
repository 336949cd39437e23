"""Needles in a haystack: the eight retrieval tasks.

Wording and settings: RULER's scripts/data/synthetic/constants.py, niah.py and scripts/synthetic.yaml
(https://github.com/NVIDIA/RULER, Apache-2.0).
"""

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvdiag.workloads.ruler.draft import Context, Draft, Measure, Request
from kvdiag.workloads.ruler.haystack import NOISE_LINE, Needle, Text, essay_text, in_lines, in_prose
from kvdiag.workloads.ruler.ingredients import words

NEEDLE = "One of the special magic {kind} for {key} is: {value}."


@dataclass(frozen=True)
class Niah:
    """Settings of a task. haystack: noise, essay or needle; key: words or uuids; value: numbers or uuids."""

    haystack: str
    n_keys: int = 1
    n_values: int = 1
    n_queries: int = 1
    key: str = "words"
    value: str = "numbers"


def _keys(rng: random.Random, n: int) -> list[str]:
    keys: dict[str, None] = {}
    while len(keys) < n:
        keys[f"{rng.choice(words('adjectives'))}-{rng.choice(words('nouns'))}"] = None
    return list(keys)


def _numbers(rng: random.Random, n: int) -> list[str]:
    return [str(v) for v in rng.sample(range(1_000_000, 10_000_000), n)]


def _uuids(rng: random.Random, n: int) -> list[str]:
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(n)]


_MAKERS: dict[str, Callable[[random.Random, int], list[str]]] = {
    "words": _keys,
    "numbers": _numbers,
    "uuids": _uuids,
}


def depths(rng: random.Random, n: int) -> list[float]:
    """n distinct depths of 40 even steps, as RULER draws them."""
    return [d / 40 for d in rng.sample(range(40), n)]


def _clash(made: list[str], text: Text | None) -> bool:
    """Whether a key or value is part of another, or of the haystack: it would be found there by accident."""
    if len(set(made)) < len(made) or any(a in b for a in made for b in made if a is not b):
        return True
    return text is not None and any(m in text.lower for m in made)


def _draw(rng: random.Random, s: Niah, text: Text | None) -> tuple[list[str], list[str]]:
    """Keys, and the values of the first key, of the second …; drawn again until none clashes."""
    while True:
        keys = _MAKERS[s.key](rng, s.n_keys)
        values = _MAKERS[s.value](rng, s.n_keys * s.n_values)
        if not _clash([*keys, *values], text):
            return keys, values


class _NeedleLines:
    """Endless needle lines of other keys and values; the same ones for any number of them."""

    def __init__(self, rng: random.Random, settings: Niah, taken: list[str]) -> None:
        self._rng, self._settings, self._taken = rng, settings, set(taken)
        self._lines: list[str] = []

    def __call__(self, i: int) -> str:
        s = self._settings
        while len(self._lines) <= i:
            key, value = _MAKERS[s.key](self._rng, 1)[0], _MAKERS[s.value](self._rng, 1)[0]
            if key != value and not {key, value} & self._taken:
                self._taken |= {key, value}
                self._lines.append(NEEDLE.format(kind=s.value, key=key, value=value))
        return self._lines[i]


def _question(s: Niah, asked: list[str]) -> tuple[str, str, str]:
    """Intro, question and answer prefix, in the singular where one value is asked for."""
    query = ", ".join(asked[:-1]) + ", and " + asked[-1] if len(asked) > 1 else asked[0]
    if s.n_queries * s.n_values == 1:
        kind = s.value[:-1]
        intro, ask, verb = f"A special magic {kind} is", "What is", "is"
    else:
        kind = s.value
        intro, ask, verb = f"Some special magic {kind} are", "What are all", "are"
    return (
        f"{intro} hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {kind} afterwards.\n",
        f"\n{ask} the special magic {kind} for {query} mentioned in the provided text?",
        f" The special magic {kind} for {query} mentioned in the provided text {verb}",
    )


def _renderer(
    s: Niah, request: Request, intro: str, needles: list[Needle], made: list[str]
) -> Callable[[int], Context]:
    if s.haystack == "needle":
        return partial(in_lines, intro, needles, _NeedleLines(request.rng("lines"), s, made), True)
    text = essay_text(request.ingredients) if s.haystack == "essay" else None
    if text is None:
        return partial(in_lines, intro, needles, lambda i: NOISE_LINE, False)
    return partial(in_prose, intro, needles, text)


def niah(s: Niah, request: Request) -> Draft:
    """A draft with n_keys x n_values needles, of which n_queries keys are asked."""
    rng = request.rng()
    keys, values = _draw(rng, s, essay_text(request.ingredients) if s.haystack == "essay" else None)
    owners = [key for key in keys for _ in range(s.n_values)]
    indices = [rng.randrange(s.n_keys)] if s.n_queries == 1 else rng.sample(range(s.n_keys), s.n_queries)
    asked = [keys[i] for i in indices]
    places = depths(rng, len(owners))
    if s.n_values > 1:
        places.sort()  # a key's values are listed as they are read
    needles = [
        Needle(depth, NEEDLE.format(kind=s.value, key=key, value=value), key in asked)
        for depth, key, value in zip(places, owners, values, strict=True)
    ]
    references = tuple(v for i in indices for v in values[i * s.n_values : (i + 1) * s.n_values])
    intro, question, answer_prefix = _question(s, asked)
    return Draft(
        question=question,
        answer_prefix=answer_prefix,
        references=references,
        gold=", ".join(references),
        max_new_tokens=request.max_new_tokens,
        render=_renderer(s, request, intro, needles, [*keys, *values]),
    )


def noise_tokens(request: Request, measure: Measure) -> int:
    """Tokens of a noise line."""
    return measure.piece(NOISE_LINE) + 1


def unit_tokens(s: Niah, request: Request, measure: Measure) -> int:
    """Tokens of a noise line, of a long word, or of a long needle line."""
    if s.haystack == "needle":
        lines = _NeedleLines(random.Random("lines"), s, [])
        # Lines beyond the longest of 200 are few, and longer by a few tokens.
        return max(measure.piece(lines(i)) for i in range(200)) + 8
    text = essay_text(request.ingredients) if s.haystack == "essay" else None
    if text is None:
        return noise_tokens(request, measure)
    return max(measure.piece(word) for word in text.long_words) + 1
