"""Whether methods beat the best of the trivial baselines, cell by cell: model x setting x group of tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvdiag.analysis.audit import coverage as covered
from kvdiag.analysis.audit.desk import Comparison, Desk
from kvdiag.analysis.audit.groups import BASELINES, START_RECENT, task_group
from kvdiag.analysis.audit.statistics import Estimate, holm, sign_flip
from kvdiag.analysis.bootstrap import Bools, Floats
from kvdiag.records.keys import PROTOCOLS

SURE = 0.05
# Means of equal scores in another order differ by rounding.
_TIE = 1e-12


@dataclass(frozen=True)
class Trial:
    """A method against the baselines of its model, setting and protocol, over common sources."""

    model: str
    method: str
    setting: str
    protocol: str
    own: int
    baselines: dict[str, int]
    comparison: Comparison


@dataclass(frozen=True)
class Cell:
    """A trial on one group of tasks. gap: to the best baseline; answer: place of its estimate."""

    trial: Trial
    workload: str
    group: str
    members: Bools
    best: str
    gap: Floats
    answer: int


def trials(desk: Desk) -> list[Trial]:
    """All methods that are no baseline, where at least one baseline runs at their setting."""
    found = []
    for i, column in enumerate(desk.matrix.columns):
        if column.method in BASELINES or not desk.can_run[i]:
            continue
        places = {b: desk.column(column.model, b, column.setting, column.protocol) for b in BASELINES}
        there = {b: p for b, p in places.items() if p is not None and desk.can_run[p]}
        if there:
            found.append(
                Trial(**vars(column), own=i, baselines=there, comparison=desk.compare(i, *there.values()))
            )
    return found


def without_baseline(desk: Desk) -> list[dict[str, Any]]:
    """Settings of methods at which some baselines do not run, with those that do not."""
    found = []
    for i, column in enumerate(desk.matrix.columns):
        if column.method in BASELINES or not desk.can_run[i]:
            continue
        places = {b: desk.column(column.model, b, column.setting, column.protocol) for b in BASELINES}
        lacking = [b for b, p in places.items() if p is None or not desk.can_run[p]]
        if lacking:
            found.append({**vars(column), "missing": lacking})
    return found


def not_tried(desk: Desk) -> list[dict[str, Any]]:
    """Cells of methods that have no score which is a finding, with the reason."""
    return [
        {**vars(column), "label": desk.coverage(desk.compare(i)).label}
        for i, column in enumerate(desk.matrix.columns)
        if column.method not in BASELINES and not desk.can_run[i]
    ]


def cells(desk: Desk, tried: Sequence[Trial]) -> tuple[list[Cell], list[dict[str, Any]]]:
    """The cells of the trials, and those without a common source."""
    found, empty = [], []
    for trial in tried:
        for workload, group, members in _groups(desk):
            used = trial.comparison.used & members
            if not used.any():
                empty.append(_named(trial, workload, group))
                continue
            means = {b: float(desk.matrix.scores[used, p].mean()) for b, p in trial.baselines.items()}
            best = max(means, key=lambda b: means[b])
            gap = desk.gap(trial.own, trial.baselines[best], used)
            answer = desk.ask(gap, used.astype(float))
            found.append(Cell(trial, workload, group, members, best, gap, answer))
    return found, empty


def _groups(desk: Desk) -> Iterator[tuple[str, str, Bools]]:
    by_task = desk.options.by == "task"
    keys = [(s.workload, s.task if by_task else task_group(s.task)) for s in desk.matrix.sources]
    for key in sorted(set(keys)):
        yield *key, np.array([k == key for k in keys])


def _named(trial: Trial, workload: str, group: str) -> dict[str, Any]:
    names = ("model", "method", "setting", "protocol")
    return {**{n: getattr(trial, n) for n in names}, "workload": workload, "group": group}


def verdicts(desk: Desk, found: Sequence[Cell], answers: Sequence[Estimate]) -> list[dict[str, Any]]:
    """Win, tie or loss of each cell, with interval, p and p after Holm over all cells of its protocol."""
    if not found:
        return []
    p, exact = sign_flip(np.stack([c.gap for c in found], axis=1), desk.options.resamples, desk.options.seed)
    corrected = np.ones(len(found))
    for protocol in PROTOCOLS:
        own = [i for i, c in enumerate(found) if c.trial.protocol == protocol]
        corrected[own] = holm(p[own])
    return [_verdict(desk, c, answers[c.answer], *n) for c, *n in zip(found, p, exact, corrected, strict=True)]


def _verdict(
    desk: Desk, cell: Cell, estimate: Estimate, p: float, exact: bool, corrected: float
) -> dict[str, Any]:
    trial = cell.trial
    used = trial.comparison.used & cell.members
    difference = float(estimate.value or 0.0)
    outcome = "tie" if abs(difference) <= _TIE else "win" if difference > 0 else "loss"
    return {
        **_named(trial, cell.workload, cell.group),
        "removed": desk.matrix.columns[trial.own].removed,
        "score": desk.mean(trial.own, used),
        "best_baseline": cell.best,
        "baselines": {b: desk.mean(p, used) for b, p in trial.baselines.items()},
        "difference": difference,
        **desk.shown(estimate),
        "n_planned": int(cell.members.sum()),
        "p": float(p),
        "p_exact": bool(exact),
        "p_holm": float(corrected),
        "outcome": outcome,
        "sure": bool(corrected < SURE),
        "coverage": desk.coverage(trial.comparison, cell.members).columns(),
    }


def by_method(desk: Desk, tried: Sequence[Trial], found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts of wins by method and protocol, with what they rest on."""
    result = []
    for method in dict.fromkeys(t.method for t in tried):
        for protocol in PROTOCOLS:
            rests_on = [t for t in tried if (t.method, t.protocol) == (method, protocol)]
            if not rests_on:
                continue
            own = [c for c in found if (c["method"], c["protocol"]) == (method, protocol)]
            sure = [c["outcome"] for c in own if c["sure"]]
            result.append(
                {
                    "method": method,
                    "protocol": protocol,
                    "n_cells": len(own),
                    **{f"n_{o}": sum(c["outcome"] == o for c in own) for o in ("win", "tie", "loss")},
                    "n_sure_win": sure.count("win"),
                    "n_sure_loss": sure.count("loss"),
                    "coverage": covered.together([desk.coverage(t.comparison) for t in rests_on]).columns(),
                }
            )
    return result


@dataclass(frozen=True)
class StartRecent:
    """A method's mean gap to start + recent under one protocol, over all models and settings."""

    method: str
    protocol: str
    comparisons: list[Comparison]
    answer: int


def start_recent(desk: Desk) -> list[StartRecent]:
    """Gaps of all methods to the window of first and recent positions."""
    pairs: dict[tuple[str, str], list[Comparison]] = {}
    for i, column in enumerate(desk.matrix.columns):
        other = desk.column(column.model, START_RECENT, column.setting, column.protocol)
        if column.method != START_RECENT and other is not None and desk.can_run[[i, other]].all():
            pairs.setdefault((column.method, column.protocol), []).append(desk.compare(i, other))
    return [StartRecent(*key, own, ask_gap(desk, own)) for key, own in pairs.items()]


def ask_gap(desk: Desk, comparisons: Sequence[Comparison]) -> int:
    """Ask for the mean of first less second over all pairs of some comparisons, clustered by source."""
    gaps = [desk.gap(c.columns[0], c.columns[1], c.used) for c in comparisons]
    sizes = [c.used.astype(float) for c in comparisons]
    return desk.ask(np.sum(gaps, axis=0), np.sum(sizes, axis=0))


def gaps(desk: Desk, found: Sequence[StartRecent], answers: Sequence[Estimate]) -> list[dict[str, Any]]:
    """The gaps to start + recent as JSON has them."""
    return [
        {
            "method": g.method,
            "protocol": g.protocol,
            "gap": answers[g.answer].value,
            **desk.shown(answers[g.answer]),
            "coverage": covered.together([desk.coverage(c) for c in g.comparisons]).columns(),
        }
        for g in found
    ]
