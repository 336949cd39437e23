"""The rules for `correct`: what is right, and what only looks so."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvdiag.workloads.scoring import metrics, rules


@pytest.mark.parametrize(
    ("output", "references", "correct"),
    [
        ("It is 12.", ["12"], True),
        ("It is 3125.", ["12"], False),
        ("12a", ["12"], False),
        ("_12_", ["12"], False),
        ("(12), then 13", ["12", "13"], True),
        ("**12**", ["12"], True),
        ("ABCDE", ["ABCDE", "FGHIJ"], False),
        ("ABCDEFGHIJ", ["ABCDE", "FGHIJ"], False),
        ("", ["12"], False),
        ("1\x002", ["12"], False),  # a control character parts a word
        ("\x02\t12\r\n", ["12"], True),
        ("a.b", ["a.b"], True),
        ("axb", ["a.b"], False),  # a reference is text, no pattern
        ("STRASSE", ["straße"], False),
    ],
)
def test_retrieval_wants_every_reference_as_a_word(output, references, correct):
    assert rules.all_words_present(output, references) is correct


@settings(deadline=None)
@given(text=st.text(max_size=40), word=st.from_regex(r"[0-9]{1,7}", fullmatch=True))
def test_a_correct_retrieval_has_the_full_score(text, word):
    for output in (text, f"{text} {word}.", word + text):
        if rules.all_words_present(output, [word]):
            assert metrics.string_match_all(output, [word]) == 1.0
    assert rules.all_words_present(f"{text} {word}.", [word])
    assert not rules.all_words_present(f"9{word}9", [word])


@pytest.mark.parametrize(
    ("reference", "kind"),
    [
        ("Yes", "yes_no"),
        ("no.", "yes_no"),
        ("No one", "short"),
        ("Unanswerable", "unanswerable"),
        ("2,714 ", "number"),
        ("3%", "number"),
        ("one", "number"),
        ("5 million", "number"),
        ("12th", "short"),
        ("30 words", "short"),
        ("5 percent points.", "short"),
        ("English ", "short"),
        ("one two the three four five six seven eight", "short"),  # eight without the article
        ("they select all the subreddits from January to December 2014", "long"),
        ("", "short"),
        ("!?", "short"),
    ],
)
def test_kinds(reference, kind):
    assert rules.reference_kind(reference) == kind


YES_NO = [
    ("Yes", "yes", True),
    ("Yes, they do. No doubt.", "Yes", True),
    ("**Yes**", "Yes", True),
    ("Answer: yes", "Yes", True),
    ("No.", "No", True),
    ("NO!", "no", True),
    ("No, yes is wrong", "No", True),  # the first word decides
    ("The answer is no.", "No", True),
    ("They do not.", "No", False),
    ("I know that.", "No", False),
    ("None of them.", "No", False),
    ("Nothing is said.", "No", False),
    ("No-one did.", "No", False),
    ("The noise", "no", False),
    ("yesterday", "yes", False),
    ("It is yes or no", "Yes", False),
    ("It is yes or no", "No", False),
    ("It is unclear. No.", "No", False),  # first sentence only
    ("\n\nYes\nNo", "Yes", True),
    ("Yes", "No", False),
    ("", "No", False),
    ("true", "Yes", False),
    ("Ｎｏ", "No", True),
]


@pytest.mark.parametrize(("output", "reference", "correct"), YES_NO)
def test_yes_and_no(output, reference, correct):
    assert rules.short_answer(output, [reference]) is correct


@pytest.mark.parametrize(
    ("output", "correct"),
    [
        ("Unanswerable", True),
        ("The question is not answerable.", True),
        ("It cannot be answered from the text.", True),
        ("It can’t be answered.", True),
        ("This can not be answered", True),
        ("It can be answered: Paris.", False),
        ("The paper does not say.", False),
        ("No", False),
        ("Paris. Else unanswerable.", False),
    ],
)
def test_unanswerable(output, correct):
    assert rules.short_answer(output, ["Unanswerable"]) is correct


@pytest.mark.parametrize(
    ("output", "reference", "correct"),
    [
        ("There are 1234.", "1,234", True),
        ("1,234.0 of them", "1234", True),
        ("3125", "12", False),
        ("It was the 12th.", "12", False),
        ("There are 12, at least", "12", True),
        ("twelve", "12", True),
        ("12", "twelve", True),
        ("twenty-five", "20", False),
        ("12.5", "12", False),
        ("-12", "12", False),
        ("from 10-12", "12", True),
        ("3%", "3", True),
        ("3 percent", "3%", True),
        ("$3", "3%", False),
        ("In 1895, or so", "1895", True),
        ("In 1895. Or 1896.", "1896", False),
        ("5 million", "5", False),
        ("5,000,000", "5 million", True),
        ("Ten and 2,714 questions", "2,714 ", True),
    ],
)
def test_numbers_by_value(output, reference, correct):
    assert rules.short_answer(output, [reference]) is correct


@pytest.mark.parametrize(
    ("output", "reference", "correct"),
    [
        ("It is the Eiffel Tower, in Paris.", "Eiffel Tower", True),
        ("Tower Eiffel", "Eiffel Tower", False),
        ("Eiffel's big Tower", "Eiffel Tower", False),  # not together
        ("Long Islanders", "Long Island", False),
        ("They use email.", "e-mail", True),
        ("They use e mail.", "e-mail", True),
        ("An e-mail", "email", True),
        ("a New York-based firm", "New York", True),
        ("In the US.", "U.S.", True),
        ("the U.S. army", "US", True),
        ("by O’Brien's brother", "O'Brien", True),
        ("by OBrien", "O'Brien", True),
        ("19300 people", "19,300 people", True),
        ("1.5 metres", "15 metres", False),  # a decimal point counts
        ("J. K. Rowling", "J.K. Rowling", True),
        ("JK Rowling", "J. K. Rowling", True),
        ("Simon and Garfunkel", "Simon & Garfunkel", True),
        ("5% points", "5 percent points.", True),
        ("in Castlemaine Victoria, Australia", "Castlemaine, Victoria, Australia", True),
        ("the English language", "English ", True),
        ("ENGLISH", "English", True),
        ("Ｅｎｇｌｉｓｈ", "English", True),  # NFKC
        ("straße", "STRASSE", True),  # case folding
        ("Vytautas Straižys", "vytautas straižys", True),
        ("北京市", "北京", False),
        ("北京", "北京", True),
        ("Vitamin C", "Vitamin A", False),  # an article that ends a reference is a word
        ("It is vitamin A.", "Vitamin A", True),
        ("a tale of the two cities", "A Tale of Two Cities", True),
        ("C++", "C#", False),
        ("C", "C++", False),
        ("It is C#.", "C#", True),
        ("Yahoo! Inc.", "Yahoo! Inc.", True),
        ("yahoo! inc", "Yahoo! Inc.", True),  # whole output, though its first sentence is "Yahoo!"
        ("Lyon. Or Paris.", "Paris", False),
        ("", "Paris", False),
        ("...", "Paris", False),
        ("!?", "!?", True),
        ("Paris", "!?", False),
    ],
)
def test_other_short_references(output, reference, correct):
    assert rules.short_answer(output, [reference]) is correct


LONG = "They selected all the subreddits from January 2013 to December 2014 with 500 words in the vocabulary"


def test_long_references_go_by_f1_of_the_whole_output():
    half = "Subreddits from January 2013. To December 2014, with 500 words."
    assert metrics.qa_f1(half, LONG) == pytest.approx(2 * 10 / (10 + 15))
    assert rules.short_answer(half, [LONG]) is True
    weak = "Subreddits from January 2013 were the ones that were used"
    assert 0 < metrics.qa_f1(weak, LONG) < 0.5
    assert rules.short_answer(weak, [LONG]) is False


def test_a_long_reference_in_the_first_sentence_is_enough():
    output = f"As the paper says, {LONG.lower()}, no less. " + "Then more and more is said of other things. " * 20
    assert metrics.qa_f1(output, LONG) < 0.5
    assert rules.short_answer(output, [LONG]) is True
    assert rules.short_answer(f"Well. {output}", [LONG]) is False


def test_any_reference_is_enough():
    assert rules.short_answer("no", ["Yes", "No"])
    assert rules.short_answer(
        "three", ["OurNepali has 3 and ILPRL has 4 different types of named entities", "three"]
    )
    assert rules.short_answer("Yes", ["Yes", "Yes"])
    assert rules.short_answer("English", ["English", "English ", "English"])
    assert not rules.short_answer("German", ["English", "English ", "English"])


@pytest.mark.parametrize(
    ("references", "against"),
    [
        (["Yes", "No"], True),
        (["yes.", "Yes"], False),
        (["Unanswerable", "Paris"], True),
        (["Unanswerable", "No"], True),
        (["Unanswerable", "unanswerable"], False),
        (["Paris", "Lyon"], False),
        (["Yes", "Yes, for English"], False),
        (["12"], False),
        ([], False),
    ],
)
def test_contradictory(references, against):
    assert rules.contradictory(references) is against


CLASSES = ("Country", "City", "Other number", "Number of something", "number", "Lasting time of somethin", "State")


@pytest.mark.parametrize(
    ("output", "gold", "correct"),
    [
        ("Country", "Country", True),
        ("\n Country\nQuestion: what? City", "Country", True),  # later lines are not read
        ("country", "Country", True),
        ("City", "Country", False),
        ("Country or City", "Country", False),
        ("Countryside", "Country", False),
        ("Other number", "Other number", True),  # "number" inside it is taken out with it
        ("Other number", "number", False),
        ("Other number, a number", "Other number", False),
        ("Lasting time of something", "Lasting time of somethin", True),
        ("Lasting time of somethin", "Lasting time of somethin", True),
        ("Statement", "State", False),
        ("", "State", False),
    ],
)
def test_classification(output, gold, correct):
    assert rules.classification(output, [gold], CLASSES) is correct


@pytest.mark.parametrize(
    ("output", "gold", "correct"),
    [
        ("46", "46", True),
        ("There are 46 paragraphs, not 29", "46", True),
        ("29 or 46", "46", False),
        ("ten", "10", True),
        ("10.0", "10", True),
        ("146", "46", False),
        ("many", "46", False),
        ("", "46", False),
        ("9" * 10_000, "46", False),
    ],
)
def test_count_and_paragraph(output, gold, correct):
    assert rules.count(output, [gold]) is correct
    assert rules.retrieval(output, [f"Paragraph {gold}"]) is correct


@pytest.mark.parametrize(
    ("output", "reference", "correct"),
    [
        ("    x = f(a, b)", "        x = f(a, b)", True),
        ("x = f(a,b)\ny = 2", "        x = f(a, b)", True),
        ("```java\nint x;\n```", "\tint x;", True),
        ("x = 2", "x = 1", False),
        ("x = 1  # why", "x = 1  # why", True),  # the scored line is none, the first line is it
        ("x = 1  # why", "x = 1", False),
        ("", "x", False),
        ("# x", "", False),
    ],
)
def test_code(output, reference, correct):
    assert rules.code(output, [reference]) is correct


@settings(deadline=None)
@given(output=st.text(), reference=st.text())
@example(output="¼ 10² ½%", reference="½")
@example(output="$-.5,,", reference="$.5")
def test_no_text_breaks_a_rule(output, reference):
    for rule in (rules.short_answer, rules.count, rules.code, rules.all_words_present):
        assert rule(output, [reference, reference]) in (True, False)
    assert rules.classification(output, [reference], ["a", ""]) in (True, False)
    assert rules.contradictory([output, reference]) in (True, False)
    assert rules.short_answer(" \n", [reference]) is False


@settings(deadline=None)
@given(st.text().filter(str.strip))
def test_a_reference_meets_itself(reference):
    assert rules.short_answer(reference, [reference])
    assert rules.short_answer(f"\n {reference} ", ["other", reference])


@settings(deadline=None)
@given(st.lists(st.from_regex(r"[b-z]{2,8}", fullmatch=True), min_size=1, max_size=6))
def test_a_correct_short_answer_has_some_f1(parts):
    reference = " ".join(parts)
    for output in (
        f"It is {reference}, I guess. Or not.",
        f"The {reference.upper()}!",
        f"Answer:\n{reference}\n\nx",
    ):
        if rules.reference_kind(reference) == "short" and "no" not in parts:
            assert rules.short_answer(output, [reference])
            assert metrics.qa_f1(output, reference) > 0


@pytest.mark.parametrize(
    "piece", ["a", "yes no ", "1,", "12 ", "a.", "J. ", "'s", "- ", "a-b ", "\n", "%", "e.g. "]
)
def test_long_outputs_are_quick(piece):
    output = piece * 50_000
    start = time.perf_counter()
    rules.short_answer(output, ["Paris", "yes", "12", "unanswerable", LONG])
    rules.count(output, ["12"])
    rules.code(output, ["x"])
    assert time.perf_counter() - start < 6
