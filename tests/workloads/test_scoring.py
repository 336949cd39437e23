"""RULER's score, and the stricter rule for `correct`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.workloads import scoring


@pytest.mark.parametrize(
    ("output", "references", "score", "correct"),
    [
        ("It is 12.", ["12"], 1.0, True),
        ("It is 3125.", ["12"], 1.0, False),  # RULER's score knows no word bounds; `correct` does
        ("12a", ["12"], 1.0, False),
        ("_12_", ["12"], 1.0, False),
        ("(12), then 13", ["12", "13"], 1.0, True),
        ("**12**", ["12"], 1.0, True),
        ("ABCDE and FGHIJ", ["abcde", "FGHIJ"], 1.0, True),
        ("abcde", ["ABCDE"], 1.0, True),
        ("ABCDE", ["ABCDE", "FGHIJ"], 0.5, False),
        ("ABCDEFGHIJ", ["ABCDE", "FGHIJ"], 1.0, False),
        ("", ["12"], 0.0, False),
        ("  \n ", ["12"], 0.0, False),
        ("1\x002", ["12"], 0.0, False),  # a control character parts a word
        ("\x0012\x1f", ["12"], 1.0, True),
        ("\x02\t12\r\n", ["12"], 1.0, True),
        ("one\n12\nthree", ["12"], 1.0, True),
        ("a.b", ["a.b"], 1.0, True),
        ("axb", ["a.b"], 0.0, False),  # a reference is text, no pattern
        ("STRASSE", ["straße"], 0.0, False),
        ("Straße", ["straße"], 1.0, True),
    ],
)
def test_score_and_correct(output, references, score, correct):
    assert scoring.string_match_all(output, references) == score
    assert scoring.all_words_present(output, references) is correct


def test_cleaning_turns_control_characters_into_newlines():
    assert scoring.clean_output(" \x07a\x00b\tc \n") == "a\nb\nc"


@given(text=st.text(max_size=40), word=st.from_regex(r"[0-9]{1,7}", fullmatch=True))
def test_a_correct_answer_has_the_full_score(text, word):
    for output in (text, f"{text} {word}.", word + text):
        if scoring.all_words_present(output, [word]):
            assert scoring.string_match_all(output, [word]) == 1.0
    assert scoring.all_words_present(f"{text} {word}.", [word])
    assert not scoring.all_words_present(f"9{word}9", [word])
