"""Official scores, against hand-worked values and against values of the packages that upstream uses."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdiag.workloads.scoring import metrics


def test_cleaning_turns_control_characters_into_newlines():
    assert metrics.clean_output(" \x07a\x00b\tc \n") == "a\nb\nc"


@pytest.mark.parametrize(
    ("output", "references", "all_of", "any_of"),
    [
        ("It is 3125.", ["12"], 1.0, 1.0),  # no word bounds
        ("ABCDE", ["abcde", "FGHIJ"], 0.5, 1.0),
        ("", ["12"], 0.0, 0.0),
        ("a\x00b", ["ab"], 0.0, 0.0),  # replaced by a newline, not deleted
        ("a\x00b", ["a\nb"], 1.0, 1.0),
        ("Straße", ["STRASSE", "straße"], 0.5, 1.0),  # lower case, no case folding
        ("the answer", ["Answer "], 0.0, 0.0),  # a reference is taken with its spaces
        ("x" * 10_000 + "yes", ["Yes", "yes", "no"], 2 / 3, 1.0),
    ],
)
def test_string_matches(output, references, all_of, any_of):
    assert metrics.string_match_all(output, references) == pytest.approx(all_of)
    assert metrics.string_match_part(output, references) == any_of


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The U.S.", "us"),
        ("e-mail", "email"),  # deleted, not spaced
        ("a-the an", "athe"),  # articles go after punctuation
        ("O'Brien,  the\tgreat", "obrien great"),
        ("“Quoted”", "“quoted”"),  # only ASCII punctuation
        ("the 1,234.5 %", "12345"),
        ("a an the", ""),
        ("Theatre", "theatre"),
        ("İ", "i̇"),
    ],
)
def test_normal_form(text, normal):
    assert metrics.normalise_answer(text) == normal


@pytest.mark.parametrize(
    ("output", "reference", "f1", "hotpot"),
    [
        ("Paris", "paris.", 1.0, 1.0),
        ("Paris, France", "Paris", 2 / 3, 2 / 3),
        ("the city of Paris", "Paris", 0.5, 0.5),
        ("Paris Paris", "Paris", 2 / 3, 2 / 3),  # multisets: a token counts once for each
        ("", "", 0.0, 0.0),
        ("the", "a", 0.0, 0.0),  # both empty once normalised
        ("", "Paris", 0.0, 0.0),
        ("19,300", "19300", 1.0, 1.0),
        ("e mail", "e-mail", 0.0, 0.0),
        ("yes", "Yes.", 1.0, 1.0),
        ("yes it is", "yes", 0.5, 0.0),  # the verdict must stand alone
        ("no", "no one", 2 / 3, 0.0),
        ("noanswer", "noanswer here", 2 / 3, 0.0),
        ("yes", "no", 0.0, 0.0),
        ("yes it", "it yes", 1.0, 1.0),  # neither side is a bare verdict
    ],
)
def test_answer_f1(output, reference, f1, hotpot):
    assert metrics.qa_f1(output, reference) == pytest.approx(f1)
    assert metrics.hotpot_f1(output, reference) == pytest.approx(hotpot)


def test_exact_match():
    assert metrics.exact_match("The Eiffel Tower!", "eiffel tower") == 1.0
    assert metrics.exact_match("Eiffel Tower, Paris", "eiffel tower") == 0.0


# PyPI rouge 1.0.1, Rouge().get_scores([output], [reference], avg=True)["rouge-l"]["f"]; 0 where it raised.
ROUGE = [
    ("the cat sat on the mat", "the cat sat on the mat", 0.999999995),
    ("the cat", "the dog", 0.4999999950000001),
    ("The cat", "the cat", 0.4999999950000001),
    ("a b. c d", "a b c d", 0.999999995),
    ("", "a", 0.0),
    (".", "a", 0.0),
    ("a", "", 0.0),
    (" ", "a", 0.0),
    ("police killed the gunman", "police ended the gunman. He was killed", 0.7272727226446282),
    ("the gunman kill police", "police killed the gunman", 0.4999999950000001),
    ("a a a b", "a b", 0.999999995),
    ("Été à Paris", "été à Paris.", 0.6666666616666668),
    ("one. two. three.", "three two one", 0.999999995),
]


@pytest.mark.parametrize(("output", "reference", "value"), ROUGE)
def test_rouge(output, reference, value):
    assert metrics.rouge_l(output, reference) == pytest.approx(value, abs=1e-12)


def _deep(depth, call):
    return call() if depth == 0 else _deep(depth - 1, call)


def test_rouge_does_not_hang_on_the_depth_of_the_caller():
    output = " ".join(f"w{i}" for i in range(450))
    reference = " ".join(f"w{i}" for i in range(0, 900, 2))
    shallow = []
    thread = threading.Thread(target=lambda: shallow.append(metrics.rouge_l(output, reference)))
    thread.start()
    thread.join()
    assert shallow[0] == pytest.approx(0.5, abs=1e-6)  # 225 of 450 words on both sides
    assert _deep(600, lambda: metrics.rouge_l(output, reference)) == shallow[0]


def test_rouge_of_a_very_long_sentence_is_zero_as_upstream():
    assert metrics.rouge_l("word " * 3000, "other thing") == 0.0


@pytest.mark.parametrize(
    ("output", "reference", "classes", "score"),
    [
        ("Country", "Country", ["City", "Country"], 1.0),
        ("country", "Country", ["City", "Country"], 0.0),  # case matters
        ("City or Country", "Country", ["City", "Country"], 0.5),
        ("City", "Country", ["City", "Country"], 0.0),
        ("", "Country", ["City", "Country"], 0.0),
        ("Other number", "Other number", ["number", "Other number"], 1.0),  # part of the gold: dropped
        ("Other number", "number", ["number", "Other number"], 0.5),  # the gold's longer kin stays
        # The slip: dropping "a" makes the walk skip "ab", which stays a candidate.
        ("abc", "abc", ["a", "ab", "abc"], 0.5),
        ("abc", "abc", ["a", "abc", "ab"], 1.0),
        ("abcd", "abcd", ["a", "ab", "abc", "abcd"], 0.5),
    ],
)
def test_classification(output, reference, classes, score):
    assert metrics.classification(output, reference, classes) == score


@pytest.mark.parametrize(
    ("output", "gold", "score"),
    [
        ("12", "12", 1.0),
        ("Paragraph 12", "12", 1.0),
        ("12 or 13", "12", 0.5),
        ("12, 12, 13", "12", 2 / 3),
        ("twelve", "12", 0.0),
        ("", "12", 0.0),
        ("012", "12", 0.0),  # as text
        ("12.0", "12", 0.5),
        ("1,200", "1200", 0.0),
        ("112", "12", 0.0),
    ],
)
def test_count_and_retrieval(output, gold, score):
    assert metrics.count(output, gold) == pytest.approx(score)
    assert metrics.retrieval(output, f"Paragraph {gold}") == pytest.approx(score)


def test_a_retrieval_reference_must_name_a_paragraph():
    with pytest.raises(ValueError, match="names no paragraph"):
        metrics.retrieval("3", "3")


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("a\nb", "a"),
        ("\n\n a\nb", " a"),  # newlines go, spaces stay
        (" \na", " "),  # a blank line is a line
        ("", ""),
        ("a\r\nb", "a\r"),
    ],
)
def test_first_line(output, line):
    assert metrics.first_line(output) == line


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("\n\n    x = 1\ny", "    x = 1"),
        ("```python\nx = 1\n```", "x = 1"),
        ("# note\n// note\nx = 1  # why\ny = 2", "y = 2"),
        ("# only", ""),
        ("a // b", ""),
        ("x\n", "x"),
        (" \nx", " "),
        ("```\n\nx", ""),  # an empty line further down is taken
    ],
)
def test_code_line(output, line):
    assert metrics.code_line(output) == line


# fuzzywuzzy 0.18.0 with python-Levenshtein 0.27.5: fuzz.ratio(line, reference).
FUZZY = [
    ("    return x", "    return x", 100),
    ("return x", "    return x", 80),
    ("a", "b", 0),
    ("", "abc", 0),
    ("ababab", "aaaaab", 67),  # difflib, the fallback: 33
    ("cadb", "abc", 57),  # difflib: 29
    ("        self.category = atom.Category()", "    self.category = atom.Category()", 95),
    ("if (pattern == null)", "                if (pattern == null) {", 69),
    ("m_maxSlopeCosine = btCos(slope);", "\tm_maxSlopeCosine = btCos(slopeRadians);", 89),
    ("vertices[x] = new Vector3f();", "                    vertices[x] = new Vector3f(0);", 73),
    ("naïve = 1", "naive = 1", 89),
    ("x = 1", "y = 2", 60),
    ("abcdefgh", "abcdXfgh", 88),  # 87.5 is rounded to the even number
    ("aab", "b", 50),
    ("foo(bar)", "bar(foo)", 50),
    ("ab", "a", 67),
]


@pytest.mark.parametrize(("line", "reference", "ratio"), FUZZY)
def test_code_similarity(line, reference, ratio):
    assert metrics.code_similarity(line, reference) == ratio / 100


@settings(deadline=None)
@given(output=st.text(), reference=st.text(min_size=1))
def test_scores_are_shares(output, reference):
    for metric in (metrics.qa_f1, metrics.hotpot_f1, metrics.exact_match, metrics.code_similarity, metrics.count):
        assert 0.0 <= metric(output, reference) <= 1.0
        assert metric(output, reference) == metric(output, reference)
    assert 0.0 <= metrics.classification(output, reference, [reference, output, "", "a"]) <= 1.0
    assert metrics.hotpot_f1(output, reference) <= metrics.qa_f1(output, reference)
    assert metrics.string_match_part(output, [reference]) == metrics.string_match_all(output, [reference])


@settings(deadline=None)
@given(output=st.text(max_size=60), reference=st.text(max_size=60))
def test_rouge_is_a_share(output, reference):
    assert 0.0 <= metrics.rouge_l(output, reference) <= 1.0
