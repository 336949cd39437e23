"""ERR and ECov against a count by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.diagnostics.retention import evidence_positions, slot_ecov, slot_err


def test_overlapping_spans_count_a_position_once():
    assert evidence_positions([(2, 5), (4, 7), (9, 10)]).tolist() == [2, 3, 4, 5, 6, 9]
    assert evidence_positions([]).tolist() == []


def test_slots_are_never_pooled():
    """Two heads that keep one half each: half is kept, though together they would have all."""
    kept = np.zeros((1, 2, 8), dtype=bool)
    kept[0, 0, :2], kept[0, 1, 2:4] = True, True
    assert slot_err(kept, [(0, 4)]).tolist() == [[0.5, 0.5]]
    assert slot_err(kept, [(0, 4)]).mean() == 0.5


def test_a_span_is_covered_from_half():
    kept = np.zeros((1, 1, 10), dtype=bool)
    kept[0, 0, [0, 1, 4]] = True
    assert slot_ecov(kept, [(0, 4)]).item() == 1.0  # 2 of 4
    assert slot_ecov(kept, [(0, 5)]).item() == 1.0  # 3 of 5
    assert slot_ecov(kept, [(1, 4)]).item() == 0.0  # 1 of 3
    assert slot_ecov(kept, [(0, 4), (6, 9)]).item() == 0.5


spans = st.lists(
    st.tuples(st.integers(0, 11), st.integers(1, 6)).map(lambda s: (s[0], min(12, sum(s)))), min_size=1, max_size=4
)


@given(bits=st.lists(st.booleans(), min_size=48, max_size=48), spans=spans)
def test_both_are_what_counting_gives(bits, spans):
    kept = np.array(bits).reshape(2, 2, 12)
    err, ecov = slot_err(kept, spans), slot_ecov(kept, spans)
    for layer in range(2):
        for head in range(2):
            row = kept[layer, head].tolist()
            positions = {p for a, b in spans for p in range(a, b)}
            assert np.isclose(err[layer, head], sum(row[p] for p in positions) / len(positions))
            covered = [sum(row[a:b]) * 2 >= b - a for a, b in spans]
            assert np.isclose(ecov[layer, head], sum(covered) / len(spans))
