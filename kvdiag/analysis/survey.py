"""What a workload's sources are like, before anything runs: evidence, anomalies, duplicates, lengths."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvdiag.prompts import PromptBuilder
from kvdiag.workloads.base import Source


@dataclass(frozen=True)
class Measure:
    """A source's prompt in a model's tokens. status, reason: of its evidence, spans mapped to tokens."""

    tokens: int
    needed: int  # prompt and new tokens
    prompt_hash: int
    status: str
    reason: str | None


def measure(source: Source, prompts: PromptBuilder) -> Measure:
    """Tokenize a source as a build would."""
    prompt = prompts.build(source)
    needed = prompt.positions_needed(source.max_new_tokens)
    return Measure(len(prompt.ids), needed, hash(prompt.text), prompt.evidence_status, prompt.evidence_reason)


def survey(
    sources: Sequence[Source], prompts: PromptBuilder, max_positions: int, tasks: Sequence[str] = ()
) -> dict[str, Any]:
    """Counts of a workload's sources: by task and answer type, evidence by status, flags, duplicates, tokens.

    tasks: those that were asked for, of which the data may hold none. over_length: sources whose prompt and new
    tokens pass the model's positions; a build gives them rows `unsupported: over_length`.
    """
    measures = [measure(s, prompts) for s in sources]
    prompts_seen = Counter(m.prompt_hash for m in measures)
    return {
        "n_sources": len(sources),
        "tasks": [
            _task_row(task, [(s, m) for s, m in zip(sources, measures, strict=True) if s.task == task])
            for task in dict.fromkeys([*tasks, *(s.task for s in sources)])
        ],
        "answer_types": _counted(t for s in sources for t in s.answer_types),
        "evidence": _counted((m.status, m.reason) for m in measures),
        "flags": [
            {"flag": flag, "n": n, "example": next(s.source_id for s in sources if flag in s.flags)}
            for flag, n in sorted(Counter(f for s in sources for f in s.flags).items())
        ],
        "n_duplicate_prompts": sum(n - 1 for n in prompts_seen.values()),
        "tokens": lengths([m.tokens for m in measures]),
        "max_positions": max_positions,
        "n_over_length": sum(m.needed > max_positions for m in measures),
    }


def lengths(tokens: Sequence[int]) -> dict[str, int] | None:
    """Least, quartiles and most; None for nothing."""
    if not tokens:
        return None
    cuts = np.percentile(tokens, [0, 25, 50, 75, 100])
    return dict(zip(("min", "p25", "median", "p75", "max"), (round(float(c)) for c in cuts), strict=True))


def _task_row(task: str, found: Sequence[tuple[Source, Measure]]) -> Mapping[str, Any]:
    status = Counter(m.status for _, m in found)
    return {
        "task": task,
        "n": len(found),
        "mapped": status["available"],
        "unmapped": status["unmapped"],
        "none": len(found) - status["available"] - status["unmapped"],
        "references": round(float(np.mean([len(s.references) for s, _ in found])), 2) if found else None,
        "tokens": lengths([m.tokens for _, m in found]),
    }


def _counted(values: Any) -> list[dict[str, Any]]:
    counts = Counter(values)
    rows = []
    for value, n in sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))):
        rows.append({"value": value if isinstance(value, str) else ": ".join(v for v in value if v), "n": n})
    return rows
