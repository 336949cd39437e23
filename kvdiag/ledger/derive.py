"""The c2w table, derived from runs, controls and sources; and what a ledger lacks."""

from collections.abc import Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvdiag.diagnostics.signatures import FROZEN, Thresholds, signature, signature_flags
from kvdiag.records.schema import arrow_schema


def transition(control_correct: bool | None, run_correct: bool | None) -> str | None:
    """`C->W` and its kin; None when either side has no answer."""
    if control_correct is None or run_correct is None:
        return None
    return f"{'C' if control_correct else 'W'}->{'C' if run_correct else 'W'}"


def c2w_table(
    sources: pa.Table,
    controls: pa.Table,
    runs: pa.Table,
    thresholds: Thresholds = FROZEN,
    undetermined: Collection[str] = (),
) -> pa.Table:
    """Runs whose control is right and whose own answer is wrong, each with its question and signature.

    undetermined: ids of runs whose origin measured more than it hands over, so that no signature can be told.
    """
    failed = runs.filter(pc.field("transition") == "C->W")
    schema = arrow_schema("c2w")
    if not failed.num_rows:
        return schema.empty_table()
    asked = _lookup(sources, "source_id", failed["source_id"], ["question", "references"])
    answered = _lookup(controls, "control_id", failed["control_id"], ["output"])
    rests_on = ["run_id", "coverage_type", "ecov", "delta_nll", "ear", "top50_overlap"]
    states = [f"{name}__{part}" for name in ("ecov", "delta_nll") for part in ("status", "reason")]
    signed = [_sign(row, thresholds, undetermined) for row in failed.select(rests_on + states).to_pylist()]
    columns = {name: failed[name] for name in failed.column_names}
    columns |= {"question": asked["question"], "references": asked["references"]}
    columns |= {"control_output": answered["output"]}
    columns |= {
        name: pa.array([s[name] for s in signed], schema.field(name).type)
        for name in ("signature", "signature__status", "signature__reason", "signature_flags")
    }
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _sign(row: dict[str, Any], thresholds: Thresholds, undetermined: Collection[str]) -> dict[str, Any]:
    """Signature columns of a run. It rests on likelihood, and on coverage where positions are mapped."""
    state: tuple[str, str | None] = ("available", None)
    rests_on = ["delta_nll"] if row["coverage_type"] == "structural_position" else ["ecov", "delta_nll"]
    for name in rests_on:
        if row[f"{name}__status"] != "available":
            state = row[f"{name}__status"], row[f"{name}__reason"]
            break
    if row["run_id"] in undetermined:
        state = "not_measured", "not_in_artifact"
    names = ("coverage_type", "ecov", "delta_nll", "ear", "top50_overlap")
    flags = signature_flags(**{n: row[n] for n in names}, thresholds=thresholds)
    known = state[0] == "available"
    return {
        "signature": signature(flags) if known else None,
        "signature__status": state[0],
        "signature__reason": state[1],
        "signature_flags": flags if known else [],
    }


def _lookup(table: pa.Table, key: str, wanted: pa.ChunkedArray, columns: list[str]) -> pa.Table:
    """Columns of the rows that the wanted keys name, in their order."""
    index = pc.index_in(wanted, value_set=table[key].combine_chunks())
    return table.select(columns).take(index)


def holes(n_sources: int, cell_ids: Iterable[str], runs: pa.Table) -> list[str]:
    """Planned (source, cell) pairs without a row, as `cell: n missing`."""
    present = {c["values"]: c["counts"] for c in pc.value_counts(runs["cell_id"]).to_pylist()}
    lacking = {cell: n_sources - present.get(cell, 0) for cell in cell_ids}
    return [f"{cell}: {n} missing" for cell, n in lacking.items() if n > 0]
