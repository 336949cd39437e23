"""`kvdiag build`: plan, run every source through the matrix, commit each, compact to a ledger."""

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvdiag import __version__
from kvdiag.engine.matrix import NonFiniteError, run_matrix
from kvdiag.engine.models import LoadedModel, load_model
from kvdiag.engine.probe import probe
from kvdiag.engine.rows import Gap, Subject, records
from kvdiag.engine.views import Cell
from kvdiag.errors import UsageError
from kvdiag.ledger.finish import write_ledger
from kvdiag.ledger.layout import MANIFEST, WORK, read_manifest
from kvdiag.ledger.work import WorkFolder, check_recipe, refuse_other
from kvdiag.methods import catalogue
from kvdiag.prompts import Prompt, PromptBuilder
from kvdiag.recipes import Recipe
from kvdiag.records.schema import to_table
from kvdiag.workloads import registry
from kvdiag.workloads.base import Source


@dataclass(frozen=True)
class Plan:
    """All that a build will do. Printed before it starts."""

    recipe: Recipe
    out: Path
    model: LoadedModel
    sources: list[Source]
    cells: list[Cell]
    cannot: dict[str, Gap]  # methods that this model or machine cannot run
    environment: dict[str, Any]

    @property
    def n_runs(self) -> int:
        """Planned runs, controls apart."""
        return len(self.sources) * len(self.cells)

    def as_dict(self) -> dict[str, Any]:
        """The part of the manifest that is the same for the same build."""
        return {
            "recipe": self.recipe.as_dict(),
            "environment": self.environment,
            "cells": [c.id for c in self.cells],
        }


class Watcher:
    """Told of what a build does; the command line shows it."""

    def planned(self, plan: Plan, done: int) -> None:
        """The plan stands; `done` sources were committed by an earlier run."""

    def source_done(self, source: Source, seconds: dict[str, float]) -> None:
        """A source was committed."""


def build(recipe: Recipe, out: Path, watcher: Watcher | None = None) -> dict[str, Any]:
    """Build a ledger; returns its manifest. Goes on where an interrupted build of the same recipe stopped.

    Raises UsageError or RefusedError before anything is written when the recipe cannot be built there.
    """
    watcher = watcher or Watcher()
    check_recipe(out, recipe.as_dict())
    plan = make_plan(recipe, out)
    if (out / MANIFEST).is_file() and not (out / WORK).is_dir():
        manifest = read_manifest(out)
        refuse_other(out, manifest, plan.as_dict())
        watcher.planned(plan, len(plan.sources))
        return manifest
    work = WorkFolder(out)
    with work.locked():
        work.adopt(plan.as_dict())
        return _run(plan, work, watcher)


def make_plan(recipe: Recipe, out: Path) -> Plan:
    """Load the model and make the sources."""
    model = load_model(recipe.model, recipe.dtype, recipe.device, recipe.trust_remote_code)
    workload = registry.get(recipe.workload)
    if workload.length > model.max_positions:
        raise UsageError(
            f"--length {workload.length}: longer than the {model.max_positions} positions of {model.name}; "
            f"give --length {model.max_positions} or less"
        )
    prompts = PromptBuilder.create(model.tokenizer, recipe.prompt)
    sources = list(workload.sources(recipe.tasks, recipe.limit, recipe.seed, prompts.count, recipe.max_new_tokens))
    cells = [Cell(*cell) for cell in recipe.cells()]
    cannot = probe(model, [cell.method for cell in cells])
    return Plan(recipe, out, model, sources, cells, cannot, environment(model, cannot))


def environment(model: LoadedModel, cannot: Mapping[str, Gap]) -> dict[str, Any]:
    """What numbers may depend on."""
    packages = ["torch", "transformers", "kvpress", "tokenizers", "numpy", "pyarrow"]
    packages += [name for name in ("hqq", "optimum-quanto") if _installed(name)]
    return {
        "kvdiag": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "model": model.name,
        "model_digest": model.digest,
        "tokenizer_sha256": model.tokenizer_digest,
        "dtype": model.dtype,
        "device": torch.cuda.get_device_name() if model.device.startswith("cuda") else model.device,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "attention": "sdpa prefill, kvdiag replay",
        "decoding": "greedy",
        "stop_ids": sorted(model.stop_ids),
        "cannot_run": {method: gap.reason for method, gap in sorted(cannot.items())},
    }


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _run(plan: Plan, work: WorkFolder, watcher: Watcher) -> dict[str, Any]:
    prompts = PromptBuilder.create(plan.model.tokenizer, plan.recipe.prompt)
    committed = {s.source_id: r for s in plan.sources if (r := work.load(s.source_id)) is not None}
    watcher.planned(plan, len(committed))
    seconds: dict[str, float] = {}
    for source in plan.sources:
        if source.source_id in committed:
            continue
        rows, stages = run_source(plan, prompts, source)
        work.commit(rows)
        committed[source.source_id] = rows
        for stage, spent in stages.items():
            seconds[stage] = seconds.get(stage, 0.0) + spent
        watcher.source_done(source, stages)
    ordered = [committed[s.source_id] for s in plan.sources]
    rows = {
        "sources": [r["source"] for r in ordered],
        "controls": [r["control"] for r in ordered],
        "runs": [run for r in ordered for run in r["runs"]],
        "retention": [row for r in ordered for row in r["retention"]],
        "methods": [catalogue.method_row(m) for m in catalogue.select(plan.recipe.methods)],
    }
    manifest = write_ledger(
        plan.out,
        {table: to_table(table, found) for table, found in rows.items()},
        plan=plan.as_dict(),
        thresholds=plan.recipe.signature_thresholds(),
        build={"seconds_by_stage": {k: round(v, 3) for k, v in seconds.items()}},
    )
    work.remove()
    return manifest


def run_source(plan: Plan, prompts: PromptBuilder, source: Source) -> tuple[dict[str, Any], dict[str, float]]:
    """Records of one source and the seconds each stage took. What cannot run becomes rows that say why."""
    prompt = prompts.build(source)
    gaps = _gaps(plan, prompt)
    cells = [c for c in plan.cells if c not in gaps]
    model = plan.model
    outcome: Any
    seconds: dict[str, float] = {}
    try:
        outcome = run_matrix(model.model, prompt, cells, model.stop_ids, source.max_new_tokens, model.tokenizer)
        seconds = outcome.seconds
    except NonFiniteError as error:
        outcome = Gap("failed", "nonfinite", str(error))
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        outcome = Gap("failed", "oom", _first_line(error))
    subject = Subject(source, prompt, model.name, model.tokenizer)
    return records(subject, plan.cells, outcome, gaps), seconds


def _gaps(plan: Plan, prompt: Prompt) -> dict[Cell, Gap]:
    """Cells that cannot run on this source, known before any work."""
    gaps = {}
    for cell in plan.cells:
        method = cell.method
        n = cell.n_compressed(prompt.n_context, prompt.n_prefix)
        reason = method.unsupported(cell.setting)
        if method.id in plan.cannot:
            gaps[cell] = plan.cannot[method.id]
        elif reason:
            gaps[cell] = Gap("unsupported", reason, f"{method.id} has no {cell.setting}")
        elif n < method.min_positions:
            detail = f"{n} positions; {method.id} needs {method.min_positions}"
            gaps[cell] = Gap("unsupported", "context_too_short", detail)
    return gaps


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; a CPU has no error class of its own for it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def default_out(recipe: Recipe) -> Path:
    """`ledgers/<recipe or workload>-<model>`."""
    label = recipe.workload if recipe.name == "default" else recipe.name
    model = Path(recipe.model.split("@")[0]).name.removesuffix(".gguf")
    return Path("ledgers") / f"{label}-{model}"
