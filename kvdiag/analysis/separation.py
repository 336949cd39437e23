"""How well each diagnostic tells right answers that turned wrong (C->W) from those that stayed right (C->C).

AUROC within strata (workload x method x setting x protocol x model), weighted by comparable pairs: of all pairs of
a C->W and a C->C row in one stratum, the share in which the C->W row has the higher value; a tie counts one half.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kvdiag.analysis.bootstrap import LEVEL, Bools, Floats, Ints, draws, interval
from kvdiag.query.connection import connect
from kvdiag.query.run import fetch
from kvdiag.records.missing import AVAILABLE, PRECEDENCE

STRATUM = ("workload", "method", "setting", "protocol", "model")
RESAMPLES = 2_000

# -- pure functions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """Rows with a value: that, whether the answer turned wrong, and numbers of its stratum, source and group."""

    values: Floats
    failed: Bools
    strata: Ints
    sources: Ints
    groups: Ints

    def only(self, chosen: Bools) -> "Rows":
        """The rows where `chosen` holds."""
        return Rows(
            self.values[chosen],
            self.failed[chosen],
            self.strata[chosen],
            self.sources[chosen],
            self.groups[chosen],
        )


def comparable(rows: Rows) -> Bools:
    """Whether each row stands in a stratum that has both kinds."""
    if not len(rows.values):
        return np.zeros(0, dtype=bool)
    _, own = np.unique(rows.strata, return_inverse=True)
    n_failed, n_all = np.bincount(own, weights=rows.failed), np.bincount(own)
    return ((n_failed > 0) & (n_failed < n_all))[own]


class Ranking:
    """Rows sorted by stratum and value, to count won pairs under any weights of the rows.

    All strata must have both kinds. Sorting is done once; a replicate of the bootstrap only changes weights.
    """

    def __init__(self, rows: Rows) -> None:
        self.order = np.lexsort((rows.values, rows.strata))
        values, strata = rows.values[self.order], rows.strata[self.order]
        opens = np.r_[True, strata[1:] != strata[:-1]]
        ties = np.flatnonzero(opens | np.r_[True, values[1:] != values[:-1]])
        self.failed = rows.failed[self.order]
        self.starts = np.flatnonzero(opens)
        self.labels = strata[self.starts]
        # Where in the running sum each failed row's stratum begins, and its run of equal values begins and ends.
        mine = np.flatnonzero(self.failed)
        run = np.searchsorted(ties, mine, side="right") - 1
        self._tie_from, self._tie_to = ties[run], np.r_[ties, len(values)][run + 1]
        stratum = np.searchsorted(self.starts, mine, side="right") - 1
        self._from = self.starts[stratum]
        self._failed_starts = np.flatnonzero(np.r_[True, stratum[1:] != stratum[:-1]])

    def won_and_pairs(self, weights: Floats) -> tuple[Floats, Floats]:
        """Won pairs and all pairs by stratum, for weights of the rows (replicates, rows) in their given order."""
        weights = weights[:, self.order]
        stayed = np.where(self.failed, 0.0, weights)
        turned = weights[:, self.failed]
        below = np.zeros((len(weights), weights.shape[1] + 1))
        np.cumsum(stayed, axis=1, out=below[:, 1:])
        beaten = (below[:, self._tie_from] + below[:, self._tie_to]) / 2 - below[:, self._from]
        won = np.add.reduceat(turned * beaten, self._failed_starts, axis=1)
        n_turned = np.add.reduceat(turned, self._failed_starts, axis=1)
        return won, n_turned * np.add.reduceat(stayed, self.starts, axis=1)


def by_stratum(rows: Rows) -> list[dict[str, Any]]:
    """AUROC, pairs and rows of each stratum. All strata must have both kinds."""
    ranking = Ranking(rows)
    won, pairs = (a[0] for a in ranking.won_and_pairs(np.ones((1, len(rows.values)))))
    n_c2w = np.add.reduceat(ranking.failed.astype(np.int64), ranking.starts)
    return [
        {"stratum": int(s), "auroc": float(w / p), "n_pairs": int(p), "n_c2w": int(k), "n_c2c": int(p) // int(k)}
        for s, w, p, k in zip(ranking.labels, won, pairs, n_c2w, strict=True)
    ]


def replicates(rows: Rows, resamples: int, seed: int) -> Floats:
    """Weighted AUROC of each bootstrap replicate; NaN for a replicate that drew no pair."""
    ranking = Ranking(rows)
    _, first, source = np.unique(rows.sources, return_index=True, return_inverse=True)
    found = []
    for counts in draws(rows.groups[first], resamples, seed, width=len(rows.values)):
        won, pairs = (a.sum(axis=1) for a in ranking.won_and_pairs(counts[:, source]))
        found.append(np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0))
    return np.concatenate(found) if found else np.zeros(0)


def separate(rows: Rows, resamples: int = RESAMPLES, seed: int = 0) -> dict[str, Any]:
    """Weighted AUROC with its interval, and what it rests on. `auroc` is None where no stratum has both kinds."""
    used = rows.only(comparable(rows))
    result: dict[str, Any] = {
        "auroc": None,
        "low": None,
        "high": None,
        "n_strata": 0,
        "n_pairs": 0,
        "n_c2w": int(used.failed.sum()),
        "n_c2c": int((~used.failed).sum()),
        "n_sources": len(np.unique(used.sources)),
        "n_resamples": 0,
        "strata": [],
    }
    if not len(used.values):
        return result
    strata = by_stratum(used)
    pairs = sum(s["n_pairs"] for s in strata)
    result |= {
        "auroc": sum(s["auroc"] * s["n_pairs"] for s in strata) / pairs,
        "n_strata": len(strata),
        "n_pairs": pairs,
        "strata": strata,
    }
    if _can_vary(used):
        found = replicates(used, resamples, seed)
        ends = interval(found)
        result["low"], result["high"] = ends or (None, None)
        result["n_resamples"] = int(np.isfinite(found).sum())
    return result


def _can_vary(rows: Rows) -> bool:
    """Whether both kinds come from at least two sources: else replicates repeat the one there is."""
    return all(len(np.unique(rows.sources[kind])) > 1 for kind in (rows.failed, ~rows.failed))


# -- on a ledger -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diagnostic:
    """A diagnostic that is expected to be higher in C->W rows; SQL over runs r and controls c."""

    name: str
    value: str
    status: str
    reason: str


def _lost(metric: str) -> Diagnostic:
    # Ranks of -m are those of 1 - m, without the ties that rounding makes of tiny values.
    return Diagnostic(f"1-{metric}", f"-r.{metric}", f"r.{metric}__status", f"r.{metric}__reason")


def _own(metric: str) -> Diagnostic:
    return Diagnostic(metric, f"r.{metric}", f"r.{metric}__status", f"r.{metric}__reason")


def _eam_loss() -> Diagnostic:
    """The control's mass less the run's. It is no column; a missing side counts as in records.missing.pair."""
    order = "[" + ", ".join(f"'{s}'" for s in PRECEDENCE) + "]"
    control, run = (f"list_position({order}, {side}.eam__status)" for side in "cr")
    reason = (
        f"CASE WHEN {control} = {run} AND c.eam__reason = r.eam__reason THEN 'both:' || r.eam__reason "
        f"WHEN {control} <= {run} THEN 'control:' || c.eam__reason ELSE 'run:' || r.eam__reason END"
    )
    return Diagnostic("eam_loss", "c.eam - r.eam", f"{order}[least({control}, {run})]", reason)


DIAGNOSTICS = (
    _lost("err"),
    _lost("ecov"),
    _own("delta_nll"),
    _lost("gpr"),
    _lost("top50_overlap"),
    _own("kl"),
    _own("gold_rank_shift"),
    _eam_loss(),
    _lost("ear"),
    _lost("prefix_agreement"),
)


def separation(
    ledger: Path, resamples: int = RESAMPLES, seed: int = 0, with_degenerate: bool = False
) -> dict[str, Any]:
    """Separation by each of the ten diagnostics over the C->W and C->C runs of a ledger.

    Rows labelled degenerate are counted, and left out unless with_degenerate.
    """
    table = _read(ledger)
    degenerate = table["degenerate"].to_numpy(zero_copy_only=False).astype(bool)
    failed = table["failed"].to_numpy(zero_copy_only=False).astype(bool)
    if not with_degenerate:
        table, failed = table.filter(pa.array(~degenerate)), failed[~degenerate]
    names = dict(zip(table["stratum"].to_pylist(), _stratum_names(table), strict=True))
    return {
        "level": LEVEL,
        "resamples": resamples,
        "seed": seed,
        "n_c2w": int(failed.sum()),
        "n_c2c": int((~failed).sum()),
        "n_strata": len(names),
        "n_degenerate": int(degenerate.sum()),
        "degenerate_included": with_degenerate,
        "diagnostics": [_of_diagnostic(table, i, names, resamples, seed) for i, _ in enumerate(DIAGNOSTICS)],
    }


def _read(ledger: Path) -> pa.Table:
    columns = [
        f"{d.value} AS value_{i}, {d.status} AS status_{i}, {d.reason} AS reason_{i}"
        for i, d in enumerate(DIAGNOSTICS)
    ]
    keys = ", ".join(f"r.{name}" for name in STRATUM)
    sql = (
        f"SELECT {keys}, dense_rank() OVER (ORDER BY {keys}) AS stratum, "
        "dense_rank() OVER (ORDER BY r.source_id) AS source, dense_rank() OVER (ORDER BY r.workload) AS grp, "
        "r.transition = 'C->W' AS failed, r.degenerate IS NOT NULL AS degenerate, "
        f"{', '.join(columns)} FROM runs r JOIN controls c USING (control_id) "
        "WHERE r.transition IN ('C->W', 'C->C') ORDER BY r.run_id"
    )
    connection = connect(ledger)
    try:
        return fetch(connection, sql)
    finally:
        connection.close()


def _stratum_names(table: pa.Table) -> list[dict[str, Any]]:
    return table.select(list(STRATUM)).to_pylist()


def _of_diagnostic(
    table: pa.Table, index: int, names: dict[int, dict[str, Any]], resamples: int, seed: int
) -> dict[str, Any]:
    statuses = table[f"status_{index}"].to_pylist()
    has_value = np.array([s == AVAILABLE for s in statuses], dtype=bool)
    numbers = {n: table[n].to_numpy(zero_copy_only=False) for n in ("failed", "stratum", "source", "grp")}
    rows = Rows(
        table[f"value_{index}"].to_numpy(zero_copy_only=False).astype(float),
        numbers["failed"].astype(bool),
        numbers["stratum"],
        numbers["source"],
        numbers["grp"],
    ).only(has_value)
    gaps = Counter(zip(statuses, table[f"reason_{index}"].to_pylist(), strict=True))
    result = separate(rows, resamples, seed)
    for stratum in result["strata"]:
        stratum |= names[stratum.pop("stratum")]
    n_c2w, n_c2c = int(rows.failed.sum()), int((~rows.failed).sum())
    return {
        "diagnostic": DIAGNOSTICS[index].name,
        **result,
        "n_available": n_c2w + n_c2c,
        "n_eligible": len(statuses) - sum(n for (s, _), n in gaps.items() if s == "not_applicable"),
        "n_available_c2w": n_c2w,
        "n_available_c2c": n_c2c,
        "reason": _why_not(result, n_c2w, n_c2c),
        "missing": [{"status": s, "reason": r, "n": n} for (s, r), n in gaps.most_common() if s != AVAILABLE],
    }


def _why_not(result: dict[str, Any], n_c2w: int, n_c2c: int) -> str | None:
    """Code of why there is no AUROC, None where there is one."""
    if result["auroc"] is not None:
        return None
    if not n_c2w and not n_c2c:
        return "no_value"
    if not n_c2w or not n_c2c:
        return "no_value_in_c2c" if n_c2w else "no_value_in_c2w"
    return "no_stratum_with_both"
