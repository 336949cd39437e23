"""HotpotQA, distractor setting (Yang et al., EMNLP 2018): ten paragraphs, supporting sentences as evidence.

Read as the original list of objects or as the Hub's columns. Passages and prompt are worded as in LongBench's
hotpotqa; a paragraph's sentences are joined by nothing, since they carry their own blanks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag.records.keys import source_id
from kvdiag.workloads import hub, longbench, reading
from kvdiag.workloads.base import Source, Span
from kvdiag.workloads.scoring import reference_kind
from kvdiag.workloads.spans import Builder, merged, trimmed

TASKS = ("hotpotqa",)
HUB_REPO = "hotpotqa/hotpot_qa"
HUB_REVISION = "1908d6afbbead072334abe2965f91bd2709910ab"
HUB_FILE = "distractor/validation-00000-of-00001.parquet"
EXPECTED = (
    "HotpotQA's distractor file, a JSON list of objects (_id, question, answer, context, supporting_facts), "
    "or the Hub's columns as JSON lines or Parquet"
)

FIELDS = ("question", "answer", "context", "supporting_facts")
PARAGRAPHS = 10
# What makes a fact unmappable; the first that holds for any fact of an item is its reason.
REASONS = ("title_missing", "title_repeated", "sentence_out_of_range", "blank_sentence")


@dataclass(frozen=True)
class Passage:
    """A paragraph in the context: the place of its text and of each sentence."""

    title: str
    sentences: tuple[str, ...]
    span: Span
    places: tuple[Span, ...]


def default_files(tasks: Sequence[str]) -> list[Path]:
    """The Hub's validation split of the distractor setting."""
    return [hub.fetch(HUB_REPO, HUB_FILE, HUB_REVISION)]


def load(workload: str, paths: Sequence[Path], tasks: Sequence[str]) -> list[Source]:
    """Sources of these files, in their order. Raises UsageError for a file that is missing or of another kind."""
    return reading.in_order([_source(workload, row) for row in reading.read(paths, EXPECTED)])


def _source(workload: str, row: reading.Row) -> Source:
    row.require("hotpotqa", FIELDS, EXPECTED)
    spec = longbench.SPECS["hotpotqa"]
    origin = row.text("_id" if "_id" in row.data else "id")
    answer = row.text("answer")
    if not answer.strip():
        raise row.error("field `answer` is blank")
    context, passages = _context(spec.head, _pairs(row, "context", "title", "sentences"))
    facts = [_fact(row, *pair) for pair in _pairs(row, "supporting_facts", "title", "sent_id")]
    evidence, status, reason = _evidence(context, passages, facts)
    gold_titles = {title for title, _ in facts}
    others = [trimmed(context, p.span) for p in passages if p.title not in gold_titles]
    question = spec.question(row.text("question"))
    is_yes_no = reference_kind(answer) == "yes_no"
    return Source(
        source_id=source_id(workload, TASKS[0], origin, context, question),
        workload=workload,
        task=TASKS[0],
        index=0,
        seed=None,
        context=context,
        question=question,
        answer_prefix="",
        gold=answer.strip(),
        references=(answer,),
        max_new_tokens=spec.max_new_tokens,
        evidence=evidence,
        distractors=tuple(span for span in others if span),
        evidence_status=status,
        evidence_reason=reason,
        origin_id=origin,
        answer_types=("yes_no" if is_yes_no else "span",),
        flags=tuple(
            _flags(context[len(spec.head) :], passages, facts, () if is_yes_no else (answer,), bool(evidence))
        ),
        chat=spec.chat,
    )


def _pairs(row: reading.Row, name: str, first: str, second: str) -> list[tuple[str, Any]]:
    """`[title, x]` pairs of a field, from the original's lists or the Hub's columns; each title is text."""
    value = row.data[name]
    if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(v, Mapping) for v in value)):
        pairs: list[Any] = [(inner.data.get(first), inner.data.get(second)) for inner in row.rows(name)]
    else:
        pairs = value if isinstance(value, list) else [None]
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise row.error(f"field `{name}` must hold pairs of {first} and {second}; expected {EXPECTED}")
        if second == "sentences" and not _are_texts(pair[1]):
            raise row.error(f"field `{name}`: the sentences of {pair[0]!r} must be a list of texts")
    return [(pair[0], pair[1]) for pair in pairs]


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _fact(row: reading.Row, title: str, index: Any) -> tuple[str, int]:
    if not isinstance(index, int) or isinstance(index, bool):
        raise row.error(f"field `supporting_facts`: the sentence number of {title!r} must be an integer")
    return title, index


def _context(head: str, paragraphs: list[tuple[str, Any]]) -> tuple[str, list[Passage]]:
    """`Passage i:`, the title, the text; each on its line."""
    build, passages = Builder(head), []
    for number, (title, sentences) in enumerate(paragraphs, start=1):
        build.add(f"{'' if number == 1 else chr(10)}Passage {number}:\n{title}\n")
        start = len(build.text)
        places = tuple(build.add(sentence) for sentence in sentences)
        passages.append(Passage(title, tuple(sentences), (start, len(build.text)), places))
    return build.text, passages


def _evidence(
    context: str, passages: list[Passage], facts: list[tuple[str, int]]
) -> tuple[tuple[Span, ...], str, str | None]:
    """Spans of the supporting sentences, all or none. Paragraphs equal in title and text are all meant."""
    if not facts:
        return (), "not_applicable", "no_evidence_annotated"
    spans, reasons = [], set()
    for title, index in facts:
        copies = [p for p in passages if p.title == title]
        reason = _why_not(copies, index)
        if reason:
            reasons.add(reason)
            continue
        for passage in copies:
            span = trimmed(context, passage.places[index])
            if span:
                spans.append(span)
    if reasons:
        return (), "unmapped", next(r for r in REASONS if r in reasons)
    return merged(spans), "available", None


def _why_not(copies: list[Passage], index: int) -> str | None:
    """Why a fact has no certain place among the paragraphs of its title; None when it has."""
    if not copies:
        return "title_missing"
    if len({p.sentences for p in copies}) > 1:
        return "title_repeated"
    if not 0 <= index < len(copies[0].sentences):
        return "sentence_out_of_range"
    return None if copies[0].sentences[index].strip() else "blank_sentence"


def _flags(
    body: str, passages: list[Passage], facts: list[tuple[str, int]], spans: Sequence[str], is_mapped: bool
) -> Iterator[str]:
    if not passages:
        yield "empty_context"
    if len(passages) < PARAGRAPHS:
        yield "few_paragraphs"
    if len(set(facts)) < len(facts):
        yield "repeated_facts"
    titles = [p.title for p in passages]
    if is_mapped and any(titles.count(title) > 1 for title, _ in facts):
        yield "evidence_repeated"
    if any(answer.strip().lower() not in body.lower() for answer in spans):
        yield "answer_not_in_context"
