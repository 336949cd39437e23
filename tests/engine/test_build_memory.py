"""A build that runs out of memory: for a while, for one source, for one cell, or always."""

import signal

import pytest
import torch

from kvdiag.engine import source as engine_source
from kvdiag.engine.build import build
from kvdiag.engine.stopping import Stopped, StopSwitch
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


def test_where_no_source_ever_runs_the_build_stops_and_may_be_run_again(monkeypatch, recipe, tmp_path):
    plant(monkeypatch, lambda prompt, cells: True)
    for _ in range(2):
        with pytest.raises(DataError, match=f"^{N} sources ran out of memory, twice each, and none runs here"):
            build(recipe, tmp_path / "ledger")
        assert not (tmp_path / "ledger" / MANIFEST).exists()
    monkeypatch.undo()
    build(recipe, tmp_path / "ledger")  # the cause is mended
    assert reasons(tmp_path / "ledger") == []


def test_a_cell_that_never_fits_is_not_tried_on_every_source_again(monkeypatch, recipe, tmp_path):
    calls = plant(monkeypatch, lambda prompt, cells: any(cell.method.id == "streaming_llm" for cell in cells))
    heard = Heard()
    build(recipe, tmp_path / "ledger", heard)
    assert heard.warnings == []
    assert len(calls) == N * 4  # all cells, the control, and each cell


def test_a_second_try_that_is_worse_is_not_kept(monkeypatch, recipe, tmp_path):
    """The first try of the first source loses a cell; the second one loses its control."""
    tries: dict[str, int] = {}

    def too_much(prompt, cells):
        first = next(iter(tries), prompt.text)
        if len(cells) == 2:
            tries[prompt.text] = tries.get(prompt.text, 0) + 1
        if prompt.text != first:
            return False
        return tries[first] > 1 or any(cell.method.id == "knorm" for cell in cells)

    plant(monkeypatch, too_much)
    manifest = build(recipe, tmp_path / "ledger")
    assert max(tries.values()) == 2
    assert list(manifest["build"]["out_of_memory"].values()) == [1]
    assert [reason[1:] for reason in reasons(tmp_path / "ledger")] == [("knorm", "oom")]


def test_what_ran_is_kept_at_once(monkeypatch, recipe, tmp_path):
    """A stop loses no source because a cell of it ran out of memory."""
    plant(monkeypatch, lambda prompt, cells: any(cell.method.id == "streaming_llm" for cell in cells))
    switch = StopSwitch()

    class Stopping(Heard):
        def source_done(self, source, seconds):
            done.append(source)
            if len(done) == N - 1:
                switch.asked = signal.SIGINT

    done: list[object] = []
    with pytest.raises(Stopped):
        build(recipe, tmp_path / "ledger", Stopping(), switch=switch)
    monkeypatch.undo()
    calls = plant(monkeypatch, lambda prompt, cells: False)
    build(recipe, tmp_path / "ledger")
    assert len(calls) == 1 + (N - 1)  # the last source, and the others once more, since the cell fits now
    assert reasons(tmp_path / "ledger") == []
