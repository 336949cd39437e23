"""Official scores: RULER's string matches, LongBench's six metrics, Qasper's and HotpotQA's answer F1.

Each takes an output and one reference (RULER's take all) and gives a number in [0, 1]. They follow the published
evaluators to the letter, odd habits included: THUDM/LongBench @ 2e00731f, NVIDIA/RULER @ c3f5e3b4, hotpotqa/hotpot
(hotpot_evaluate_v1) and Qasper's evaluator. What kvdiag itself holds to be right is in rules.py.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_VERDICTS = ("yes", "no", "noanswer")


def clean_output(text: str) -> str:
    """RULER's cleaning before scoring: control characters become newlines, ends are stripped."""
    return re.sub(r"[\x00-\x1f]", "\n", text.strip()).strip()


def string_match_all(output: str, references: Sequence[str]) -> float:
    """RULER's score: share of references that occur in the output, case ignored, no word bounds."""
    text = clean_output(output).lower()
    return sum(ref.lower() in text for ref in references) / len(references)


def string_match_part(output: str, references: Sequence[str]) -> float:
    """RULER's score of qa_1 and qa_2: 1 when any reference occurs in the output, case ignored, no word bounds."""
    text = clean_output(output).lower()
    return float(any(ref.lower() in text for ref in references))


def normalise_answer(text: str) -> str:
    """SQuAD's normal form: lower case, ASCII punctuation deleted (not spaced), no articles, no extra space."""
    return " ".join(re.sub(r"\b(?:a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(output: str, reference: str) -> float:
    """1 when both have the same SQuAD normal form."""
    return float(normalise_answer(output) == normalise_answer(reference))


def qa_f1(output: str, reference: str) -> float:
    """F1 over multisets of normalised tokens (LongBench's QA F1, Qasper's answer F1); 0 when both are empty."""
    found, wanted = normalise_answer(output).split(), normalise_answer(reference).split()
    common = sum((Counter(found) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(found), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def hotpot_f1(output: str, reference: str) -> float:
    """HotpotQA's answer F1: as `qa_f1`, but where either side is yes, no or noanswer both must be the same."""
    found, wanted = normalise_answer(output), normalise_answer(reference)
    if found != wanted and (found in _VERDICTS or wanted in _VERDICTS):
        return 0.0
    return qa_f1(output, reference)


def rouge_l(output: str, reference: str) -> float:
    """The rouge-l f value of the PyPI package `rouge`; 0 where that raises (an empty output, for one)."""
    # `rouge` recurses once a word and fails at Python's recursion limit; upstream scores that 0. In a thread of
    # its own the stack starts empty, as upstream, so that the score does not hang on how deep the caller is.
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_rouge_l, output, reference).result()


def _rouge_l(output: str, reference: str) -> float:
    from rouge import Rouge

    try:
        scores = Rouge(metrics=["rouge-l"], stats=["f"]).get_scores([output], [reference], avg=True)
    except Exception:  # upstream's rule: any failure counts 0
        return 0.0
    return float(scores["rouge-l"]["f"])


def classification(output: str, reference: str, classes: Sequence[str]) -> float:
    """1 / number of candidates (class names in the output, case matters) when the reference is among them.

    Names inside the reference's name are dropped, as upstream does it: the list is changed while being walked, so
    that the name after a dropped one is not looked at.
    """
    found = [name for name in classes if name in output]
    for name in found:
        if name in reference and name != reference:
            found.remove(name)  # upstream's slip, kept so that scores agree
    return 1.0 / len(found) if reference in found else 0.0


def _share_equal(output: str, number: str) -> float:
    numbers = re.findall(r"\d+", output)
    return numbers.count(number) / len(numbers) if numbers else 0.0


def count(output: str, reference: str) -> float:
    """Share of the runs of digits in the output that are the reference, as text; 0 without digits."""
    return _share_equal(output, reference)


def paragraph_number(reference: str) -> str:
    """The number after "Paragraph " in a reference. ValueError without one: the loader lets none through."""
    match = re.search(r"Paragraph (\d+)", reference)
    if not match:
        raise ValueError(f"reference {reference!r} names no paragraph")
    return match[1]


def retrieval(output: str, reference: str) -> float:
    """Share of the runs of digits in the output that are the reference's paragraph number; 0 without digits."""
    return _share_equal(output, paragraph_number(reference))


def first_line(output: str) -> str:
    """LongBench's cut for few-shot tasks: leading newlines (not spaces) go, then all after the first newline."""
    return output.lstrip("\n").split("\n", maxsplit=1)[0]


def code_line(output: str) -> str:
    """The first line without a backtick, # or // (leading newlines aside); empty when there is none."""
    lines = output.lstrip("\n").split("\n")
    return next((ln for ln in lines if "`" not in ln and "#" not in ln and "//" not in ln), "")


def code_similarity(line: str, reference: str) -> float:
    """fuzzywuzzy's whole-number ratio / 100, as it is with python-Levenshtein installed.

    Without it fuzzywuzzy falls back on difflib, with lower and asymmetric values: upstream leaves open which it
    used (THUDM/LongBench issue 96).
    """
    from rapidfuzz import fuzz

    return round(fuzz.ratio(line, reference)) / 100
