"""What a model or machine cannot run, found out before any work."""

import importlib.util
from collections.abc import Sequence

import torch

from kvdiag.engine.matrix import NonFiniteError, run_matrix
from kvdiag.engine.models import LoadedModel
from kvdiag.engine.rows import Gap
from kvdiag.engine.tap import AdapterFactory
from kvdiag.engine.views import Cell
from kvdiag.methods.adapters.build import make_adapter
from kvdiag.methods.catalogue import Method
from kvdiag.methods.settings import Setting
from kvdiag.prompts import Prompt

TOKENS = 160  # enough for every method's window


def probe(model: LoadedModel, methods: Sequence[Method], make: AdapterFactory = make_adapter) -> dict[str, Gap]:
    """Methods that cannot run, each with its reason: a missing package, or an error on a few random tokens."""
    found: dict[str, Gap] = {}
    candidates = []
    for method in dict.fromkeys(methods):
        if method.requires and not _importable(method.requires):
            found[method.id] = Gap("unsupported", "missing_package", f"pip install {method.requires}")
        else:
            candidates.append(Cell(method, _some_setting(method), "query_agnostic"))
    if not candidates or model.max_positions < TOKENS:
        return found
    try:
        result = run_matrix(model.model, _prompt(model), candidates, frozenset(), 1, model.tokenizer, make)
    except NonFiniteError:
        return found  # the model's trouble, not a method's: its rows will say so
    for cell in candidates:
        error = result.views[cell].error
        if error:
            found[cell.method.id] = Gap("unsupported", "probe_failed", error)
    return found


def _importable(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the parent of a dotted name
        return False


def _some_setting(method: Method) -> Setting:
    return Setting("bits", 4) if method.setting_kind == "bits" else Setting("keep", 0.75)


def _prompt(model: LoadedModel) -> Prompt:
    generator = torch.Generator().manual_seed(0)
    vocabulary = model.model.config.vocab_size
    ids = torch.randint(vocabulary, (TOKENS,), generator=generator).tolist()
    return Prompt("", tuple(ids), TOKENS - 8, 4, tuple(ids[:1]), (), "not_applicable", "no_evidence")
