"""Do two attention backends give the same uncompressed answers? Only then may methods under them be compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvdiag.analysis.paired import differences

MARGIN = 0.02
LEVEL = 0.95
FEWEST = 5


@dataclass(frozen=True)
class Answers:
    """One backend's answers on sources in the same order. correct: None where a task has no right answer."""

    backend: str
    outputs: Sequence[str]
    scores: Sequence[float]
    correct: Sequence[bool | None]


def unseen_rate(n: int, level: float = LEVEL) -> float:
    """The largest rate at which an event that was not seen on n sources may still happen (exact binomial)."""
    return 1.0 if n == 0 else 1 - (1 - level) ** (1 / n)


def drift(
    reference: Answers,
    other: Answers,
    tasks: Sequence[str],
    margin: float = MARGIN,
    resamples: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Score shift of a backend against another on the same sources, flips, and a verdict.

    Tasks of fewer than FEWEST sources cannot vary within themselves: sources are then drawn from all at once.
    Verdict: `differs` when the interval of the shift leaves 0; `same` when shift and interval lie within +-margin
    and, where no score moved, an unseen flip is rarer than margin; else `undecided`. The interval is a paired
    bootstrap over sources, stratified by task where tasks have enough.
    """
    a, b = np.asarray(other.scores, float), np.asarray(reference.scores, float)
    names = {task: i for i, task in enumerate(dict.fromkeys(tasks))}
    groups = np.array([names[t] for t in tasks])
    if len(groups) and np.bincount(groups).min() < FEWEST:
        groups = np.zeros_like(groups)
    (found,) = differences([(a, b)], groups, resamples, seed)
    moved = int((a != b).sum())
    flips = _flips(reference, other)
    return {
        "backend": other.backend,
        "reference": reference.backend,
        "n": len(a),
        "mean": found.a,
        "reference_mean": found.b,
        "shift": found.difference,
        "low": found.low,
        "high": found.high,
        "n_outputs_differ": sum(x != y for x, y in zip(reference.outputs, other.outputs, strict=True)),
        "n_scores_differ": moved,
        **flips,
        "unseen_rate": unseen_rate(len(a)) if not moved else None,
        "margin": margin,
        "verdict": _verdict(found.low, found.high, moved, len(a), margin),
    }


def _flips(reference: Answers, other: Answers) -> Mapping[str, int]:
    pairs = list(zip(reference.correct, other.correct, strict=True))
    return {
        "n_judged": sum(r is not None and o is not None for r, o in pairs),
        "n_right_to_wrong": sum(r is True and o is False for r, o in pairs),
        "n_wrong_to_right": sum(r is False and o is True for r, o in pairs),
    }


def _verdict(low: float | None, high: float | None, moved: int, n: int, margin: float) -> str:
    if low is None or high is None:
        return "undecided"
    if low > 0 or high < 0:
        return "differs"
    if not moved:
        return "same" if unseen_rate(n) <= margin else "undecided"
    return "same" if -margin <= low and high <= margin else "undecided"


def verdict_text(found: Mapping[str, Any]) -> str:
    """The verdict as a sentence."""
    a, b, n = found["backend"], found["reference"], found["n"]
    if found["verdict"] == "differs":
        return f"{a} and {b} DIFFER without any compression: methods run under different ones may not be compared"
    if found["verdict"] == "same":
        return f"{a} and {b} agree within {found['margin']:g}: methods run under different ones may be compared"
    if not found["n_scores_differ"]:
        return (
            f"undecided: no score differs on {n} sources, but up to {found['unseen_rate']:.1%} may; "
            f"more sources are needed for a margin of {found['margin']:g}"
        )
    return f"undecided: the interval holds 0 and passes the margin of {found['margin']:g}; take more sources"
