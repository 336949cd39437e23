"""RULER's settings and wordings, task by task."""

import json
import re
from collections import Counter

import pytest

from kvdiag.errors import UsageError
from kvdiag.workloads import ruler
from kvdiag.workloads.ruler.words import zeta_ranks
from tests.workloads.ruler_cases import HOTPOT, SQUAD, answer, generate, ingredients, needs, words

NEEDLE = re.compile(r"One of the special magic (\w+) for (\S+) is: ([\w-]+)\.")


def needles(source):
    return NEEDLE.findall(source.context)


@pytest.mark.parametrize(
    ("task", "keys", "values", "asked"),
    [
        ("niah_single_1", 1, 1, 1),
        ("niah_single_2", 1, 1, 1),
        ("niah_single_3", 1, 1, 1),
        ("niah_multikey_1", 4, 1, 1),
        ("niah_multivalue", 1, 4, 1),
        ("niah_multiquery", 4, 1, 4),
    ],
)
def test_keys_values_and_queries_are_as_published(task, keys, values, asked):
    for source in generate(task, 1024, n=4):
        found = needles(source)
        assert len({key for _, key, _ in found}) == keys
        assert len({value for _, _, value in found}) == len(found) == keys * values
        assert len(source.evidence) == len(source.references) == asked * values
        assert len(source.distractors) == keys * values - asked * values


WORD, NUMBER = r"[a-z]+-[a-z]+", r"\d{7}"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"  # version 4


@pytest.mark.parametrize(
    ("task", "key", "kind", "value"),
    [
        ("niah_single_1", WORD, "numbers", NUMBER),
        ("niah_single_3", WORD, "uuids", UUID),
        ("niah_multikey_2", WORD, "numbers", NUMBER),
        ("niah_multikey_3", UUID, "uuids", UUID),
    ],
)
def test_kinds_of_keys_and_values(task, key, kind, value):
    (source,) = generate(task, 2048)
    assert needles(source)
    for found_kind, found_key, found_value in needles(source):
        assert found_kind == kind
        assert re.fullmatch(key, found_key) and re.fullmatch(value, found_value)


@pytest.mark.parametrize("task", ["niah_multikey_2", "niah_multikey_3"])
def test_a_needle_haystack_is_needles_only(task):
    (source,) = generate(task, 4096)
    lines = source.context.split("\n")[1:]
    assert all(NEEDLE.fullmatch(line) for line in lines)
    assert len(lines) == len(set(lines)) == len(source.distractors) + 1 > 100
    keys = [key for _, key, _ in needles(source)]
    assert len(set(keys)) == len(keys)
    asked = re.search(r"for (\S+) mentioned", source.question)[1]
    assert keys.count(asked) == 1


def test_one_value_is_asked_in_the_singular():
    (one,), (uuid,), (many,) = (generate(f"niah_{t}", 512) for t in ("single_1", "single_3", "multiquery"))
    key = re.search(r"for (\S+) mentioned", one.question)[1]
    assert one.context.startswith(
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards.\n"
    )
    assert one.question == f"\nWhat is the special magic number for {key} mentioned in the provided text?"
    assert one.answer_prefix == f" The special magic number for {key} mentioned in the provided text is"
    assert "A special magic uuid is hidden" in uuid.context and "special magic uuid for" in uuid.question
    assert many.context.startswith("Some special magic numbers are hidden within the following text.")
    assert re.fullmatch(
        r"\nWhat are all the special magic numbers for \S+, \S+, \S+, and \S+ mentioned in the provided text\?",
        many.question,
    )
    assert many.answer_prefix.endswith(" mentioned in the provided text are")


def test_what_is_asked_is_not_what_distracts():
    for source in generate("niah_multikey_1", 1024, n=5):
        others = [source.context[a:b] for a, b in source.distractors]
        assert answer(source, others) == []
        assert not any(source.gold in line for line in others)


def test_values_of_one_key_are_listed_as_they_are_read():
    for source in generate("niah_multivalue", 1024, n=5):
        assert [value for _, _, value in needles(source)] == list(source.references)


def test_needles_are_whole_lines_of_a_noise_haystack_and_all_are_spanned():
    for task in ("niah_single_1", "niah_multikey_1", "vt"):
        for source in generate(task, 1024, n=3):
            spanned = [source.context[a:b] for a, b in (*source.evidence, *source.distractors)]
            # vt's worked example has names of three letters.
            real = re.compile(r"One of the special magic .*|VAR [A-Z]{5} = .*")
            assert sorted(line for line in source.context.split("\n") if real.fullmatch(line)) == sorted(spanned)


def test_needles_lie_at_different_depths():
    starts = [source.evidence[0][0] / len(source.context) for source in generate("niah_single_1", 4096, n=12)]
    assert max(starts) - min(starts) > 0.3


def test_a_chain_reads_in_order_behind_its_example():
    for source in generate("vt", 1024, n=5):
        names = [line.split()[1] for line in source.evidence_text()]
        assert names == list(source.references) and len(names) == 5
        assert source.context.count("Memorize and track the chain(s)") == 2
        assert re.search(r"they are: ([A-Z]{3} ){4}[A-Z]{3}\n\nMemorize", source.context)


@pytest.mark.parametrize(("length", "example", "task"), [(1024, (3, 1), (6, 1)), (8192, (10, 3), (30, 3))])
def test_common_words_come_as_often_as_published(length, example, task):
    for source in generate("cwe", length, n=2):
        shown, asked = source.context.split("Below is a numbered list")[1:]
        numbers = Counter(Counter(re.findall(r"\d+\. (\w+)", asked)).values())
        assert set(numbers) == set(task) and numbers[task[0]] == 10 and numbers[task[1]] > 10
        shown_list, shown_answer = shown.split("\nQuestion: What are the 10 most common words in the above list?")
        counts = Counter(re.findall(r"\d+\. (\w+)", shown_list))
        assert Counter(counts.values()) == {example[0]: 10, example[1]: 10 if length < 4096 else 30}
        assert sorted(re.findall(r"\d+\. (\w+)", shown_answer)) == sorted(
            word for word, count in counts.items() if count == example[0]
        )
        assert not set(counts) & set(re.findall(r"\d+\. (\w+)", asked))
        places = [int(i) for i in re.findall(r"(\d+)\. [a-z]", asked)]
        assert places == list(range(1, len(places) + 1))
        assert len(source.evidence) == 10 * task[0]
        assert len(source.distractors) == numbers[task[1]] * task[1]


def test_more_words_than_there_are_is_refused():
    with pytest.raises(UsageError, match="--length 90000: task cwe has words for "):
        generate("cwe", 90_000)


@pytest.mark.parametrize("n", [46, 200, 1000, 5000])
def test_ranks_follow_a_zeta_distribution(n):
    counts = Counter(zeta_ranks(n, 10**6))
    assert sum(counts.values()) == n
    for rank in range(2, 12):
        assert counts[rank] - counts[1] / rank**2 == pytest.approx(0, abs=1)
    assert [counts[k] for k in sorted(counts)] == sorted(counts.values(), reverse=True)
    assert counts[1] > counts[2] > counts[3] > counts[4] > counts[5]


def test_a_step_of_the_coded_text_is_rulers_text():
    # RULER: int(N / (k^2 zeta(2))) words of rank k; here for N = 400.
    published = Counter({k: c for k in range(1, 50) if (c := int(400 / (k * k * 1.6449340668482264)))})
    assert Counter(zeta_ranks(sum(published.values()), 10**6)) == published


def test_frequent_words_are_ranks_two_to_four_and_dots_are_noise():
    for source in generate("fwe", 2048, n=3):
        body = source.context.removeprefix(
            "Read the following coded text and track the frequency of each coded word. "
            "Find the three most frequently appeared coded words. "
        )
        ranked = Counter(body.split()).most_common()
        assert ranked[0][0] == "..."
        assert tuple(word for word, _ in ranked[1:4]) == source.references
        assert ranked[3][1] > ranked[4][1]
        assert all(re.fullmatch(r"[a-z]{6}", word) for word, _ in ranked[1:])
        assert len(source.evidence) == sum(count for _, count in ranked[1:4])
        others = {source.context[a:b] for a, b in source.distractors}
        assert others == {word for word, _ in ranked[4:7]}


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_documents_are_numbered_whole_and_shuffled(task):
    places = []
    for source in generate(task, 4096, n=8):
        numbers = [int(i) for i in re.findall(r"(?:^|\n\n)Document (\d+):\n", source.context)]
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 5
        spans = sorted((*source.evidence, *source.distractors))
        assert len(spans) == len(numbers)
        assert len({source.context[a:b] for a, b in spans}) == len(spans)
        for i, (a, b) in enumerate(spans, 1):
            assert source.context[:a].endswith(f"Document {i}:\n")
            assert source.context[b:].startswith(f"\n\nDocument {i + 1}:\n") or b == len(source.context)
        places.append(spans.index(source.evidence[0]) / len(spans))
        assert source.question.startswith("\n\nAnswer the question based on the given documents.")
        assert source.answer_prefix == " Answer:"
        assert source.origin_id
    assert max(places) - min(places) > 0.3


def test_documents_of_the_same_article_come_first():
    needs(SQUAD)
    articles = json.loads(SQUAD.read_text(encoding="utf-8"))["data"]
    article_of = {p["context"]: i for i, article in enumerate(articles) for p in article["paragraphs"]}
    for source in generate("qa_1", 8192, n=3):
        own = article_of[source.evidence_text()[0]]
        here = [article_of[source.context[a:b]] for a, b in source.distractors]
        assert here.count(own) == len(articles[own]["paragraphs"]) - 1


def test_supporting_documents_are_the_evidence():
    needs(HOTPOT)
    rows = {row["_id"]: row for row in json.loads(HOTPOT.read_text(encoding="utf-8"))}
    sources = generate("qa_2", 4096, n=40)
    for source in sources:
        row = rows[source.origin_id]
        paragraphs = {title: f"{title}\n{''.join(sentences)}" for title, sentences in row["context"]}
        gold = {paragraphs[title] for title, _ in row["supporting_facts"]}
        assert set(source.evidence_text()) == gold
        others = {source.context[a:b] for a, b in source.distractors}
        assert set(paragraphs.values()) - gold <= others
        assert source.references == (row["answer"],)
        assert source.flags == (("answer_not_in_evidence",) if row["answer"] in ("yes", "no") else ())
    assert {s.flags for s in sources} == {(), ("answer_not_in_evidence",)}
    assert len({s.origin_id for s in sources}) == 40


@pytest.mark.parametrize(("task", "n"), [("qa_1", 1190), ("qa_2", 110)])
def test_no_more_sources_than_questions(task, n):
    with pytest.raises(UsageError, match=f"task {task} has {n} questions"):
        ruler.generate("r", 4096, {task: n + 1}, 0, words, ingredients=ingredients(task))
