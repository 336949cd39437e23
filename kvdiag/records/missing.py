"""Missing values: a value, a status and a reason, never one without the others (design, section 6)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

AVAILABLE = "available"
# Worst first: a pair takes the status of its worse side.
PRECEDENCE = ("failed", "unsupported", "not_measured", "not_applicable", AVAILABLE)


@dataclass(frozen=True)
class Value:
    """A finite number (or boolean) with status `available`, or null with a worse status and a reason code."""

    value: float | bool | None
    status: str
    reason: str | None

    def __post_init__(self) -> None:
        if self.status not in PRECEDENCE:
            raise ValueError(f"unknown status {self.status!r}")
        present = self.status == AVAILABLE
        if (self.value is not None) != present or (self.reason is None) != present:
            raise ValueError(f"value, status and reason disagree: {self}")
        if present and not math.isfinite(self.value):  # type: ignore[arg-type]
            raise ValueError("an available value must be finite; use measured()")

    @property
    def available(self) -> bool:
        """Whether there is a value."""
        return self.status == AVAILABLE

    def columns(self, name: str) -> dict[str, Any]:
        """The three flat columns of a metric."""
        return {name: self.value, f"{name}__status": self.status, f"{name}__reason": self.reason}


def measured(value: float | bool | None) -> Value:
    """A measurement; one that is not finite becomes `failed: nonfinite`."""
    if value is None or not math.isfinite(value):
        return Value(None, "failed", "nonfinite")
    return Value(value if isinstance(value, bool) else float(value), AVAILABLE, None)


def missing(status: str, reason: str) -> Value:
    """A value that is not there, and why."""
    return Value(None, status, reason)


def pair(control: Value, run: Value, combine: Callable[[float, float], float]) -> Value:
    """A value of two sides: available when both are, else the worse status, its reason prefixed by the side.

    Both sides equally bad for the same reason give `both:<reason>`; for two reasons at the same status the
    control's is named, since a run cannot be paired without it.
    """
    if control.available and run.available:
        return measured(combine(float(control.value), float(run.value)))  # type: ignore[arg-type]
    worst_control, worst_run = PRECEDENCE.index(control.status), PRECEDENCE.index(run.status)
    if worst_control == worst_run and control.reason == run.reason:
        return Value(None, control.status, f"both:{control.reason}")
    if worst_control <= worst_run:
        return Value(None, control.status, f"control:{control.reason}")
    return Value(None, run.status, f"run:{run.reason}")


def unmeasured(status: str, reason: str) -> Value:
    """A metric over spans that are not there. Spans may also be `unmapped`, which no metric is."""
    if status == "unmapped":
        status, reason = "not_measured", f"unmapped:{reason}"
    return Value(None, status, reason)
