"""Each workload and task gets its own score and rule."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdiag.workloads.base import Source
from kvdiag.workloads.scoring import Judgement, judge

SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "longbench"
CHOICES = ("Country", "City", "Other number", "number")
QA = ["narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa"]
SUMMARIES = ["gov_report", "qmsum", "multi_news", "samsum"]
CODE = ["lcc", "repobench-p"]
TASKS = [*QA, *SUMMARIES, *CODE, "trec", "passage_count", "passage_retrieval_en"]


def source(workload, task, *references, choices=()):
    return Source("s1", workload, task, 0, None, "", "", "", "", references, 32, choices=choices)


@pytest.mark.parametrize(
    ("workload", "task", "references", "output", "judgement"),
    [
        ("ruler_4k", "niah_single_1", ["12", "13"], "It is 3125.", Judgement(0.5, False, None)),
        ("ruler_4k", "cwe", ["ab", "cd"], "cd, ab", Judgement(1.0, True, None)),
        ("ruler_8k", "qa_1", ["Paris", "Lyon"], "Lyon. Not", Judgement(1.0, True, None)),
        ("ruler_8k", "qa_2", ["no"], "I know not", Judgement(1.0, False, None)),
        ("ruler_8k", "qa_2", ["Paris"], "Rome\x07Paris", Judgement(1.0, False, None)),
        ("qasper", "qasper", ["Yes", "Unanswerable"], "Yes, they do", Judgement(0.5, True, None)),
        ("hotpotqa", "hotpotqa", ["yes"], "Yes, they do", Judgement(0.0, True, None)),
        ("hotpotqa_16k", "bridge", ["Levni Yilmaz"], "Levni Yilmaz", Judgement(1.0, True, None)),
        ("longbench", "hotpotqa", ["yes"], "Yes, they do", Judgement(0.5, True, None)),
        ("longbench", "2wikimqa", ["no", "yes"], "no", Judgement(1.0, True, None)),
        ("longbench", "triviaqa", ["Paris"], "\nParis\n\nPassage: b", Judgement(1.0, True, "Paris")),
        ("longbench", "triviaqa", ["Paris"], "Rome\nParis", Judgement(0.0, False, "Rome")),
        ("longbench", "triviaqa", ["Paris"], " \nParis", Judgement(0.0, True, " ")),
        ("longbench", "triviaqa", ["Paris"], "Paris", Judgement(1.0, True, None)),
        ("longbench", "trec", ["Country"], "Country\nCity", Judgement(1.0, True, "Country")),
        ("longbench", "trec", ["Country"], "Country, City", Judgement(0.5, False, None)),
        ("longbench", "passage_count", ["46"], "46 or 29", Judgement(0.5, True, None)),
        ("longbench", "passage_retrieval_en", ["Paragraph 22"], "Paragraph 22.", Judgement(1.0, True, None)),
        ("longbench", "passage_retrieval_en", ["Paragraph 22"], "2", Judgement(0.0, False, None)),
        ("longbench", "lcc", ["    x = 1"], "```\nx = 1", Judgement(0.71, True, "x = 1")),
        ("longbench", "repobench-p", ["x = 1"], "x = 1", Judgement(1.0, True, None)),
        ("longbench_e", "gov_report", ["a b"], "", Judgement(0.0, None, None)),
    ],
)
def test_judge(workload, task, references, output, judgement):
    choices = CHOICES if task == "trec" else ()
    assert judge(source(workload, task, *references, choices=choices), output) == judgement


def test_only_the_first_line_of_samsum_is_scored():
    found = judge(source("longbench", "samsum", "the cat sat"), "\n\nthe cat sat\nDialogue: more words")
    assert (found.score, found.correct, found.extracted) == (pytest.approx(1, abs=1e-6), None, "the cat sat")


def test_the_best_reference_counts():
    best = judge(source("longbench", "musique", "Sir Nicholas Bacon", "Nicholas Bacon"), "Nicholas Bacon")
    assert best == Judgement(1.0, True, None)
    assert judge(source("qasper", "qasper", "5 percent points.", "0.05 F1"), "0.05 F1").score == 1.0


@pytest.mark.parametrize(
    ("workload", "task"), [("squad", "qa"), ("longbench", "qa"), ("ruler_4k", "qa_3"), ("ruler", "")]
)
def test_what_is_not_known_is_an_error(workload, task):
    with pytest.raises(ValueError, match="no score for workload"):
        judge(source(workload, task, "a"), "a")


def test_a_source_without_references_is_an_error():
    with pytest.raises(ValueError, match="s1 has no references"):
        judge(source("qasper", "qasper"), "a")


@pytest.mark.parametrize("task", TASKS)
def test_an_empty_output_is_wrong(task):
    choices = CHOICES if task == "trec" else ()
    found = judge(source("longbench", task, "Paragraph 3", choices=choices), "")
    assert found == Judgement(0.0, None if task in SUMMARIES else False, None)


@settings(deadline=None)
@given(output=st.text(max_size=60), reference=st.text(min_size=1, max_size=20), task=st.sampled_from(TASKS))
def test_no_text_breaks_it(output, reference, task):
    wanted = "Paragraph 3" if task == "passage_retrieval_en" else reference
    found = judge(source("longbench", task, wanted, choices=(*CHOICES, reference)), output)
    assert 0.0 <= found.score <= 1.0
    assert (found.correct is None) == (task in SUMMARIES)
    assert found.extracted is None or (found.extracted in output and found.extracted != output)


PLAIN = st.from_regex(r"[b-zB-Z][b-z]{1,8}( [b-z]{2,8}){0,5}", fullmatch=True)


@settings(deadline=None)
@given(reference=PLAIN, task=st.sampled_from([*QA, *CODE, "trec"]), more=st.lists(PLAIN, max_size=2))
def test_the_reference_itself_has_it_all(reference, task, more):
    choices = (reference,) if task == "trec" else ()
    assert judge(source("longbench", task, *more, reference, choices=choices), reference) == Judgement(
        1.0, True, None
    )
    for workload in ("qasper", "hotpotqa"):
        assert judge(source(workload, workload, *more, reference), reference) == Judgement(1.0, True, None)


def test_samples_of_longbench_with_their_own_reference():
    files = sorted(SAMPLES.glob("*.jsonl"))
    if not files:
        pytest.skip("the LongBench samples are not beside the checkout (../shared/data/longbench)")
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            item = source("longbench", file.stem, *row["answers"], choices=tuple(row["all_classes"] or ()))
            for answer in row["answers"]:
                found = judge(item, answer)
                assert found.correct is (None if file.stem in SUMMARIES else True), (file.stem, answer)
                assert found.score == pytest.approx(1, abs=1e-6), (file.stem, answer)
