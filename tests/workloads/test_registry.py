"""Names and lengths of workloads."""

from collections import Counter
from dataclasses import replace

import pytest

from kvdiag.errors import UsageError
from kvdiag.workloads import registry, ruler


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        ("ruler_4k", None, ("ruler_4k", 4096)),
        ("ruler_4k", 4096, ("ruler_4k", 4096)),
        ("ruler", 4096, ("ruler_4k", 4096)),
        ("ruler", 5000, ("ruler_5000", 5000)),
        ("ruler_5000", None, ("ruler_5000", 5000)),
        ("ruler_1024", None, ("ruler_1k", 1024)),
        ("ruler_512", None, ("ruler_512", 512)),
        ("ruler_128k", None, ("ruler_128k", 131072)),
    ],
)
def test_one_length_has_one_name(name, length, expected):
    workload = registry.get(name, length)
    assert (workload.id, workload.length) == expected
    assert workload.tasks == tuple(ruler.TASKS)
    assert registry.get(workload.id) == workload
    assert "-" not in workload.id  # it names a split


@pytest.mark.parametrize(
    ("name", "length", "message"),
    [
        ("rular_4k", None, "--workload rular_4k: no such workload; did you mean ruler_4k"),
        ("ruler4k", None, "did you mean ruler_4k"),
        ("Ruler_4k", None, "did you mean ruler_4k"),
        ("ruler_4k ", None, "did you mean ruler_4k"),
        ("ruler_4m", None, "no such workload"),
        ("ruler_-1", None, "no such workload"),
        ("zzz", None, "known: ruler, ruler_1k"),
        ("", None, "no such workload"),
        ("ruler", None, "needs a length: --length 4096, or --workload ruler_4k"),
        ("ruler_0", None, "needs a length"),
        ("ruler", 0, "needs a length"),
        ("ruler", -5, "needs a length"),
        ("ruler_4k", 4000, "--length 4000 contradicts --workload ruler_4k (4096)"),
    ],
)
def test_a_wrong_name_or_length_says_what_would_be_right(name, length, message):
    with pytest.raises(UsageError) as raised:
        registry.get(name, length)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_tasks_keep_their_order_and_wrong_ones_are_named():
    workload = registry.get("ruler_1k")
    assert workload.select_tasks(None) == workload.select_tasks([]) == workload.tasks
    assert workload.select_tasks(["vt", "niah_single_1"]) == ("niah_single_1", "vt")
    with pytest.raises(UsageError, match="--tasks niah_single: no such task; did you mean niah_single_1"):
        workload.select_tasks(["vt", "niah_single"])


@pytest.mark.parametrize(("limit", "counts"), [(1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (7, [3, 2, 2])])
def test_a_limit_is_shared_among_the_tasks(limit, counts):
    workload = registry.get("ruler_512")
    sources = workload.sources(
        workload.tasks, limit, 1, lambda s: len((s.context + s.question + s.answer_prefix).split())
    )
    found = Counter(s.task for s in sources)
    assert [found[t] for t in workload.tasks] == counts


def test_every_family_can_be_judged_and_named():
    for family in registry.FAMILIES.values():
        assert family.name in registry.SCORES
        assert registry.get(family.name, 4096).tasks == family.tasks
        assert family.licence
        assert family.summary


def test_a_source_is_judged_by_its_workload():
    workload = registry.get("ruler_512")
    (source,) = workload.sources(["niah_single_1"], 1, 1, lambda s: len(s.context.split()))
    source = replace(source, references=("12",))
    assert registry.judge(source, "12") == (1.0, True)
    assert registry.judge(source, "3125") == (1.0, False)
    assert registry.judge(source, "") == (0.0, False)
