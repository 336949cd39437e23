"""LongBench's 16 English tasks (Bai et al., ACL 2024) with their published prompts; LongBench-E's files too.

context = the prompt up to and with {context}; question = the rest with {input} filled in. In the code tasks the
code before the gap ({input}) ends the context, so that a row whose two parts were joined gives the same source.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvdiag.errors import UsageError
from kvdiag.records.keys import source_id
from kvdiag.workloads import hub, reading
from kvdiag.workloads.base import Source, Span
from kvdiag.workloads.scoring import contradictory, reference_kind
from kvdiag.workloads.spans import Builder

HUB_REPO = "zai-org/LongBench"  # THUDM/LongBench before
HUB_REVISION = "5e628be450b7e67fb7ae6e201bd6d8f7056f7672"
HUB_FILE = "data.zip"
EXPECTED = (
    "LongBench's rows (input, context, answers, _id …) as JSON lines or Parquet, a folder of them, or its data.zip"
)

CODE = ("lcc", "repobench-p")
# Tasks whose answer is a short text, which the context should hold.
QA = ("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa")
OTHER = ("multifieldqa_zh", "dureader", "vcsum", "lsht", "passage_retrieval_zh")  # Chinese: not read
FIELDS = ("input", "context", "answers", "_id")


@dataclass(frozen=True)
class Spec:
    """How a task is put: `head` + text, then `tail` with {input}; greedy tokens; the chat template or none."""

    head: str
    tail: str
    max_new_tokens: int
    chat: bool

    def question(self, text: str) -> str:
        """What follows the context."""
        return self.tail.replace("{input}", text)


def _specs() -> dict[str, Spec]:
    raw = json.loads(Path(__file__).with_name("longbench_prompts.json").read_text(encoding="utf-8"))
    specs = {}
    for task, entry in raw["tasks"].items():
        head, _, tail = entry["prompt"].partition("{context}")
        specs[task] = Spec(head, tail, entry["max_new_tokens"], entry["chat"])
    return specs


SPECS = _specs()
TASKS = tuple(SPECS)


def default_files(tasks: Sequence[str]) -> list[Path]:
    """The Hub's data.zip, which holds all tasks."""
    return [hub.fetch(HUB_REPO, HUB_FILE, HUB_REVISION)]


def load(workload: str, paths: Sequence[Path], tasks: Sequence[str]) -> list[Source]:
    """Sources of the tasks in these files, in their order.

    A folder or archive that holds a task twice (`qasper`, `qasper_e`) is read for the first; name the LongBench-E
    file itself to get that. Raises UsageError for a file that cannot be read or is of another kind.
    """
    wanted = set(tasks)

    def select(names: Sequence[str]) -> list[str]:
        stems = {reading.stem(name) for name in names}
        return [n for n in names if _is_meant(reading.stem(n), stems, wanted)]

    sources = [s for row in reading.read(paths, EXPECTED, select) for s in _sources(workload, row, wanted)]
    if not sources:
        named = ", ".join(map(str, paths))
        raise UsageError(f"--file {named}: holds no sample of {', '.join(tasks)}; expected {EXPECTED}")
    return reading.in_order(sources)


def _is_meant(name: str, beside: set[str], wanted: set[str]) -> bool:
    """Whether a folder's file is read: a wanted task's, or one whose name says nothing."""
    task = name.removesuffix("_e")
    if task in OTHER or (task in SPECS and task not in wanted):
        return False
    return not (name != task and task in SPECS and task in beside)


def _sources(workload: str, row: reading.Row, wanted: set[str]) -> Iterator[Source]:
    row.require("longbench", FIELDS, EXPECTED)
    name = row.optional("dataset") or row.stem
    task = name.removesuffix("_e")
    if task not in SPECS:
        raise row.error(f"`{name}` is not one of LongBench's English tasks: {', '.join(TASKS)}")
    if task in wanted:
        yield _source(workload, task, row)


def _source(workload: str, task: str, row: reading.Row) -> Source:
    spec = SPECS[task]
    given, asked, answers = row.text("context"), row.text("input"), row.texts("answers")
    if not answers or not answers[0].strip():
        raise row.error("field `answers` must begin with an answer")
    choices = row.texts("all_classes") if task == "trec" else []
    if task == "trec" and not choices:
        raise row.error("field `all_classes` must name the classes of a trec question")
    build = Builder(spec.head)
    place = build.add(given)
    if task in CODE:
        build.add(asked)
    question = spec.question("" if task in CODE else asked)
    gold = answers[0] if task in CODE else answers[0].strip()
    evidence: tuple[Span, ...] = ()
    status: str = "not_applicable"
    reason: str | None = "not_annotated"
    if task == "passage_retrieval_en":
        evidence, status, reason = _gold_paragraph(build.text, place, gold)
    return Source(
        source_id=source_id(workload, task, row.text("_id"), build.text, question),
        workload=workload,
        task=task,
        index=0,
        seed=None,
        context=build.text,
        question=question,
        answer_prefix="",
        gold=gold,
        references=tuple(answers),
        max_new_tokens=spec.max_new_tokens,
        evidence=evidence,
        evidence_status=status,
        evidence_reason=reason,
        origin_id=row.text("_id"),
        choices=tuple(choices),
        flags=tuple(_flags(task, answers, given + "\n" + asked)),
        chat=spec.chat,
        stop_at_newline=task == "samsum",
    )


def _gold_paragraph(text: str, place: Span, gold: str) -> tuple[tuple[Span, ...], str, str | None]:
    """The paragraph that a `Paragraph N` answer names, its label included."""
    number = re.search(r"Paragraph (\d+)", gold)
    body = text[slice(*place)]
    starts = list(re.finditer(r"^Paragraph (\d+): ", body, flags=re.MULTILINE))
    here = [i for i, start in enumerate(starts) if number and start[1] == number[1]]
    if len(here) != 1:
        return (), "unmapped", "paragraph_repeated" if here else "paragraph_missing"
    end = starts[here[0] + 1].start() if here[0] + 1 < len(starts) else len(body)
    start = starts[here[0]].start()
    stretch = body[start:end].rstrip()
    return ((place[0] + start, place[0] + start + len(stretch)),), "available", None


def _flags(task: str, answers: list[str], seen: str) -> Iterator[str]:
    if len(set(answers)) < len(answers):
        yield "repeated_references"
    if "\ufffd" in seen:
        yield "replacement_character"
    if task not in QA:
        return
    if contradictory(answers):
        yield "contradictory_references"
    is_verdict = any(reference_kind(answer) in ("yes_no", "unanswerable") for answer in answers)
    lower = seen.lower()
    if not is_verdict and not any(answer.strip().lower() in lower for answer in answers):
        yield "gold_not_in_text"
