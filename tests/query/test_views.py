"""What views count and leave out."""

import pytest

from kvdiag.query.run import query
from tests import rows

OVERLAP = """
    SELECT method_a, method_b, n_sources, n_a, n_b, n_intersection, n_union, jaccard
    FROM failure_overlap ORDER BY ALL"""


def overlap(folder, right, unanswered=()):
    """The view for runs of two methods on some sources, whose controls are all right.

    right: for each method, whether each source's run is. unanswered: (method, source) whose run has no answer.
    """
    made = rows.made_up_rows(len(right["knorm"]), all_right=True)
    made["runs"] = [
        rows.run_row(source, control, right[method][i], method)
        for i, (source, control) in enumerate(zip(made["sources"], made["controls"], strict=True))
        for method in right
    ]
    made["retention"] = []
    for run in made["runs"]:
        if (run["method"], int(run["source_id"][-4:])) in unanswered:
            run |= {"status": "failed", "reason": "oom", "correct": None, "transition": None}
    rows.write_made_up(folder, made)
    return query(folder, OVERLAP).to_pylist()


@pytest.mark.parametrize(
    ("knorm", "snapkv", "expected"),
    [
        ([0, 0, 1, 1], [0, 1, 0, 1], (4, 2, 2, 1, 3, 1 / 3)),
        ([0, 0, 1, 1], [0, 0, 1, 1], (4, 2, 2, 2, 2, 1.0)),
        ([0, 1, 1, 1], [1, 0, 1, 1], (4, 1, 1, 0, 2, 0.0)),
        ([1, 1, 1, 1], [1, 0, 0, 1], (4, 0, 2, 0, 2, 0.0)),  # a method that never failed has a row
        ([1, 1, 1, 1], [1, 1, 1, 1], (4, 0, 0, 0, 0, None)),  # nothing to overlap
    ],
)
def test_overlap_of_failures(tmp_path, knorm, snapkv, expected):
    (row,) = overlap(tmp_path, {"knorm": [*map(bool, knorm)], "snapkv": [*map(bool, snapkv)]})
    assert tuple(row.values()) == ("knorm", "snapkv", *expected)


def test_overlap_is_over_sources_that_both_answered(tmp_path):
    right = {"knorm": [False, False, True, True], "snapkv": [False, False, False, True]}
    (row,) = overlap(tmp_path, right, unanswered={("knorm", 1), ("snapkv", 2)})
    assert tuple(row.values()) == ("knorm", "snapkv", 2, 1, 1, 1, 1, 1.0)
