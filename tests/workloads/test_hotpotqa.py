"""HotpotQA: every sample loads, and every mapped span is a supporting sentence."""

import json
import re
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvdiag.errors import UsageError
from kvdiag.workloads import hotpotqa

DATA = Path(__file__).parents[3] / "shared" / "data" / "hotpotqa"
DEV, COLUMNS = "hotpot_dev_distractor_sample110.json", "hf_format_validation_distractor_10.jsonl"
FULLWIKI = "hotpot_dev_fullwiki_negative_sample.json"
HEAD = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words."
    "\n\nThe following are given passages.\n"
)


def load(*paths):
    return hotpotqa.load("hotpotqa", paths, hotpotqa.TASKS)


def shared(name):
    if not DATA.is_dir():
        pytest.skip("the HotpotQA samples are not beside the checkout (../shared/data/hotpotqa)")
    return DATA / name


def items(name):
    return json.loads(shared(name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "n"), [(DEV, 110), (COLUMNS, 10), (FULLWIKI, 21)])
def test_every_item_is_a_source(name, n):
    sources = load(shared(name))
    assert len(sources) == len({s.source_id for s in sources}) == n
    assert [s.index for s in sources] == list(range(n))
    assert {(s.workload, s.task, s.seed, s.max_new_tokens, s.chat) for s in sources} == {
        ("hotpotqa", "hotpotqa", None, 32, True)
    }


@pytest.mark.parametrize("name", [DEV, FULLWIKI])
def test_spans_are_the_supporting_sentences(name):
    n_facts = n_lost = 0
    for item, source in zip(items(name), load(shared(name)), strict=True):
        text = dict(item["context"])
        facts = [
            text[t][i].strip() if t in text and i < len(text[t]) else None for t, i in item["supporting_facts"]
        ]
        n_facts += len(facts)
        n_lost += facts.count(None)
        if None in facts:
            assert (source.evidence, source.evidence_status) == ((), "unmapped")
            assert source.evidence_reason == "title_missing"
        else:
            assert (source.evidence_status, source.evidence_reason) == ("available", None)
            assert Counter(source.evidence_text()) == Counter(facts)
    assert n_facts == (274 if name == DEV else n_facts)
    assert (n_lost > 0) == (name == FULLWIKI)


def test_a_fullwiki_file_shows_in_the_counts():
    sources = load(shared(FULLWIKI))
    assert Counter(s.evidence_reason for s in sources) == {"title_missing": 12, None: 9}
    expected = Counter()
    for item in items(FULLWIKI):
        body = "".join(t + "".join(s) for t, s in item["context"]).lower()
        answer = item["answer"].lower()
        expected["empty_context"] += not item["context"]
        expected["few_paragraphs"] += len(item["context"]) < 10
        expected["answer_not_in_context"] += answer not in ("yes", "no") and answer not in body
    assert Counter(f for s in sources for f in s.flags) == expected
    assert (expected["empty_context"], expected["few_paragraphs"]) == (1, 7)


def test_the_distractor_sample_has_no_anomaly():
    sources = load(shared(DEV))
    assert {f for s in sources for f in s.flags} == set()
    assert Counter(s.answer_types for s in sources) == {("span",): 102, ("yes_no",): 8}


def test_distractors_are_the_other_paragraphs():
    for item, source in zip(items(DEV), load(shared(DEV)), strict=True):
        gold = {title for title, _ in item["supporting_facts"]}
        others = ["".join(s).strip() for title, s in item["context"] if title not in gold]
        assert [source.context[a:b] for a, b in source.distractors] == [t for t in others if t]
        assert len(source.distractors) == 8
        assert not any(a < d and c < b for a, b in source.evidence for c, d in source.distractors)


def test_context_and_question_are_worded_as_in_longbench():
    item, source = items(DEV)[0], load(shared(DEV))[0]
    passages = [f"Passage {i}:\n{t}\n{''.join(s)}" for i, (t, s) in enumerate(item["context"], start=1)]
    assert source.context == HEAD + "\n".join(passages)
    assert source.question == f"\n\n{HEAD.splitlines()[0]}\n\nQuestion: {item['question']}\nAnswer:"
    assert (source.gold, source.references) == (item["answer"], (item["answer"],))
    assert source.origin_id == item["_id"]


def test_titles_keep_their_entities():
    n = 0
    for data, source in zip(items(DEV), load(shared(DEV)), strict=True):
        escaped = [title for title, _ in data["context"] if re.search(r"&\w+;", title)]
        assert all(f":\n{title}\n" in source.context for title in escaped)
        n += len(escaped)
    assert n == 11


def test_the_hubs_columns_give_the_same_sources(tmp_path):
    original = [replace(s, index=s.index - 100) for s in load(shared(DEV))[100:]]
    assert load(shared(COLUMNS)) == original
    rows = [json.loads(line) for line in shared(COLUMNS).read_text(encoding="utf-8").splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    assert load(tmp_path / "x.parquet") == original
    for row in rows:  # columns as objects, the other way a Parquet file may hold them
        for name, (first, second) in {
            "context": ("title", "sentences"),
            "supporting_facts": ("title", "sent_id"),
        }.items():
            pairs = zip(row[name][first], row[name][second], strict=True)
            row[name] = [{first: a, second: b} for a, b in pairs]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "y.parquet")
    assert load(tmp_path / "y.parquet") == original
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as out:
        out.write(tmp_path / "x.parquet", "distractor/x.parquet")
    assert load(tmp_path / "x.zip") == original


def test_items_in_two_files_are_counted_once():
    both = load(shared(DEV), shared(COLUMNS))
    assert len(both) == 110
    assert sum("repeated_item" in s.flags for s in both) == 10


def test_fullwiki_items_are_other_sources_than_the_distractor_ones():
    both = load(shared(DEV), shared(FULLWIKI))
    assert len(both) == 131
    shared_ids = {i["_id"] for i in items(DEV)} & {i["_id"] for i in items(FULLWIKI)}
    assert len({s.origin_id for s in both}) == 131 - len(shared_ids) == 130


# Hand-made items.

CONTEXT = [["A", ["First.", " Second. ", " "]], ["B", ["Third."]], ["C", [" Other one."]], ["D", []]]


def item(**changes):
    base = {"_id": "i1", "question": "Who?", "answer": "third", "context": CONTEXT}
    return base | {"supporting_facts": [["A", 1], ["B", 0]]} | changes


@pytest.fixture
def one(tmp_path):
    def one(**changes):
        path = tmp_path / "h.json"
        path.write_text(json.dumps([item(**changes)]), encoding="utf-8")
        (source,) = load(path)
        return source

    return one


def test_sentences_are_spans_without_the_blanks_at_their_ends(one):
    source = one()
    assert source.context.endswith(
        "Passage 1:\nA\nFirst. Second.  \nPassage 2:\nB\nThird.\nPassage 3:\nC\n Other one.\nPassage 4:\nD\n"
    )
    assert source.evidence_text() == ["Second.", "Third."]
    assert [source.context[a:b] for a, b in source.distractors] == ["Other one."]
    assert source.flags == ("few_paragraphs",)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ([["Z", 0], ["B", 0]], "title_missing"),
        ([["a", 0]], "title_missing"),
        ([["A", 3]], "sentence_out_of_range"),
        ([["A", -1]], "sentence_out_of_range"),
        ([["D", 0]], "sentence_out_of_range"),
        ([["A", 2]], "blank_sentence"),
        ([["A", 2], ["B", 5]], "sentence_out_of_range"),
        ([["A", 2], ["B", 5], ["Z", 0]], "title_missing"),
    ],
)
def test_facts_that_have_no_place(one, facts, reason):
    source = one(supporting_facts=facts)
    assert (source.evidence, source.evidence_status, source.evidence_reason) == ((), "unmapped", reason)


def test_a_title_of_two_different_paragraphs_has_no_place(one):
    source = one(context=[*CONTEXT, ["B", ["Third.", " More."]]])
    assert (source.evidence_status, source.evidence_reason) == ("unmapped", "title_repeated")
    assert source.flags == ("few_paragraphs",)


def test_equal_paragraphs_are_all_evidence(one):
    source = one(context=[*CONTEXT, CONTEXT[1]])
    assert source.evidence_text() == ["Second.", "Third.", "Third."]
    assert source.flags == ("evidence_repeated", "few_paragraphs")


def test_a_repeated_title_that_is_no_evidence_does_no_harm(one):
    source = one(context=[*CONTEXT, ["C", ["Else."]]])
    assert source.evidence_text() == ["Second.", "Third."]
    assert [source.context[a:b] for a, b in source.distractors] == ["Other one.", "Else."]


def test_repeated_facts_are_one_span(one):
    source = one(supporting_facts=[["B", 0], ["B", 0]])
    assert source.evidence_text() == ["Third."]
    assert source.flags == ("few_paragraphs", "repeated_facts")


def test_no_facts_and_no_paragraphs(one):
    source = one(supporting_facts=[])
    assert (source.evidence_status, source.evidence_reason) == ("not_applicable", "no_evidence_annotated")
    source = one(context=[])
    assert source.context == HEAD
    assert source.evidence_reason == "title_missing"
    assert source.flags == ("answer_not_in_context", "empty_context", "few_paragraphs")


def test_yes_and_no_need_not_occur(one):
    source = one(answer=" no")
    assert (source.gold, source.references, source.answer_types) == ("no", (" no",), ("yes_no",))
    assert source.flags == ("few_paragraphs",)
    assert one(answer="passages").flags == ("answer_not_in_context", "few_paragraphs")  # in the instruction only


def test_carriage_returns_and_entities_stay(one):
    source = one(
        context=[["A &amp; B", ["x\r\ny.", "\r\n z."]]], supporting_facts=[["A &amp; B", 0], ["A &amp; B", 1]]
    )
    assert source.context.endswith("A &amp; B\nx\r\ny.\r\n z.")
    assert source.evidence_text() == ["x\r\ny.", "z."]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({k: v for k, v in item().items() if k != "answer"}, "has no field `answer`; --workload hotpotqa expects"),
        ({k: v for k, v in item().items() if k != "_id"}, "field `id` must be text"),
        (item(answer=" "), "field `answer` is blank"),
        (item(answer=True), "field `answer` must be text"),
        (item(question=None), "field `question` must be text"),
        (item(context="text"), "field `context` must hold pairs of title and sentences"),
        (item(context=[["A"]]), "field `context` must hold pairs of title and sentences"),
        (item(context=[["A", "First."]]), "field `context`: the sentences of 'A' must be a list of texts"),
        (item(context={"title": ["A"], "sentences": []}), "field `context` must hold lists of equal length"),
        (item(supporting_facts=[["A", "1"]]), "the sentence number of 'A' must be an integer"),
        (item(supporting_facts=[[1, 1]]), "field `supporting_facts` must hold pairs of title and sent_id"),
        ({"title": "", "full_text": [], "qas": []}, "looks like --workload qasper"),
        ({"input": "", "context": "", "answers": [], "_id": ""}, "looks like --workload longbench"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, given, words):
    path = tmp_path / "h.json"
    path.write_text(json.dumps([item(), given]), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"--file {path} item 2") and words in message and "\n" not in message


def test_two_answers_to_one_item_are_refused(tmp_path):
    path = tmp_path / "h.json"
    path.write_text(json.dumps([item(), item(answer="First")]), encoding="utf-8")
    with pytest.raises(UsageError, match="item i1 is there twice"):
        load(path)
