"""Records of a source: its rows in sources, controls, runs and retention."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvdiag.diagnostics import decoding
from kvdiag.diagnostics.retention import slot_ecov, slot_err
from kvdiag.engine.matrix import MatrixResult, RowResult
from kvdiag.engine.views import Cell, CellView
from kvdiag.ledger.derive import transition
from kvdiag.prompts import Prompt
from kvdiag.records import keys
from kvdiag.records.missing import Value, measured, missing, pair, unmeasured
from kvdiag.workloads.base import Source
from kvdiag.workloads.scoring import judge


@dataclass(frozen=True)
class Gap:
    """Why there is no answer."""

    status: str
    reason: str
    detail: str | None = None


@dataclass(frozen=True)
class Outcome:
    """An answer or its absence: plain columns, and metrics that pairs are made of."""

    plain: dict[str, Any]
    values: dict[str, Value]

    @property
    def gap(self) -> Value | None:
        """The missing value that stands for everything, or None when there is an answer."""
        if self.plain["status"] == "available":
            return None
        return missing(self.plain["status"], self.plain["reason"])


@dataclass(frozen=True)
class Subject:
    """What all rows of a source share."""

    source: Source
    prompt: Prompt
    model: str
    tokenizer: Any

    def keys(self) -> dict[str, Any]:
        """Columns that name the source and the model."""
        source = self.source
        return {
            "source_id": source.source_id,
            "control_id": keys.control_id(source.source_id, self.model),
            "workload": source.workload,
            "task": source.task,
            "model": self.model,
        }


_METRICS = ("score", "nll", "nll_first", "nll_control_answer", "gold_rank", "repetition", "eam")
_ANSWER = ("output", "output_tokens", "n_new_tokens", "finish_reason", "correct")


def records(
    subject: Subject, cells: Sequence[Cell], matrix: MatrixResult | Gap, gaps: dict[Cell, Gap]
) -> dict[str, Any]:
    """All rows of a source: {"source", "control", "runs", "retention"}. Every planned cell has a run."""
    done = None if isinstance(matrix, Gap) else matrix
    control = _outcome(subject, matrix if isinstance(matrix, Gap) else matrix.control)
    runs, retention = [], []
    for cell in cells:
        run = _outcome(subject, gaps.get(cell) or _cell_result(cell, matrix))
        view = done.views[cell] if done is not None and run.gap is None else None
        runs.append(_run_row(subject, cell, control, run, view, done))
        retention.append(_retention_row(subject, cell, run, view, done))
    return {
        "source": _source_row(subject),
        "control": _control_row(subject, control, done),
        "runs": runs,
        "retention": retention,
    }


def _cell_result(cell: Cell, matrix: MatrixResult | Gap) -> RowResult | Gap:
    if isinstance(matrix, Gap):
        return matrix
    error = matrix.views[cell].error
    return Gap("failed", "exception", error) if error else matrix.cells[cell]


def _columns(values: dict[str, Value]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, value in values.items():
        columns |= value.columns(name)
    return columns


def _source_row(subject: Subject) -> dict[str, Any]:
    source, prompt = subject.source, subject.prompt
    row = asdict(source)
    for name, spans, tokens in (
        ("evidence", source.evidence, prompt.evidence),
        ("distractor", source.distractors, prompt.distractors),
    ):
        row.pop("distractors" if name == "distractor" else name)
        row[f"{name}_starts"] = [a for a, _ in spans]
        row[f"{name}_ends"] = [b for _, b in spans]
        row[f"{name}_token_starts"] = [a for a, _ in tokens]
        row[f"{name}_token_ends"] = [b for _, b in tokens]
    return row | {
        **{name: list(row[name]) for name in ("references", "answer_types", "choices", "flags")},
        "text_status": "available",
        "text_reason": None,
        "evidence_status": prompt.evidence_status,
        "evidence_reason": prompt.evidence_reason,
        "n_context_tokens": prompt.n_context,
        "n_question_tokens": prompt.n_question,
        "n_cue_tokens": prompt.n_cue,
        "n_gold_tokens": len(prompt.gold_ids),
        "prompt_hash": keys.content_hash(prompt.text, length=64),
    }


def _outcome(subject: Subject, result: RowResult | Gap) -> Outcome:
    if isinstance(result, RowResult) and result.failed:
        result = Gap("failed", "nonfinite", "logits are not finite")
    if isinstance(result, Gap):
        gap = missing(result.status, result.reason)
        plain = dict.fromkeys((*_ANSWER, "extracted_answer"))
        return Outcome(plain | asdict(result), dict.fromkeys(_METRICS, gap))
    tokens = result.answer.tokens
    output = subject.tokenizer.decode(tokens, skip_special_tokens=True)
    judged = judge(subject.source, output)
    repeated = decoding.repetition(tokens)
    values = {
        "score": measured(judged.score),
        "nll": measured(_mean(result.nll)),
        "nll_first": measured(result.nll[0]),
        "nll_control_answer": measured(_mean(result.draft_nll)),
        "gold_rank": measured(result.gold_rank),
        "repetition": _or_not_applicable(repeated, "answer_too_short"),
        "eam": _no_evidence(subject.prompt)
        if result.eam_by_layer is None
        else measured(_mean(result.eam_by_layer)),
    }
    plain = {
        "status": "available",
        "reason": None,
        "detail": None,
        "output": output,
        "output_tokens": tokens,
        "n_new_tokens": len(tokens),
        "finish_reason": result.answer.finish,
        "extracted_answer": judged.extracted,
        "correct": judged.correct,
    }
    return Outcome(plain, values)


def _mean(numbers: Sequence[float]) -> float:
    return float(np.mean(numbers))


def _or_not_applicable(value: float | None, reason: str) -> Value:
    return missing("not_applicable", reason) if value is None else measured(value)


def _no_evidence(prompt: Prompt) -> Value:
    return unmeasured(prompt.evidence_status, prompt.evidence_reason or "no_evidence")


def _control_row(subject: Subject, control: Outcome, matrix: MatrixResult | None) -> dict[str, Any]:
    return {
        **subject.keys(),
        "n_prompt_tokens": len(subject.prompt.ids),
        "kv_bytes_full": matrix.prefix_bytes if matrix else None,
        **control.plain,
        **_columns(control.values),
    }


def _run_row(
    subject: Subject,
    cell: Cell,
    control: Outcome,
    run: Outcome,
    view: CellView | None,
    matrix: MatrixResult | None,
) -> dict[str, Any]:
    model, source = subject.model, subject.source
    result = matrix.cells[cell] if matrix is not None and view is not None else None
    values = {
        **run.values,
        **_paired(control, run, result),
        **_retention(subject.prompt, cell, run, view),
    }
    return {
        **subject.keys(),
        "run_id": keys.run_id(source.source_id, cell.id, model),
        "cell_id": cell.id,
        "method": cell.method.id,
        "family": cell.method.family,
        "setting": str(cell.setting),
        "keep": cell.setting.keep,
        **dict.fromkeys(("origin_label", "submitter", "verification")),
        "protocol": cell.protocol,
        "transition": transition(control.plain["correct"], run.plain["correct"]),
        "coverage_type": cell.method.coverage_type,
        "structurally_addressable": cell.method.structural,
        "degenerate": degenerate_label(cell, matrix) if view and matrix else None,
        **_budget(view, matrix),
        **run.plain,
        **_columns(values),
    }


def _paired(control: Outcome, run: Outcome, result: RowResult | None) -> dict[str, Value]:
    """Metrics of a run against its control."""
    values = differences(control.values, run.values)
    if result is None:
        assert run.gap is not None
        rest = ("kl", "top50_overlap", "prefix_agreement", "first_divergence", "length_ratio")
        return values | dict.fromkeys(rest, run.gap)
    answers = control.plain["output_tokens"], run.plain["output_tokens"]
    return values | {
        "kl": measured(result.kl),
        "top50_overlap": measured(result.top50),
        "prefix_agreement": measured(decoding.prefix_agreement(*answers)),
        "first_divergence": _or_not_applicable(decoding.first_divergence(*answers), "same_answer"),
        "length_ratio": measured(len(answers[1]) / len(answers[0])),
    }


def differences(control: Mapping[str, Value], run: Mapping[str, Value]) -> dict[str, Value]:
    """Metrics of a run against its control that follow from what each measured by itself."""

    def difference(name: str) -> Value:
        return pair(control[name], run[name], lambda c, r: r - c)

    return {
        "delta_nll": difference("nll"),
        "delta_nll_first": difference("nll_first"),
        "delta_nll_control": difference("nll_control_answer"),
        "gold_rank_shift": difference("gold_rank"),
        "gpr": pair(control["nll"], run["nll"], lambda c, r: float(np.exp(c - r))),
        "ear": _ear(control["eam"], run["eam"]),
    }


def _ear(control: Value, run: Value) -> Value:
    if control.available and control.value == 0:
        return missing("not_applicable", "control:no_attention_on_evidence")
    return pair(control, run, lambda c, r: r / c)


def _retention(prompt: Prompt, cell: Cell, run: Outcome, view: CellView | None) -> dict[str, Value]:
    names = ("err", "ecov", "distractor_retention")
    if view is None:
        assert run.gap is not None
        return dict.fromkeys(names, run.gap)
    if cell.method.structural:
        return dict.fromkeys(names, missing("not_applicable", "structural_position"))
    kept = view.kept().cpu().numpy()
    evidence = distractors = None
    if prompt.evidence:
        evidence = slot_err(kept, prompt.evidence), slot_ecov(kept, prompt.evidence)
    if prompt.distractors:
        distractors = slot_err(kept, prompt.distractors)
    return {
        "err": measured(evidence[0].mean()) if evidence else _no_evidence(prompt),
        "ecov": measured(evidence[1].mean()) if evidence else _no_evidence(prompt),
        "distractor_retention": measured(distractors.mean())
        if distractors is not None
        else unmeasured(prompt.distractor_status, prompt.distractor_reason or "no_distractors"),
    }


def _retention_row(
    subject: Subject, cell: Cell, run: Outcome, view: CellView | None, matrix: MatrixResult | None
) -> dict[str, Any]:
    source = subject.source
    row: dict[str, Any] = {
        "run_id": keys.run_id(source.source_id, cell.id, subject.model),
        "source_id": source.source_id,
        "cell_id": cell.id,
        "workload": source.workload,
    }
    arrays = ("n_layers", "n_kv_heads", "kept_slots", "err_slots", "ecov_slots", "eam_layers")
    if view is None or matrix is None:
        assert run.gap is not None
        return row | {"slots_status": run.gap.status, "slots_reason": run.gap.reason} | dict.fromkeys(arrays)
    kept, spans = view.kept().cpu().numpy(), subject.prompt.evidence
    layers, heads, _ = kept.shape
    return row | {
        "n_layers": layers,
        "n_kv_heads": heads,
        "slots_status": "available",
        "slots_reason": None,
        "kept_slots": kept.sum(-1).ravel().tolist(),
        "err_slots": slot_err(kept, spans).ravel().tolist() if spans else None,
        "ecov_slots": slot_ecov(kept, spans).ravel().tolist() if spans else None,
        "eam_layers": matrix.cells[cell].eam_by_layer,
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
        "kv_bytes": view.stored_bytes(matrix.bytes_per_position),
        "kv_bytes_full": counts.size * view.n_compressed * matrix.bytes_per_position,
    }


def degenerate_label(cell: Cell, matrix: MatrixResult) -> str | None:
    """Why a cell is no finding: by its setting, its window fills the budget, or another cell is the same cache."""
    if cell.method.degenerate(cell.setting):
        return cell.method.degenerate(cell.setting)
    view = matrix.views[cell]
    kept = view.kept()
    if cell.method.window and int(kept.sum(-1).max()) <= cell.method.window:
        return "kept_within_window"
    for other, seen in matrix.views.items():
        if other.id == cell.id:
            break  # of two equal cells the later one is the copy
        if other.protocol == cell.protocol and seen.error is None and view.same_cache(seen):
            return f"same_cache_as:{other.method.id}/{other.setting}"
    return None
