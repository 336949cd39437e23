"""A build that runs out of memory: for a while, for one source, for one cell, or always."""

import pytest
import torch

from kvdiag.engine import source as engine_source
from kvdiag.engine.build import build
from kvdiag.engine.watch import Watcher
from kvdiag.errors import DataError
from kvdiag.ledger.layout import MANIFEST
from kvdiag.query.connection import connect, rows
from kvdiag.validation.validate import validate
from tests.built import small_recipe

N = 4


class Heard(Watcher):
    def __init__(self):
        self.warnings = []

    def warned(self, text):
        self.warnings.append(text)


@pytest.fixture
def recipe(model_folder):
    return small_recipe(model_folder, limit=N)


def plant(monkeypatch, too_much):
    """run_matrix runs out of memory where too_much(prompt, cells) says so; returns how often it was called."""
    whole, calls = engine_source.run_matrix, []

    def run(model, prompt, cells, *rest, **known):
        calls.append(len(cells))
        if too_much(prompt, cells):
            raise torch.OutOfMemoryError("planted")
        return whole(model, prompt, cells, *rest, **known)

    monkeypatch.setattr(engine_source, "run_matrix", run)
    return calls


def reasons(out):
    sql = "SELECT source_id, method, reason FROM runs WHERE status <> 'available' ORDER BY ALL"
    return [tuple(row.values()) for row in rows(connect(out), sql)]


def test_memory_that_is_short_for_a_while_loses_nothing(monkeypatch, recipe, tmp_path):
    calls: list[int] = []
    calls = plant(monkeypatch, lambda prompt, cells: len(calls) <= 2 * N)  # every source, whole and alone
    heard = Heard()
    manifest = build(recipe, tmp_path / "ledger", heard)
    assert reasons(tmp_path / "ledger") == []
    assert manifest["build"]["out_of_memory"] == {}
    assert heard.warnings == [f"{N} sources ran out of memory, in all or some cells; they are run once more"]
    assert not list(validate(tmp_path / "ledger"))
    build(recipe, tmp_path / "other")
    data = [sorted(p.read_bytes() for p in (tmp_path / n).rglob("*.parquet")) for n in ("ledger", "other")]
    assert data[0] == data[1]


def test_a_source_that_is_too_much_alone_costs_itself_only(monkeypatch, recipe, tmp_path):
    seen = []

    def first(prompt, cells):
        seen.append(prompt.text)
        return prompt.text == seen[0]

    plant(monkeypatch, first)
    manifest = build(recipe, tmp_path / "ledger")
    ((source, n),) = manifest["build"]["out_of_memory"].items()
    assert n == 2 and reasons(tmp_path / "ledger") == [(source, "knorm", "oom"), (source, "streaming_llm", "oom")]
    assert manifest["build"]["exceptions"] == {}
    (control,) = rows(connect(tmp_path / "ledger"), "SELECT reason, detail FROM controls WHERE reason IS NOT NULL")
    assert control == {"reason": "oom", "detail": "planted"}
    assert not list(validate(tmp_path / "ledger"))


def test_a_cell_that_is_too_much_alone_costs_itself_only(monkeypatch, recipe, tmp_path):
    plant(monkeypatch, lambda prompt, cells: any(cell.method.id == "streaming_llm" for cell in cells))
    manifest = build(recipe, tmp_path / "ledger")
    assert len(manifest["build"]["out_of_memory"]) == N
    assert {reason[1:] for reason in reasons(tmp_path / "ledger")} == {("streaming_llm", "oom")}
    assert len(reasons(tmp_path / "ledger")) == N
    assert set(manifest["build"]["halved"]) == set(manifest["build"]["out_of_memory"])
    assert not list(validate(tmp_path / "ledger"))


def test_where_no_source_ever_runs_none_is_kept(monkeypatch, recipe, tmp_path):
    plant(monkeypatch, lambda prompt, cells: True)
    with pytest.raises(DataError, match=f"^{N} sources ran out of memory, twice each, and none runs here"):
        build(recipe, tmp_path / "ledger")
    assert not (tmp_path / "ledger" / MANIFEST).exists()
    monkeypatch.undo()
    build(recipe, tmp_path / "ledger")  # the cause is mended
    assert reasons(tmp_path / "ledger") == []
