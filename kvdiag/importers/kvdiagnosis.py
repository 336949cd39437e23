"""The public KVDiagnosis artifact as a ledger: its full population, and the coverage of its selected failures.

What the artifact lacks becomes `not_measured: not_in_artifact`; nothing is guessed. Its labels (75, 50, 25 %) stay
beside our settings in `origin_label`, since 8, 4 and 2 bits stand behind some of them.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa

from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.importers.artifact import DATASETS, METHODS, Artifact, key_of, read
from kvdiag.importers.columns import LACKING, Columns, lacking
from kvdiag.ledger.files import write_atomic
from kvdiag.ledger.finish import write_ledger
from kvdiag.methods import catalogue
from kvdiag.records import keys
from kvdiag.records.missing import Value, measured, missing, pair
from kvdiag.records.schema import to_table

# The question stood inside the compressed prefill.
PROTOCOL = "query_aware"

ORIGIN = {
    "name": "KVDiagnosis",
    "what": "public artifact of the KVDiagnosis paper, imported by kvdiag",
    "licence": "MIT",
    "copyright": "the KVCacheBench authors",
    "lacks": [
        "prompt texts",
        "output tokens",
        "coverage of runs that did not turn wrong",
        "attention of question answering runs",
        "kept counts and bytes",
    ],
    "known_defects": "kvdiag analyze quality",
}


def import_artifact(folder: Path, out: Path) -> dict[str, Any]:
    """Import the artifact in `folder` into the ledger `out`; returns its manifest.

    Raises UsageError when `folder` is not the artifact, DataError naming file and line for a bad record,
    RefusedError when `out` holds something; then nothing is written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RefusedError(f"--out {out}: is not empty; choose another --out or remove it")
    artifact = read(folder)
    if not artifact.runs:
        raise DataError(f"{folder}: there are no runs in it")
    model = _model(artifact)
    tables = {
        "sources": _sources(artifact),
        "controls": _controls(artifact, model),
        "runs": _runs(artifact, model),
        "retention": Columns("retention", 0).table(),
        "methods": to_table("methods", [catalogue.method_row(catalogue.get(m)) for m, _ in METHODS.values()]),
    }
    cells = list(dict.fromkeys(tables["runs"]["cell_id"].to_pylist()))
    plan = {
        "recipe": {
            "name": "kvdiagnosis",
            "workload": ", ".join(dict.fromkeys(tables["sources"]["workload"].to_pylist())),
            "seed": None,
            "model": model,
            "methods": [m for m, _ in METHODS.values()],
            "settings": sorted({c.split("/")[1] for c in cells}),
            "protocols": [PROTOCOL],
        },
        "environment": {"model": model, "dtype": "bfloat16", "kvpress": "0.5.3", "attention": "flash_attention_2"},
        "cells": cells,
    }
    licence = folder / "LICENSE"
    try:
        if licence.is_file():
            write_atomic(out / "LICENSE", licence.read_bytes())  # the data's own licence travels with it
        return write_ledger(
            out, tables, plan, build={}, origin=ORIGIN, undetermined=_undetermined(artifact, tables["runs"])
        )
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written ({error.strerror or error})") from error


def _model(artifact: Artifact) -> str:
    first = next(iter(artifact.controls.values()))  # all name the same, or reading had stopped
    return f"{first['model_id']}@{first['model_revision']}"


def _undetermined(artifact: Artifact, runs: pa.Table) -> set[str]:
    """Runs without a record among the selected failures: their coverage and attention stayed behind."""
    return {
        run_id
        for run_id, key in zip(runs["run_id"].to_pylist(), artifact.runs, strict=True)
        if key not in artifact.failures
    }


def _source_id(control: dict[str, Any]) -> str:
    # The same prompt stands under two ids in Qasper, so a content hash would not tell the rows apart.
    return f"{DATASETS[control['dataset']]}/{control['official_task_name']}/{control['sample_id']}"


def _sources(artifact: Artifact) -> pa.Table:
    rows = list(artifact.controls.values())
    columns = Columns("sources", len(rows))
    columns.each("source_id", [_source_id(r) for r in rows])
    columns.each("workload", [DATASETS[r["dataset"]] for r in rows])
    columns.each("task", [r["official_task_name"] for r in rows])
    columns.each("gold", [str(r["reference_answer"][0]) for r in rows])
    columns.each("references", [[str(a) for a in r["reference_answer"]] for r in rows])
    columns.each("origin_id", [r["sample_id"] for r in rows])
    columns.all("chat", False).all("stop_at_newline", False)
    for name in ("answer_types", "choices", "flags"):
        columns.all(name, [])
    columns.each("n_context_tokens", [r["context_length_tokens"] for r in rows])
    columns.each("prompt_hash", [r["prompt_hash"] for r in rows])
    for part in ("text", "evidence"):
        columns.all(f"{part}_status", "not_measured").all(f"{part}_reason", LACKING)
    for name in ("evidence", "distractor"):
        for end in ("starts", "ends", "token_starts", "token_ends"):
            columns.all(f"{name}_{end}", [])
    return columns.table()


def _controls(artifact: Artifact, model: str) -> pa.Table:
    rows = list(artifact.controls.values())
    columns = Columns("controls", len(rows))
    columns.each("control_id", [keys.control_id(_source_id(r), model) for r in rows])
    columns.each("source_id", [_source_id(r) for r in rows])
    columns.each("workload", [DATASETS[r["dataset"]] for r in rows])
    columns.each("task", [r["official_task_name"] for r in rows])
    columns.all("model", model).all("status", "available")
    columns.each("output", [r["raw_output_full"] for r in rows])
    columns.each("extracted_answer", [r["extracted_answer_full"] for r in rows])
    columns.each("correct", [r["full_correct"] for r in rows])
    columns.metric("score", [measured(r["full_score"]) for r in rows])
    columns.metric("nll", [measured(r["full_gold_NLL"]) for r in rows])
    columns.rest_lacking()
    return columns.table()


def _runs(artifact: Artifact, model: str) -> pa.Table:
    rows = list(artifact.runs.values())
    controls = [artifact.controls[r["fullcache_key"]] for r in rows]
    methods = [catalogue.get(METHODS[r["method_name"]][0]) for r in rows]
    settings = [METHODS[r["method_name"]][1][r["retained_budget"]] for r in rows]
    sources = [_source_id(c) for c in controls]
    cells = [keys.cell_id(m.id, s, PROTOCOL) for m, s in zip(methods, settings, strict=True)]
    columns = Columns("runs", len(rows))
    columns.each("run_id", [keys.run_id(s, c, model) for s, c in zip(sources, cells, strict=True)])
    columns.each("source_id", sources).each("cell_id", cells)
    columns.each("control_id", [keys.control_id(s, model) for s in sources])
    columns.each("workload", [DATASETS[c["dataset"]] for c in controls])
    columns.each("task", [c["official_task_name"] for c in controls])
    columns.each("method", [m.id for m in methods]).each("family", [m.family for m in methods])
    columns.each("setting", settings)
    columns.each("keep", [float(s[5:]) if s.startswith("keep=") else None for s in settings])
    columns.each("origin_label", [f"{r['retained_budget']:.0%}" for r in rows])
    columns.all("model", model).all("protocol", PROTOCOL)
    columns.each("coverage_type", [m.coverage_type for m in methods])
    columns.each("structurally_addressable", [m.structural for m in methods])
    answered = [r["support_status"] == "supported" for r in rows]
    columns.each("status", ["available" if a else "unsupported" for a in answered])
    columns.each("reason", [None if a else _UNSUPPORTED.reason for a in answered])
    columns.each("detail", [None if a else r["unsupported_reason"] for a, r in zip(answered, rows, strict=True)])
    columns.each("output", [r.get("raw_output_compressed") for r in rows])
    columns.each("extracted_answer", [r.get("extracted_answer_compressed") for r in rows])
    columns.each("correct", [r["compressed_correct"] for r in rows])
    columns.each("transition", [r["outcome_transition"] for r in rows])
    _run_metrics(columns, artifact, methods)
    return columns.table()


_UNSUPPORTED = missing("unsupported", "channels_exhausted")


def _run_metrics(columns: Columns, artifact: Artifact, methods: list[catalogue.Method]) -> None:
    rows = list(artifact.runs.values())
    answered = [r["support_status"] == "supported" for r in rows]
    own = {"score": "compressed_score", "nll": "compressed_gold_NLL"}
    for name, origin in own.items():
        columns.metric(
            name, [measured(r[origin]) if a else _UNSUPPORTED for a, r in zip(answered, rows, strict=True)]
        )
    gap = pair(measured(0.0), _UNSUPPORTED, lambda c, r: 0.0)  # a control beside a run that is not there
    for name, origin in (("delta_nll", "delta_NLL"), ("gpr", "GPR")):
        columns.metric(name, [measured(r[origin]) if a else gap for a, r in zip(answered, rows, strict=True)])
    failures = [artifact.failures.get(key_of(r), {}) for r in rows]
    for name, origin in (("err", "ERR_slot"), ("ecov", "ECov_slot")):
        columns.metric(
            name, [_coverage(f.get(origin), a, m) for f, a, m in zip(failures, answered, methods, strict=True)]
        )
    for name, origin in (
        ("ear", "EAR"),
        ("top50_overlap", "TopK"),
        ("kl", "KL"),
        ("gold_rank_shift", "gold_rank_shift"),
    ):
        columns.metric(
            name, [_known_or_lacking(f.get(origin), a) for f, a in zip(failures, answered, strict=True)]
        )
    for name in columns.open_metrics():
        columns.metric(name, [lacking() if a else _UNSUPPORTED for a in answered])


def _coverage(value: float | None, answered: bool, method: catalogue.Method) -> Value:
    if answered and method.structural:
        return missing("not_applicable", "structural_position")
    return _known_or_lacking(value, answered)


def _known_or_lacking(value: float | None, answered: bool) -> Value:
    if not answered:
        return _UNSUPPORTED
    return lacking() if value is None else measured(value)
