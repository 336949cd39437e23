"""A value, a status and a reason, never one without the others."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.records.missing import AVAILABLE, PRECEDENCE, Value, measured, missing, pair

WORSE = PRECEDENCE[:-1]
STATUS_PAIRS = list(product(PRECEDENCE, PRECEDENCE))
finite = st.floats(allow_nan=False, allow_infinity=False)
codes = st.from_regex(r"[a-z][a-z0-9_]{0,12}", fullmatch=True)
values = st.one_of(finite.map(measured), st.builds(missing, st.sampled_from(WORSE), codes))


def side(status: str, number: float, reason: str) -> Value:
    return measured(number) if status == AVAILABLE else missing(status, reason)


def test_the_order_is_the_designs():
    assert PRECEDENCE == ("failed", "unsupported", "not_measured", "not_applicable", "available")


@pytest.mark.parametrize(
    ("value", "status", "reason"),
    [
        (1.0, "failed", "oom"),  # a value that is not available
        (1.0, "failed", None),
        (1.0, "available", "oom"),
        (None, "available", None),
        (None, "available", "oom"),
        (None, "failed", None),
        (math.nan, "available", None),
        (math.inf, "available", None),
        (-math.inf, "available", None),
        (1.0, "missing", None),
        (None, "", "oom"),
    ],
)
def test_a_value_that_contradicts_itself_cannot_be_made(value, status, reason):
    with pytest.raises(ValueError, match=r"status|finite"):
        Value(value, status, reason)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, None])
def test_a_measurement_that_is_not_finite_has_failed(number):
    assert measured(number) == Value(None, "failed", "nonfinite")


@pytest.mark.parametrize(("number", "kind"), [(0, float), (0.0, float), (True, bool), (False, bool)])
def test_zero_and_false_are_measurements(number, kind):
    value = measured(number)
    assert value.available
    assert value.value == number
    assert type(value.value) is kind


def test_columns_are_flat():
    assert missing("unsupported", "context_too_short").columns("err") == {
        "err": None,
        "err__status": "unsupported",
        "err__reason": "context_too_short",
    }


@pytest.mark.parametrize(("control_status", "run_status"), STATUS_PAIRS)
def test_a_pair_takes_the_worse_side(control_status, run_status):
    control, run = side(control_status, 2.0, "a"), side(run_status, 5.0, "b")
    result = pair(control, run, lambda c, r: r - c)
    worst = min(control_status, run_status, key=PRECEDENCE.index)
    assert result.status == worst
    if worst == AVAILABLE:
        assert result.value == 3.0
    elif control_status == worst:  # a tie with two reasons names the control
        assert result.reason == "control:a"
    else:
        assert result.reason == "run:b"


@pytest.mark.parametrize("status", WORSE)
def test_the_same_gap_on_both_sides_is_named_once(status):
    gap = missing(status, "oom")
    assert pair(gap, gap, max) == Value(None, status, "both:oom")


def test_a_pair_that_overflows_has_failed():
    result = pair(measured(-1e308), measured(1e308), lambda c, r: r - c)
    assert result == Value(None, "failed", "nonfinite")


def test_a_missing_side_is_never_combined():
    def combine(control: float, run: float) -> float:
        raise AssertionError("must not be called")

    pair(measured(1.0), missing("failed", "oom"), combine)


@given(control=values, run=values)
def test_whatever_is_paired_keeps_the_invariants(control, run):
    result = pair(control, run, lambda c, r: r - c)
    assert (result.value is not None) == (result.status == AVAILABLE) == (result.reason is None)
    if control.available and run.available:
        assert result.available == math.isfinite(run.value - control.value)
    else:
        assert PRECEDENCE.index(result.status) == min(
            PRECEDENCE.index(control.status), PRECEDENCE.index(run.status)
        )
        side_name, _, reason = result.reason.partition(":")
        assert side_name in ("control", "run", "both")
        assert reason in (control.reason, run.reason)


@given(number=st.one_of(st.none(), st.floats(), st.booleans(), st.integers(-(2**53), 2**53)))
def test_measured_never_lets_a_nan_through(number):
    value = measured(number)
    assert value.available == (number is not None and math.isfinite(number))
    assert set(value.columns("m")) == {"m", "m__status", "m__reason"}
