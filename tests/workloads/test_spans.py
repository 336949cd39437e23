"""Places in a text: found by equality only, all of them, and never guessed."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdiag.workloads.spans import Builder, Places, merged, normalized, trimmed


def places(*paragraphs, titles=()):
    """A text of title lines, then paragraphs, one a line."""
    build = Builder()
    title_spans, spans = [], []
    for kind, pieces in ((title_spans, titles), (spans, paragraphs)):
        for piece in pieces:
            kind.append(build.add(piece))
            build.add("\n")
    return Places(build.text, spans, title_spans)


def found(where, wanted):
    spans, reason = where.find(wanted)
    assert (reason is None) == bool(spans)
    return [where.text[a:b] for a, b in spans] or reason


def test_builder_tells_where_pieces_lie():
    build = Builder("head ")
    spans = [build.add("one"), build.add(""), build.add("two")]
    assert build.text == "head onetwo"
    assert spans == [(5, 8), (8, 8), (8, 11)]


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [("a  b c", (1, 5), (3, 4)), ("abc", (0, 3), (0, 3)), ("a \n\t b", (1, 5), None), ("abc", (1, 1), None)],
)
def test_trimmed(text, span, expected):
    assert trimmed(text, span) == expected


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(5, 8), (1, 3)], ((1, 3), (5, 8))),
        ([(1, 5), (3, 8), (7, 9)], ((1, 9),)),
        ([(1, 9), (2, 3), (1, 9)], ((1, 9),)),
        ([(1, 3), (3, 5)], ((1, 3), (3, 5))),
        ([], ()),
    ],
)
def test_merged(spans, expected):
    assert merged(spans) == expected


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda p: (p[0], p[0] + p[1]))))
def test_merged_covers_the_same_characters_once(spans):
    out = merged(spans)
    assert {i for a, b in spans for i in range(a, b)} == {i for a, b in out for i in range(a, b)}
    assert sum(b - a for a, b in out) == len({i for a, b in out for i in range(a, b)})


def test_the_very_text_comes_first():
    where = places("The  dog.", "The dog.")
    assert found(where, "The dog.") == ["The dog."]
    assert found(where, "The  dog.") == ["The  dog."]
    assert found(where, "The   dog.") == ["The  dog.", "The dog."]


def test_white_space_and_unicode_form_are_overlooked_and_nothing_else():
    where = places("Caf\u00e9\u00a0au\tlait. ", "Other")
    assert found(where, unicodedata.normalize("NFD", "Caf\u00e9 au lait.")) == ["Caf\u00e9\u00a0au\tlait. "]
    assert found(where, "caf\u00e9 au lait.") == "not_found"
    assert found(where, "Cafe au lait.") == "not_found"
    assert found(where, "Caf\u00e9 au lait") == "not_found"
    assert found(where, "Caf\u00e9\u00a0au\tlait") == ["Caf\u00e9\u00a0au\tlait"]


def test_every_equal_paragraph_is_meant():
    where = places("Same.", "Other.", "Same.")
    assert where.find("Same.") == ([(0, 5), (13, 18)], None)


def test_a_title_line_is_found_after_paragraphs():
    where = places("Results", "Text", titles=("Results", "Setup ::: Data"))
    assert where.find("Results") == ([(23, 30)], None)
    assert found(where, "Setup  ::: Data") == ["Setup ::: Data"]
    assert found(where, "Setup") == "not_found"


def test_a_part_of_a_paragraph_must_stand_in_one_place():
    where = places("One cat sat.", "Two dogs sat.", "aaa")
    assert found(where, "dogs") == ["dogs"]
    assert found(where, "sat.") == "ambiguous_place"
    assert found(where, "aa") == "ambiguous_place"


@pytest.mark.parametrize("wanted", ["sat.\nTwo", "missing", "", " \n", "One cat sat!"])
def test_what_is_not_there_is_not_found(wanted):
    assert found(places("One cat sat.", "Two dogs sat."), wanted) == "not_found"


@given(
    st.lists(st.text(alphabet="ab \u00e9e\u0301", max_size=4), max_size=5),
    st.text(alphabet="ab \u00e9e\u0301", max_size=4),
)
def test_found_stretches_equal_what_was_wanted(pieces, wanted):
    where = places(*pieces)
    for a, b in where.find(wanted)[0]:
        assert normalized(where.text[a:b]) == normalized(wanted)
