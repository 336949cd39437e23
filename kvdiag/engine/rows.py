"""Records of a source: its rows in sources, controls and runs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvdiag.diagnostics.retention import slot_ecov, slot_err
from kvdiag.engine.matrix import MatrixResult, RowResult
from kvdiag.engine.views import Cell, CellView
from kvdiag.ledger.derive import transition
from kvdiag.prompts import Prompt
from kvdiag.records import keys
from kvdiag.records.missing import Value, measured, missing, pair
from kvdiag.workloads.base import Source
from kvdiag.workloads.registry import judge


@dataclass(frozen=True)
class Gap:
    """Why there is no answer."""

    status: str
    reason: str
    detail: str | None = None

    def value(self, prefix: str = "") -> Value:
        """The same gap as a missing metric."""
        return missing(self.status, prefix + self.reason)


def source_row(source: Source, prompt: Prompt) -> dict[str, Any]:
    """A row of `sources`."""
    row = asdict(source)
    for name in ("evidence", "distractors"):
        spans = row.pop(name)
        singular = name.removesuffix("s")
        row[f"{singular}_starts"] = [a for a, _ in spans]
        row[f"{singular}_ends"] = [b for _, b in spans]
    return row | {
        "references": list(source.references),
        "evidence_token_starts": [a for a, _ in prompt.evidence],
        "evidence_token_ends": [b for _, b in prompt.evidence],
        "evidence_status": prompt.evidence_status,
        "evidence_reason": prompt.evidence_reason,
        "n_context_tokens": prompt.n_context,
        "n_question_tokens": prompt.n_question,
        "n_cue_tokens": prompt.n_cue,
        "n_gold_tokens": len(prompt.gold_ids),
        "prompt_sha256": keys.content_hash(prompt.text, length=64),
    }


def _outcome(
    source: Source, prompt: Prompt, result: RowResult | Gap, tokenizer: Any
) -> tuple[dict[str, Any], dict[str, Value]]:
    """Columns of an answer, and its metrics as values."""
    if isinstance(result, RowResult) and result.failed:
        result = Gap("failed", "nonfinite", "logits are not finite")
    if isinstance(result, Gap):
        gap = result.value()
        values = {"score": gap, "nll": gap, "eam": gap}
        plain: dict[str, Any] = dict.fromkeys(
            ("output", "output_tokens", "n_new_tokens", "finish_reason", "correct")
        )
        plain |= {"status": result.status, "reason": result.reason, "detail": result.detail}
        return plain | _columns(values), values
    tokens = result.answer.tokens
    output = tokenizer.decode(tokens, skip_special_tokens=True)
    score, correct = judge(source, output)
    if result.eam_by_layer is None:
        eam = missing(prompt.evidence_status, prompt.evidence_reason or "no_evidence")
    else:
        eam = measured(float(np.mean(result.eam_by_layer)))
    values = {"score": measured(score), "nll": measured(result.nll), "eam": eam}
    plain = {
        "status": "available",
        "reason": None,
        "detail": None,
        "output": output,
        "output_tokens": tokens,
        "n_new_tokens": len(tokens),
        "finish_reason": result.answer.finish,
        "correct": correct,
    }
    return plain | _columns(values), values


def _columns(values: dict[str, Value]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, value in values.items():
        columns |= value.columns(name)
    return columns


def control_row(
    source: Source,
    prompt: Prompt,
    result: RowResult | Gap,
    kv_bytes_full: int | None,
    model: str,
    tokenizer: Any,
) -> tuple[dict[str, Any], dict[str, Value]]:
    """A row of `controls`, and its metrics for pairing."""
    outcome, values = _outcome(source, prompt, result, tokenizer)
    row = {
        "control_id": keys.control_id(source.source_id, model),
        "source_id": source.source_id,
        "workload": source.workload,
        "task": source.task,
        "model": model,
        "n_prompt_tokens": len(prompt.ids),
        "kv_bytes_full": kv_bytes_full,
    }
    return row | outcome, values


@dataclass(frozen=True)
class Control:
    """The control's side of every pair."""

    row: dict[str, Any]
    values: dict[str, Value]


def run_row(
    source: Source,
    prompt: Prompt,
    cell: Cell,
    result: RowResult | Gap,
    control: Control,
    matrix: MatrixResult | None,
    tokenizer: Any,
) -> dict[str, Any]:
    """A row of `runs`."""
    model = control.row["model"]
    outcome, values = _outcome(source, prompt, result, tokenizer)
    view = matrix.views[cell] if matrix is not None and outcome["status"] == "available" else None
    gap = None if view else missing(outcome["status"], outcome["reason"])
    values |= {
        "delta_nll": pair(control.values["nll"], values["nll"], lambda c, r: r - c),
        "gpr": pair(control.values["nll"], values["nll"], lambda c, r: float(np.exp(c - r))),
        "ear": _ear(control.values["eam"], values["eam"]),
        "top50_overlap": gap or measured(result.top50),  # type: ignore[union-attr]
    }
    values |= _retention(prompt, view, gap)
    return {
        "run_id": keys.run_id(source.source_id, cell.id, model),
        "source_id": source.source_id,
        "control_id": control.row["control_id"],
        "cell_id": cell.id,
        "workload": source.workload,
        "task": source.task,
        "model": model,
        "method": cell.method.id,
        "family": cell.method.family,
        "setting": str(cell.setting),
        "keep": cell.setting.keep,
        "protocol": cell.protocol,
        "transition": transition(control.row["correct"], outcome["correct"]),
        "coverage_type": cell.method.coverage_type,
        "degenerate": _degenerate(cell, matrix) if view and matrix else None,
        **_budget(view, matrix),
        **outcome,
        **_columns(values),
    }


def _ear(control: Value, run: Value) -> Value:
    if control.available and control.value == 0:
        return missing("not_applicable", "control:no_attention_on_evidence")
    return pair(control, run, lambda c, r: r / c)


def _retention(prompt: Prompt, view: CellView | None, gap: Value | None) -> dict[str, Value]:
    if gap is not None or view is None:
        assert gap is not None
        return {"err": gap, "ecov": gap}
    if not prompt.evidence:
        reason = missing(prompt.evidence_status, prompt.evidence_reason or "no_evidence")
        return {"err": reason, "ecov": reason}
    kept = view.kept().cpu().numpy()
    return {
        "err": measured(float(slot_err(kept, prompt.evidence).mean())),
        "ecov": measured(float(slot_ecov(kept, prompt.evidence).mean())),
    }


def _budget(view: CellView | None, matrix: MatrixResult | None) -> dict[str, Any]:
    """What was kept, as measured."""
    if view is None or matrix is None:
        names = ("n_compressed", "kept_tokens_mean", "kept_tokens_min", "kept_tokens_max", "ties_at_cut")
        return dict.fromkeys((*names, "kv_bytes", "kv_bytes_full"))
    counts = view.kept().sum(-1).cpu().numpy()
    return {
        "n_compressed": view.n_compressed,
        "kept_tokens_mean": float(counts.mean()),
        "kept_tokens_min": int(counts.min()),
        "kept_tokens_max": int(counts.max()),
        "ties_at_cut": view.ties,
        "kv_bytes": int(counts.sum()) * matrix.bytes_per_position,
        "kv_bytes_full": counts.size * view.n_compressed * matrix.bytes_per_position,
    }


def _degenerate(cell: Cell, matrix: MatrixResult) -> str | None:
    """A cell that is no finding: its window fills the budget, or another setting keeps the very same cache."""
    kept = matrix.views[cell].kept()
    if cell.method.window and int(kept.sum(-1).max()) <= cell.method.window:
        return "kept_within_window"
    for other, view in matrix.views.items():
        same_method = (other.method, other.protocol) == (cell.method, cell.protocol)
        if same_method and other.setting != cell.setting and view.error is None and view.kept().equal(kept):
            return f"same_cache_as:{other.setting}"
    return None


def records(
    source: Source,
    prompt: Prompt,
    cells: Sequence[Cell],
    matrix: MatrixResult | Gap,
    gaps: dict[Cell, Gap],
    model: str,
    tokenizer: Any,
) -> dict[str, Any]:
    """All rows of a source: {"source", "control", "runs"}. Every planned cell has a run."""
    lost = matrix if isinstance(matrix, Gap) else None
    done = None if isinstance(matrix, Gap) else matrix
    row, values = control_row(
        source, prompt, lost or done.control, done.prefix_bytes if done else None, model, tokenizer
    )
    control = Control(row, values)
    runs = []
    for cell in cells:
        result: RowResult | Gap
        if cell in gaps:
            result = gaps[cell]
        elif done is None:
            assert lost is not None
            result = lost
        elif done.views[cell].error:
            result = Gap("failed", "exception", done.views[cell].error)
        else:
            result = done.cells[cell]
        runs.append(run_row(source, prompt, cell, result, control, done, tokenizer))
    return {"source": source_row(source, prompt), "control": row, "runs": runs}
