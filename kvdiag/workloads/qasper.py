"""Qasper (Dasigi et al., NAACL 2021): questions on whole papers, each annotator's answer and evidence paragraphs.

Read as the original mapping of papers (v0.1 to v0.3) or as the Hub's columns. context = LongBench's qasper
wording, then title, abstract, section names and paragraphs, one a line. Blank ones are left out: LongBench's
texts of these papers have no blank line either.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvdiag.records.keys import source_id
from kvdiag.workloads import hub, longbench, reading
from kvdiag.workloads.base import Source, Span
from kvdiag.workloads.scoring import contradictory
from kvdiag.workloads.scoring.metrics import normalise_answer
from kvdiag.workloads.spans import Builder, Places, merged

TASKS = ("qasper",)
HUB_REPO = "allenai/qasper"
# Of the branch refs/convert/parquet: the data set itself is a script, which `datasets` runs no more.
HUB_REVISION = "06806e4608976fc2fac0a090ac425d5b2b29caf4"
HUB_FILE = "qasper/validation/0000.parquet"
EXPECTED = (
    "Qasper's file, a JSON mapping of paper ids to papers (title, abstract, full_text, qas), "
    "or the Hub's columns as JSON lines or Parquet"
)

FIELDS = ("title", "full_text", "qas")
FLOAT = "FLOAT SELECTED"  # begins an evidence string that names a figure or table
# What makes a string unmappable; the first that holds for any string of an item is its reason.
REASONS = ("float_selected", "ambiguous_place", "not_found")


@dataclass(frozen=True)
class Answer:
    """What one annotator said."""

    text: str
    kind: str  # extractive, abstractive, yes_no, unanswerable
    evidence: tuple[str, ...]

    @property
    def group(self) -> str:
        """Answers are the same when this is: case, punctuation, articles and blanks apart, as QA F1 sees them."""
        return normalise_answer(self.text) or self.text


@dataclass(frozen=True)
class Mapped:
    """Where evidence strings lie: all of them, or none and the reason."""

    spans: tuple[Span, ...]
    status: str
    reason: str | None
    is_repeated: bool = False


def default_files(tasks: Sequence[str]) -> list[Path]:
    """The Hub's validation split."""
    return [hub.fetch(HUB_REPO, HUB_FILE, HUB_REVISION)]


def load(workload: str, paths: Sequence[Path], tasks: Sequence[str]) -> list[Source]:
    """One source a question, in file order. Raises UsageError for a file that is missing or of another kind."""
    return reading.in_order([s for row in reading.read(paths, EXPECTED) for s in _paper(workload, row)])


def _paper(workload: str, row: reading.Row) -> Iterator[Source]:
    row.require("qasper", FIELDS, EXPECTED)
    head = longbench.SPECS["qasper"].head
    places = _context(head, row)
    together: dict[str, list[reading.Row]] = {}
    for asked in row.rows("qas"):
        together.setdefault(" ".join(asked.text("question").split()), []).append(asked)
    for same in together.values():
        yield _source(workload, places, same)


def _context(head: str, row: reading.Row) -> Places:
    """The paper as one text, and where its paragraphs and title lines are. The abstract is a paragraph."""
    build = Builder(head)
    paragraphs: list[Span] = []
    titles: list[Span] = []

    def line(piece: str, kind: list[Span]) -> None:
        if piece.strip():
            if len(build.text) > len(head):
                build.add("\n")
            kind.append(build.add(piece))

    line(row.optional("title"), titles)
    line(row.optional("abstract"), paragraphs)
    for section in row.rows("full_text"):
        line(section.optional("section_name"), titles)
        for paragraph in section.texts("paragraphs"):
            line(paragraph, paragraphs)
    return Places(build.text, paragraphs, titles)


def _source(workload: str, places: Places, entries: Sequence[reading.Row]) -> Source:
    """entries: of one question; a paper may be asked the same twice, and then has both entries' annotators."""
    spec = longbench.SPECS["qasper"]
    asked = entries[0]
    origin = asked.text("question_id")
    answers = [_answer(given.row("answer")) for entry in entries for given in entry.rows("answers")]
    if not answers:
        raise asked.error(f"question {origin} has no answer")
    gold = _gold(places, answers)
    same = [a for a in answers if a.group == gold.group]
    mapped = _map(places, [text for a in same for text in a.evidence])
    if mapped.status == "not_applicable" and gold.kind == "unanswerable":
        mapped = Mapped((), "not_applicable", "unanswerable")
    types: dict[str, str] = {}
    for answer in answers:
        types.setdefault(answer.text, answer.kind)
    question = spec.question(asked.text("question"))
    return Source(
        source_id=source_id(workload, TASKS[0], origin, places.text, question),
        workload=workload,
        task=TASKS[0],
        index=0,
        seed=None,
        context=places.text,
        question=question,
        answer_prefix="",
        gold=gold.text.strip(),
        references=tuple(types),
        max_new_tokens=spec.max_new_tokens,
        evidence=mapped.spans,
        evidence_status=mapped.status,
        evidence_reason=mapped.reason,
        origin_id=origin,
        answer_types=tuple(types.values()),
        flags=(*_flags(answers, mapped), *(["asked_twice"] if len(entries) > 1 else [])),
        chat=spec.chat,
    )


def _answer(row: reading.Row) -> Answer:
    """An annotator's answer. Raises UsageError when it says nothing."""
    evidence = tuple(row.texts("evidence"))
    spans = row.texts("extractive_spans")
    free, yes_no = row.optional("free_form_answer"), row.data.get("yes_no")
    if row.data.get("unanswerable"):
        return Answer("unanswerable", "unanswerable", evidence)
    if any(span.strip() for span in spans):
        return Answer(", ".join(spans), "extractive", evidence)
    if free.strip():
        return Answer(free, "abstractive", evidence)
    if isinstance(yes_no, bool):
        return Answer("Yes" if yes_no else "No", "yes_no", evidence)
    raise row.error("the annotation holds no answer (unanswerable, extractive_spans, free_form_answer, yes_no)")


def _gold(places: Places, answers: list[Answer]) -> Answer:
    """The answer most annotators gave; of several, the first whose evidence is found whole, else the first."""
    groups = [a.group for a in answers]
    most = max(map(groups.count, groups))
    best = [a for a in answers if groups.count(a.group) == most]
    return next((a for a in best if _map(places, a.evidence).status == "available"), best[0])


def _map(places: Places, evidence: Sequence[str]) -> Mapped:
    """Spans of evidence strings: all or none, since a part would understate what a method lost."""
    named = [text for text in dict.fromkeys(evidence) if text.strip()]
    if not named:
        return Mapped((), "not_applicable", "no_evidence_annotated")
    spans: list[Span] = []
    reasons: set[str | None] = set()
    is_repeated = False
    for text in named:
        found, reason = ([], "float_selected") if text.startswith(FLOAT) else places.find(text)
        reasons.add(reason)
        spans += found
        is_repeated |= len(found) > 1
    failed = next((r for r in REASONS if r in reasons), None)
    if failed:
        return Mapped((), "unmapped", failed)
    return Mapped(merged(spans), "available", None, is_repeated)


def _flags(answers: list[Answer], mapped: Mapped) -> Iterator[str]:
    texts = [a.text for a in answers]
    if len(set(texts)) < len(texts):
        yield "repeated_references"
    if len({a.kind for a in answers}) > 1:
        yield "annotators_disagree_on_type"
    if contradictory(texts):
        yield "contradictory_references"
    if any(text.startswith(FLOAT) for a in answers for text in a.evidence):
        yield "float_evidence"
    if any(not text.strip() for a in answers for text in a.evidence):
        yield "blank_evidence"
    if mapped.is_repeated:
        yield "evidence_repeated"
