"""The audit itself: what each method loses when the question is hidden until after compression."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag.analysis.audit import coverage as covered
from kvdiag.analysis.audit import wins
from kvdiag.analysis.audit.desk import Comparison, Desk, Options
from kvdiag.analysis.audit.groups import BASELINES, RANK_NAMES, VISIBILITY_RANKS
from kvdiag.analysis.audit.matrix import Column, Matrix, read
from kvdiag.analysis.audit.ranks import kendall
from kvdiag.analysis.audit.statistics import Estimate
from kvdiag.analysis.bootstrap import LEVEL
from kvdiag.errors import UsageError
from kvdiag.records.keys import PROTOCOLS

AGNOSTIC, AWARE = PROTOCOLS
SELECTION = (
    "the best baseline is chosen on the same scores, and stays the same in every replicate: its mean is too high "
    "on average, which works against the method"
)


@dataclass(frozen=True)
class Pair:
    """A method and setting under one model, in both protocols: aware first."""

    column: Column
    comparison: Comparison


def audit(ledgers: Path | Sequence[Path], options: Options) -> dict[str, Any]:
    """Both protocols of a ledger against each other, and methods against the trivial baselines.

    Raises UsageError where the ledger has one protocol only, RefusedError where the sides of a comparison have
    answers to different sources and this is not allowed.
    """
    return of_matrix(read(ledgers, options.workload), options)


def of_matrix(matrix: Matrix, options: Options) -> dict[str, Any]:
    """The audit of a matrix that was read. Raises as `audit` does."""
    desk = Desk(matrix, options)
    pairs, one_sided = _pairs(desk)
    if not pairs:
        raise UsageError(_no_pair(desk.matrix))
    tried = wins.trials(desk)
    to_recent = wins.start_recent(desk)
    comparisons = [
        *(p.comparison for p in pairs),
        *(t.comparison for t in tried),
        *(c for g in to_recent for c in g.comparisons),
    ]
    desk.refuse_unequal(comparisons)
    found, empty = wins.cells(desk, tried)
    deltas = [wins.ask_gap(desk, [p.comparison]) for p in pairs]
    pooled = _pooled(pairs, desk.matrix.models)
    sums = [wins.ask_gap(desk, [p.comparison for p in own]) for _, _, own in pooled]
    answers = desk.answers()
    verdicts = wins.verdicts(desk, found, answers)
    summary = [_summary(desk, *p, answers[i]) for p, i in zip(pooled, sums, strict=True)]
    return {
        **_how(desk),
        "full_cache": _full_cache(desk.matrix),
        "unequal": desk.unequal(comparisons),
        "one_protocol_only": one_sided,
        "delta": [_delta(desk, p, answers[i]) for p, i in zip(pairs, deltas, strict=True)],
        "summary": summary,
        "wins": {
            "baselines": list(BASELINES),
            "missing_baselines": [b for b in BASELINES if b not in {c.method for c in desk.matrix.columns}],
            "without_baseline": wins.without_baseline(desk),
            "selection": SELECTION,
            "level": wins.SURE,
            "methods": wins.by_method(desk, tried, verdicts),
            "start_recent": wins.gaps(desk, to_recent, answers),
            "cells": verdicts,
            "no_common_source": empty,
            "not_tried": wins.not_tried(desk),
        },
        "ranks": _ranks(desk, pairs, summary),
    }


def _how(desk: Desk) -> dict[str, Any]:
    options, matrix = desk.options, desk.matrix
    label = covered.overall(matrix)
    sizes = [int((matrix.strata == g).sum()) for g in sorted(set(matrix.strata.tolist()))]
    return {
        "level": LEVEL,
        "resamples": options.resamples,
        "seed": options.seed,
        "interval": options.interval,
        "workload": options.workload,
        "by": options.by,
        "n_sources": len(matrix.sources),
        "n_strata": len(sizes),
        "n_strata_of_one": sizes.count(1),
        "models": matrix.models,
        "complete": label == "complete",
        "label": label,
        "n_degenerate": int(matrix.degenerate.sum()),
        "degenerate_included": options.with_degenerate,
    }


def _pairs(desk: Desk) -> tuple[list[Pair], list[dict[str, Any]]]:
    """Cells that both protocols have, and those with one only."""
    found, one_sided = [], []
    for column in dict.fromkeys(Column(c.model, c.method, c.setting, "") for c in desk.matrix.columns):
        places = {p: desk.column(column.model, column.method, column.setting, p) for p in PROTOCOLS}
        there = {p: i for p, i in places.items() if i is not None}
        if len(there) == len(PROTOCOLS):
            found.append(Pair(column, desk.compare(there[AWARE], there[AGNOSTIC])))
        else:
            one_sided.append({**vars(column), "protocol": next(iter(there))})
    return found, one_sided


def _no_pair(matrix: Matrix) -> str:
    protocols = sorted({c.protocol for c in matrix.columns})
    if len(protocols) == 1:
        (has,) = protocols
        (other,) = set(PROTOCOLS) - {has}
        return f"this ledger has {has} only, an audit needs {other} too: kvdiag build … --protocol both"
    return "no method of this ledger has the same setting in both protocols: kvdiag build … --protocol both"


def _full_cache(matrix: Matrix) -> list[dict[str, Any]]:
    found = []
    for i, model in enumerate(matrix.models):
        scores = matrix.controls[matrix.control_codes[:, i] == 0, i]
        mean = float(scores.mean()) if len(scores) else None
        planned = int(matrix.control_planned[:, i].sum())
        found.append({"model": model, "score": mean, "n": len(scores), "n_planned": planned})
    return found


def _delta(desk: Desk, pair: Pair, estimate: Estimate) -> dict[str, Any]:
    aware, agnostic = pair.comparison.columns
    return {
        "model": pair.column.model,
        "method": pair.column.method,
        "setting": pair.column.setting,
        "removed": pair.column.removed,
        "agnostic": desk.mean(agnostic, pair.comparison.used),
        "aware": desk.mean(aware, pair.comparison.used),
        "delta": estimate.value,
        **desk.shown(estimate),
        "n_planned": desk.planned(pair.comparison.columns),
        "coverage": desk.coverage(pair.comparison).columns(),
    }


def _pooled(pairs: Sequence[Pair], models: Sequence[str]) -> list[tuple[str, str | None, list[Pair]]]:
    """What a summary is over: each method over all models, and under each where there are several."""
    found: list[tuple[str, str | None, list[Pair]]] = []
    for method in dict.fromkeys(p.column.method for p in pairs):
        own = [p for p in pairs if p.column.method == method]
        found.append((method, None, own))
        if len(models) > 1:
            parts = {m: [p for p in own if p.column.model == m] for m in models}
            found += [(method, m, part) for m, part in parts.items() if part]
    return found


def _summary(
    desk: Desk, method: str, model: str | None, own: Sequence[Pair], estimate: Estimate
) -> dict[str, Any]:
    def mean(side: int) -> float | None:
        total = sum(desk.matrix.scores[p.comparison.used, p.comparison.columns[side]].sum() for p in own)
        return float(total) / estimate.n if estimate.n else None

    return {
        "method": method,
        "model": model,
        "settings": list(dict.fromkeys(p.column.setting for p in own)),
        "query_visibility": desk.matrix.visibility.get(method),
        "agnostic": mean(1),
        "aware": mean(0),
        "delta": estimate.value,
        **desk.shown(estimate),
        "n_planned": sum(desk.planned(p.comparison.columns) for p in own),
        "coverage": covered.together([desk.coverage(p.comparison) for p in own]).columns(),
    }


def _ranks(desk: Desk, pairs: Sequence[Pair], summary: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether methods that see more of the question lose more without it. The baselines take no part."""
    whole = [s for s in summary if s["model"] is None and s["method"] not in BASELINES]
    used = [s for s in whole if s["delta"] is not None and s["query_visibility"] in VISIBILITY_RANKS]
    ranks = [VISIBILITY_RANKS[s["query_visibility"]] for s in used]
    found = kendall(ranks, [round(s["delta"], 12) for s in used], desk.options.seed)
    ordered = sorted(zip(used, ranks, strict=True), key=lambda pair: -pair[0]["delta"])
    names = {s["method"] for s in used}
    parts = [desk.coverage(p.comparison) for p in pairs if p.column.method in names]
    return {
        "tau_b": found.tau_b,
        "p": found.p,
        "p_exact": found.exact,
        "n_methods": found.n,
        "n_orders": found.n_orders,
        "order": [
            {
                "method": s["method"],
                "delta": s["delta"],
                "query_visibility": s["query_visibility"],
                "rank": rank,
                "rank_name": RANK_NAMES[rank],
            }
            for s, rank in ordered
        ],
        "left_out": [
            {"method": s["method"], "query_visibility": s["query_visibility"], "delta": s["delta"]}
            for s in whole
            if s not in used
        ],
        "coverage": covered.together(parts).columns() if parts else None,
        "reading": f"ordinal evidence over {found.n} methods, not a law",
    }
