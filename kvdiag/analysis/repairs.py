"""What a repair trial found: repaired, sham, harmed, each with an exact interval."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scipy.stats import binomtest


@dataclass(frozen=True)
class Share:
    """k of n, with the exact (Clopper-Pearson) 95 % interval; no interval of nothing."""

    k: int
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """Ends of the interval, None when n is 0."""
        if not self.n:
            return None
        found = binomtest(self.k, self.n).proportion_ci(method="exact")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        if self.interval is None:
            return "0/0"
        low, high = self.interval
        return f"{self.k}/{self.n} ({self.k / self.n:.1%}, 95 % {low:.1%} to {high:.1%})"


@dataclass(frozen=True)
class Verdict:
    """At one bias: repaired and sham among reproducible targets, harmed among reproducible successes.

    sham counts every draw of every target; draws of one target are not independent, so its interval is too narrow
    where draws > 1.
    """

    bias: float
    repaired: Share
    sham: Share
    harmed: Share
    sham_harmed: Share


def verdicts(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Share], list[Verdict]]:
    """Reproducibility of targets and successes, and a verdict for each bias. rows: of the `repairs` table."""
    known = [r for r in rows if r["status"] == "available"]
    again = {(r["run_id"], r["kind"]): r["correct"] for r in known if r["arm"] == "none"}
    reproducible = {key for key, correct in again.items() if correct == (key[1] == "success")}
    counts = {
        kind: Share(sum(k[1] == kind for k in reproducible), sum(k[1] == kind for k in again))
        for kind in ("target", "success")
    }

    def share(kind: str, arm: str, bias: float, right: bool) -> Share:
        tried = [
            r["correct"]
            for r in known
            if (r["run_id"], r["kind"]) in reproducible and (r["kind"], r["arm"], r["bias"]) == (kind, arm, bias)
        ]
        return Share(sum(c == right for c in tried), len(tried))

    biases = sorted({r["bias"] for r in known if r["arm"] != "none"})
    return counts, [
        Verdict(
            bias,
            repaired=share("target", "evidence", bias, True),
            sham=share("target", "sham", bias, True),
            harmed=share("success", "evidence", bias, False),
            sham_harmed=share("success", "sham", bias, False),
        )
        for bias in biases
    ]
