"""How a decoded answer differs from the control's."""

from collections.abc import Sequence


def prefix_agreement(control: Sequence[int], run: Sequence[int]) -> int:
    """Number of leading tokens that both answers share."""
    shared = 0
    for a, b in zip(control, run, strict=False):
        if a != b:
            break
        shared += 1
    return shared
