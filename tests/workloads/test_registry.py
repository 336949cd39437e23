"""Names and lengths of workloads."""

import json
from collections import Counter

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
    assert workload.select_tasks(["vt", "niah_single_1"]) == ("niah_single_1", "vt")
    with pytest.raises(UsageError, match="--tasks niah_single: no such task; did you mean niah_single_"):
        workload.select_tasks(["vt", "niah_single"])


@pytest.mark.parametrize(("limit", "counts"), [(1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1]), (7, [3, 2, 2])])
def test_a_limit_is_shared_among_the_tasks(limit, counts):
    workload = registry.get("ruler_512")
    tasks = ("niah_single_1", "niah_multikey_1", "vt")
    sources = workload.sources(tasks, limit, 1, lambda s: len((s.context + s.question + s.answer_prefix).split()))
    found = Counter(s.task for s in sources)
    assert [found[t] for t in tasks] == counts


def test_every_family_is_named():
    for family in registry.FAMILIES.values():
        workload = registry.get(family.name, 4096 if family.name == "ruler" else None)
        assert (workload.tasks, workload.default_tasks) == (family.tasks, family.default_tasks)
        assert registry.family_of(workload.id) is family
        assert set(family.default_tasks) <= set(family.tasks)
        assert family.licence
        assert family.summary
    with pytest.raises(KeyError):
        registry.family_of("rular_4k")


def test_tasks_by_default_need_no_file():
    workload = registry.get("ruler_1k")
    assert workload.select_tasks(None) == workload.select_tasks([]) == workload.default_tasks
    assert set(workload.tasks) - set(workload.default_tasks) == {"qa_1", "qa_2"}
    assert workload.select_tasks(["all"]) == workload.tasks


def test_a_data_set_has_no_length():
    with pytest.raises(UsageError, match="--length 4096: qasper has no length of its own"):
        registry.get("qasper", 4096)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("squad.json", "--file squad.json: must say for which task: qa_1=PATH or qa_2=PATH"),
        ("vt=x", "must say for which task"),
    ],
)
def test_a_file_of_ruler_says_what_it_is_for(file, message):
    workload = registry.get("ruler_1k")
    with pytest.raises(UsageError, match=message):
        next(workload.sources(["vt"], 1, 1, lambda s: 1, files=[file]))


def hotpot(tmp_path, n):
    """A HotpotQA file of n questions."""
    paragraphs = [["A", ["First.", " It is red."]], ["B", ["Second."]]]
    rows = [
        {
            "_id": str(i),
            "question": f"Which colour is {i}?",
            "answer": "red",
            "context": paragraphs,
            "supporting_facts": [["A", 1]],
            "type": "bridge",
            "level": "hard",
        }
        for i in range(n)
    ]
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps(rows))
    return path


def test_sources_of_a_data_set_are_drawn_and_more_hold_the_fewer(tmp_path):
    workload, file = registry.get("hotpotqa"), str(hotpot(tmp_path, 30))

    def drawn(n, seed):
        found = workload.sources(workload.tasks, n, seed, lambda s: 1, files=[file])
        return [s.index for s in found]

    few, more = drawn(5, 1), drawn(12, 1)
    assert (len(few), len(more)) == (5, 12)
    assert set(few) < set(more)
    assert few == sorted(few) != [0, 1, 2, 3, 4]
    assert drawn(5, 2) != few == drawn(5, 1)
    assert drawn(100, 1) == drawn(None, 1) == list(range(30))
    (source,) = workload.sources(workload.tasks, 1, 1, lambda s: 1, max_new_tokens=7, files=[file])
    assert source.max_new_tokens == 7
