"""What a model or machine cannot run is known before any work."""

import dataclasses

from transformers import Qwen2Config, Qwen2ForCausalLM

from kvdiag.engine.models import LoadedModel
from kvdiag.engine.probe import probe
from kvdiag.methods import catalogue
from tests.tiny import tiny_model


def loaded(model):
    return LoadedModel("tiny", model, None, frozenset([2]), "float32", "cpu", "sdpa", "", "")


def test_what_runs_is_not_named():
    methods = [catalogue.get(m) for m in ("snapkv", "quest", "quantized_hqq", "criticalkv_snapkv")]
    assert probe(loaded(tiny_model("llama")), methods) == {}


def test_a_missing_package_is_named():
    method = dataclasses.replace(catalogue.get("quantized_hqq"), requires="no_such_package")
    gap = probe(loaded(tiny_model("llama")), [method])["quantized_hqq"]
    assert (gap.status, gap.reason) == ("unsupported", "missing_package")
    assert "no_such_package" in gap.detail


def test_an_architecture_a_press_cannot_run_on():
    """CriticalKV reads config.head_dim, which Qwen2's config does not have."""
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = Qwen2ForCausalLM(config).eval()
    methods = [catalogue.get("criticalkv_snapkv"), catalogue.get("snapkv")]
    found = probe(loaded(model), methods)
    assert set(found) == {"criticalkv_snapkv"}
    assert found["criticalkv_snapkv"].reason == "probe_failed"
    assert "head_dim" in found["criticalkv_snapkv"].detail
