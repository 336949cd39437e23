"""RULER's synthetic retrieval and tracing tasks, at any length.

Task shapes, needle wording and settings follow RULER (https://github.com/NVIDIA/RULER, Apache-2.0,
arXiv:2404.06654). Texts are made here: nothing is downloaded. Length counts prompt and new tokens with the
model's own tokenizer and is approached from below, a haystack line at a time.
"""

import random
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from kvdiag.errors import UsageError
from kvdiag.records.keys import source_id
from kvdiag.workloads.base import Source, Span

NOISE_LINE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic numbers for {key} is: {value}."

# Prompt tokens of a Source under a model's tokenizer and template.
TokenCounter = Callable[[Source], int]


@dataclass(frozen=True)
class Draft:
    """A task instance before its haystack has a size: needles by relative depth, and how to ask."""

    intro: str
    needles: tuple[tuple[float, str], ...]  # depth in [0, 1), line
    evidence_lines: frozenset[str]
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    max_new_tokens: int


@cache
def _words(part_of_speech: str) -> tuple[str, ...]:
    from wonderwords import RandomWord

    # The lists hold acronyms and phrases; a key must be one lower-case word.
    words = RandomWord().filter(include_parts_of_speech=[part_of_speech])
    return tuple(sorted({w for w in words if re.fullmatch(r"[a-z]{3,12}", w)}))


def _keys(rng: random.Random, n: int) -> list[str]:
    keys: dict[str, None] = {}
    while len(keys) < n:
        keys[f"{rng.choice(_words('adjectives'))}-{rng.choice(_words('nouns'))}"] = None
    return list(keys)


def _depths(rng: random.Random, n: int) -> list[float]:
    """n distinct depths of 40 even steps, as RULER draws them."""
    return [d / 40 for d in rng.sample(range(40), n)]


def _niah(rng: random.Random, n_keys: int) -> Draft:
    """One asked key with a 7-digit value, and n_keys - 1 other needles that distract."""
    keys = _keys(rng, n_keys)
    values = [str(v) for v in rng.sample(range(1_000_000, 10_000_000), n_keys)]
    lines = [NEEDLE.format(key=k, value=v) for k, v in zip(keys, values, strict=True)]
    asked = rng.randrange(n_keys)
    return Draft(
        intro="A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards.\n",
        needles=tuple(zip(_depths(rng, n_keys), lines, strict=True)),
        evidence_lines=frozenset([lines[asked]]),
        question=f"\nWhat is the special magic number for {keys[asked]} mentioned in the provided text?",
        answer_prefix=f" The special magic number for {keys[asked]} mentioned in the provided text is",
        references=(values[asked],),
        max_new_tokens=128,
    )


def _variables(rng: random.Random, n: int, letters: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < n:
        names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
    return list(names)


def _chain(names: list[str], value: str) -> list[str]:
    first = [f"VAR {names[0]} = {value}"]
    return first + [f"VAR {b} = VAR {a}" for a, b in pairwise(names)]


def _vt_question(value: str) -> str:
    return f"\nQuestion: Find all variables that are assigned the value {value} in the text above."


def _vt_prefix(value: str, n: int) -> str:
    return (
        " Answer: According to the chain(s) of variable assignment in the text above, "
        f"{n} variables are assigned the value {value}, they are:"
    )


_VT_INTRO = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"


def _vt(rng: random.Random, n_hops: int = 4) -> Draft:
    """One chain of n_hops assignments behind a worked example with shorter names."""
    n = n_hops + 1
    names = _variables(rng, n, letters=5)
    value, example_value = (str(v) for v in rng.sample(range(10_000, 100_000), 2))
    example_names = _variables(rng, n, letters=3)
    example = (
        _VT_INTRO
        + "\n".join(f"{NOISE_LINE}\n{line}" for line in _chain(example_names, example_value))
        + _vt_question(example_value)
        + _vt_prefix(example_value, n)
        + " "
        + " ".join(example_names)
        + "\n\n"
    )
    lines = _chain(names, value)
    return Draft(
        intro=example + _VT_INTRO,
        needles=tuple(zip(sorted(_depths(rng, n)), lines, strict=True)),  # a chain reads in order
        evidence_lines=frozenset(lines),
        question=_vt_question(value),
        answer_prefix=_vt_prefix(value, n),
        references=tuple(names),
        max_new_tokens=30,
    )


TASKS: dict[str, Callable[[random.Random], Draft]] = {
    "niah_single_1": lambda rng: _niah(rng, n_keys=1),
    "niah_multikey_1": lambda rng: _niah(rng, n_keys=4),
    "vt": _vt,
}


def _render(draft: Draft, n_lines: int) -> tuple[str, tuple[Span, ...], tuple[Span, ...]]:
    """Context with n_lines of noise, and the spans of evidence and distractor needles."""
    at: dict[int, list[str]] = {}
    for depth, line in draft.needles:
        at.setdefault(int(depth * (n_lines + 1)), []).append(line)
    pieces = [draft.intro]
    evidence: list[Span] = []
    distractors: list[Span] = []
    offset, first = len(draft.intro), True

    def add(line: str) -> Span:
        nonlocal offset, first
        text = line if first else "\n" + line
        start = offset + len(text) - len(line)
        pieces.append(text)
        offset, first = offset + len(text), False
        return start, start + len(line)

    for i in range(n_lines + 1):
        for line in at.get(i, []):
            span = add(line)
            (evidence if line in draft.evidence_lines else distractors).append(span)
        if i < n_lines:
            add(NOISE_LINE)
    return "".join(pieces), tuple(evidence), tuple(distractors)


def _source(draft: Draft, workload: str, task: str, index: int, seed: int, n_lines: int) -> Source:
    context, evidence, distractors = _render(draft, n_lines)
    return Source(
        source_id=source_id(workload, task, str(index), context, draft.question),
        workload=workload,
        task=task,
        index=index,
        seed=seed,
        context=context,
        question=draft.question,
        answer_prefix=draft.answer_prefix,
        gold=" ".join(draft.references),
        references=draft.references,
        max_new_tokens=draft.max_new_tokens,
        evidence=evidence,
        distractors=distractors,
    )


def _fit(build: Callable[[int], Source], length: int, count: TokenCounter, task: str) -> Source:
    """The source with the most noise lines whose prompt and new tokens stay within `length`."""

    def used(n: int) -> int:
        source = build(n)
        return count(source) + source.max_new_tokens

    smallest = used(0)
    if smallest > length:
        raise UsageError(
            f"--length {length}: task {task} needs at least {smallest} tokens with this model's tokenizer"
        )
    per_line = max(1, used(1) - smallest)
    low, high = 0, 2 * (length - smallest) // per_line + 1
    guess = (length - smallest) // per_line
    while low < high:
        middle = guess if low <= guess < high else (low + high + 1) // 2
        middle, guess = max(middle, low + 1), -1
        if used(middle) <= length:
            low = middle
        else:
            high = middle - 1
    return build(low)


def generate(
    workload: str,
    length: int,
    counts: dict[str, int],
    seed: int,
    count_tokens: TokenCounter,
    max_new_tokens: int | None = None,
) -> Iterator[Source]:
    """Sources of each task, the same for the same arguments in any process.

    counts: sources per task. max_new_tokens replaces the published number (and frees its share of `length`).
    Raises UsageError when `length` cannot hold a task, naming the smallest that can.
    """
    from dataclasses import replace

    for task, n in counts.items():
        for index in range(n):
            draft = TASKS[task](random.Random(f"{seed}/{task}/{index}"))
            if max_new_tokens is not None:
                draft = replace(draft, max_new_tokens=max_new_tokens)

            def build(lines: int, draft: Draft = draft, task: str = task, index: int = index) -> Source:
                return _source(draft, workload, task, index, seed, lines)

            yield _fit(build, length, count_tokens, task)
