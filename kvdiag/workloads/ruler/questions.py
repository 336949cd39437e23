"""Question files: SQuAD and HotpotQA, read into questions and documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from kvdiag.errors import UsageError
from kvdiag.workloads import reading

EXPECTED = {
    "qa_1": "SQuAD's file (v1.1 or v2.0), a JSON object with articles under `data`",
    "qa_2": "HotpotQA's distractor file, a JSON list of objects, or the Hub's columns as JSON lines or Parquet",
}


@dataclass(frozen=True)
class Question:
    """A question of a file. gold, own: indices of its documents that answer it, and of its other ones."""

    origin_id: str
    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    own: tuple[int, ...]


@dataclass(frozen=True)
class Library:
    """The questions and documents of a file."""

    path: str
    questions: tuple[Question, ...]
    documents: tuple[str, ...]

    @cached_property
    def shortest(self) -> list[int]:
        """The 16 shortest documents."""
        return sorted(range(len(self.documents)), key=lambda i: (len(self.documents[i]), i))[:16]


class _Shelf:
    """Documents without repetition, in the order they come."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def put(self, document: str) -> int:
        """The document's index."""
        return self._places.setdefault(document, len(self._places))

    def documents(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self._places)


def _question(row: reading.Row, qa: Any, gold: int, own: tuple[int, ...]) -> Question:
    texts = [answer["text"].strip() for answer in qa["answers"]]
    answers = tuple(dict.fromkeys(text for text in texts if text))
    if not answers:
        raise row.error(f"question {qa['id']} has no answer; expected {EXPECTED['qa_1']}, with answers")
    return Question(str(qa["id"]), qa["question"].strip(), answers, (gold,), own)


def _squad(rows: Sequence[reading.Row]) -> tuple[list[Question], tuple[str, ...]]:
    """SQuAD v1.1 or v2.0: questions marked impossible are left out, as RULER does."""
    shelf, questions = _Shelf(), []
    for row in rows:
        try:
            for article in row.data["data"]:
                places = [shelf.put(paragraph["context"]) for paragraph in article["paragraphs"]]
                for place, paragraph in zip(places, article["paragraphs"], strict=True):
                    own = tuple(dict.fromkeys(p for p in places if p != place))
                    possible = [qa for qa in paragraph["qas"] if not qa.get("is_impossible")]
                    questions += [_question(row, qa, place, own) for qa in possible]
        except (KeyError, TypeError, AttributeError) as error:
            name = f"has no field {error}" if isinstance(error, KeyError) else "is laid out otherwise"
            raise row.error(f"{name}; expected {EXPECTED['qa_1']}") from error
    return questions, shelf.documents()


def _pairs(row: reading.Row, name: str, first: str, second: str) -> list[tuple[str, Any]]:
    """`(title, x)` of a field, from the original's lists or the Hub's columns."""
    value = row.data[name]
    if isinstance(value, list) and not any(isinstance(pair, dict) for pair in value):
        return [(pair[0], pair[1]) for pair in value]
    return [(inner.data[first], inner.data[second]) for inner in row.rows(name)]


def _hotpot_question(row: reading.Row, shelf: _Shelf) -> Question:
    origin_id = str(row.data["_id"] if "_id" in row.data else row.data["id"])
    answer = row.text("answer").strip()
    if not answer:
        raise row.error("field `answer` is blank")
    places = {
        title: shelf.put(f"{title}\n{''.join(sentences)}")
        for title, sentences in _pairs(row, "context", "title", "sentences")
    }
    supporting = [title for title, _ in _pairs(row, "supporting_facts", "title", "sent_id")]
    missing = [title for title in supporting if title not in places]
    if missing or not supporting:
        what = f"is supported by {missing[0]!r}, which its context lacks" if missing else "has no supporting fact"
        raise row.error(f"question {origin_id} {what}; qa_2 needs the distractor setting, not fullwiki")
    gold = tuple(dict.fromkeys(places[title] for title in supporting))
    own = tuple(p for p in dict.fromkeys(places.values()) if p not in gold)
    return Question(origin_id, row.text("question").strip(), (answer,), gold, own)


def _hotpot(rows: Sequence[reading.Row]) -> tuple[list[Question], tuple[str, ...]]:
    """HotpotQA with distractors. A document is `title, newline, sentences joined with nothing`, as in RULER."""
    shelf, questions = _Shelf(), []
    for row in rows:
        row.require("ruler", ("question", "answer", "context", "supporting_facts"), EXPECTED["qa_2"])
        try:
            questions.append(_hotpot_question(row, shelf))
        except (KeyError, TypeError, IndexError) as error:
            raise row.error(f"is laid out otherwise; expected {EXPECTED['qa_2']}") from error
    return questions, shelf.documents()


@cache
def _load(task: str, path: Path, _stamp: tuple[int, int]) -> Library:
    rows = list(reading.read([path], EXPECTED[task]))
    questions, documents = _squad(rows) if task == "qa_1" else _hotpot(rows)
    if not questions:
        raise UsageError(f"--file {path}: holds no question with an answer; expected {EXPECTED[task]}")
    return Library(str(path), tuple(questions), documents)


def load(task: str, path: Path | None) -> Library:
    """The questions of a file. Raises UsageError when it is missing, or of another kind."""
    if path is None:
        name = "SQuAD" if task == "qa_1" else "HotpotQA"
        raise UsageError(f"task {task} needs {name}: give --file {task}=PATH")
    try:
        stat = Path(path).stat()
    except OSError as error:
        raise UsageError(f"--file {path}: {error.strerror}; expected {EXPECTED[task]}") from None
    return _load(task, Path(path), (stat.st_mtime_ns, stat.st_size))
