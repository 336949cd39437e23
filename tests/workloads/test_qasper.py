"""Qasper: every sample loads, and every mapped span is what an annotator marked."""

import gzip
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvdiag.errors import UsageError
from kvdiag.workloads import qasper
from kvdiag.workloads.spans import normalized

DATA = Path(__file__).parents[3] / "shared" / "data" / "qasper"
SAMPLE, COLUMNS, OLD = (
    "qasper-train-v0.3-sample10.json",
    "hf_format_train_2.jsonl",
    "qasper-train-v0.1-1paper.json",
)


def load(*paths):
    return qasper.load("qasper", paths, qasper.TASKS)


def shared(name):
    if not DATA.is_dir():
        pytest.skip("the Qasper samples are not beside the checkout (../shared/data/qasper)")
    return DATA / name


def papers(name):
    return json.loads(shared(name).read_text(encoding="utf-8"))


def annotations(name):
    """question id -> (paper, its annotators' answers), read without the loader."""
    return {
        asked["question_id"]: (paper, [given["answer"] for given in asked["answers"]])
        for paper in papers(name).values()
        for asked in paper["qas"]
    }


def collapse(text):
    return " ".join(text.split())


def units(paper):
    """Texts an evidence string may equal, white space apart."""
    sections = paper["full_text"]
    texts = [paper["abstract"], *(p for s in sections for p in s["paragraphs"])]
    return {collapse(t) for t in [*texts, paper["title"], *(s["section_name"] or "" for s in sections)]} - {""}


@pytest.mark.parametrize(("name", "n"), [(SAMPLE, 51), (COLUMNS, 12), (OLD, 9)])
def test_every_question_is_a_source(name, n):
    sources = load(shared(name))
    assert len(sources) == len({s.source_id for s in sources}) == n
    assert [s.index for s in sources] == list(range(n))
    assert {(s.workload, s.task, s.seed, s.max_new_tokens, s.chat) for s in sources} == {
        ("qasper", "qasper", None, 128, True)
    }
    assert all(s.source_id.startswith("qasper/qasper/") and s.gold for s in sources)
    assert all(len(s.answer_types) == len(s.references) for s in sources)


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        (
            SAMPLE,
            {
                ("available", None): 39,
                ("unmapped", "float_selected"): 5,
                ("not_applicable", "unanswerable"): 6,
                ("not_applicable", "no_evidence_annotated"): 1,
            },
        ),
        (OLD, {("unmapped", "not_found"): 6, ("unmapped", "float_selected"): 3}),
    ],
)
def test_statuses(name, statuses):
    assert Counter((s.evidence_status, s.evidence_reason) for s in load(shared(name))) == statuses


def test_reasons_follow_from_the_gold_annotators_strings():
    """The status of each question, worked out again from the file."""
    found = annotations(SAMPLE)
    for source in load(shared(SAMPLE)):
        paper, answers = found[source.origin_id]
        mine = [a for a in answers if source.gold.lower() in str(says(a)).lower()]
        strings = {e for a in mine for e in a["evidence"]}
        assert mine
        if not strings:
            expected = "unanswerable" if mine[0]["unanswerable"] else "no_evidence_annotated"
        elif any(e.startswith("FLOAT SELECTED") for e in strings):
            expected = "float_selected"
        else:
            expected = None if {collapse(e) for e in strings} <= units(paper) else "not_found"
        assert source.evidence_reason == expected


def says(answer):
    if answer["unanswerable"]:
        return "unanswerable"
    verdict = {True: "Yes", False: "No", None: ""}[answer["yes_no"]]
    return ", ".join(answer["extractive_spans"]) or answer["free_form_answer"] or verdict


@pytest.mark.parametrize("name", [SAMPLE, OLD])
def test_flags(name):
    expected = Counter()
    for _, answers in annotations(name).values():
        texts = [says(a) for a in answers]
        kinds = [
            (a["unanswerable"], bool(a["extractive_spans"]), bool(a["free_form_answer"]), a["yes_no"] is None)
            for a in answers
        ]
        verdicts = {t.lower() for t in texts}
        expected["repeated_references"] += len(set(texts)) < len(texts)
        expected["annotators_disagree_on_type"] += len(set(kinds)) > 1
        expected["float_evidence"] += any(e.startswith("FLOAT") for a in answers for e in a["evidence"])
        expected["contradictory_references"] += ("unanswerable" in verdicts and len(verdicts) > 1) or verdicts >= {
            "yes",
            "no",
        }
    assert Counter(f for s in load(shared(name)) for f in s.flags) == +expected
    if name == SAMPLE:
        assert expected["annotators_disagree_on_type"] == 6


def test_references_are_all_annotators_answers():
    found = annotations(SAMPLE)
    types = Counter()
    for source in load(shared(SAMPLE)):
        answers = found[source.origin_id][1]
        assert source.references == tuple(dict.fromkeys(says(a) for a in answers))
        assert source.gold in [r.strip() for r in source.references]
        types.update(source.answer_types)
    # 32 extractive, 18 abstractive, 11 unanswerable, 7 yes/no; five of the 68 repeat one on their question.
    assert types == {"extractive": 30, "abstractive": 18, "unanswerable": 10, "yes_no": 5}


@pytest.mark.parametrize("name", [SAMPLE, OLD, COLUMNS])
def test_spans_are_annotated_texts(name):
    found = annotations(SAMPLE if name == COLUMNS else name)
    n_spans = 0
    for source in load(shared(name)):
        spans, texts = source.evidence, source.evidence_text()
        n_spans += len(spans)
        assert bool(spans) == (source.evidence_status == "available")
        assert list(spans) == sorted(spans)
        assert all(b <= c for (_, b), (c, _) in pairwise(spans))
        marked = {collapse(e) for a in found[source.origin_id][1] for e in a["evidence"]}
        assert {collapse(t) for t in texts} <= marked
        for a, b in spans:  # a whole line
            assert source.context[a - 1] in "\n " and source.context[b : b + 1] in ("\n", "")
    assert n_spans > 0 or name == OLD


def test_context_is_the_paper_line_by_line():
    source = load(shared(SAMPLE))[0]
    paper = papers(SAMPLE)["1909.00694"]
    lines = [paper["title"], paper["abstract"]]
    for section in paper["full_text"]:
        lines += [section["section_name"], *section["paragraphs"]]
    head, _, body = source.context.partition("\n\nArticle: ")
    assert body == "\n".join(line for line in lines if line.strip())
    assert head.startswith("You are given a scientific article and a question. Answer the question as concisely")
    assert source.question.startswith("\n\n Answer the question based on the above article as concisely")
    assert source.question.endswith("\n\nQuestion: What is the seed lexicon?\n\nAnswer:")
    assert source.answer_prefix == ""


def test_empty_paragraphs_are_left_out():
    paper = papers(SAMPLE)["1805.02400"]
    empty = sum(not p.strip() for s in paper["full_text"] for p in s["paragraphs"])
    ids = {q["question_id"] for q in paper["qas"]}
    sources = [s for s in load(shared(SAMPLE)) if s.origin_id in ids]
    assert empty == 118 and len(sources) == 6
    assert all("\n\n" not in s.context.partition("Article: ")[2] for s in sources)


def test_a_section_title_is_its_line():
    title = "Experimental Studies ::: Comparison with State-of-the-art Methods"
    (source,) = (s for s in load(shared(SAMPLE)) if title in s.evidence_text())
    start = source.context.index(title)
    assert source.context[start - 1] == "\n"
    assert (start, start + len(title)) in source.evidence


def test_the_hubs_columns_give_the_same_sources(tmp_path):
    original = load(shared(SAMPLE))[:12]
    assert load(shared(COLUMNS)) == original
    rows = [json.loads(line) for line in shared(COLUMNS).read_text(encoding="utf-8").splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "0000.parquet")
    assert load(tmp_path / "0000.parquet") == original
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(shared(COLUMNS).read_bytes()))
    assert load(tmp_path / "x.jsonl.gz") == original


def test_items_in_two_files_are_counted_once():
    both = load(shared(SAMPLE), shared(COLUMNS))
    assert len(both) == 51
    assert [("repeated_item" in s.flags) for s in both] == [True] * 12 + [False] * 39


def test_versions_of_a_paper_are_different_sources():
    both = load(shared(SAMPLE), shared(OLD))
    assert len(both) == 60
    assert len({s.origin_id for s in both}) == 51


def test_longbenchs_lines_are_found_where_they_were_joined():
    """Evidence of six dev questions, on LongBench's flat text of the papers."""
    from kvdiag.workloads.spans import Builder, Places

    n = 0
    for line in shared("longbench_qasper_dev_evidence_join6.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        build, spans = Builder(), []
        for text in row["context"].split("\n"):
            spans.append(build.add(text))
            build.add("\n")
        for wanted, at in zip(row["evidence"], row["evidence_line_index"], strict=True):
            assert Places(build.text, spans).find(wanted) == ([spans[at]], None)
            n += 1
    assert n == 19


# Hand-made papers.

NOTHING = {"unanswerable": False, "extractive_spans": [], "yes_no": None, "free_form_answer": "", "evidence": []}


def answer(**changes):
    return {"answer": {**NOTHING, "highlighted_evidence": [], **changes}, "annotation_id": "a", "worker_id": "w"}


def paper(*answers, **changes):
    base = {
        "title": "A Title",
        "abstract": "An abstract.",
        "full_text": [
            {"section_name": "One", "paragraphs": ["First  text.", "", "Twice."]},
            {"section_name": None, "paragraphs": ["Second text, long.", "Twice."]},
            {"section_name": "One", "paragraphs": []},
        ],
        "qas": [{"question": "Why?", "question_id": "q1", "answers": list(answers)}],
    }
    return base | changes


@pytest.fixture
def one(tmp_path):
    def one(*answers, **changes):
        path = tmp_path / "p.json"
        path.write_text(json.dumps({"p": paper(*answers, **changes)}), encoding="utf-8")
        (source,) = load(path)
        return source

    return one


def test_a_question_asked_twice_is_one_source(one):
    """As the same prompt with opposite golds it would be right in one row and wrong in the other."""
    qas = [
        {"question": "Why?", "question_id": "q1", "answers": [answer(yes_no=True)]},
        {"question": "Why? ", "question_id": "q2", "answers": [answer(yes_no=False), answer(yes_no=False)]},
    ]
    source = one(qas=qas)
    assert (source.origin_id, source.references, source.gold) == ("q1", ("Yes", "No"), "No")
    assert {"asked_twice", "contradictory_references"} <= set(source.flags)


def test_the_text_of_a_paper(one):
    source = one(answer(yes_no=True))
    lines = "A Title\nAn abstract.\nOne\nFirst  text.\nTwice.\nSecond text, long.\nTwice.\nOne"
    assert source.context.endswith("Article: " + lines)


@pytest.mark.parametrize(
    ("evidence", "texts"),
    [
        (["First  text."], ["First  text."]),
        (["First text. "], ["First  text."]),
        (["An abstract."], ["An abstract."]),
        (["A Title"], ["A Title"]),
        (["Twice."], ["Twice.", "Twice."]),
        (["One"], ["One", "One"]),
        (["text, long"], ["text, long"]),
        (["Second text, long.", "text, long"], ["Second text, long."]),
        (["Second text", "text, long."], ["Second text, long."]),
        (["Twice.", "Twice."], ["Twice.", "Twice."]),
    ],
)
def test_what_evidence_maps_to(one, evidence, texts):
    source = one(answer(free_form_answer="so", evidence=evidence))
    assert source.evidence_text() == texts
    assert (source.evidence_status, source.evidence_reason) == ("available", None)
    assert source.flags == (("evidence_repeated",) if texts in (["Twice."] * 2, ["One"] * 2) else ())


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (["First text"], "not_found"),
        (["first  text."], "not_found"),
        (["text"], "ambiguous_place"),
        (["Twice.", "gone"], "not_found"),
        (["Twice.", "gone", "text"], "ambiguous_place"),
        (["Twice.", "gone", "FLOAT SELECTED: Table 1: x"], "float_selected"),
    ],
)
def test_what_evidence_does_not_map_to(one, evidence, reason):
    source = one(answer(free_form_answer="so", evidence=evidence))
    assert (source.evidence, source.evidence_status, source.evidence_reason) == ((), "unmapped", reason)
    assert source.flags == (("float_evidence",) if reason == "float_selected" else ())


def test_no_evidence(one):
    source = one(answer(unanswerable=True))
    assert (source.gold, source.evidence_status, source.evidence_reason) == (
        "unanswerable",
        "not_applicable",
        "unanswerable",
    )
    source = one(answer(yes_no=False, evidence=["  "]))
    assert (source.gold, source.evidence_reason, source.flags) == (
        "No",
        "no_evidence_annotated",
        ("blank_evidence",),
    )
    assert one(answer(unanswerable=True, evidence=["Twice."])).evidence_status == "available"


def test_gold_is_what_most_say_and_their_evidence_is_joined(one):
    source = one(
        answer(yes_no=True, evidence=["First  text."]),
        answer(free_form_answer="The cat. ", evidence=["Twice."]),
        answer(extractive_spans=["cat"], evidence=["Second text, long."]),
    )
    assert source.gold == "The cat."
    assert source.references == ("Yes", "The cat. ", "cat")
    assert source.answer_types == ("yes_no", "abstractive", "extractive")
    assert source.evidence_text() == ["Twice.", "Second text, long.", "Twice."]
    assert source.flags == ("annotators_disagree_on_type", "evidence_repeated")


def test_of_equally_many_the_first_whose_evidence_is_found(one):
    lost, found = answer(yes_no=True, evidence=["gone"]), answer(yes_no=False, evidence=["First  text."])
    source = one(lost, found)
    assert (source.gold, source.evidence_status) == ("No", "available")
    assert source.flags == ("contradictory_references",)
    assert one(lost, answer(yes_no=False, evidence=["lost"])).gold == "Yes"
    assert one(answer(unanswerable=True), answer(free_form_answer="so")).gold == "unanswerable"


def test_one_annotators_table_makes_the_answer_unmapped(one):
    source = one(
        answer(yes_no=True, evidence=["First  text."]), answer(yes_no=True, evidence=["FLOAT SELECTED: x"])
    )
    assert (source.evidence_status, source.evidence_reason) == ("unmapped", "float_selected")
    assert source.flags == ("float_evidence", "repeated_references")
    assert (source.references, source.answer_types) == (("Yes",), ("yes_no",))


def test_extractive_spans_are_joined_as_they_stand(one):
    source = one(answer(extractive_spans=["CSAT ", "English "]))
    assert (source.references, source.gold) == (("CSAT , English ",), "CSAT , English")


def test_carriage_returns_stay(one):
    source = one(
        answer(yes_no=True, evidence=["a\r\nb"]), full_text=[{"section_name": "S", "paragraphs": ["a\r\nb"]}]
    )
    assert source.evidence_text() == ["a\r\nb"]


def test_normalized_overlooks_no_more_than_it_says():
    assert normalized(" a\u00a0\n b ") == "a b"
    assert normalized("A-b") != normalized("a b")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (paper(), "qas 1: question q1 has no answer"),
        (paper(answer()), "qas 1, answers 1: the annotation holds no answer"),
        (paper(answer(yes_no="True")), "the annotation holds no answer"),
        (paper(answer(free_form_answer=3)), "field `free_form_answer` must be text"),
        (paper({"annotation_id": "a"}), "field `answer` must be an object"),
        (paper(qas=[{"question": "Why?", "answers": []}]), "qas 1: field `question_id` must be text"),
        (paper(full_text="text"), "field `full_text` must be a list of objects"),
        ({k: v for k, v in paper().items() if k != "full_text"}, "has no field `full_text`; --workload qasper"),
        ({"question": "", "answer": "", "context": [], "supporting_facts": []}, "looks like --workload hotpotqa"),
        ({"input": "", "context": "", "answers": []}, "looks like --workload longbench"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, given, words):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"p1": given}), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"--file {path} p1") and words in message and "\n" not in message


def test_a_missing_file_names_what_is_expected(tmp_path):
    with pytest.raises(UsageError, match="no such file or folder; expected Qasper's file"):
        load(tmp_path / "none.json")


def test_workload_name_is_part_of_the_key(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({"p": paper(answer(yes_no=True))}), encoding="utf-8")
    (a,), (b,) = qasper.load("qasper", [path], ("qasper",)), qasper.load("other", [path], ("qasper",))
    assert a.source_id != b.source_id
    assert replace(b, workload="qasper", source_id=a.source_id) == a
