"""Rows of made-up ledgers. Filled from the record contract, so that they follow it when it grows."""

from itertools import product
from pathlib import Path
from typing import Any

from kvdiag.ledger.finish import write_ledger
from kvdiag.methods import catalogue
from kvdiag.records import keys
from kvdiag.records.schema import json_schema, metric_names, to_table

MODEL = "made-up"
WORKLOAD = "ruler_1k"
_UNSAID = ("detail", "degenerate", "origin_label", "submitter", "verification")
_BY_TYPE: dict[str, Any] = {"integer": 1, "number": 0.5, "boolean": False, "array": [], "object": {}}


def filled(table: str, **known: Any) -> dict[str, Any]:
    """A row with everything available, and `known` in place."""
    row = {}
    for name, prop in json_schema(table)["properties"].items():
        types = prop["type"] if isinstance(prop["type"], list) else [prop["type"]]
        if name.endswith("status"):
            row[name] = "available"
        elif (name.endswith("reason") and "enum" not in prop) or name in _UNSAID:
            row[name] = None
        elif "enum" in prop:
            row[name] = prop["enum"][0]
        elif "0-9a-f" in prop.get("pattern", ""):
            row[name] = "0" * 64
        elif types[0] == "string":
            row[name] = name
        else:
            row[name] = _BY_TYPE[types[0]]
    unknown = known.keys() - row.keys()
    assert not unknown, unknown
    return row | known


def source_row(index: int, workload: str = WORKLOAD) -> dict[str, Any]:
    """A source whose key is readable: `ruler_1k/vt/<index>`."""
    return filled(
        "sources",
        source_id=f"{workload}/vt/{index:04d}",
        workload=workload,
        task="vt",
        index=index,
        context="Notes.\nThe number is 12.\nNotes.",
        question="Which number?",
        answer_prefix=" It is",
        gold="12",
        references=["12"],
        evidence_starts=[7],
        evidence_ends=[24],
    )


def control_row(source: dict[str, Any], right: bool = True) -> dict[str, Any]:
    """The full-cache run of a source."""
    return filled(
        "controls",
        control_id=keys.control_id(source["source_id"], MODEL),
        source_id=source["source_id"],
        workload=source["workload"],
        task=source["task"],
        model=MODEL,
        output="12" if right else "3125",
        output_tokens=[7, 2],
        score=1.0,
        correct=right,
    )


def run_row(
    source: dict[str, Any],
    control: dict[str, Any],
    right: bool,
    method: str = "snapkv",
    setting: str = "keep=0.5",
    protocol: str = "query_agnostic",
) -> dict[str, Any]:
    """An answered run of a source in a cell."""
    cell = keys.cell_id(method, setting, protocol)
    return filled(
        "runs",
        run_id=keys.run_id(source["source_id"], cell, MODEL),
        source_id=source["source_id"],
        control_id=control["control_id"],
        cell_id=cell,
        workload=source["workload"],
        task=source["task"],
        model=MODEL,
        method=method,
        family="token_eviction",
        setting=setting,
        keep=float(setting.removeprefix("keep=")),
        protocol=protocol,
        output="12" if right else "It is 3125",
        output_tokens=[7, 2],
        score=1.0 if right else 0.0,
        correct=right,
        transition=f"{'C' if control['correct'] else 'W'}->{'C' if right else 'W'}",
        coverage_type="measured_token",
    )


CELLS = tuple(product(("snapkv", "knorm"), ("keep=0.5", "keep=0.25"), ("query_agnostic",)))


def without_answer(run: dict[str, Any], status: str, reason: str) -> dict[str, Any]:
    """The same run, had it given no answer."""
    row = run | {"status": status, "reason": reason, "transition": None, "correct": None}
    row |= dict.fromkeys(("output", "output_tokens", "n_new_tokens", "finish_reason"))
    for metric in metric_names("runs"):
        row |= {metric: None, f"{metric}__status": status, f"{metric}__reason": reason}
    return row


def retention_row(run: dict[str, Any]) -> dict[str, Any]:
    """Kept positions of a run by slot."""
    shared = {name: run[name] for name in ("run_id", "source_id", "cell_id", "workload")}
    return filled("retention", **shared, n_layers=2, n_kv_heads=1, kept_slots=[3, 4])


def repair_row(run: dict[str, Any]) -> dict[str, Any]:
    """A run tried again without a bias."""
    names = ("run_id", "source_id", "control_id", "cell_id", "workload", "task", "model", "output", "correct")
    shared = {name: run[name] for name in names}
    return filled(
        "repairs", **shared, repair_id=f"{run['run_id']}::target/none/0/0", arm="none", bias=0.0, layers="all"
    )


def made_up_rows(n_sources: int = 3, all_right: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Rows by table: n_sources in CELLS.

    Controls are right but for source 2; runs are wrong at keep=0.25 and for source 0, unless all_right; one run of
    source 2 ran out of memory.
    """
    sources = [source_row(i) for i in range(n_sources)]
    controls = [control_row(s, right=all_right or s["index"] != 2) for s in sources]
    runs = [
        run_row(s, c, all_right or (setting != "keep=0.25" and s["index"] != 0), method, setting, protocol)
        for s, c in zip(sources, controls, strict=True)
        for method, setting, protocol in CELLS
    ]
    last = next(i for i, r in enumerate(runs) if r["source_id"] == sources[-1]["source_id"])
    runs[last] = without_answer(runs[last], "failed", "oom")
    methods = catalogue.select(list(dict.fromkeys(method for method, _, _ in CELLS)))
    return {
        "sources": sources,
        "controls": controls,
        "runs": runs,
        "retention": [retention_row(run) for run in runs if run["status"] == "available"],
        "methods": [catalogue.method_row(m) for m in methods],
        "repairs": [repair_row(run) for run in runs[:1]],
    }


def write_made_up(
    folder: Path, rows: dict[str, list[dict[str, Any]]] | None = None, **recipe: Any
) -> dict[str, Any]:
    """A ledger of made-up rows; returns its manifest."""
    tables = {table: to_table(table, found) for table, found in (rows or made_up_rows()).items()}
    return write_ledger(folder, tables, plan(**recipe), build={"seconds_by_stage": {}})


def plan(**recipe: Any) -> dict[str, Any]:
    """What the manifest and the work folder keep of a build."""
    return {
        "recipe": {
            "name": "made-up",
            "workload": WORKLOAD,
            "seed": 1,
            "model": MODEL,
            "methods": ["snapkv", "knorm"],
            "settings": ["keep=0.5", "keep=0.25"],
            "protocols": ["query_agnostic"],
            **recipe,
        },
        "environment": {"kvdiag": "0.1.0", "threads": 1},
        "cells": [keys.cell_id(*cell) for cell in CELLS],
    }
