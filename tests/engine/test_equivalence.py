"""A cell's view equals the physically pruned cache; the control equals the ordinary run."""

import math

import pytest
import torch

from kvdiag.engine import matrix
from kvdiag.engine.views import Cell
from kvdiag.methods import catalogue
from kvdiag.methods.settings import Setting
from kvdiag.records.keys import PROTOCOLS
from tests.engine import physical
from tests.tiny import ARCHITECTURES, tiny_model, tiny_prompt

SETTINGS = [Setting("keep", k) for k in (0.75, 0.5, 0.25)]
MAX_NEW = 12
STOP = frozenset([2])


# Every method goes through the conformance suite (tests/conformance); these stand for the engine's own tests.
METHODS = [catalogue.get(name) for name in ("streaming_llm", "snapkv", "tova", "keydiff", "knorm")]


def all_cells():
    return [Cell(m, s, p) for m in METHODS for s in SETTINGS for p in PROTOCOLS]


@pytest.fixture
def gold_logits(monkeypatch):
    """Logits that predict the gold tokens, a row at a time in the order of the replay."""
    seen = []
    original = matrix._Session._result

    def spy(self, view, logits, *rest):
        seen.append(logits[: len(self.gold_nodes)].clone())
        return original(self, view, logits, *rest)

    monkeypatch.setattr(matrix._Session, "_result", spy)
    return seen


def test_every_cell_equals_real_eviction(gold_logits):
    checked, near_ties = 0, 0
    for kind in ARCHITECTURES:
        model, prompt = tiny_model(kind), tiny_prompt()
        cells = all_cells()
        result = matrix.run_matrix(model, prompt, cells, STOP, MAX_NEW)
        assert list(result.cells) and len(result.cells) == len(cells)
        by_cell = dict(zip(result.cells, gold_logits[1:], strict=True))
        gold_logits.clear()
        for cell, row in result.cells.items():
            with torch.no_grad():
                kept, logits, tokens = physical.run(model, cell, prompt, MAX_NEW, STOP)
            view = result.views[cell]
            ours = view.kept()[:, :, : view.n_compressed]
            if not torch.equal(ours, kept):
                near_ties += 1
                continue
            assert not view.kept()[:, :, view.n_compressed :].any()
            torch.testing.assert_close(by_cell[cell], logits, atol=1e-4, rtol=0)
            assert row.answer.tokens == tokens, cell.id
            checked += 1
    # The two prefills differ in length, so scores may differ in the last bit and swap at a near-tie.
    assert near_ties <= 0.02 * checked
    assert checked + near_ties == len(ARCHITECTURES) * 30


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_control_equals_generate(kind):
    model, prompt = tiny_model(kind), tiny_prompt(seed=3)
    result = matrix.run_matrix(model, prompt, [], STOP, MAX_NEW)
    with torch.no_grad():
        out = model.generate(
            torch.tensor([prompt.ids]), do_sample=False, max_new_tokens=MAX_NEW, eos_token_id=list(STOP)
        )
    assert result.control.answer.tokens == out[0, len(prompt.ids) :].tolist()


def test_control_is_the_same_after_every_method():
    """No state is left behind: control alone, beside each method, and an ordinary forward all agree."""
    model, prompt = tiny_model("llama"), tiny_prompt()
    ids = torch.tensor([prompt.ids])
    with torch.no_grad():
        before = model(ids).logits
    alone = matrix.run_matrix(model, prompt, [], STOP, MAX_NEW).control
    for method in METHODS:
        beside = matrix.run_matrix(
            model, prompt, [Cell(method, SETTINGS[2], "query_agnostic")], STOP, MAX_NEW
        ).control
        assert beside.answer == alone.answer
        assert beside.nll == alone.nll
        with torch.no_grad():
            assert torch.equal(model(ids).logits, before)
    assert model.config._attn_implementation == "sdpa"
    assert not any(layer.self_attn._forward_hooks for layer in model.model.layers)


def test_first_answer_token_sees_the_compressed_cache(gold_logits):
    """The hole of the public artifact: there the first token's distribution is FullCache's in every cell."""
    model = tiny_model("qwen3")
    prompt = tiny_prompt(n_gold=1)
    for protocol in PROTOCOLS:
        gold_logits.clear()
        cell = Cell(catalogue.get("streaming_llm"), SETTINGS[2], protocol)
        result = matrix.run_matrix(model, prompt, [cell], STOP, 1)
        control, run = gold_logits[:2]
        assert (control.softmax(-1) - run.softmax(-1)).abs().max() > 1e-3
        assert result.cells[cell].nll != result.control.nll


def test_order_and_company_of_cells_do_not_matter():
    model, prompt = tiny_model("mistral"), tiny_prompt()
    cells = all_cells()
    together = matrix.run_matrix(model, prompt, cells, STOP, MAX_NEW)
    backwards = matrix.run_matrix(model, prompt, cells[::-1], STOP, MAX_NEW)
    for cell in cells:
        alone = matrix.run_matrix(model, prompt, [cell], STOP, MAX_NEW)
        for other in (backwards, alone):
            assert torch.equal(together.views[cell].kept(), other.views[cell].kept())
            assert together.cells[cell].answer.tokens == other.cells[cell].answer.tokens
            assert together.cells[cell].nll == pytest.approx(other.cells[cell].nll, abs=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_head_layouts(kv_heads):
    """MQA, GQA and MHA."""
    model, prompt = tiny_model("llama", kv_heads=kv_heads), tiny_prompt()
    cells = [Cell(catalogue.get("snapkv"), SETTINGS[1], p) for p in PROTOCOLS]
    result = matrix.run_matrix(model, prompt, cells, STOP, MAX_NEW)
    for cell in cells:
        with torch.no_grad():
            kept, _, tokens = physical.run(model, cell, prompt, MAX_NEW, STOP)
        assert kept.shape[1] == kv_heads
        assert torch.equal(result.views[cell].kept()[:, :, : kept.shape[2]], kept)
        assert result.cells[cell].answer.tokens == tokens


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_finite(dtype):
    model, prompt = tiny_model("qwen2", dtype=dtype), tiny_prompt()
    result = matrix.run_matrix(model, prompt, all_cells(), STOP, MAX_NEW)
    for row in (result.control, *result.cells.values()):
        assert not row.failed
        assert all(math.isfinite(n) for n in row.nll)
        assert all(0 <= m <= 1.01 for m in row.eam_by_layer)
