"""Question files: SQuAD and HotpotQA, read into questions and documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from kvdiag.errors import UsageError
from kvdiag.workloads import hotpotqa, hub, reading

SQUAD_REPO = "rajpurkar/squad_v2"
SQUAD_REVISION = "3ffb306f725f7d2ce8394bc1873b24868140c412"
SQUAD_FILE = "squad_v2/validation-00000-of-00001.parquet"
EXPECTED = {
    "qa_1": "SQuAD's file (v1.1 or v2.0), a JSON object with articles under `data`, or the Hub's columns",
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


def _squad_rows(rows: Sequence[reading.Row]) -> tuple[list[Question], tuple[str, ...]]:
    """The Hub's rows, one a question; those without an answer are left out, as RULER does."""
    shelf, questions = _Shelf(), []
    articles: dict[str, dict[int, None]] = {}
    for row in rows:
        row.require("ruler", ("id", "title", "context", "question", "answers"), EXPECTED["qa_1"])
        articles.setdefault(row.text("title"), {})[shelf.put(row.text("context"))] = None
    for row in rows:
        place, texts = shelf.put(row.text("context")), row.data["answers"]["text"]
        if len(texts):
            own = tuple(p for p in articles[row.text("title")] if p != place)
            asked = {**row.data, "answers": [{"text": text} for text in texts]}
            questions.append(_question(row, asked, place, own))
    return questions, shelf.documents()


def _squad(rows: Sequence[reading.Row]) -> tuple[list[Question], tuple[str, ...]]:
    """SQuAD v1.1 or v2.0: questions marked impossible are left out, as RULER does."""
    if rows and "answers" in rows[0].data:
        return _squad_rows(rows)
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


def _hotpot_question(row: reading.Row, shelf: _Shelf) -> Question | None:
    """None where two different documents bear the title of a supporting fact."""
    origin_id = str(row.data["_id"] if "_id" in row.data else row.data["id"])
    answer = row.text("answer").strip()
    if not answer:
        raise row.error("field `answer` is blank")
    places: dict[str, int] = {}
    clashes = set()
    for title, sentences in _pairs(row, "context", "title", "sentences"):
        place = shelf.put(f"{title}\n{''.join(sentences)}")
        if places.setdefault(title, place) != place:
            clashes.add(title)
    supporting = [title for title, _ in _pairs(row, "supporting_facts", "title", "sent_id")]
    missing = [title for title in supporting if title not in places]
    if missing or not supporting:
        what = f"is supported by {missing[0]!r}, which its context lacks" if missing else "has no supporting fact"
        raise row.error(f"question {origin_id} {what}; qa_2 needs the distractor setting, not fullwiki")
    if clashes.intersection(supporting):
        return None  # which of two documents of a title supports it cannot be told
    gold = tuple(dict.fromkeys(places[title] for title in supporting))
    own = tuple(p for p in dict.fromkeys(places.values()) if p not in gold)
    return Question(origin_id, row.text("question").strip(), (answer,), gold, own)


def _hotpot(rows: Sequence[reading.Row]) -> tuple[list[Question], tuple[str, ...]]:
    """HotpotQA with distractors. A document is `title, newline, sentences joined with nothing`, as in RULER."""
    shelf, questions = _Shelf(), []
    for row in rows:
        row.require("ruler", ("question", "answer", "context", "supporting_facts"), EXPECTED["qa_2"])
        try:
            question = _hotpot_question(row, shelf)
        except (KeyError, TypeError, IndexError) as error:
            raise row.error(f"is laid out otherwise; expected {EXPECTED['qa_2']}") from error
        if question is not None:
            questions.append(question)
    return questions, shelf.documents()


@cache
def _load(task: str, path: Path, _stamp: tuple[int, int]) -> Library:
    rows = list(reading.read([path], EXPECTED[task]))
    questions, documents = _squad(rows) if task == "qa_1" else _hotpot(rows)
    if not questions:
        raise UsageError(f"--file {path}: holds no question with an answer; expected {EXPECTED[task]}")
    return Library(str(path), tuple(questions), documents)


def _fetched(task: str) -> Path:
    """The published file of a task, fetched once."""
    name, repo = ("SQuAD", SQUAD_REPO) if task == "qa_1" else ("HotpotQA", hotpotqa.HUB_REPO)
    try:
        if task == "qa_2":
            (path,) = hotpotqa.default_files((task,))
            return path
        return hub.fetch(SQUAD_REPO, SQUAD_FILE, SQUAD_REVISION)
    except UsageError as error:
        raise UsageError(
            f"task {task} needs {name}, which cannot be fetched from the Hub ({repo}): give --file {task}=PATH"
        ) from error


def load(task: str, path: Path | None) -> Library:
    """The questions of a file. Raises UsageError when it is missing, or of another kind."""
    if path is None:
        path = _fetched(task)
    try:
        stat = Path(path).stat()
    except OSError as error:
        raise UsageError(f"--file {path}: {error.strerror}; expected {EXPECTED[task]}") from None
    return _load(task, Path(path), (stat.st_mtime_ns, stat.st_size))
