"""The rules taken apart say what the rules themselves decide."""

from itertools import product

import pytest

from kvdiag.analysis.rules import READINGS, rules
from kvdiag.diagnostics.signatures import FROZEN, Thresholds, signature, signature_flags

TYPES = ("measured_token", "projected_chunk", "structural_position", "none")
NAMES = ("coverage_type", "ecov", "delta_nll", "ear", "top50_overlap")
# Each threshold from both sides and at itself.
CASES = list(
    product(
        TYPES,
        (None, 0.49, 0.5, 0.89, 0.9, 0.95),
        (None, -0.2, -0.1, 0.1, 0.5, 1.0, 2.0),
        (None, 0.4, 0.5),
        (None, 0.89, 0.9),
    )
)
OTHER = Thresholds(0.495, 0.92, 0.05, 0.45, 0.15, 0.895)


@pytest.mark.parametrize("thresholds", [FROZEN, OTHER])
def test_a_rule_fires_where_all_its_conditions_hold(thresholds):
    fired = set()
    for case in CASES:
        found = rules(dict(zip(NAMES, case, strict=True)), thresholds)
        holding = [rule.name for rule in found if all(c.holds for c in rule.conditions)]
        assert holding == signature_flags(*case, thresholds=thresholds), case
        fired.update(holding)
    assert len(fired) == len(found)


def test_every_signature_has_a_reading():
    assert {signature(signature_flags(*case)) for case in CASES} == set(READINGS)


def test_conditions_in_words():
    run = dict(zip(NAMES, ("measured_token", 0.95, -0.05, None, 0.91), strict=True))
    found = {rule.name: [(c.text, c.holds) for c in rule.conditions] for rule in rules(run, FROZEN)}
    assert found["decode_scorer_candidate"] == [
        ("ecov 0.95 >= 0.9 (high_coverage)", True),
        ("|delta_nll| 0.05 <= 0.1 (decode_nll)", True),
        ("top50_overlap 0.91 >= 0.9 (decode_top50)", True),
    ]
    assert found["low_ear_candidate"][1] == ("ear has no value; needs < 0.5 (low_ear)", False)
    assert found["structural_position_likelihood_drift"] == [
        ("coverage measured_token, not structural", False),
        ("delta_nll -0.05 is not >= 1 (drift_nll)", False),
    ]


def test_a_number_next_to_its_threshold_is_not_rounded_onto_it():
    run = dict(zip(NAMES, ("measured_token", 0.4999999, 0.0, None, None), strict=True))
    (_, condition) = rules(run, FROZEN)[0].conditions
    assert condition.text == "ecov 0.4999999 < 0.5 (low_coverage)"
