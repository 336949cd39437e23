"""The rules for `correct`: one stated rule for each kind of reference, apart from the official scores.

Retrieval tasks (RULER niah, vt, cwe, fwe): every reference occurs in the output as a whole word, case ignored.

Short answers (RULER qa, Qasper, HotpotQA, LongBench's QA tasks): the output is right when any reference is met (of
triviaqa's output only the first line counts). It is met when the whole output is the reference, and else by the
output's first sentence, depending on the reference:

- yes or no: the sentence's first word, if that is yes or no; else the one of the two that occurs as a word of its
  own. With both or neither, wrong. "not", "know", "none", "nothing" and "no-one" are not "no".
- unanswerable: the sentence has "unanswerable", "not answerable", "cannot be answered" or "can't be answered".
- a number (sign, currency mark, thousands commas, decimals, percent; zero to twenty in words): a number of equal
  value is in the sentence. 1,234 is 1234.0; "5 million" is 5000000. Marks ($, %) must agree where both have one.
  12th, 5k and 3.1.2 are no numbers, so 12 is not met by "12th" nor by "3125".
- other short ones, up to 8 words: their words stand in the sentence, together and in order. Case, punctuation,
  articles, possessive 's and the space between initials do not count; a hyphen is a space or nothing; & is "and",
  % is "percent". A reference that ends in an article ("vitamin A") keeps its articles.
- longer ones: the same, or QA F1 of the whole output against it is at least 0.5.

Classification: the first line names the class and no other. Count, paragraph retrieval: the first number is the
reference's. Code: the scored line, or the first line, is the reference, white space aside. Summaries: no rule.
An empty output is never right.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

from kvdiag.workloads.scoring.metrics import clean_output, code_line, paragraph_number, qa_f1
from kvdiag.workloads.scoring.numbers import Number, numbers_in, whole_number
from kvdiag.workloads.scoring.sentence import first_sentence

SHORT_WORDS = 8
LONG_F1 = 0.5
_ARTICLES = ("a", "an", "the")
_UNANSWERABLE = ("unanswerable", "not answerable", "cannot be answered", "can not be answered", "cant be answered")


def contains_word(text: str, word: str) -> bool:
    """Whether `word` occurs in `text` as a whole, case ignored: "12" is not in "3125"."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, flags=re.IGNORECASE) is not None


def all_words_present(output: str, references: Sequence[str]) -> bool:
    """The rule for `correct` in retrieval tasks: every reference occurs as a whole word."""
    text = clean_output(output)
    return all(contains_word(text, ref) for ref in references)


def words(text: str, hyphen: str = " ") -> list[str]:
    """The words of a text in one normal form; `hyphen` stands for each hyphen. Articles are kept."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"['’‘ʼ`]", "'", text)
    text = re.sub(r"(?<!\w)([^\W\d_]\.)\s+(?=[^\W\d_]\.)", r"\1", text)  # J. K. is J.K.
    text = re.sub(r"'s(?!\w)", "", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"%|\bper cent\b", " percent ", text).replace("&", " and ").replace("_", " ")
    text = re.sub(r"\.(?!\d)|(?<=[^\W\d])\.|['\"“”]", "", text)  # a dot stays in 1.5 and goes in U.S.
    text = re.sub(r"[-‐‑]", hyphen, text)
    return re.findall(r"\w+(?:\.\w+)*(?:\+\+|#(?!\w))?|\.\d+", text)


def _without_articles(found: list[str]) -> list[str]:
    return [word for word in found if word not in _ARTICLES]


def _has_run(found: list[str], wanted: list[str]) -> bool:
    return f" {' '.join(wanted)} " in f" {' '.join(found)} "


def _names(text: str, reference: str) -> bool:
    """Whether the reference's words stand in the text, together and in order."""
    for hyphen in (" ", ""):
        found, wanted = words(text, hyphen), words(reference, hyphen)
        if wanted and wanted[-1] not in _ARTICLES:
            found, wanted = _without_articles(found), _without_articles(wanted)
        if wanted and _has_run(found, wanted):
            return True
    return False


def _verdict(text: str) -> str | None:
    """What a sentence answers to a yes/no question: "yes", "no", or None when that cannot be told."""
    found = words(text, hyphen="")
    if found and found[0] in ("yes", "no"):
        return found[0]
    said = {"yes", "no"}.intersection(found)
    return said.pop() if len(said) == 1 else None


def _says_unanswerable(text: str) -> bool:
    found = words(text)
    return any(_has_run(found, phrase.split()) for phrase in _UNANSWERABLE)


def reference_kind(reference: str) -> str:
    """`yes_no`, `unanswerable`, `number`, `short` or `long`: which rule holds for a short answer's reference."""
    found = words(reference)
    if found in (["yes"], ["no"]):
        return "yes_no"
    if " ".join(found) in _UNANSWERABLE:
        return "unanswerable"
    if whole_number(reference):
        return "number"
    return "short" if len(_without_articles(found)) <= SHORT_WORDS else "long"


def _number_met(sentence: str, reference: str) -> bool:
    wanted = whole_number(reference)
    return wanted is not None and any(wanted.agrees(number) for number in numbers_in(sentence))


_MET: dict[str, Callable[[str, str], bool]] = {
    "yes_no": lambda sentence, reference: _verdict(sentence) == words(reference)[0],
    "unanswerable": lambda sentence, _: _says_unanswerable(sentence),
    "number": _number_met,
    "short": _names,
}


def short_answer(output: str, references: Sequence[str]) -> bool:
    """Whether any reference is met by the output (rules above)."""
    if not output.strip():
        return False
    sentence = first_sentence(output)
    return any(_met(output, sentence, reference) for reference in references)


def _met(output: str, sentence: str, reference: str) -> bool:
    if output.strip() == reference.strip():
        return True
    kind = reference_kind(reference)
    if kind == "long":
        return _names(sentence, reference) or qa_f1(output, reference) >= LONG_F1
    # A short reference may hold a sentence's end itself ("Yahoo! Inc."): then the whole output may be it.
    whole = kind == "short" and bool(words(reference)) and words(output) == words(reference)
    return whole or _MET[kind](sentence, reference)


def contradictory(references: Sequence[str]) -> bool:
    """Whether the references cannot all be right: yes against no, or unanswerable against an answer."""
    kinds = {reference_kind(reference) for reference in references}
    verdicts = {words(reference)[0] for reference in references if reference_kind(reference) == "yes_no"}
    return len(verdicts) > 1 or ("unanswerable" in kinds and len(kinds) > 1)


def _first_filled_line(output: str) -> str:
    return output.strip().split("\n", maxsplit=1)[0]


def classification(output: str, references: Sequence[str], classes: Sequence[str]) -> bool:
    """The first line that is not blank names a reference's class and no other class, as whole words, case ignored.

    Longer names are looked for first and taken out, so that a name inside another one does not count.
    """
    line, named = _first_filled_line(output), set()
    for name in sorted({*classes, *references} - {""}, key=lambda name: (-len(name), name)):
        # TREC's "Lasting time of somethin" is cut short in the data set; models mend it.
        tail = "g?" if name.endswith("somethin") else ""
        line, times = re.subn(rf"(?<!\w){re.escape(name)}{tail}(?!\w)", "\n", line, flags=re.IGNORECASE)
        if times:
            named.add(name)
    return len(named) == 1 and named <= set(references)


def _first_number(output: str) -> Number | None:
    return next(iter(numbers_in(output)), None)


def count(output: str, references: Sequence[str]) -> bool:
    """The first number of the output has a reference's value."""
    first = _first_number(output)
    return first is not None and any(n.value == first.value for ref in references for n in numbers_in(ref))


def retrieval(output: str, references: Sequence[str]) -> bool:
    """The first number of the output is a reference's paragraph."""
    return count(output, [paragraph_number(reference) for reference in references])


def code(output: str, references: Sequence[str]) -> bool:
    """The scored line, or the first line that is not blank, is a reference, white space aside."""
    lines = {"".join(line.split()) for line in (code_line(output), _first_filled_line(output))} - {""}
    return any("".join(reference.split()) in lines for reference in references)
