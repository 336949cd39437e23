"""The numbers behind a report: rows from a ledger, each mean with its denominator. Nothing is drawn here."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag.analysis.report.audit import Asked, coverage, protocol_delta
from kvdiag.analysis.separation import separation
from kvdiag.ledger.layout import read_manifest
from kvdiag.query.connection import connect, rows

Row = dict[str, Any]

_RATES = """
WITH no_finding AS (SELECT cell_id, model, string_agg(DISTINCT why, '; ' ORDER BY why) AS why
                    FROM quality_degenerate GROUP BY ALL)
SELECT r.model, r.protocol, r.workload, r.method, r.setting, tier(any_value(r.origin_label), r.setting) AS tier,
       count(*) AS n_runs,
       count(*) FILTER (WHERE r.transition IS NOT NULL) AS n_answered,
       count(*) FILTER (WHERE r.transition IN ('C->C', 'C->W')) AS n_eligible,
       count(*) FILTER (WHERE r.transition = 'C->W') AS n_c2w,
       n_c2w / nullif(n_eligible, 0) AS rate,
       wilson_low(n_c2w, n_eligible) AS low, wilson_high(n_c2w, n_eligible) AS high,
       favg(r.kv_bytes / r.kv_bytes_full) FILTER (WHERE r.status = 'available') AS bytes_share,
       count(r.kv_bytes / r.kv_bytes_full) FILTER (WHERE r.status = 'available') AS n_bytes,
       any_value(n.why) AS no_finding,
       mode(r.status ORDER BY r.status) FILTER (WHERE r.transition IS NULL) AS mostly
FROM runs r LEFT JOIN no_finding n USING (cell_id, model)
GROUP BY r.model, r.protocol, r.workload, r.method, r.setting
"""

_OVERLAP = """
SELECT model, protocol, tier, method_a, method_b, sum(n_sources)::BIGINT AS n_sources, sum(n_a)::BIGINT AS n_a,
       sum(n_b)::BIGINT AS n_b, sum(n_intersection)::BIGINT AS n_both, sum(n_union)::BIGINT AS n_union,
       sum(n_intersection) / nullif(sum(n_union), 0) AS jaccard
FROM failure_overlap GROUP BY model, protocol, tier, method_a, method_b ORDER BY ALL
"""

_SIGNATURES = """
SELECT model, protocol, workload, method, setting, degenerate IS NOT NULL AS is_degenerate,
       coalesce(signature, signature__status || ': ' || signature__reason) AS signature, count(*) AS n_c2w
FROM c2w GROUP BY ALL ORDER BY ALL
"""

_WORKLOADS = """
SELECT workload, count(*) AS n_controls, count(*) FILTER (WHERE status = 'available') AS n_answered,
       count(correct) AS n_judged, count(*) FILTER (WHERE correct) AS n_right,
       count(DISTINCT source_id) AS n_sources
FROM controls GROUP BY workload ORDER BY workload
"""

_TOTALS = """
SELECT count(*) AS n_runs, count(*) FILTER (WHERE transition IS NOT NULL) AS n_answered,
       count(*) FILTER (WHERE transition IN ('C->C', 'C->W')) AS n_eligible,
       count(*) FILTER (WHERE transition = 'C->W') AS n_c2w FROM runs
"""


@dataclass(frozen=True)
class Data:
    """All that a report shows of a ledger."""

    name: str
    manifest: Row
    models: list[str]
    totals: Row
    workloads: list[Row]
    rates: list[Row]
    overlap: list[Row]
    signatures: list[Row]
    separation: Row
    delta: Asked
    coverage: Asked
    flags: list[Row]


def gather(ledger: Path, resamples: int, seed: int) -> Data:
    """Read a ledger once for each section. resamples and seed: of the bootstrap behind intervals."""
    connection = connect(ledger)
    try:
        return Data(
            name=ledger.resolve().name,
            manifest=read_manifest(ledger),
            models=[r["model"] for r in rows(connection, "SELECT DISTINCT model FROM controls ORDER BY ALL")],
            totals=rows(connection, _TOTALS)[0],
            workloads=rows(connection, _WORKLOADS),
            rates=rates(connection),
            overlap=rows(connection, _OVERLAP),
            signatures=rows(connection, _SIGNATURES),
            separation=separation(ledger, resamples, seed),
            delta=protocol_delta(ledger, resamples, seed),
            coverage=coverage(ledger),
            flags=rows(connection, "FROM quality_flags"),
        )
    finally:
        connection.close()


def rates(connection: Any) -> list[Row]:
    """C->W rate of each cell, by model and workload, with its 95 % Wilson interval and its share of bytes.

    rate is over runs whose control is right (n_eligible); bytes_share over the n_bytes runs with measured bytes.
    no_finding: why the quality rules call the cell degenerate, in whichever workload shows it.
    """
    found = rows(connection, _RATES)
    return sorted(
        found,
        key=lambda r: (r["model"], r["protocol"], r["workload"], r["method"], *by_strength(r["setting"])),
    )


def by_strength(setting: str) -> tuple[str, float, str]:
    """Sort key of settings and tiers: mildest first, kinds apart (keep=0.75 before keep=0.25; 75% before 25%)."""
    number = re.search(r"\d+(?:\.\d+)?", setting)
    kind = setting[: number.start()] if number else setting
    return kind, -float(number.group()) if number else 0.0, setting


def shares(counted: list[Row], keys: tuple[str, ...]) -> list[Row]:
    """Signature counts pooled by some keys: `counts` by signature and `n`. Rows labelled degenerate stay out."""
    pooled: dict[tuple[str, ...], dict[str, int]] = {}
    for row in counted:
        if row["is_degenerate"]:
            continue
        counts = pooled.setdefault(tuple(row[k] for k in keys), {})
        counts[row["signature"]] = counts.get(row["signature"], 0) + row["n_c2w"]
    return [
        {**dict(zip(keys, key, strict=True)), "counts": counts, "n": sum(counts.values())}
        for key, counts in pooled.items()
    ]
