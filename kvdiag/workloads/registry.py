"""Names of workloads, and what each is made of."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvdiag.errors import UsageError, near_matches
from kvdiag.workloads import ruler, scoring
from kvdiag.workloads.base import Source


@dataclass(frozen=True)
class Workload:
    """A workload at a length: `id` names it in records and splits."""

    id: str
    family: str
    length: int
    tasks: tuple[str, ...]

    def select_tasks(self, wanted: Sequence[str] | None) -> tuple[str, ...]:
        """The tasks asked for, all when none are named."""
        if not wanted:
            return self.tasks
        for task in wanted:
            if task not in self.tasks:
                raise UsageError(f"--tasks {task}: no such task; {near_matches(task, list(self.tasks))}")
        return tuple(t for t in self.tasks if t in wanted)

    def sources(
        self,
        tasks: Sequence[str],
        limit: int,
        seed: int,
        count_tokens: ruler.TokenCounter,
        max_new_tokens: int | None = None,
    ) -> Iterator[Source]:
        """`limit` sources in all, shared evenly among the tasks (the first ones take the rest)."""
        counts = {t: limit // len(tasks) + (i < limit % len(tasks)) for i, t in enumerate(tasks)}
        return ruler.generate(self.id, self.length, counts, seed, count_tokens, max_new_tokens)


@dataclass(frozen=True)
class Family:
    """A kind of workload, for `kvdiag workloads`."""

    name: str
    ids: str
    tasks: tuple[str, ...]
    source: str
    licence: str
    summary: str


FAMILIES = {
    "ruler": Family(
        "ruler",
        "ruler_1k, ruler_4k, ruler_8k … any length (ruler_<n>k, ruler_<tokens>)",
        tuple(ruler.TASKS),
        "https://github.com/NVIDIA/RULER (task shapes), generated here",
        "Apache-2.0",
        "Synthetic retrieval and variable tracing, with needle and chain spans as evidence.",
    )
}


def _ruler_id(length: int) -> str:
    return f"ruler_{length // 1024}k" if length % 1024 == 0 else f"ruler_{length}"


def get(name: str, length: int | None = None) -> Workload:
    """The workload a user named: `ruler_4k`, or `ruler` with a length.

    Raises UsageError for an unknown name (with near matches), a missing or a contradictory length.
    """
    match = re.fullmatch(r"(ruler)(?:_(\d+)(k?))?", name)
    if not match:
        known = ["ruler", "ruler_1k", "ruler_2k", "ruler_4k", "ruler_8k", "ruler_16k"]
        raise UsageError(f"--workload {name}: no such workload; {near_matches(name, known)}")
    family, digits, kilo = match.groups()
    named = int(digits) * (1024 if kilo else 1) if digits else None
    if named is not None and length is not None and named != length:
        raise UsageError(f"--length {length} contradicts --workload {name} ({named}); give one of them")
    tokens = named or length
    if not tokens or tokens < 1:
        raise UsageError(f"--workload {name} needs a length: --length 4096, or --workload {name}_4k")
    return Workload(_ruler_id(tokens), family, tokens, tuple(ruler.TASKS))


Scorer = Callable[[str, Sequence[str]], float]
Judge = Callable[[str, Sequence[str]], bool]

SCORES: dict[str, tuple[Scorer, Judge]] = {"ruler": (scoring.string_match_all, scoring.all_words_present)}


def judge(source: Source, output: str) -> tuple[float, bool]:
    """The official score of an output, and whether it counts as correct."""
    score, correct = SCORES[source.workload.split("_", maxsplit=1)[0]]
    return score(output, source.references), correct(output, source.references)
