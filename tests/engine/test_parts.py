"""All cells at once are too much: halves of them give the same rows, and only what is too much alone is lost."""

from functools import partial

import pytest
import torch

from kvdiag.engine.matrix import run_matrix
from kvdiag.engine.parts import in_parts
from kvdiag.engine.views import Cell
from kvdiag.methods import catalogue
from kvdiag.methods.settings import parse_setting
from tests.tiny import tiny_model, tiny_prompt

CELLS = [
    Cell(catalogue.get(method), parse_setting(setting), protocol)
    for method, setting in (("knorm", "keep=0.5"), ("snapkv", "keep=0.25"), ("quantized_quanto", "bits=2"))
    for protocol in ("query_agnostic", "query_aware")
]
matrix = partial(run_matrix, tiny_model("llama"), tiny_prompt())


def runner(most, never=()):
    """Runs cells; memory runs out with more than `most` of them, or with one of `never`."""
    asked = []

    def run(cells, budget):
        asked.append(len(cells))
        if len(cells) > most or any(cell in never for cell in cells):
            raise torch.OutOfMemoryError("planted: 3 GiB\nmore lines")
        return matrix(cells, frozenset([0]), 8, budget=budget)

    return run, asked


def test_where_memory_is_enough_nothing_is_split():
    run, asked = runner(most=6)
    found, too_much = in_parts(run, CELLS)
    assert (asked, too_much, found.halved) == ([6], {}, [])


@pytest.mark.parametrize("most", [1, 3])
def test_parts_give_the_same_rows(most):
    whole = matrix(CELLS, frozenset([0]), 8)
    run, asked = runner(most)
    found, too_much = in_parts(run, CELLS)
    assert asked[:2] == [6, 0] and max(asked[2:]) <= 3  # the control by itself, then halves
    assert too_much == {} and set(found.cells) == set(found.views) == set(CELLS)
    assert found.control.answer == whole.control.answer
    assert (
        list(found.cells) == list(found.views) == list(whole.views)
    )  # of two equal cells the later one is the copy
    for cell in CELLS:
        assert found.cells[cell].answer == whole.cells[cell].answer
        assert found.cells[cell].nll == pytest.approx(whole.cells[cell].nll, abs=1e-5)
        assert torch.equal(found.views[cell].kept(), whole.views[cell].kept())
    assert "cells" in found.halved  # told in the manifest
    assert found.seconds["prefill"] > 0


def test_a_part_leaves_no_cache_of_its_own_to_the_next():
    quantized = [c for c in CELLS if c.method.adapter == "quantized"]
    whole = matrix(quantized, frozenset([0]), 8)
    run, _ = runner(most=1)
    found, _ = in_parts(run, quantized)
    one, two = (found.views[cell] for cell in quantized)
    assert max(t.numel() for view in (one, two) for c in view.choices for t in (c.keys, c.values)) == 32
    assert one.same_cache(one) and not one.same_cache(two)
    for cell in quantized:
        assert found.views[cell].stored_bytes(8) == whole.views[cell].stored_bytes(8)


def test_a_cell_that_is_too_much_alone_costs_itself_only():
    lost = CELLS[3]
    run, _ = runner(most=6, never=(lost,))
    found, too_much = in_parts(run, CELLS)
    assert {c: (g.status, g.reason, g.detail) for c, g in too_much.items()} == {
        lost: ("failed", "oom", "planted: 3 GiB")
    }
    assert set(found.cells) == set(CELLS) - {lost}


def test_a_control_that_is_too_much_is_found_at_once():
    run, asked = runner(most=-1)
    with pytest.raises(torch.OutOfMemoryError):
        in_parts(run, CELLS)
    assert asked == [6, 0]


def test_other_errors_are_not_taken_for_memory():
    def run(cells, budget):
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        in_parts(run, CELLS)
