"""One source of a plan: its rows, or rows that say why it has none."""

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvdiag.engine.decode import stop_rule
from kvdiag.engine.matrix import MatrixResult, NonFiniteError, run_matrix
from kvdiag.engine.memory import Budget, is_out_of_memory
from kvdiag.engine.models import LoadedModel
from kvdiag.engine.parts import in_parts
from kvdiag.engine.plan import Plan
from kvdiag.engine.rows import Gap, Subject, records
from kvdiag.engine.views import Cell
from kvdiag.errors import first_line
from kvdiag.prompts import Prompt, PromptBuilder
from kvdiag.workloads.base import Source

# A source that ends in an exception is tried again once, since a machine may stumble; then it is `failed` rows.
TRIES = 2


@dataclass(frozen=True)
class Failure:
    """A try of a source that ended in an exception."""

    source_id: str
    attempt: int
    error: str
    traceback: str


@dataclass(frozen=True)
class SourceDone:
    """Rows of a source, seconds by stage, and the tries that failed; `failed` when all did."""

    source: Source
    records: dict[str, Any]
    seconds: dict[str, float]
    failures: tuple[Failure, ...] = ()
    failed: bool = False


def attempt(plan: Plan, prompts: PromptBuilder, source: Source) -> SourceDone:
    """Run a source, up to TRIES times. An exception that stays ends as `failed: exception` rows, not the build."""
    failures: list[Failure] = []
    for number in range(1, TRIES + 1):
        try:
            rows, seconds = run_source(plan, prompts, source)
        except Exception as error:
            failures.append(Failure(source.source_id, number, described(error), traceback.format_exc()))
        else:
            return SourceDone(source, rows, seconds, tuple(failures))
    return SourceDone(source, failed_rows(plan, prompts, source, failures[-1].error), {}, tuple(failures), True)


def failed_rows(
    plan: Plan, prompts: PromptBuilder, source: Source, detail: str, reason: str = "exception"
) -> dict[str, Any]:
    """Rows of a source that could not be run: `failed`, each with reason and detail."""
    try:
        prompt = prompts.build(source)
        gaps = _gaps(plan, prompt)
    except Exception:  # the prompt may be what fails
        prompt = Prompt("", (), 0, 0, (), (), "failed", "exception", (), "failed", "exception")
        gaps = {cell: gap for cell in plan.cells if (gap := _never(plan, cell)) is not None}
    subject = Subject(source, prompt, plan.model.name, plan.model.tokenizer)
    return records(subject, plan.cells, Gap("failed", reason, detail), gaps)


def described(error: BaseException) -> str:
    """An error in one line that is the same in every process: without addresses."""
    text = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
    return re.sub(r"0x[0-9a-fA-F]+", "0x…", text)[:500]


def run_source(plan: Plan, prompts: PromptBuilder, source: Source) -> tuple[dict[str, Any], dict[str, float]]:
    """Records of one source and the seconds each stage took. What cannot run becomes rows that say why.

    Where memory ran out and fewer rows went on at once, `halved` among the records names the stages.
    """
    prompt = prompts.build(source)
    gaps = _gaps(plan, prompt)
    outcome: Any = _too_long(plan.model, source, prompt)
    seconds: dict[str, float] = {}
    if outcome is None:
        outcome, too_much = _run_cells(plan, source, prompt, [c for c in plan.cells if c not in gaps])
        gaps |= too_much
        seconds = {} if isinstance(outcome, Gap) else outcome.seconds
    subject = Subject(source, prompt, plan.model.name, plan.model.tokenizer)
    halved = outcome.halved if isinstance(outcome, MatrixResult) else []
    return records(subject, plan.cells, outcome, gaps) | ({"halved": halved} if halved else {}), seconds


def _too_long(model: LoadedModel, source: Source, prompt: Prompt) -> Gap | None:
    """A source past the model's positions is never cut: it says so, and is no failure of a method."""
    needed = prompt.positions_needed(source.max_new_tokens)
    if needed <= model.max_positions:
        return None
    return Gap("unsupported", "over_length", f"{needed} tokens; {model.name} has {model.max_positions} positions")


def _run_cells(
    plan: Plan, source: Source, prompt: Prompt, cells: list[Cell]
) -> tuple[MatrixResult | Gap, dict[Cell, Gap]]:
    """What the cells gave, or why there is nothing; and the cells that were too much even by themselves."""
    model = plan.model
    stop = stop_rule(source, model.stop_ids, model.tokenizer)

    def run(some: Sequence[Cell], budget: Budget | None) -> MatrixResult:
        return run_matrix(
            model.model,
            prompt,
            some,
            stop.ids,
            stop.max_new_tokens,
            model.tokenizer,
            plan.make,
            never_first=stop.never_first,
            budget=budget,
        )

    try:
        return in_parts(run, cells)
    except NonFiniteError as error:
        return Gap("failed", "nonfinite", str(error)), {}
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Gap("failed", "oom", first_line(error)), {}


def _gaps(plan: Plan, prompt: Prompt) -> dict[Cell, Gap]:
    """Cells that cannot run on this source, known before any work."""
    gaps = {}
    for cell in plan.cells:
        method = cell.method
        n = cell.n_compressed(prompt.n_context, prompt.n_prefix)
        never = _never(plan, cell)
        if never is not None:
            gaps[cell] = never
        elif n < method.min_positions:
            detail = f"{n} positions; {method.id} needs {method.min_positions}"
            gaps[cell] = Gap("unsupported", "context_too_short", detail)
    return gaps


def _never(plan: Plan, cell: Cell) -> Gap | None:
    """Why a cell cannot run on any source."""
    reason = cell.method.unsupported(cell.setting)
    if cell.method.id in plan.cannot:
        return plan.cannot[cell.method.id]
    return Gap("unsupported", reason, f"{cell.method.id} has no {cell.setting}") if reason else None
