"""`kvdiag workloads check`: what a workload is made of, and nothing left out in silence."""

import json

import pytest

from tests.command import kvdiag
from tests.folder import MAX_POSITIONS


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Four questions: one plain, one again, one of a missing title, one far too long."""

    def item(key, sentences=1, title="Colours", answer="red"):
        passages = [
            ["Colours", ["The box is red.", *[" The sky is blue."] * sentences]],
            ["Box", ["A box has no lid."]],
        ]
        asked = {"_id": key, "question": f"Which colour has box {key[0]}?", "answer": answer}
        return asked | {"context": passages, "supporting_facts": [[title, 0], ["Box", 0]], "type": "bridge"}

    rows = [item("a1"), item("a2"), item("b1", title="Nowhere", answer="green"), item("c1", sentences=400)]
    path = tmp_path_factory.mktemp("data") / "hotpot.json"
    path.write_text(json.dumps(rows))
    return path


def test_everything_is_counted(file, model_folder):
    check = ("workloads", "check", "hotpotqa", "--file", file, "--model", model_folder)
    found = json.loads(kvdiag(*check, "--json").out)
    assert (found["workload"], found["n_sources"], found["max_positions"]) == ("hotpotqa", 4, MAX_POSITIONS)
    (task,) = found["tasks"]
    assert (task["mapped"], task["unmapped"], task["none"]) == (3, 1, 0)
    assert {e["value"]: e["n"] for e in found["evidence"]} == {"available": 3, "unmapped: title_missing": 1}
    assert {f["flag"]: f["n"] for f in found["flags"]} == {"answer_not_in_context": 1, "few_paragraphs": 4}
    # a1 and a2 ask the same of the same text.
    assert (found["n_duplicate_prompts"], found["n_over_length"]) == (1, 1)
    text = kvdiag(*check).out
    for line in (
        "1 unmapped: title_missing",
        "duplicate prompts: 1",
        f"the model has {MAX_POSITIONS} positions",
        "too long with their new tokens: 1 (rows `unsupported: over_length` in a build)",
    ):
        assert line in text


def test_a_limit_and_a_generated_workload(file, model_folder):
    few = ("workloads", "check", "hotpotqa", "--file", file, "--model", model_folder, "--limit", 2, "--json")
    assert json.loads(kvdiag(*few).out)["n_sources"] == 2
    made = ("workloads", "check", "ruler_300", "--tasks", "niah_single_1", "--limit", 2, "--model", model_folder)
    found = json.loads(kvdiag(*made, "--json").out)
    assert (found["n_sources"], found["n_over_length"], found["flags"]) == (2, 0, [])
    assert "flags: none" in kvdiag(*made).out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("check", "qaspr"), "--workload qaspr: no such workload; did you mean qasper"),
        (("check", "qasper", "--file", "none.json"), "--file none.json"),
        (("check", "qasper", "--length", "4096"), "--length 4096: qasper has no length of its own"),
    ],
)
def test_a_mistake_is_one_line(model_folder, args, said):
    result = kvdiag("workloads", *args, "--model", model_folder)
    assert result.is_one_line_error(2), result
    assert said in result.err
