"""The paper's frozen rules, at and beside each threshold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnostics.signatures import Thresholds, signature, signature_flags

LOW, PARTIAL = "low_mapped_coverage", "partial_mapped_coverage"
DRIFT, STRUCTURAL = "high_mapped_coverage_likelihood_drift", "structural_position_likelihood_drift"
EAR, DECODE = "low_ear_candidate", "decode_scorer_candidate"


@pytest.mark.parametrize(
    ("coverage", "ecov", "delta_nll", "ear", "top50", "flags"),
    [
        ("measured_token", 0.49, 0.5, 0.9, 0.5, [LOW]),
        ("projected_chunk", 0.49, 0.5, 0.9, 0.5, [LOW]),
        ("measured_token", 0.50, 0.5, 0.9, 0.5, [PARTIAL]),
        ("measured_token", 0.89, 0.5, 0.9, 0.5, [PARTIAL]),
        ("measured_token", 0.89, 5.0, 0.1, 0.5, [PARTIAL]),  # drift and EAR ask for kept evidence
        ("measured_token", 0.90, 0.5, 0.9, 0.5, []),
        ("measured_token", 0.90, 1.0, 0.9, 0.5, [DRIFT]),
        ("measured_token", 0.90, 0.99, 0.9, 0.5, []),
        ("measured_token", 0.95, 1.0, 0.49, 0.5, [DRIFT, EAR]),
        ("measured_token", 0.95, 0.5, 0.50, 0.5, []),
        ("measured_token", 0.95, 0.10, 0.9, 0.90, [DECODE]),
        ("measured_token", 0.95, -0.10, 0.9, 0.90, [DECODE]),
        ("measured_token", 0.95, 0.11, 0.9, 0.90, []),
        ("measured_token", 0.95, -0.5, 0.9, 0.90, []),
        ("measured_token", 0.95, 0.10, 0.9, 0.89, []),
        ("measured_token", 0.95, 0.10, 0.9, None, [DECODE]),  # Top-50 counts where there is one
        ("measured_token", 0.49, 0.0, 0.1, 0.95, [LOW]),
        ("structural_position", None, 1.0, 0.9, 0.5, [STRUCTURAL]),
        ("structural_position", None, 1.0, 0.1, 0.5, [STRUCTURAL, EAR]),
        ("structural_position", None, 0.0, None, None, [DECODE]),
        ("structural_position", None, None, None, None, []),
        ("measured_token", None, 5.0, 0.1, 0.95, []),  # coverage unknown: nothing can be said
        ("none", None, 5.0, 0.1, 0.95, []),
        ("none", 0.1, 0.0, 0.1, 0.95, []),
    ],
)
def test_rules(coverage, ecov, delta_nll, ear, top50, flags):
    found = signature_flags(coverage, ecov, delta_nll, ear, top50)
    assert found == flags
    expected = flags[0] if len(flags) == 1 else "conflicting_diagnostic_signals" if flags else "ambiguous"
    assert signature(found) == expected


def test_thresholds_are_data():
    strict = Thresholds(low_coverage=0.7, high_coverage=0.99)
    assert signature_flags("measured_token", 0.6, 0.5, 0.9, 0.5, strict) == [LOW]
    assert signature_flags("measured_token", 0.95, 0.5, 0.9, 0.5, strict) == [PARTIAL]


metric = st.one_of(st.none(), st.floats(-3, 3))
share = st.one_of(st.none(), st.floats(0, 1))


@given(
    coverage=st.sampled_from(["measured_token", "projected_chunk"]), ecov=share, nll=metric, ear=share, top50=share
)
def test_coverage_rules_exclude_each_other(coverage, ecov, nll, ear, top50):
    flags = signature_flags(coverage, ecov, nll, ear, top50)
    assert len(set(flags) & {LOW, PARTIAL}) <= 1
    assert STRUCTURAL not in flags
    assert not set(flags) & {DRIFT, EAR, DECODE} or not set(flags) & {LOW, PARTIAL}
    assert not {DRIFT, DECODE} <= set(flags)
