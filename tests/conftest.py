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
