"""Settings: the strength of a method, written `keep=0.5` or `bits=4`."""

import re
from dataclasses import dataclass
from decimal import Decimal

from kvdiag.errors import UsageError


@dataclass(frozen=True, order=True)
class Setting:
    """`kind` is what is turned ("keep": share of the cache kept, "bits": bits a number), `value` how far."""

    kind: str
    value: float

    def __str__(self) -> str:
        # In full and without an exponent, so that it reads back as the same setting.
        text = f"{Decimal(str(self.value)):f}"
        return f"{self.kind}={text.removesuffix('.0')}"

    @property
    def keep(self) -> float | None:
        """Nominal share of the cache kept, where that is what the setting says."""
        return self.value if self.kind == "keep" else None


KINDS = ("keep", "bits")


def parse_setting(text: str) -> Setting:
    """A setting from `keep=0.5` or `bits=4`. Raises UsageError with the form it must have."""
    match = re.fullmatch(r"\s*([a-z_]+)\s*=\s*([0-9.]+)\s*", text)
    if not match or match.group(1) not in KINDS:
        raise UsageError(f"--settings {text}: must look like keep=0.5 or bits=4")
    kind = match.group(1)
    try:
        value = float(match.group(2))
    except ValueError:
        raise UsageError(f"--settings {text}: {match.group(2)} is not a number") from None
    if kind == "keep" and not 0 < value < 1:
        raise UsageError(f"--settings {text}: keep must lie between 0 and 1 (the control keeps all)")
    if kind == "bits" and value not in (1, 2, 3, 4, 8):
        raise UsageError(f"--settings {text}: bits must be 1, 2, 3, 4 or 8")
    return Setting(kind, value)
