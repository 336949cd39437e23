"""What `kvdiag workloads check` counts."""

from dataclasses import replace

import pytest

from kvdiag.analysis.survey import survey
from kvdiag.prompts import PromptBuilder
from tests.folder import tiny_tokenizer
from tests.test_prompts import source


@pytest.fixture(scope="module")
def prompts():
    return PromptBuilder.create(tiny_tokenizer(), "plain")


def test_counts(prompts):
    one = source()
    sources = [
        one,
        replace(one, source_id="again"),
        replace(
            one,
            source_id="float",
            evidence=(),
            evidence_status="unmapped",
            evidence_reason="float_selected",
            question="\nWhich number is it?",
            flags=("float_evidence", "contradictory_references"),
        ),
        replace(
            one,
            source_id="none",
            task="cwe",
            evidence=(),
            context="The sky is blue. " * 30,
            flags=("contradictory_references",),
            answer_types=("span", "yes_no"),
        ),
    ]
    short = len(prompts.build(one).ids)
    found = survey(sources, prompts, max_positions=short + 20)
    assert found["n_sources"] == 4
    vt, cwe = found["tasks"]
    assert (vt["task"], vt["n"], vt["mapped"], vt["unmapped"], vt["none"]) == ("vt", 3, 2, 1, 0)
    assert (cwe["task"], cwe["n"], cwe["mapped"], cwe["unmapped"], cwe["none"]) == ("cwe", 1, 0, 0, 1)
    assert found["evidence"] == [
        {"value": "available", "n": 2},
        {"value": "not_applicable: no_evidence", "n": 1},
        {"value": "unmapped: float_selected", "n": 1},
    ]
    assert found["flags"] == [
        {"flag": "contradictory_references", "n": 2, "example": "float"},
        {"flag": "float_evidence", "n": 1, "example": "float"},
    ]
    assert found["answer_types"] == [{"value": "span", "n": 1}, {"value": "yes_no", "n": 1}]
    assert found["n_duplicate_prompts"] == 1
    assert found["n_over_length"] == 1
    assert found["tokens"]["min"] == short
    assert found["tokens"]["max"] == cwe["tokens"]["max"] == len(prompts.build(sources[3]).ids)


def test_a_task_that_the_data_lacks_is_a_row(prompts):
    found = survey([source()], prompts, 1000, ("vt", "trec"))
    assert [(t["task"], t["n"], t["references"]) for t in found["tasks"]] == [("vt", 1, 1.0), ("trec", 0, None)]


def test_nothing_has_no_lengths(prompts):
    found = survey([], prompts, 100)
    assert (found["n_sources"], found["tasks"], found["tokens"], found["n_over_length"]) == (0, [], None, 0)
