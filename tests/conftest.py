"""Shared fixtures. Everything runs offline, on small real architectures."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest


@pytest.fixture(scope="session", autouse=True)
def _few_threads():
    """One thread a process: tiny tensors gain nothing from two, and byte equality needs a fixed number."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A tiny model with tokenizer and chat template, as `--model FOLDER` reads it."""
    from tests.folder import save_model

    return save_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def made_up(tmp_path_factory):
    """A ledger of made-up rows: 3 sources, 4 cells, some right answers turned wrong. Not to be written to."""
    from tests.rows import write_made_up

    folder = tmp_path_factory.mktemp("ledgers") / "made-up"
    write_made_up(folder)
    return folder


@pytest.fixture(scope="session")
def built_ledger(model_folder, tmp_path_factory):
    """A real ledger of the tiny model, with C->W rows. Not to be written to."""
    from tests.built import build_right

    return build_right(model_folder, tmp_path_factory.mktemp("built_ledger"))
