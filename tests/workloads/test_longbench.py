"""LongBench: 16 tasks, their prompts to the letter, and rows as they are."""

import json
import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvdiag.errors import UsageError
from kvdiag.workloads import longbench

DATA = Path(__file__).parents[3] / "shared" / "data" / "longbench"
HERE = {
    "narrativeqa": 2,
    "qasper": 8,
    "hotpotqa": 7,
    "2wikimqa": 8,
    "musique": 4,
    "gov_report": 7,
    "qmsum": 6,
    "passage_count": 4,
    "passage_retrieval_en": 5,
    "lcc": 4,
}
NEW_TOKENS = dict.fromkeys(("gov_report", "qmsum", "multi_news"), 512)
NEW_TOKENS |= dict.fromkeys(("narrativeqa", "qasper", "samsum"), 128)
NEW_TOKENS |= dict.fromkeys(("multifieldqa_en", "trec", "lcc", "repobench-p"), 64)
NEW_TOKENS |= dict.fromkeys(
    ("hotpotqa", "2wikimqa", "musique", "triviaqa", "passage_count", "passage_retrieval_en"), 32
)


def load(*paths, tasks=longbench.TASKS):
    return longbench.load("longbench", paths, tasks)


def shared(name=""):
    if not DATA.is_dir():
        pytest.skip("the LongBench samples are not beside the checkout (../shared/data/longbench)")
    return DATA / name


def rows(task):
    with shared(f"{task}.jsonl").open(encoding="utf-8", newline="\n") as lines:
        return [json.loads(line) for line in lines]


def row(task, **changes):
    base = {"input": "Asked?", "context": "Given {text}.", "answers": ["Answer"], "_id": "1", "dataset": task}
    base |= {"length": 3, "language": "en", "all_classes": ["X", "Y"] if task == "trec" else None}
    return base | changes


@pytest.fixture
def one(tmp_path):
    def one(task, **changes):
        path = tmp_path / "x.jsonl"
        path.write_text(json.dumps(row(task, **changes)) + "\n", encoding="utf-8")
        (source,) = load(path)
        return source

    return one


def test_tasks_are_the_sixteen_english_ones():
    expected = (
        *("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique"),
        *("gov_report", "qmsum", "multi_news", "trec", "triviaqa", "samsum"),
        *("passage_count", "passage_retrieval_en", "lcc", "repobench-p"),
    )
    assert expected == longbench.TASKS


@pytest.mark.parametrize("task", longbench.TASKS)
def test_settings_of_a_task(one, task):
    source = one(task)
    assert (source.workload, source.task, source.seed, source.index) == ("longbench", task, None, 0)
    assert source.max_new_tokens == NEW_TOKENS[task]
    assert source.chat == (task not in ("trec", "triviaqa", "samsum", "lcc", "repobench-p"))
    assert source.stop_at_newline == (task == "samsum")
    assert source.choices == (("X", "Y") if task == "trec" else ())
    assert source.answer_prefix == "" and source.question
    assert "{" not in (source.context + source.question).replace("{text}", "")


@pytest.mark.parametrize(
    ("task", "start", "end"),
    [
        ("narrativeqa", "You are given a story, which can", "\n\nQuestion: Asked?\n\nAnswer:"),
        ("qasper", "You are given a scientific article and a question. ", "\n\nQuestion: Asked?\n\nAnswer:"),
        (
            "multifieldqa_en",
            "Read the following text and answer briefly.\n\nGiven",
            "\n\nQuestion: Asked?\nAnswer:",
        ),
        ("hotpotqa", "Answer the question based on the given passages.", "\n\nQuestion: Asked?\nAnswer:"),
        ("2wikimqa", "Answer the question based on the given passages.", "\n\nQuestion: Asked?\nAnswer:"),
        ("musique", "Answer the question based on the given passages.", "\n\nQuestion: Asked?\nAnswer:"),
        (
            "gov_report",
            "You are given a report by a",
            "}.\n\nNow, write a one-page summary of the report.\n\nSummary:",
        ),
        ("qmsum", "You are given a meeting transcript", "\n\nQuery: Asked?\nAnswer:"),
        (
            "multi_news",
            "You are given several news passages. Write a one-page summary of all news. \n\nNews:\nGiven",
            "",
        ),
        (
            "trec",
            "Please determine the type of the question below.",
            " examples of questions.\n\nGiven {text}.\nAsked?",
        ),
        (
            "triviaqa",
            "Answer the question based on the given passage. ",
            " some examples.\n\nGiven {text}.\n\nAsked?",
        ),
        ("samsum", "Summarize the dialogue into a few short", " some examples.\n\nGiven {text}.\n\nAsked?"),
        ("passage_count", "There are some paragraphs below", ", 2, 3, and so on.\n\nThe final answer is: "),
        ("passage_retrieval_en", "Here are 30 paragraphs from", '"Paragraph 2", etc.\n\nThe answer is: '),
        ("lcc", "Please complete the code given below. \nGiven {text}.", "Next line of code:\n"),
        ("repobench-p", "Please complete the code given below. \nGiven {text}.Asked?Next", "Next line of code:\n"),
    ],
)
def test_prompts_to_the_letter(one, task, start, end):
    source = one(task)
    prompt = source.context + source.question
    assert prompt.startswith(start) and prompt.endswith(end)
    assert prompt.count("Given {text}.") == 1
    assert source.context.endswith("Given {text}." + ("Asked?" if task in longbench.CODE else ""))


def test_the_published_slip_stays(one):
    prompt = one("narrativeqa").context + one("narrativeqa").question
    assert prompt.count("asconcisely") == 2


def test_braces_of_the_data_are_no_fields(one):
    source = one("hotpotqa", context="{input} {context}", input="{context}?")
    assert source.context.endswith("\n{input} {context}")
    assert source.question.endswith("Question: {context}?\nAnswer:")


@pytest.mark.parametrize("task", HERE)
def test_every_sample_is_a_source(task):
    sources, given = load(shared(f"{task}.jsonl")), rows(task)
    assert len(sources) == len({s.source_id for s in sources}) == len(given) == HERE[task]
    for source, data in zip(sources, given, strict=True):
        assert source.task == task and source.origin_id == data["_id"]
        assert source.context.endswith(data["context"])
        assert data["input"] in source.question
        assert source.references == tuple(data["answers"])
        assert source.gold == (data["answers"][0] if task == "lcc" else data["answers"][0].strip())
    assert [s.index for s in sources] == list(range(len(given)))


def test_a_folder_holds_all_tasks():
    assert Counter(s.task for s in load(shared())) == HERE
    assert {s.task for s in load(shared(), tasks=("lcc", "qmsum"))} == {"lcc", "qmsum"}


def test_flags_of_the_samples():
    expected = Counter()
    for task in HERE:
        for data in rows(task):
            seen, golds = (
                (data["context"] + "\n" + data["input"]).lower(),
                [a.strip().lower() for a in data["answers"]],
            )
            expected["repeated_references"] += len(set(data["answers"])) < len(golds)
            expected["replacement_character"] += "\ufffd" in seen
            if task in ("narrativeqa", "qasper", "hotpotqa", "2wikimqa", "musique"):
                expected["gold_not_in_text"] += not any(g in seen or g in ("yes", "no") for g in golds)
    assert Counter(f for s in load(shared()) for f in s.flags) == +expected
    assert expected["repeated_references"] == 2 and expected["gold_not_in_text"] == 6


def test_only_the_gold_paragraph_is_evidence():
    for source in load(shared()):
        if source.task != "passage_retrieval_en":
            assert (source.evidence_status, source.evidence_reason) == ("not_applicable", "not_annotated")
            assert source.evidence == ()
            continue
        (text,) = source.evidence_text()
        number = source.gold.removeprefix("Paragraph ")
        lines = source.context.split("\n")
        assert text in lines and text.startswith(f"Paragraph {number}: ")


def paragraphs(*numbers, gap="\n\n"):
    return gap.join(f"Paragraph {n}: text {n}" for n in numbers)


@pytest.mark.parametrize(
    ("numbers", "gold", "evidence"),
    [
        ((1, 2, 12), "Paragraph 2", "Paragraph 2: text 2"),
        ((1, 2, 12), "Paragraph 12", "Paragraph 12: text 12"),
        ((1, 2, 12), "Paragraph 1", "Paragraph 1: text 1"),
        ((1, 2), "Paragraph 3", "paragraph_missing"),
        ((1, 2, 2), "Paragraph 2", "paragraph_repeated"),
        ((1, 2), "the second", "paragraph_missing"),
    ],
)
def test_gold_paragraph(one, numbers, gold, evidence):
    source = one("passage_retrieval_en", context=paragraphs(*numbers), answers=[gold])
    if source.evidence:
        assert (source.evidence_text(), source.evidence_status) == ([evidence], "available")
    else:
        assert (source.evidence_status, source.evidence_reason) == ("unmapped", evidence)


def test_a_gold_paragraph_may_have_lines_and_name_others(one):
    text = "Paragraph 1: a\nsee Paragraph 2: b\r\nend \n\nParagraph 2: c"
    source = one("passage_retrieval_en", context=text, answers=["Paragraph 1"])
    assert source.evidence_text() == ["Paragraph 1: a\nsee Paragraph 2: b\r\nend"]


def test_code_keeps_its_blanks_and_its_ends_of_line(one):
    source = one("repobench-p", context="def f():\r\n", input="    x = 1\r\n", answers=["    return x ", "  y"])
    assert source.context.endswith("\ndef f():\r\n    x = 1\r\n")
    assert (source.question, source.gold) == ("Next line of code:\n", "    return x ")
    assert source.references == ("    return x ", "  y")


def test_a_row_whose_code_was_joined_gives_the_same_source(one):
    assert one("repobench-p", context="a\n", input="b\n") == one("repobench-p", context="a\nb\n", input="")


def test_few_shot_tasks(one):
    samsum = one("samsum", context="Dialogue: a\r\nb\r\nSummary: c", input="Dialogue: d\r\nSummary: ")
    assert samsum.context.endswith("\n\nDialogue: a\r\nb\r\nSummary: c")
    assert samsum.question == "\n\nDialogue: d\r\nSummary: "
    trec = one("trec", all_classes=["A b", "B"], answers=["A b"], input="Question: q\nType:")
    assert (trec.question, trec.choices) == ("\nQuestion: q\nType:", ("A b", "B"))
    trivia = one("triviaqa", answers=["One ", "1"], context="it is one")
    assert (trivia.gold, trivia.references, trivia.flags) == ("One", ("One ", "1"), ())


@pytest.mark.parametrize("task", ["multi_news", "gov_report", "passage_count", "lcc"])
def test_an_empty_input(one, task):
    source = one(task, input="", answers=["3"])
    assert source.question and source.flags == ()


@pytest.mark.parametrize(
    ("task", "changes", "flags"),
    [
        ("multifieldqa_en", {"answers": ["elsewhere"]}, ("gold_not_in_text",)),
        ("multifieldqa_en", {"answers": ["elsewhere", "GIVEN"]}, ()),
        ("multifieldqa_en", {"answers": ["asked"]}, ()),
        ("qasper", {"answers": ["Yes", "Yes"]}, ("repeated_references",)),
        ("qasper", {"answers": ["Yes", "No"]}, ("contradictory_references",)),
        ("qasper", {"answers": ["given", "unanswerable"]}, ("contradictory_references",)),
        ("triviaqa", {"context": "Answer \ufffd"}, ("replacement_character",)),
        ("gov_report", {"answers": ["yes", "no", "no"]}, ("repeated_references",)),
        ("trec", {"answers": ["Z"]}, ()),
    ],
)
def test_flags(one, task, changes, flags):
    changes = {"context": "Given. Answer"} | changes
    assert one(task, **changes).flags == flags


def test_longbench_e_is_the_same_task(tmp_path, one):
    path = tmp_path / "qasper_e.jsonl"
    path.write_text(json.dumps(row("qasper_e")), encoding="utf-8")
    (source,) = load(path)
    assert source == one("qasper")
    path.write_text(json.dumps({k: v for k, v in row("").items() if k != "dataset"}), encoding="utf-8")
    assert load(path) == [source]


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as out:
        for name, given in members.items():
            out.writestr(f"data/{name}.jsonl", "\n".join(json.dumps(r) for r in given))
    return path


def test_data_zip_is_read_for_the_plain_tasks(tmp_path):
    """Chinese tasks, LongBench-E's twins and tasks not asked for are passed over by name."""
    path = archive(
        tmp_path / "data.zip",
        qasper=[row("qasper", _id="1"), row("qasper", _id="2")],
        qasper_e=[row("qasper", _id="3")],
        dureader=[{"broken": 1}],
        lsht_e=[{"broken": 1}],
        lcc=[row("lcc", _id="4")],
        trec_e=[row("trec", _id="5")],
    )
    assert [(s.task, s.origin_id) for s in load(path)] == [
        ("lcc", "4"),
        ("qasper", "1"),
        ("qasper", "2"),
        ("trec", "5"),
    ]
    assert [s.origin_id for s in load(path, tasks=("lcc",))] == ["4"]
    with pytest.raises(UsageError, match="holds no file to read; expected LongBench's rows"):
        load(path, tasks=("qmsum",))


def test_the_same_rows_from_an_archive_and_parquet(tmp_path):
    original = load(shared("2wikimqa.jsonl"))
    assert load(archive(tmp_path / "x.zip", **{"2wikimqa": rows("2wikimqa")})) == original
    pq.write_table(pa.Table.from_pylist(rows("2wikimqa")), tmp_path / "0000.parquet")
    assert load(tmp_path / "0000.parquet") == original


def test_evidence_carrying_rows_of_qasper_are_longbench_rows():
    path = DATA.parent / "qasper" / "longbench_qasper_dev_evidence_join6.jsonl"
    if not path.is_file():
        pytest.skip("the Qasper samples are not beside the checkout (../shared/data/qasper)")
    joined, plain = load(path), {s.origin_id: s for s in load(shared("qasper.jsonl"))}
    assert len(joined) == 6
    both = [source for source in joined if source.origin_id in plain]
    assert len(both) == 5
    for source in both:
        assert replace(source, index=plain[source.origin_id].index) == plain[source.origin_id]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {k: v for k, v in row("lcc").items() if k != "context"},
            "has no field `context`; --workload longbench expects",
        ),
        (row("lcc", answers=[]), "field `answers` must begin with an answer"),
        (row("lcc", answers=[" "]), "field `answers` must begin with an answer"),
        (row("lcc", answers="x"), "field `answers` must be a list of texts"),
        (row("lcc", input=None), "field `input` must be text"),
        (row("lcc", _id=3), "field `_id` must be text"),
        (row("trec", all_classes=None), "field `all_classes` must name the classes"),
        (row("dureader"), "`dureader` is not one of LongBench's English tasks: narrativeqa, "),
        (row(""), "`x` is not one of LongBench's English tasks"),
        ({"question": "", "answer": "", "context": [], "supporting_facts": []}, "looks like --workload hotpotqa"),
        ({"title": "", "full_text": [], "qas": []}, "looks like --workload qasper"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path, given, words):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(row("lcc")) + "\n\n" + json.dumps(given), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(f"--file {path} line 3") and words in message and "\n" not in message


def test_a_file_without_the_tasks_asked_for(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(row("lcc")), encoding="utf-8")
    with pytest.raises(UsageError, match="holds no sample of qasper, trec; expected LongBench's rows"):
        load(path, tasks=("qasper", "trec"))
