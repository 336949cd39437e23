"""Names of workloads, and what each is made of."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvdiag.errors import UsageError, near_matches
from kvdiag.records.keys import content_hash
from kvdiag.workloads import hotpotqa, longbench, qasper, ruler
from kvdiag.workloads.base import Source


@dataclass(frozen=True)
class Family:
    """A kind of workload, for `kvdiag workloads`. default_tasks: those that need nothing to be fetched or named.

    publish_texts: whether the licences allow its texts in a data set of ours; else only ids, hashes and numbers.
    """

    name: str
    ids: str
    tasks: tuple[str, ...]
    default_tasks: tuple[str, ...]
    source: str
    licence: str
    summary: str
    publish_texts: bool


FAMILIES = {
    "ruler": Family(
        "ruler",
        "ruler_1k, ruler_4k, ruler_8k … any length (ruler_<n>k, ruler_<tokens>)",
        tuple(ruler.TASKS),
        ruler.SELF_CONTAINED,
        "https://github.com/NVIDIA/RULER (task shapes), generated here",
        "Apache-2.0",
        "Synthetic retrieval, tracing, counting and questions at any length.",
        True,
    ),
    "qasper": Family(
        "qasper",
        "qasper",
        qasper.TASKS,
        qasper.TASKS,
        "https://huggingface.co/datasets/allenai/qasper",
        "CC-BY-4.0",
        "Questions on whole research papers, with the annotators' evidence paragraphs.",
        True,
    ),
    "hotpotqa": Family(
        "hotpotqa",
        "hotpotqa",
        hotpotqa.TASKS,
        hotpotqa.TASKS,
        "https://huggingface.co/datasets/hotpotqa/hotpot_qa (distractor)",
        "CC-BY-SA-4.0",
        "Two-hop questions on ten paragraphs, with the supporting sentences.",
        True,
    ),
    "longbench": Family(
        "longbench",
        "longbench",
        longbench.TASKS,
        longbench.TASKS,
        "https://huggingface.co/datasets/zai-org/LongBench",
        "each task its own (docs/workloads.md)",
        "The 16 English tasks with their own prompts, stop rules and metrics.",
        False,
    ),
}

# Modules that offer TASKS, load(workload, paths, tasks) -> sources, and default_files(tasks) -> paths.
_LOADERS: dict[str, Any] = {"qasper": qasper, "hotpotqa": hotpotqa, "longbench": longbench}


def family_of(workload: str) -> Family:
    """The family of a workload id (`ruler_8k`). Raises KeyError for an id of nobody's."""
    return FAMILIES[workload if workload in FAMILIES else workload.split("_", maxsplit=1)[0]]


@dataclass(frozen=True)
class Workload:
    """A workload, at a length where it has one: `id` names it in records and splits."""

    id: str
    family: str
    length: int | None
    tasks: tuple[str, ...]
    default_tasks: tuple[str, ...]

    def select_tasks(self, wanted: Sequence[str] | None) -> tuple[str, ...]:
        """The tasks asked for; those that need no file of the user's when none are named, every one for `all`."""
        if not wanted:
            return self.default_tasks
        if list(wanted) == ["all"]:
            return self.tasks
        for task in wanted:
            if task not in self.tasks:
                raise UsageError(f"--tasks {task}: no such task; {near_matches(task, list(self.tasks))}")
        return tuple(t for t in self.tasks if t in wanted)

    def sources(
        self,
        tasks: Sequence[str],
        limit: int | None,
        seed: int,
        count_tokens: ruler.TokenCounter,
        max_new_tokens: int | None = None,
        files: Sequence[str] = (),
        haystack: str = "noise",
    ) -> Iterator[Source]:
        """`limit` sources in all, shared evenly among the tasks (the first ones take the rest).

        Of a data set they are drawn by the seed, and more of them hold the fewer; None means all there are.
        files: the user's own, `PATH` or `TASK=PATH`. haystack: of RULER's tasks that have prose.
        """
        if self.family in _LOADERS:
            yield from self._drawn(tasks, limit, seed, max_new_tokens, files)
            return
        assert self.length is not None
        counts = shares(tasks, limit or len(tasks))
        parts = _ingredients(files, haystack)
        yield from ruler.generate(self.id, self.length, counts, seed, count_tokens, max_new_tokens, parts)

    def prepare(self, tasks: Sequence[str], files: Sequence[str], haystack: str) -> None:
        """Find or fetch what the sources are made of. Raises UsageError for what is not there."""
        if self.family in _LOADERS:
            if not files:
                _LOADERS[self.family].default_files(tasks)
            for text in files:
                if not path_of(text).exists():
                    raise UsageError(f"--file {text}: no such file")
        else:
            ruler.prepare(list(tasks), _ingredients(files, haystack))

    def _drawn(
        self, tasks: Sequence[str], limit: int | None, seed: int, max_new_tokens: int | None, files: Sequence[str]
    ) -> Iterator[Source]:
        loader = _LOADERS[self.family]
        found = loader.load(self.id, [path_of(f) for f in files] or loader.default_files(tasks), tasks)
        wanted = None if limit is None else shares(tasks, limit)
        for task in tasks:
            own = [s for s in found if s.task == task]
            for source in own if wanted is None else _draw(own, wanted[task], seed):
                yield source if max_new_tokens is None else replace(source, max_new_tokens=max_new_tokens)


def shortage(tasks: Sequence[str], limit: int, found: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Tasks that gave fewer sources than their share of the limit: (asked for, found). found: a task a source."""
    there = Counter(found)
    return {t: (n, there[t]) for t, n in shares(tasks, limit).items() if there[t] < n}


def shares(tasks: Sequence[str], limit: int) -> dict[str, int]:
    """Sources of each task: evenly, and the first ones take the rest."""
    return {t: limit // len(tasks) + (i < limit % len(tasks)) for i, t in enumerate(tasks)}


def _draw(sources: Sequence[Source], n: int, seed: int) -> list[Source]:
    """n of them in their own order. By hash: a draw of more holds every draw of fewer."""
    ranked = sorted(sources, key=lambda s: content_hash(str(seed), s.source_id, length=64))
    chosen = {s.source_id for s in ranked[:n]}
    return [s for s in sources if s.source_id in chosen]


def path_of(text: str) -> Path:
    """The path of a file given as PATH or TASK=PATH. A path that exists may have = in it."""
    path = Path(text)
    return path if path.exists() or "=" not in text else Path(text.partition("=")[2])


def _ingredients(files: Sequence[str], haystack: str) -> ruler.Ingredients:
    return ruler.Ingredients(haystack=haystack, **_named_files(files, {"qa_1": "squad", "qa_2": "hotpot"}))


def _named_files(files: Sequence[str], parts: dict[str, str]) -> dict[str, Path]:
    """Files given as TASK=PATH, by the name of what they are for."""
    found = {}
    for text in files:
        task, equals, path = text.partition("=")
        if not equals or task not in parts:
            raise UsageError(f"--file {text}: must say for which task: {' or '.join(f'{t}=PATH' for t in parts)}")
        found[parts[task]] = Path(path)
    return found


def _ruler_id(length: int) -> str:
    return f"ruler_{length // 1024}k" if length % 1024 == 0 else f"ruler_{length}"


def get(name: str, length: int | None = None) -> Workload:
    """The workload a user named: `qasper`, `ruler_4k`, or `ruler` with a length.

    Raises UsageError for an unknown name (with near matches), a missing or a contradictory length.
    """
    if name in _LOADERS:
        if length is not None:
            raise UsageError(f"--length {length}: {name} has no length of its own; leave it out")
        family = FAMILIES[name]
        return Workload(name, name, None, family.tasks, family.default_tasks)
    match = re.fullmatch(r"(ruler)(?:_(\d+)(k?))?", name)
    if not match:
        known = ["ruler", "ruler_1k", "ruler_2k", "ruler_4k", "ruler_8k", "ruler_16k", *_LOADERS]
        raise UsageError(f"--workload {name}: no such workload; {near_matches(name, known)}")
    kind, digits, kilo = match.groups()
    named = int(digits) * (1024 if kilo else 1) if digits else None
    if named is not None and length is not None and named != length:
        raise UsageError(f"--length {length} contradicts --workload {name} ({named}); give one of them")
    tokens = named or length
    if not tokens or tokens < 1:
        raise UsageError(f"--workload {name} needs a length: --length 4096, or --workload {name}_4k")
    family = FAMILIES[kind]
    return Workload(_ruler_id(tokens), kind, tokens, family.tasks, family.default_tasks)
