"""What a build will do: the model, the sources, the cells, and all that numbers may depend on."""

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from kvdiag import __version__
from kvdiag.commit import kvdiag_commit
from kvdiag.engine.models import LoadedModel, load_model
from kvdiag.engine.probe import probe
from kvdiag.engine.rows import Gap
from kvdiag.engine.tap import AdapterFactory
from kvdiag.engine.views import Cell
from kvdiag.errors import UsageError
from kvdiag.ledger.files import sha256
from kvdiag.methods.adapters.build import make_adapter
from kvdiag.prompts import PromptBuilder
from kvdiag.recipes import Recipe
from kvdiag.workloads import registry
from kvdiag.workloads.base import Source
from kvdiag.workloads.registry import path_of


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
    make: AdapterFactory = make_adapter

    @property
    def n_runs(self) -> int:
        """Planned runs, controls apart."""
        return len(self.sources) * len(self.cells)

    def as_dict(self) -> dict[str, Any]:
        """The part of the manifest that is the same for the same build."""
        commit = kvdiag_commit()  # of the process that writes the ledger: not every worker of a pool knows it
        return {
            "recipe": self.recipe.as_dict(),
            "environment": self.environment | ({"kvdiag_commit": commit} if commit else {}),
            "cells": [c.id for c in self.cells],
        }


def make_plan(recipe: Recipe, out: Path) -> Plan:
    """Load the model and make the sources."""
    plan = bare_plan(recipe, out)
    sources = recipe.sources(PromptBuilder.create(plan.model.tokenizer, recipe.prompt).count)
    return replace(plan, sources=sources, environment=plan.environment | {"files": file_digests(recipe)})


def bare_plan(recipe: Recipe, out: Path) -> Plan:
    """A plan without its sources: the model is loaded, and what it cannot run is known."""
    # Data that is not there is said before a model of many gigabytes is loaded.
    registry.get(recipe.workload).prepare(recipe.tasks, recipe.files, recipe.haystack)
    model = load_model(recipe.model, recipe.dtype, recipe.device, recipe.trust_remote_code, recipe.attention)
    check_length(recipe, model.name, model.max_positions)
    cells = [Cell(*cell) for cell in recipe.cells()]
    cannot = probe(model, [cell.method for cell in cells])
    return Plan(recipe, out, model, [], cells, cannot, environment(model, cannot))


def check_length(recipe: Recipe, model: str, positions: int) -> None:
    """Raise UsageError when the workload's sources are longer than the model's positions."""
    length = registry.get(recipe.workload).length
    if length is not None and length > positions:
        raise UsageError(
            f"--length {length}: longer than the {positions} positions of {model}; "
            f"give --length {positions} or less"
        )


def file_digests(recipe: Recipe) -> dict[str, str]:
    """sha256 of the user's own files, by how they were given: other text under the same name is another build."""
    given = [*recipe.files, *([recipe.haystack] if Path(recipe.haystack).is_file() else [])]
    return {text: _digest(path_of(text)) for text in given}


def _digest(path: Path) -> str:
    """sha256 of a file, or of all files of a folder with their names."""
    if path.is_file():
        return sha256(path)
    digest = hashlib.sha256()
    for file in sorted(f for f in path.rglob("*") if f.is_file()):
        digest.update(f"{file.relative_to(path).as_posix()}:{sha256(file)}\n".encode())
    return digest.hexdigest()


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
        "attention": f"{model.attention} prefill, kvdiag replay",
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
