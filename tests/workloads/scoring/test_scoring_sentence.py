"""Where the first sentence of an output ends."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvdiag.workloads.scoring.sentence import first_sentence


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("Paris. It is big.", "Paris."),
        ("Paris! Lyon", "Paris!"),
        ("Paris? Lyon", "Paris?"),
        ("Paris\nLyon", "Paris"),
        ("\n\n Paris\r\nLyon", "Paris"),
        ("Paris\u2028Lyon", "Paris"),
        ("Paris", "Paris"),
        ("", ""),
        (" \n\t", ""),
        ("J. K. Rowling wrote it. She did.", "J. K. Rowling wrote it."),
        ("George W. Bush. He", "George W. Bush."),
        ("In the U.S. army. Then", "In the U.S. army."),
        ("Dr. Who and Mr. T. Next", "Dr. Who and Mr. T. Next"),  # a single letter is an initial
        ("St. Louis vs. Mt. Airy. Next", "St. Louis vs. Mt. Airy."),
        ("Cats, i.e. pets, e.g. Tom, etc. are. Next", "Cats, i.e. pets, e.g. Tom, etc. are."),
        ("See Fig. 3 of Smith et al. (2010). Next", "See Fig. 3 of Smith et al. (2010)."),
        ("No. 5 by Chanel. Next", "No. 5 by Chanel."),
        ("No. The paper does not.", "No."),
        ("It is 3.5 percent. Next", "It is 3.5 percent."),
        ("He said “no.” Then", "He said “no.”"),
        ("**Yes.** They do.", "Yes.**"),
        ("**Answer:** Paris. Next", "Paris."),
        ("Answer: Paris", "Paris"),
        ("answer :\nParis\nLyon", "Paris"),
        ("The final answer: 5. So", "5. So"),  # "5." may open a list
        ("# Answer:\n- Paris\n- Lyon", "Paris"),
        ("> * Paris", "Paris"),
        ("1. Paris is it. Next", "1. Paris is it."),
        ("1895. It was", "1895."),
        ("... Paris. Next", "Paris."),
        ("-5 degrees. Next", "-5 degrees."),
        ("www.example.org is it. Next", "www.example.org is it."),
        ("Answering this: Paris. Next", "Answering this: Paris."),
    ],
)
def test_first_sentence(output, sentence):
    assert first_sentence(output) == sentence


@settings(deadline=None)
@given(st.text(alphabet=" ab.!?*#\n-:'\"JKU1", max_size=60))
def test_it_is_a_piece_of_the_output(output):
    sentence = first_sentence(output)
    assert sentence in output
    assert "\n" not in sentence


@pytest.mark.parametrize("piece", ["e.g. ", "!", "! ", ".", "a. ", "answer ", "**", " \n", "1.", "'\"", "word "])
def test_long_outputs_are_quick(piece):
    start = time.perf_counter()
    first_sentence(piece * 50_000)
    assert time.perf_counter() - start < 2
