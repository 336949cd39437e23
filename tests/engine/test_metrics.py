"""Diagnostics of the replay against slow oracles: eager attention weights and separate forwards."""

import pytest
import torch
from transformers import DynamicCache

from kvdiag.diagnostics.retention import evidence_positions, slot_ecov, slot_err
from kvdiag.engine import matrix
from kvdiag.engine.views import Cell
from kvdiag.methods import catalogue
from kvdiag.methods.settings import Setting
from tests.engine import physical
from tests.tiny import ARCHITECTURES, tiny_model, tiny_prompt

STOP = frozenset([2])


def eager_mass(model, prompt, kept_positions=None):
    """Attention mass on evidence, mean over gold positions, layers and heads, from eager weights.

    kept_positions: keep the prefix to these positions (the same for all heads), as StreamingLLM does.
    """
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            return _eager_mass(model, prompt, kept_positions)
    finally:
        model.set_attn_implementation("sdpa")


def _eager_mass(model, prompt, kept_positions):
    n = prompt.n_context
    cache = DynamicCache()
    model.model(input_ids=torch.tensor([prompt.ids[:n]]), past_key_values=cache)
    columns = torch.arange(n) if kept_positions is None else torch.tensor(kept_positions)
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, columns], layer.values[:, :, columns]
    rest = [*prompt.ids[n:], *prompt.gold_ids[:-1]]
    out = model(
        input_ids=torch.tensor([rest]),
        past_key_values=cache,
        position_ids=torch.arange(n, n + len(rest))[None],
        cache_position=torch.arange(len(columns), len(columns) + len(rest)),
        output_attentions=True,
    )
    weights = torch.stack(out.attentions)[:, 0]  # [layers, heads, queries, keys]
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-5, rtol=0)
    evidence = torch.isin(columns, torch.from_numpy(evidence_positions(prompt.evidence)))
    answers = weights[:, :, -len(prompt.gold_ids) :, : len(columns)]
    return float((answers * evidence).sum(-1).mean())


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_attention_mass_equals_eager_weights(kind):
    model, prompt = tiny_model(kind), tiny_prompt()
    cell = Cell(catalogue.get("streaming_llm"), Setting("keep", 0.75), "query_agnostic")
    result = matrix.run_matrix(model, prompt, [cell], STOP, 4)
    control = sum(result.control.eam_by_layer) / len(result.control.eam_by_layer)
    assert control == pytest.approx(eager_mass(model, prompt), abs=1e-5)
    kept = result.views[cell].kept()[0, 0].nonzero()[:, 0].tolist()
    run = sum(result.cells[cell].eam_by_layer) / len(result.cells[cell].eam_by_layer)
    assert run == pytest.approx(eager_mass(model, prompt, kept), abs=1e-5)
    assert 0 < run < 1


def test_likelihood_metrics_equal_separate_forwards():
    model, prompt = tiny_model("llama"), tiny_prompt()
    cell = Cell(catalogue.get("tova"), Setting("keep", 0.25), "query_aware")
    result = matrix.run_matrix(model, prompt, [cell], STOP, 4)
    with torch.no_grad():
        _, run_logits, _ = physical.run(model, cell, prompt, 4, STOP)
        cache = physical.full_cache(model, prompt.ids[: prompt.n_prefix])
        full_logits, _ = physical.answer(model, cache, prompt, prompt.n_prefix, 4, STOP)
    gold = torch.tensor(prompt.gold_ids)
    for row, logits in ((result.control, full_logits), (result.cells[cell], run_logits)):
        each = torch.nn.functional.cross_entropy(logits, gold, reduction="none")
        assert row.nll == pytest.approx(each.tolist(), abs=1e-4)
        ranks = [sorted(step.tolist(), reverse=True).index(step[g]) for step, g in zip(logits, gold, strict=True)]
        assert row.gold_rank == pytest.approx(sum(ranks) / len(ranks))
    full, run = full_logits.log_softmax(-1), run_logits.log_softmax(-1)
    kl = torch.nn.functional.kl_div(run, full, log_target=True, reduction="batchmean")
    assert result.cells[cell].kl == pytest.approx(float(kl), abs=1e-4)
    assert result.control.kl == 0
    shared = [
        len(set(a.topk(50).indices.tolist()) & set(b.topk(50).indices.tolist())) / 50
        for a, b in zip(full_logits, run_logits, strict=True)
    ]
    assert result.cells[cell].top50 == pytest.approx(sum(shared) / len(shared), abs=1e-9)
    assert result.control.top50 == 1


def test_retention_by_hand():
    kept = torch.zeros(2, 2, 12, dtype=torch.bool)
    kept[0, 0, 2:6] = True  # all of span a, none of b
    kept[0, 1, [2, 3, 8, 9]] = True  # half of a, all of b
    kept[1, 0, 2] = True  # a quarter of a
    spans = [(2, 6), (8, 10)]
    assert slot_err(kept.numpy(), spans).tolist() == [[4 / 6, 4 / 6], [1 / 6, 0]]
    assert slot_ecov(kept.numpy(), spans).tolist() == [[0.5, 1.0], [0.0, 0.0]]


def test_evidence_kept_whole_gives_ratio_one_and_evicted_gives_zero():
    """keep such that StreamingLLM drops exactly the middle, with the evidence in it."""
    model = tiny_model("llama")
    prompt = tiny_prompt(n_context=120)
    cell = Cell(catalogue.get("streaming_llm"), Setting("keep", 0.25), "query_agnostic")
    result = matrix.run_matrix(model, prompt, [cell], STOP, 2)
    kept = result.views[cell].kept().numpy()
    assert slot_err(kept, prompt.evidence).mean() == 0
    assert sum(result.cells[cell].eam_by_layer) == 0
