"""How answers differ, token by token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnostics.decoding import first_divergence, prefix_agreement, repetition, shared_prefix

answers = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@pytest.mark.parametrize(
    ("control", "run", "agreement", "divergence"),
    [
        ([5, 6, 2], [5, 6, 2], 1.0, None),
        ([5, 6, 2], [5, 7, 2], 1 / 3, 1),
        ([5, 6, 2], [7], 0.0, 0),
        ([5, 6, 2], [5, 6], 2 / 3, 2),  # stopped early
        ([5, 6], [5, 6, 2], 1.0, 2),  # went on
    ],
)
def test_agreement_and_divergence(control, run, agreement, divergence):
    assert prefix_agreement(control, run) == pytest.approx(agreement)
    assert first_divergence(control, run) == divergence


@pytest.mark.parametrize(
    ("answer", "share"), [([1, 2], None), ([1, 2, 3], 0.0), ([1, 1, 1, 1], 0.5), ([1, 2, 3, 1, 2, 3], 0.25)]
)
def test_repetition(answer, share):
    assert repetition(answer) == share


@given(control=answers, run=answers)
def test_the_two_agree_with_each_other(control, run):
    n = shared_prefix(control, run)
    assert control[:n] == run[:n]
    assert 0 <= prefix_agreement(control, run) <= 1
    assert first_divergence(control, run) == (None if control == run else n)
    assert n == min(len(control), len(run)) or control[n] != run[n]
