"""Targeted repair: does attention on retained evidence, raised by a bias, mend a failure?

Against it stand a sham (the same bias on as many retained positions that are no evidence) and matched successes
(which the bias may spoil). After KVDiagnosis, "targeted repair".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvdiag.diagnostics.retention import evidence_positions
from kvdiag.engine.decode import stop_rule
from kvdiag.engine.matrix import MatrixResult, NonFiniteError, RowResult, run_matrix
from kvdiag.engine.models import LoadedModel, load_model
from kvdiag.engine.views import Boost, Cell, CellView
from kvdiag.errors import DataError, RefusedError
from kvdiag.ledger.finish import add_table
from kvdiag.ledger.intact import refuse_altered
from kvdiag.ledger.layout import read_manifest
from kvdiag.methods import catalogue
from kvdiag.methods.settings import parse_setting
from kvdiag.prompts import Prompt, PromptBuilder
from kvdiag.query.connection import connect, rows
from kvdiag.records.missing import Value, measured, missing
from kvdiag.records.schema import to_table
from kvdiag.workloads.base import Source
from kvdiag.workloads.scoring import judge
from kvdiag.workloads.stored import from_row


@dataclass(frozen=True)
class Trial:
    """What to try. layers: first and last, None for all. draws: of sham positions."""

    biases: tuple[float, ...] = (1.0, 2.0, 4.0)
    layers: tuple[int, int] | None = None
    draws: int = 2
    limit: int = 50
    seed: int = 0
    ear_below: float = 0.5
    ecov_at_least: float = 0.9


@dataclass(frozen=True)
class _Row:
    """A planned row: its arm, and the view that runs it."""

    arm: str
    bias: float
    draw: int
    view: CellView


def repair(
    ledger: Path, trial: Trial, replace_old: bool = False, tell: Callable[[int, int], None] = lambda i, n: None
) -> list[dict[str, Any]]:
    """Run the trial on a ledger's low-EAR failures and matched successes; writes and returns rows of `repairs`.

    Raises RefusedError when the ledger has repairs already, DataError when it has no such failure or was built by
    another model or environment.
    """
    manifest = read_manifest(ledger)
    refuse_altered(ledger, manifest, "--data ")
    if manifest["rows"].get("repairs") and not replace_old:
        raise RefusedError(f"--data {ledger}: it holds repairs already; --replace to make them anew")
    chosen = select(ledger, trial)
    recipe = manifest["recipe"]
    model = load_model(
        recipe["model"],
        manifest["environment"]["dtype"],
        recipe["device"],
        recipe["trust_remote_code"],
        recipe["attention"],
    )
    if model.digest != manifest["environment"]["model_digest"]:
        raise DataError(f"--data {ledger}: was built with other weights of {recipe['model']}")
    prompts = PromptBuilder.create(model.tokenizer, recipe["prompt"])
    done: list[dict[str, Any]] = []
    for i, (run, kind) in enumerate(chosen):
        tell(i, len(chosen))
        done += _try(run, kind, prompts, model, trial)
    add_table(ledger, "repairs", to_table("repairs", done))
    return done


_TARGETS = """
SELECT r.run_id FROM runs r
WHERE r.transition = 'C->W' AND r.degenerate IS NULL AND r.ear < {ear} AND r.method IN ({methods})
  AND (r.structurally_addressable OR r.ecov >= {ecov}) ORDER BY r.ear, r.run_id LIMIT {limit}
"""
# A success of the same cell and task for each target, another one each time as long as there are any.
_SUCCESSES = """
WITH targets AS ({targets}),
wanted AS (
  SELECT t.cell_id, t.task, row_number() OVER (PARTITION BY t.cell_id, t.task ORDER BY t.run_id) AS n
  FROM targets JOIN runs t USING (run_id)),
offered AS (
  SELECT run_id, cell_id, task,
         row_number() OVER (PARTITION BY cell_id, task ORDER BY md5(run_id || '{seed}')) AS n
  FROM runs WHERE transition = 'C->C')
SELECT run_id FROM offered JOIN wanted USING (cell_id, task, n) ORDER BY run_id
"""


def select(ledger: Path, trial: Trial) -> list[tuple[dict[str, Any], str]]:
    """Runs to try, with their sources: targets first, then matched successes."""
    connection = connect(ledger)
    # A method of somebody's own, evaluated or merged, has no code here to run again.
    methods = ", ".join(f"'{m}'" for m in catalogue.methods())
    targets = _TARGETS.format(ear=trial.ear_below, ecov=trial.ecov_at_least, limit=trial.limit, methods=methods)
    successes = _SUCCESSES.format(targets=targets, seed=trial.seed)
    found = []
    for sql, kind in ((targets, "target"), (successes, "success")):
        ids = [r["run_id"] for r in rows(connection, sql)]
        for run_id in ids:
            (run,) = rows(connection, "SELECT * FROM runs WHERE run_id = ?", [run_id])
            (run["source"],) = rows(connection, "SELECT * FROM sources WHERE source_id = ?", [run["source_id"]])
            found.append((run, kind))
        if kind == "target" and not ids:
            raise DataError(
                f"--data {ledger}: no failure has ear below {trial.ear_below:g} and its evidence kept "
                f"(ecov at least {trial.ecov_at_least:g}); --ear-below and --ecov-at-least set other bounds"
            )
    return found


def _try(
    run: dict[str, Any], kind: str, prompts: PromptBuilder, model: LoadedModel, trial: Trial
) -> list[dict[str, Any]]:
    """All arms of one run, from one prefill."""
    source = from_row(run["source"])
    prompt = prompts.build(source)
    cell = Cell(catalogue.get(run["method"]), parse_setting(run["setting"]), run["protocol"])
    stop = stop_rule(source, model.stop_ids, model.tokenizer)
    planned: list[_Row] = []

    def variants(view: CellView) -> list[CellView]:
        planned.append(_Row("none", 0.0, 0, view))
        planned.extend(_arms(view, prompt, trial, run["run_id"]))
        return [row.view for row in planned[1:]]

    try:
        result = run_matrix(
            model.model,
            prompt,
            [cell],
            stop.ids,
            stop.max_new_tokens,
            model.tokenizer,
            variants=variants,
            never_first=stop.never_first,
        )
    except NonFiniteError as error:
        gap = missing("failed", "nonfinite")
        return [
            _record(run, kind, _Row("none", 0.0, 0, CellView(cell, 0, 0)), gap, None, source, model, str(error))
        ]
    return [
        _record(run, kind, row, _ear(result, outcome), outcome, source, model)
        for row, outcome in _outcomes(planned, result, cell)
    ]


def _outcomes(planned: Sequence[_Row], result: MatrixResult, cell: Cell) -> list[tuple[_Row, RowResult]]:
    found = {id(view): outcome for view, outcome in result.variants}
    found[id(result.views[cell])] = result.cells[cell]
    return [(row, found[id(row.view)]) for row in planned]


def _arms(view: CellView, prompt: Prompt, trial: Trial, run_id: str) -> list[_Row]:
    """Evidence and sham, at every bias."""
    kept = view.kept().any(0).any(0)  # in some slot
    evidence = torch.from_numpy(evidence_positions(prompt.evidence)).to(kept.device)
    retained = evidence[kept[evidence]]
    others = kept.clone()
    others[evidence] = False
    pool = others.nonzero()[:, 0]
    count = min(len(retained), len(pool))
    layers = None if trial.layers is None else frozenset(range(trial.layers[0], trial.layers[1] + 1))
    arms = []
    for bias in trial.biases:
        arms.append(_Row("evidence", bias, 0, view.boosted(Boost(retained, bias, layers))))
        for draw in range(trial.draws):
            # The same positions at every bias: the sweep changes the strength, not the draw.
            generator = np.random.default_rng([trial.seed, draw, *run_id.encode()])
            picked = torch.from_numpy(generator.choice(len(pool), count, replace=False)).to(kept.device)
            arms.append(_Row("sham", bias, draw, view.boosted(Boost(pool[picked], bias, layers))))
    return arms


def _ear(result: MatrixResult, outcome: RowResult) -> Value:
    if outcome.failed:
        return missing("failed", "run:nonfinite")
    control, own = result.control.eam_by_layer, outcome.eam_by_layer
    if control is None or own is None:
        return missing("not_applicable", "no_evidence")
    return measured(float(np.mean(own)) / float(np.mean(control)))


def _record(
    run: dict[str, Any],
    kind: str,
    row: _Row,
    ear: Value,
    outcome: RowResult | None,
    source: Source,
    model: LoadedModel,
    detail: str | None = None,
) -> dict[str, Any]:
    answered = outcome is not None and not outcome.failed
    output = score = correct = None
    if outcome is not None and answered:
        output = model.tokenizer.decode(outcome.answer.tokens, skip_special_tokens=True)
        judged = judge(source, output)
        score, correct = judged.score, judged.correct
    boost = row.view.boost
    layers = "all"
    if boost is not None and boost.layers is not None:
        layers = f"{min(boost.layers)}-{max(boost.layers)}"
    names = ("run_id", "source_id", "control_id", "cell_id", "workload", "task", "model")
    return {
        **{name: run[name] for name in names},
        "repair_id": f"{run['run_id']}::{kind}/{row.arm}/{row.bias:g}/{row.draw}",
        "kind": kind,
        "arm": row.arm,
        "bias": row.bias,
        "layers": layers,
        "draw": row.draw,
        "n_positions": len(boost.positions) if boost is not None else 0,
        "status": "available" if answered else "failed",
        "reason": None if answered else "nonfinite",
        "detail": detail,
        "output": output,
        "output_tokens": outcome.answer.tokens if outcome is not None and answered else None,
        **(measured(score) if answered else missing("failed", "nonfinite")).columns("score"),
        "correct": correct,
        **ear.columns("ear"),
    }
