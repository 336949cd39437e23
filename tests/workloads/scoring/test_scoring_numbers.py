"""Numbers by value."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdiag.workloads.scoring.numbers import numbers_in, whole_number


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("It is 12.", ["12"]),
        ("3125", ["3125"]),
        ("1,234 and 1234.0", ["1234", "1234"]),
        ("4,5 and 12,345,67", ["4", "5", "12", "345", "67"]),  # no thousands: a list
        ("1,234,567.50", ["1234567.5"]),
        ("-5 −6 +7", ["-5", "-6", "7"]),
        ("10-15, 1895–1897", ["10", "15", "1895", "1897"]),  # a range has no sign
        ("-$3 $-4 $5 6€", ["-3", "-4", "5", "6"]),
        (".5 0.5", ["0.5", "0.5"]),
        ("12th 5k 3x 10² x2 3.1.2 0x1F 1e5", []),
        ("three Zero twenty", ["3", "0", "20"]),
        ("twenty-five, two-thirds, tone, someone", []),
        ("5 million, three hundred, 2-billion", ["5000000", "300", "2000000000"]),
        ("5 millionaires", ["5"]),
        ("2008.The", ["2008"]),
        ("(5)", ["5"]),
        ("٣", ["3"]),
        ("", []),
    ],
)
def test_numbers_in(text, values):
    assert [number.value for number in numbers_in(text)] == [Decimal(value) for value in values]


@pytest.mark.parametrize(
    ("text", "mark"),
    [("5", None), ("5%", "%"), ("5 %", "%"), ("5 percent", "%"), ("5 per cent", "%"), ("$5", "$"), ("5 €", "€")],
)
def test_marks(text, mark):
    number = whole_number(text)
    assert number is not None
    assert (number.value, number.mark) == (5, mark)


@pytest.mark.parametrize(
    "text", ["12th", "100 metres", "5 and 6", "1/2", "", ".", "about 5", "- 5", "twenty five", "v2"]
)
def test_no_whole_numbers(text):
    assert whole_number(text) is None


@pytest.mark.parametrize(
    ("text", "value"), [("2,714 ", "2714"), ("5.", "5"), (" three", "3"), ("−5", "-5"), ("+3", "3")]
)
def test_whole_numbers(text, value):
    number = whole_number(text)
    assert number is not None
    assert number.value == Decimal(value)


def test_marks_must_agree_where_both_have_one():
    five = {text: whole_number(text) for text in ("5", "5%", "$5", "€5", "5.0")}
    assert five["5"].agrees(five["5%"])
    assert five["$5"].agrees(five["5.0"])
    assert not five["5%"].agrees(five["$5"])
    assert not five["$5"].agrees(five["€5"])


@settings(deadline=None)
@given(value=st.integers(-(10**9), 10**9), decimals=st.integers(0, 99))
def test_however_it_is_written(value, decimals):
    wanted = Decimal(f"{value}.{decimals:02d}")
    for form in (f"{value}.{decimals:02d}", f"{value:,}.{decimals:02d}", f"{value}.{decimals:02d}000"):
        number = whole_number(form)
        assert number is not None and number.value == wanted
        assert [n.value for n in numbers_in(f"It was {form}, they say.")] == [wanted]
        assert not numbers_in(f"x{abs(value)}") and not numbers_in(f"{abs(value)}x")


@settings(deadline=None)
@given(st.text(alphabet="0123456789,.-$% five", max_size=30))
def test_any_text(text):
    for number in numbers_in(text):
        assert text[number.start : number.end].strip()
