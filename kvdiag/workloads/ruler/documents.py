"""Questions on numbered documents: the answering ones among others, shuffled.

Wording and settings: RULER's scripts/data/synthetic/constants.py and qa.py (https://github.com/NVIDIA/RULER,
Apache-2.0). RULER fills a context with whole documents, those of the same article first. So is it done here;
only the last two are chosen by their size, so that the length is met.
"""

import random
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, partial

from kvdiag.errors import UsageError
from kvdiag.workloads.ruler.draft import Context, Draft, Measure, Request, Writer
from kvdiag.workloads.ruler.questions import Library, Question, load

_ORDER = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
)
_INTRO = f"{_ORDER}\n\nThe following are given documents.\n\n"
# Documents among which the last two are chosen, besides the shortest of the file.
_POOL = 64


def _library(request: Request) -> Library:
    found = request.ingredients
    return load(request.task, found.squad if request.task == "qa_1" else found.hotpot)


@cache
def _question_order(seed: int, task: str, n: int) -> tuple[int, ...]:
    order = list(range(n))
    random.Random(f"{seed}/{task}/questions").shuffle(order)
    return tuple(order)


def _question(library: Library, request: Request) -> Question:
    n = len(library.questions)
    if request.index >= n:
        raise UsageError(
            f"--limit: task {request.task} has {n} questions in {library.path}; ask for no more sources than that"
        )
    return library.questions[_question_order(request.seed, request.task, n)[request.index]]


def _others(library: Library, question: Question, request: Request) -> list[int]:
    """Documents that do not answer the question: its own ones, then others, as many as may be needed."""
    rng = request.rng("documents")
    own = list(question.own)
    rng.shuffle(own)
    n = len(library.documents)
    # A document takes 16 tokens and more; a large file need not be shuffled whole.
    drawn = rng.sample(range(n), min(n, request.length // 16 + _POOL))
    seen = {*question.gold, *own}
    return own + [i for i in drawn if i not in seen]


class _Shelf:
    """The documents of a question, as text and as tokens."""

    def __init__(self, library: Library, question: Question, request: Request) -> None:
        self._library, self.question, self._request = library, question, request
        self.path = library.path
        self.others = _others(library, question, request)

    def render(self, chosen: Sequence[int]) -> Context:
        """The answering documents and the chosen ones, shuffled and numbered."""
        places = [*self.question.gold, *chosen]
        self._request.rng("order", len(places)).shuffle(places)
        writer = Writer(_INTRO)
        for i, place in enumerate(places, 1):
            writer.add(f"{'' if i == 1 else chr(10) * 2}Document {i}:\n")
            text = self._library.documents[place]
            (writer.add_evidence if place in self.question.gold else writer.add_distractor)(text)
        return writer.context()

    def tokens(self, place: int, measure: Measure) -> int:
        """About the tokens a document takes."""
        return _tokens(self._library, place, measure)

    def pool(self, begun: int) -> list[int]:
        """Documents that may come last, after the first `begun`."""
        left = self.others[begun : begun + _POOL]
        taken = {*self.question.gold, *self.others[:begun], *left}
        return left + [i for i in self._library.shortest if i not in taken]


def _tokens(library: Library, place: int, measure: Measure) -> int:
    return measure.piece(f"Document 10:\n{library.documents[place]}\n")


def _best_pair(sizes: list[tuple[int, int]], room: int) -> tuple[int, list[int]]:
    """At most two of (size, item), together as large as fits in the room."""
    sizes = sorted(sizes)
    only = [size for size, _ in sizes]
    best, items = 0, list[int]()
    for i, (size, item) in enumerate(sizes):
        if size > room:
            break
        if size > best:
            best, items = size, [item]
        j = min(bisect_right(only, room - size), i) - 1  # partners before i: each pair once
        if j >= 0 and size + only[j] > best:
            best, items = size + only[j], [item, sizes[j][1]]
    return best, items


def _choose(shelf: _Shelf, room: int, measure: Measure) -> tuple[int, list[int], bool]:
    """Documents for about `room` tokens: their tokens, which, and whether there were no more."""
    used, n, tokens = 0, 0, list[int]()
    while n < len(shelf.others) and used + (size := shelf.tokens(shelf.others[n], measure)) <= room:
        used, n = used + size, n + 1
        tokens.append(size)
    if n == len(shelf.others):
        return used, shelf.others, True
    best = (-1, list[int]())
    for begun in (n, max(0, n - 1)):
        base = sum(tokens[:begun])
        sizes = [(shelf.tokens(i, measure), i) for i in shelf.pool(begun)]
        more, items = _best_pair(sizes, room - base)
        best = max(best, (base + more, shelf.others[:begun] + items))
    return *best, False


def _fill(shelf: _Shelf, request: Request, draft: Draft, length: int, measure: Measure) -> Context:
    """The context for `length` tokens, new tokens included, approached from below.

    Raises UsageError when the file has too few documents for the length.
    """
    context = draft.render(0)
    start = best = measure.used(draft, context)
    error = 0  # documents together take this many tokens more than apart
    for _ in range(4):
        about, chosen, all_used = _choose(shelf, length - start - error, measure)
        candidate = shelf.render(chosen)
        used = measure.used(draft, candidate)
        if best <= used <= length:
            context, best = candidate, used
        if all_used and used + qa_tokens(request, measure) <= length:
            raise UsageError(
                f"--length {length}: task {request.task} has documents for at most {used} tokens in "
                f"{shelf.path}; give a larger file or a shorter length"
            )
        found = used - start - about
        if used <= length and found >= error:
            break
        error = found if found != error else found + 1
    return context


def _answered(documents: list[str], answers: tuple[str, ...]) -> bool:
    """Whether an answer stands in the documents. `yes` and `no` are judgements, wherever the words may stand."""
    evidence = "\n".join(documents).lower()
    return any(a.lower() not in ("yes", "no") and a.lower() in evidence for a in answers)


def qa(request: Request) -> Draft:
    """A question of the file with its documents among others."""
    library = _library(request)
    question = _question(library, request)
    shelf = _Shelf(library, question, request)
    found = _answered([library.documents[i] for i in question.gold], question.answers)
    return Draft(
        question=f"\n\n{_ORDER}\n\nQuestion: {question.text}",
        answer_prefix=" Answer:",
        references=question.answers,
        gold=question.answers[0],
        max_new_tokens=request.max_new_tokens,
        render=lambda n: shelf.render(shelf.others[:n]),
        fill=partial(_fill, shelf, request),
        origin_id=question.origin_id,
        flags=() if found else ("answer_not_in_evidence",),
    )


def qa_tokens(request: Request, measure: Measure) -> int:
    """Tokens of a short document: less than this may be left."""
    library = _library(request)
    return max(_tokens(library, place, measure) for place in library.shortest) + 1
