"""The c2w table, derived from runs, controls and sources; and what a ledger lacks."""

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from kvdiag.diagnostics.signatures import FROZEN, Thresholds, signature, signature_flags
from kvdiag.records.schema import arrow_schema


def transition(control_correct: bool | None, run_correct: bool | None) -> str | None:
    """`C->W` and its kin; None when either side has no answer."""
    if control_correct is None or run_correct is None:
        return None
    return f"{'C' if control_correct else 'W'}->{'C' if run_correct else 'W'}"


def c2w_table(sources: pa.Table, controls: pa.Table, runs: pa.Table, thresholds: Thresholds = FROZEN) -> pa.Table:
    """Runs whose control is right and whose own answer is wrong, each with its question and signature."""
    failed = runs.filter(pc.field("transition") == "C->W")
    if not failed.num_rows:
        return arrow_schema("c2w").empty_table()
    asked = _lookup(sources, "source_id", failed["source_id"], ["question", "references"])
    answered = _lookup(controls, "control_id", failed["control_id"], ["output"])
    needed = ("coverage_type", "ecov", "delta_nll", "ear", "top50_overlap")
    flags = [signature_flags(**row, thresholds=thresholds) for row in failed.select(list(needed)).to_pylist()]
    extra = {
        "question": asked["question"],
        "references": asked["references"],
        "control_output": answered["output"],
        "signature": pa.array([signature(f) for f in flags]),
        "signature_flags": pa.array(flags, pa.list_(pa.string())),
    }
    schema = arrow_schema("c2w")
    return pa.table([extra.get(n, failed[n] if n in failed.column_names else None) for n in schema.names], schema)


def _lookup(table: pa.Table, key: str, wanted: pa.ChunkedArray, columns: list[str]) -> pa.Table:
    """Columns of the rows that the wanted keys name, in their order."""
    index = pc.index_in(wanted, value_set=table[key].combine_chunks())
    return table.select(columns).take(index)


def holes(n_sources: int, cell_ids: Iterable[str], runs: pa.Table) -> list[str]:
    """Planned (source, cell) pairs without a row, as `cell: n missing`."""
    present = {c["values"]: c["counts"] for c in pc.value_counts(runs["cell_id"]).to_pylist()}
    lacking = {cell: n_sources - present.get(cell, 0) for cell in cell_ids}
    return [f"{cell}: {n} missing" for cell, n in lacking.items() if n > 0]
