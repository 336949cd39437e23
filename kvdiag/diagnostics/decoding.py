"""How a decoded answer differs from the control's. Answers are token lists, the stop token included."""

from collections.abc import Sequence


def shared_prefix(control: Sequence[int], run: Sequence[int]) -> int:
    """Number of leading tokens that both answers share."""
    shared = 0
    for a, b in zip(control, run, strict=False):
        if a != b:
            break
        shared += 1
    return shared


def prefix_agreement(control: Sequence[int], run: Sequence[int]) -> float:
    """Share of the control's tokens that the run repeats from the start; 1 for the same answer."""
    return shared_prefix(control, run) / len(control)


def first_divergence(control: Sequence[int], run: Sequence[int]) -> int | None:
    """Position of the first token that differs (or is there in one answer only); None for the same answer."""
    shared = shared_prefix(control, run)
    return None if shared == len(control) == len(run) else shared


def repetition(answer: Sequence[int], n: int = 3) -> float | None:
    """Share of the answer's n-grams that occurred before in it; None for an answer without n-grams."""
    grams = [tuple(answer[i : i + n]) for i in range(len(answer) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None
