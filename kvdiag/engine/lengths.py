"""Sources counted in the tokens of several models. Tokenizers only; no weights are loaded."""

from collections.abc import Sequence
from typing import Any

from kvdiag import recipes
from kvdiag.analysis.audit.length import counted
from kvdiag.engine.models import LoadedTokenizer, load_tokenizer
from kvdiag.ledger.layout import find, read_manifest
from kvdiag.prompts import PromptBuilder
from kvdiag.query.connection import connect, rows
from kvdiag.workloads import registry
from kvdiag.workloads.base import Source
from kvdiag.workloads.stored import from_row


def of_workload(models: Sequence[str], counted_by: str | None, **flags: Any) -> dict[str, Any]:
    """Sources of a workload. Generated ones are made to length in the tokens of `counted_by`, or of the first."""
    reference = counted_by or models[0]
    recipe = recipes.load(None, **flags, model=reference)
    length = registry.get(recipe.workload).length
    made = load_tokenizer(reference)
    sources = recipe.sources(_prompts(made, recipe.prompt).count)
    return _counted(recipe.workload, made.name if length else None, length, sources, models, recipe.prompt)


def of_ledger(data: str | None, models: Sequence[str]) -> dict[str, Any]:
    """Sources of a ledger, in other tokens than it was built with. Raises DataError where it holds no texts."""
    ledger = find(data)
    sources = [from_row(r) for r in rows(connect(ledger), "SELECT * FROM sources ORDER BY task, source_id")]
    workloads = list(dict.fromkeys(s.workload for s in sources))
    length = registry.get(workloads[0]).length if len(workloads) == 1 else None
    recorded = read_manifest(ledger)
    template = recorded["recipe"].get("prompt") or "chat"
    built = str(recorded["environment"].get("model") or recorded["recipe"]["model"])
    return _counted(", ".join(workloads), built if length else None, length, sources, models, template)


def _counted(
    workload: str,
    made_by: str | None,
    nominal: int | None,
    sources: Sequence[Source],
    models: Sequence[str],
    template: str,
) -> dict[str, Any]:
    found = []
    for spec in models:
        model = load_tokenizer(spec)
        found.append(counted(model.name, sources, _prompts(model, template), model.max_positions, nominal))
    return {"workload": workload, "nominal": nominal, "counted_by": made_by, "models": found}


def _prompts(model: LoadedTokenizer, template: str) -> PromptBuilder:
    """With the recipe's template; a tokenizer without a chat template gets plain text."""
    has_one = bool(getattr(model.tokenizer, "chat_template", None))
    return PromptBuilder.create(model.tokenizer, template if has_one else "plain")
