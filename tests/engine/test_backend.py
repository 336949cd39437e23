"""The uncompressed model under two attention backends: equal ones agree, a planted drift is found."""

from dataclasses import replace

import pytest
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kvdiag.analysis.audit.backend import Answers, drift
from kvdiag.engine.backend import answers
from kvdiag.engine.models import load_model
from kvdiag.prompts import PromptBuilder
from kvdiag.workloads import registry
from kvdiag.workloads.scoring import judge
from tests.folder import save_model

N = 40


def _drifting(module, query, key, value, attention_mask, scaling=None, **known):
    """Attention that is too flat."""
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling * 0.2, **known)


AttentionInterface.register("drifting", _drifting)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def sources(folder):
    """Sources whose right answer is what the model says under sdpa, so that a drift costs score."""
    model = load_model(str(folder))
    prompts = PromptBuilder.create(model.tokenizer, "plain")
    made = list(registry.get("ruler_300").sources(["niah_single_1"], N, 1, prompts.count, 6))
    said = answers(model, prompts, made)
    own = [(replace(s, references=(a.output,)), a.output) for s, a in zip(made, said, strict=True) if a.output]
    return [s for s, output in own if judge(s, output).score == 1]


def answered(folder, backend, sources):
    model = load_model(str(folder), attention=backend)
    rows = answers(model, PromptBuilder.create(model.tokenizer, "plain"), sources)
    return Answers(backend, [r.output for r in rows], [r.score for r in rows], [r.correct for r in rows])


def test_backends_of_equal_answers_and_a_planted_drift(folder, sources):
    assert len(sources) > N / 3
    sdpa, eager, drifting = (answered(folder, b, sources) for b in ("sdpa", "eager", "drifting"))
    tasks = [s.task for s in sources]
    assert set(sdpa.scores) == {1.0}
    same = drift(sdpa, eager, tasks, margin=0.2, resamples=2000)
    assert (same["shift"], same["verdict"]) == (0, "same")
    found = drift(sdpa, drifting, tasks, margin=0.2, resamples=2000)
    assert found["verdict"] == "differs"
    assert found["high"] < 0
    assert found["n_outputs_differ"] > 0


def test_another_backend_is_another_model_to_every_key(folder):
    assert load_model(str(folder)).name == "tiny"
    eager = load_model(str(folder), attention="eager")
    assert (eager.name, eager.attention) == ("tiny[eager]", "eager")


def test_a_models_own_penalties_stay_out(folder, sources):
    """A ledger decodes plainly; a published generation config may not."""
    model = load_model(str(folder))
    prompts = PromptBuilder.create(model.tokenizer, "plain")
    plain = [a.output for a in answers(model, prompts, sources[:5])]
    model.model.generation_config.repetition_penalty = 5.0
    model.model.generation_config.no_repeat_ngram_size = 1
    assert [a.output for a in answers(model, prompts, sources[:5])] == plain
