"""Counting words: common words of a numbered list, frequent words of a coded text.

Wording and settings: RULER's scripts/data/synthetic/constants.py, common_words_extraction.py and
freq_words_extraction.py (https://github.com/NVIDIA/RULER, Apache-2.0).
"""

import math
import random
import string
from functools import cache, partial

from kvdiag.workloads.ruler.draft import Context, Draft, Measure, Request, Writer, numbered
from kvdiag.workloads.ruler.ingredients import all_words

N_COMMON = 10
_LIST_INTRO = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
_LIST_QUESTION = "\nQuestion: What are the 10 most common words in the above list?"
_LIST_PREFIX = " Answer: The top 10 words that appear most often in the list are:"

_CODE_INTRO = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)
_CODE_QUESTION = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
_CODE_PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
# The smallest text in which ranks 2, 3, 4 and 5 differ in number.
LEAST_CODED = 46


def _repeats(length: int) -> tuple[int, int]:
    """How often common and other words come."""
    return (6, 1) if length < 4096 else (30, 3)


def _list_text(words: list[str]) -> str:
    return "".join(before + word for before, word in numbered(words))


def _list_example(rng: random.Random, words: list[str], common: int, other: int) -> str:
    """A worked example: the first ten words come `common` times, the others `other` times."""
    entries = words[:N_COMMON] * common + words[N_COMMON:] * other
    rng.shuffle(entries)
    answer = " " + _list_text(words[:N_COMMON])
    return _LIST_INTRO + _list_text(entries) + _LIST_QUESTION + _LIST_PREFIX + answer + "\n"


def _render_list(request: Request, intro: str, common: list[str], others: list[str], n: int) -> Context:
    """The list with n uncommon words."""
    many, few = _repeats(request.length)
    entries = common * many + others[:n] * few
    request.rng("order", n).shuffle(entries)
    writer, answers = Writer(intro), set(common)
    for before, word in numbered(entries):
        writer.add(before)
        (writer.add_evidence if word in answers else writer.add_distractor)(word)
    return writer.context()


def cwe(request: Request) -> Draft:
    """Ten common words in a numbered list of others, behind a worked example with words of its own."""
    rng = request.rng()
    words = rng.sample(all_words(), len(all_words()))
    size, common, other = (20, 3, 1) if request.length < 4096 else (40, 10, 3)
    example = _list_example(rng, words[:size], common, other)
    answers, others = words[size : size + N_COMMON], words[size + N_COMMON :]
    return Draft(
        question=_LIST_QUESTION,
        answer_prefix=_LIST_PREFIX,
        references=tuple(answers),
        gold=_list_text(answers),  # as the worked example answers
        max_new_tokens=request.max_new_tokens,
        render=partial(_render_list, request, example + _LIST_INTRO, answers, others),
        least=1,
        most=len(others),
    )


def cwe_tokens(request: Request, measure: Measure) -> int:
    """Tokens of a long word with its number, as often as an uncommon word comes."""
    number = "8" * len(str(request.length))
    longest = sorted(all_words(), key=lambda w: (-len(w), w))[:200]
    return _repeats(request.length)[1] * (max(measure.piece(f"{number}. {w}") for w in longest) + 1)


@cache
def _zeta_order(ceiling: int, vocabulary: int) -> tuple[int, ...]:
    """Ranks in the order in which their words come; all those due up to `ceiling`."""
    steps = (
        (count * rank * rank, rank)
        for rank in range(1, min(vocabulary, math.isqrt(ceiling)) + 1)
        for count in range(1, ceiling // (rank * rank) + 1)
    )
    return tuple(rank for _, rank in sorted(steps))


def zeta_ranks(n: int, vocabulary: int) -> list[int]:
    """Ranks (from 1) of n words whose numbers follow a zeta distribution with alpha 2.

    RULER gives rank k the whole part of N k^-2 / zeta(2) words. The c-th word of rank k thus comes when
    N / zeta(2) reaches c k^2; taken in this order (low ranks first among equals) the text grows a word at a time.
    """
    # Rank 1 alone gives a word a step. Powers of two keep the orders to be made few.
    return list(_zeta_order(2 ** n.bit_length(), vocabulary)[:n])


class _Vocabulary:
    """Coded words of six letters by rank; rank 1 is the noise "..."."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._words = ["..."]

    def __getitem__(self, rank: int) -> str:
        while len(self._words) < rank:
            word = "".join(self._rng.choices(string.ascii_lowercase, k=6))
            if word not in self._words and word not in (_CODE_INTRO + _CODE_QUESTION + _CODE_PREFIX).lower():
                self._words.append(word)
        return self._words[rank - 1]


def _render_code(request: Request, vocabulary: _Vocabulary, size: int, n: int) -> Context:
    """The coded text with n words."""
    ranks = zeta_ranks(n, size)
    request.rng("order", n).shuffle(ranks)
    writer = Writer(_CODE_INTRO)
    for i, rank in enumerate(ranks):
        if i:
            writer.add(" ")
        put = writer.add_evidence if 2 <= rank <= 4 else writer.add_distractor if 5 <= rank <= 7 else writer.add
        put(vocabulary[rank])
    return writer.context()


def fwe(request: Request) -> Draft:
    """The three most frequent words of a coded text: ranks 2 to 4 of a zeta distribution."""
    vocabulary = _Vocabulary(request.rng())
    answers = tuple(vocabulary[rank] for rank in (2, 3, 4))
    size = max(7, (request.length - request.max_new_tokens) // 50)
    return Draft(
        question=_CODE_QUESTION,
        answer_prefix=_CODE_PREFIX,
        references=answers,
        gold=", ".join(answers),
        max_new_tokens=request.max_new_tokens,
        render=partial(_render_code, request, vocabulary, size),
        least=LEAST_CODED,
    )


def fwe_tokens(request: Request, measure: Measure) -> int:
    """Tokens of a coded word."""
    vocabulary = _Vocabulary(random.Random("words"))
    return max(measure.piece(vocabulary[rank]) for rank in range(2, 202)) + 1
