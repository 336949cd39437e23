"""Drift between two attention backends: the shift, the flips, and what may be said."""

import numpy as np
import pytest
from scipy.stats import binom

from kvdiag.analysis.audit.backend import Answers, drift, unseen_rate, verdict_text


def answers(name, scores):
    return Answers(name, [f"{s:g}" for s in scores], list(scores), [bool(s == 1) for s in scores])


def compared(reference, other, **options):
    tasks = ["vt", "cwe"] * (len(reference) // 2) + ["vt"] * (len(reference) % 2)
    return drift(answers("sdpa", reference), answers("eager", other), tasks, **options)


def test_a_planted_drift_is_found():
    reference = np.ones(100)
    other = np.where(np.arange(100) % 4 == 0, 0.0, 1.0)
    found = compared(reference, other)
    assert found["shift"] == pytest.approx(-0.25)
    assert found["high"] < 0
    assert (found["n_right_to_wrong"], found["n_wrong_to_right"], found["n_scores_differ"]) == (25, 0, 25)
    assert found["verdict"] == "differs"
    assert "may not be compared" in verdict_text(found)


def test_equal_answers_are_the_same_once_there_are_enough():
    few, many = compared(np.ones(20), np.ones(20)), compared(np.ones(200), np.ones(200))
    assert (few["verdict"], many["verdict"]) == ("undecided", "same")
    assert few["shift"] == many["shift"] == 0
    assert "no score differs on 20 sources, but up to 13.9% may" in verdict_text(few)
    assert "may be compared" in verdict_text(many)


def test_balanced_flips_are_no_shift_but_are_counted():
    reference = np.tile([1.0, 1.0, 0.0, 0.0], 25)
    other = np.tile([0.0, 1.0, 1.0, 0.0], 25)
    found = compared(reference, other)
    assert found["shift"] == 0
    assert (found["n_right_to_wrong"], found["n_wrong_to_right"]) == (25, 25)
    assert found["verdict"] == "undecided"  # the interval is wider than the margin
    assert compared(reference, other, margin=0.5)["verdict"] == "same"


def test_one_source_decides_nothing():
    found = compared(np.ones(1), np.zeros(1))
    assert (found["low"], found["verdict"]) == (None, "undecided")


def test_answers_without_right_or_wrong_are_not_judged():
    tasks = ["gov_report"] * 4
    one = Answers("sdpa", list("abcd"), [0.1, 0.2, 0.3, 0.4], [None] * 4)
    found = drift(one, Answers("eager", list("abcx"), [0.1, 0.2, 0.3, 0.5], [None] * 4), tasks)
    assert (found["n_judged"], found["n_right_to_wrong"], found["n_outputs_differ"]) == (0, 0, 1)
    assert found["shift"] == pytest.approx(0.025)


@pytest.mark.parametrize("n", [1, 5, 59, 200])
def test_the_unseen_rate_is_the_exact_bound(n):
    assert binom.pmf(0, n, unseen_rate(n)) == pytest.approx(0.05)


def test_one_source_a_task_is_no_certainty():
    """Within strata of one nothing can vary: the interval would have no width."""
    tasks = [f"task_{i}" for i in range(13)]
    scores = [0.5] * 13
    one = Answers("sdpa", ["a"] * 13, scores, [True] * 13)
    moved = Answers("eager", ["b"] * 13, [0.6, *scores[1:]], [True] * 13)
    found = drift(one, moved, tasks)
    assert found["low"] <= 0 < found["high"]
    assert found["verdict"] != "differs"
    both_ways = Answers("eager", ["b"] * 13, [0.9, 0.1, *scores[2:]], [True] * 13)
    found = drift(one, both_ways, tasks)
    assert (found["shift"], found["verdict"]) == (0, "undecided")
