"""Comparisons over a matrix: which sources count, whether the sides are alike, and all statistics for one draw."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvdiag.analysis.audit import coverage as covered
from kvdiag.analysis.audit.matrix import Column, Matrix
from kvdiag.analysis.audit.statistics import RESAMPLES, Estimate, Interval, bootstrap_means
from kvdiag.analysis.bootstrap import Bools, Floats
from kvdiag.errors import RefusedError
from kvdiag.records.keys import cell_id

INTERVALS = ("percentile", "bca")


@dataclass(frozen=True)
class Options:
    """How an audit is made. interval: the one that tables show. by: what a cell of the wins is, group or task."""

    workload: str | None = None
    resamples: int = RESAMPLES
    seed: int = 0
    interval: str = "percentile"
    allow_incomplete: bool = False
    with_degenerate: bool = False
    by: str = "group"


@dataclass(frozen=True)
class Comparison:
    """Columns over the sources that count for all of them. used: those sources."""

    columns: tuple[int, ...]
    used: Bools
    unequal: bool


@dataclass
class Desk:
    """A matrix, what of it is no finding, and the statistics asked for so far."""

    matrix: Matrix
    options: Options
    sums: list[Floats] = field(default_factory=list)
    sizes: list[Floats] = field(default_factory=list)

    def __post_init__(self) -> None:
        m, keep = self.matrix, self.options.with_degenerate
        self.left_out: Bools = np.zeros_like(m.degenerate) if keep else m.degenerate
        self.place = {c: i for i, c in enumerate(m.columns)}
        self.available = m.available
        # Columns that have, or should have, scores that are findings.
        self.can_run: Bools = np.asarray(((self.available & ~self.left_out) | m.holes).any(axis=0))

    def column(self, model: str, method: str, setting: str, protocol: str) -> int | None:
        """Place of a planned cell, None where it is not planned."""
        return self.place.get(Column(model, method, setting, protocol))

    def compare(self, *columns: int) -> Comparison:
        """Columns over their common sources. A source that is degenerate in one of them is left out of all."""
        fit = ~np.any(self.left_out[:, columns], axis=1)
        there = self.available[:, columns]
        both = np.asarray(there.all(axis=1) & fit)
        # A side that cannot run at all leaves nothing to compare, and nothing to refuse.
        unequal = bool(self.can_run[list(columns)].all() and (there.any(axis=1) & fit & ~both).any())
        return Comparison(columns, both, unequal)

    def coverage(self, comparison: Comparison, only: Bools | None = None) -> covered.Coverage:
        """What a comparison rests on."""
        return covered.of_comparison(self.matrix, comparison.columns, self.left_out, only)

    def planned(self, columns: Sequence[int]) -> int:
        """Sources that were planned for all of these columns."""
        return int(self.matrix.planned[:, list(columns)].all(axis=1).sum())

    def gap(self, first: int, second: int, used: Bools) -> Floats:
        """First less second by source; 0 where it does not count."""
        return np.where(used, self.matrix.scores[:, first] - self.matrix.scores[:, second], 0.0)

    def mean(self, column: int, used: Bools) -> float | None:
        """Mean score over the sources used."""
        return float(self.matrix.scores[used, column].mean()) if used.any() else None

    def ask(self, sums: Floats, sizes: Floats) -> int:
        """Ask for a mean with intervals; returns its place in the answers."""
        self.sums.append(sums)
        self.sizes.append(sizes)
        return len(self.sums) - 1

    def answers(self) -> list[Estimate]:
        """All means asked for, on the same replicates."""
        if not self.sums:
            return []
        sums, sizes = np.stack(self.sums, axis=1), np.stack(self.sizes, axis=1)
        return bootstrap_means(sums, sizes, self.matrix.strata, self.options.resamples, self.options.seed)

    def shown(self, estimate: Estimate) -> dict[str, Any]:
        """Intervals of an estimate as JSON has them; low and high are those of the chosen kind."""
        chosen: Interval | None = getattr(estimate, self.options.interval)
        low, high = chosen or (None, None)
        return {
            "low": low,
            "high": high,
            "percentile": estimate.percentile,
            "bca": estimate.bca,
            "interval_note": estimate.why,
            "n": estimate.n,
            "n_sources": estimate.n_sources,
        }

    def unequal(self, comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
        """Comparisons whose sides answered different sources."""
        return [self._described(c) for c in comparisons if c.unequal]

    def refuse_unequal(self, comparisons: Sequence[Comparison]) -> None:
        """Raise RefusedError for comparisons over unequal sources, unless they are allowed."""
        found = [c for c in comparisons if c.unequal]
        if not found or self.options.allow_incomplete:
            return
        first = self._described(found[0])
        counts = ", ".join(f"{cell} {n}" for cell, n in first["answered"].items())
        raise RefusedError(
            f"{len(found)} of {len(comparisons)} comparisons have sides with different sources; the first "
            f"({first['model']}) has answers of {first['n_planned']} sources: {counts}; "
            f"{self.coverage(found[0]).label}; kvdiag audit coverage names what is missing, "
            "--allow-incomplete compares the sources that all sides answered"
        )

    def _described(self, comparison: Comparison) -> dict[str, Any]:
        own = [self.matrix.columns[i] for i in comparison.columns]
        cells = [cell_id(c.method, c.setting, c.protocol) for c in own]
        counts = [int(self.available[:, i].sum()) for i in comparison.columns]
        return {
            "model": own[0].model,
            "answered": dict(zip(cells, counts, strict=True)),
            "n_common": int(comparison.used.sum()),
            "n_planned": self.planned(comparison.columns),
        }
