"""Where an answer ends: a newline may, but never as its first token (LongBench's samsum)."""

from dataclasses import replace

import pytest
import torch

from kvdiag.engine import matrix
from kvdiag.engine.decode import Stop, stop_rule
from kvdiag.engine.views import Cell
from kvdiag.methods import catalogue
from kvdiag.methods.settings import parse_setting
from tests.folder import tiny_tokenizer
from tests.test_prompts import source
from tests.tiny import tiny_model, tiny_prompt

MAX_NEW = 8


def generated(model, prompt, stop, least):
    """transformers' own answer, new tokens only."""
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt.ids]),
            do_sample=False,
            max_new_tokens=MAX_NEW,
            min_new_tokens=least,
            eos_token_id=sorted(stop),
        )
    return out[0, len(prompt.ids) :].tolist()


@pytest.mark.parametrize("protocol", ["query_agnostic", "query_aware"])
def test_a_token_that_cannot_start_an_answer_does_not(protocol):
    model, prompt = tiny_model("llama"), tiny_prompt()
    free = generated(model, prompt, [0], None)
    stop = frozenset({free[0], free[2]})
    expected = generated(model, prompt, stop, 1)
    assert expected[0] != free[0]
    # A cell that keeps all is the control, and must take the same first token.
    cell = Cell(catalogue.get("knorm"), parse_setting("keep=0.999"), protocol)
    result = matrix.run_matrix(model, prompt, [cell], stop, MAX_NEW, never_first=stop)
    assert result.control.answer.tokens == expected
    assert result.cells[cell].answer.tokens[0] not in stop
    plain = matrix.run_matrix(model, prompt, [cell], stop, MAX_NEW)
    assert plain.control.answer.tokens == free[:1]
    assert plain.control.answer.finish == "eos"


def test_only_a_source_that_asks_for_it_stops_at_a_newline():
    tokenizer = tiny_tokenizer()
    newline = tokenizer("\n", add_special_tokens=False)["input_ids"][-1]
    one = source()
    assert stop_rule(one, frozenset({2}), tokenizer) == Stop(frozenset({2}), one.max_new_tokens)
    both = frozenset({2, newline})
    found = stop_rule(replace(one, stop_at_newline=True), frozenset({2}), tokenizer)
    assert found == Stop(both, one.max_new_tokens, never_first=both)
