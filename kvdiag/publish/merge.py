"""`kvdiag merge`: a submission becomes rows of a new version of a ledger, after a sample of it was run again."""

import hashlib
import json
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvdiag.diagnostics.signatures import Thresholds
from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.ledger.finish import write_ledger
from kvdiag.ledger.intact import refuse_altered
from kvdiag.ledger.layout import read_manifest
from kvdiag.publish.claims import evaluation_of, read_facts
from kvdiag.publish.release import LICENCE
from kvdiag.publish.submission import read_table, refuse
from kvdiag.records.schema import to_table
from kvdiag.validation.validate import validate

# Runs drawn rows again, among all rows of their submission; gives a line for each that differs.
Rerun = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], list[str]]
# What a machine decides, not a method: such rows cannot be told by running them on another.
_MACHINES = ("oom", "timeout", "no_text", "control_disagrees")


# Who offered a folder that was never packed for a pull request, as the maintainer's own evaluation.
UNSIGNED = "not named"


def merge(
    base: Path, submission: Path, out: Path, sample: int = 0, rerun: Rerun | None = None, seed: int | None = None
) -> dict[str, Any]:
    """Write `base` with the submission's rows to `out`; returns its manifest. Both stay as they are.

    sample: rows to run again with `rerun`; all must give the same. seed: of the draw of the sample; None takes one
    that no submitter could know. It is in the manifest.

    Raises RefusedError for rows that the base has already or an `out` that exists, DataError for a submission that
    fails the review or the rerun. Nothing is written then.
    """
    if out.exists():
        raise RefusedError(f"--out {out}: is there already; choose another")
    refuse(submission, base, submission)
    runs = read_table(submission, "runs").to_pylist()
    seed = secrets.randbits(32) if seed is None else seed
    drawn = draw(runs, sample, seed)
    if sample and not drawn:
        raise DataError(f"{submission}: none of its rows can be run again elsewhere ({', '.join(_MACHINES)})")
    if drawn and rerun is None:
        raise UsageError("--sample: running rows again needs the method; give --method file.py:Class")
    differs = rerun(drawn, runs) if drawn and rerun else []
    if differs:
        raise DataError(
            f"{submission}: {len(differs)} of {len(drawn)} rows that were run again (drawn with --seed {seed}) "
            f"differ, nothing was merged; first {differs[0]}"
        )
    entry = _entry(submission, len(drawn), len(runs)) | ({"sample_seed": seed} if drawn else {})
    again = {str(run["run_id"]) for run in drawn}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".merge-", dir=out.parent) as scratch:
        whole = Path(scratch) / "ledger"
        manifest = _write(base, submission, whole, entry, again)
        found = validate(whole)
        if found:
            raise DataError(f"{submission}: the merged ledger is not valid, nothing was merged: {found[0].line()}")
        whole.rename(out)
    return manifest


def draw(runs: Sequence[Mapping[str, Any]], sample: int, seed: int) -> list[Mapping[str, Any]]:
    """`sample` rows, the cells in turn, drawn by a hash. Rows that only their own machine can tell stay out."""

    def rank(run: Mapping[str, Any]) -> str:
        return hashlib.sha256(f"{seed}:{run['run_id']}".encode()).hexdigest()

    cells: dict[str, list[Mapping[str, Any]]] = {}
    for run in sorted((r for r in runs if r["reason"] not in _MACHINES), key=rank):
        cells.setdefault(run["cell_id"], []).append(run)
    turns = [(i, rank(run), run) for own in cells.values() for i, run in enumerate(own)]
    return [run for _, _, run in sorted(turns, key=lambda turn: turn[:2])[:sample]]


def _entry(submission: Path, n_rerun: int, n_runs: int) -> dict[str, Any]:
    """What the merged manifest says of a submission: who ran it, on what, and how far it was verified."""
    manifest = read_manifest(submission)
    about = evaluation_of(submission, manifest)
    facts = read_facts(submission) or {}
    return {
        "method": about["method_id"],
        "submitter": facts.get("contact", UNSIGNED),
        "verification": f"rerun {n_rerun}/{n_runs}: equal" if n_rerun else "not rerun",
        "code_sha256": about["code_sha256"],
        "conformance": about["conformance"],
        "environment": manifest["environment"],
        "environment_differs": facts.get("environment_differs", manifest["build"].get("environment_differs", [])),
        "runs": n_runs,
    }


def _write(
    base: Path, submission: Path, out: Path, entry: Mapping[str, Any], again: Collection[str]
) -> dict[str, Any]:
    there, own = read_manifest(base), read_manifest(submission)
    refuse_altered(base, there, "")  # its merged successor gets a seal that says nothing of this one
    tables = {table: read_table(base, table) for table in ("sources", "controls", "repairs")}
    signed = _signed_runs(read_table(submission, "runs"), str(entry["submitter"]), again)
    tables["runs"] = pa.concat_tables([read_table(base, "runs"), signed])
    tables["retention"] = pa.concat_tables([read_table(ledger, "retention") for ledger in (base, submission)])
    tables["methods"] = pa.concat_tables(
        [read_table(base, "methods"), _signed(read_table(submission, "methods"), entry)]
    )
    recipe = there["recipe"] | {"merged": [*there["recipe"].get("merged", []), dict(entry)]}
    manifest = write_ledger(
        out,
        tables,
        plan={
            "recipe": json.loads(json.dumps(recipe)),
            "environment": there["environment"],
            "cells": [*there["cells"], *own["cells"]],
        },
        build={},
        origin=there["origin"],
        thresholds=Thresholds(**there["thresholds"]),
        undetermined=_undetermined(base),
    )
    if (base / LICENCE).is_file():
        shutil.copyfile(base / LICENCE, out / LICENCE)
    return manifest


def _signed_runs(runs: pa.Table, submitter: str, again: Collection[str]) -> pa.Table:
    """Rows with who ran them and how far that was verified. again: ids of those that were run again."""
    rest = "sampled" if again else "not_rerun"
    verified = ["rerun_equal" if run in again else rest for run in runs["run_id"].to_pylist()]
    names = runs.schema.names
    for name, values in (("submitter", [submitter] * runs.num_rows), ("verification", verified)):
        runs = runs.set_column(names.index(name), runs.schema.field(name), pa.array(values, pa.string()))
    return runs


def _signed(methods: pa.Table, entry: Mapping[str, Any]) -> pa.Table:
    """Methods with who ran them and how far that was verified."""
    said = f"submitted by {entry['submitter']}, {entry['verification']}"
    signed = [
        row | {"state_reason": "; ".join(filter(None, [row["state_reason"], said]))} for row in methods.to_pylist()
    ]
    return to_table("methods", signed)


def _undetermined(base: Path) -> list[str]:
    """Runs of an imported ledger whose signature its origin cannot tell."""
    c2w = read_table(base, "c2w")
    return c2w.filter(pc.field("signature__reason") == "not_in_artifact")["run_id"].to_pylist()
