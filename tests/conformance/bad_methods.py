"""Adapters with one planted fault each. The suite must catch every one."""

import dataclasses

import kvpress
import torch

from kvdiag.methods.adapters.base import LayerChoice


class RenamedSnapKV(kvpress.SnapKVPress):
    """SnapKV under another name: PyramidKV's fate in the public artifact."""

    min_positions = 65


class WritesInPlace:
    """Zeroes keys of the shared cache."""

    def __init__(self, settings, model):
        self.settings = settings

    def layer(self, layer):
        layer.keys[:, :, ::2] = 0
        return {s: LayerChoice() for s in self.settings}

    def finish(self, prefill, keys, values):
        return None


@dataclasses.dataclass
class KeepsTooMuch(kvpress.ScorerPress):
    """Keeps a fifth more than its ratio says."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return -keys.abs().sum(-1)

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        honest = self.compression_ratio
        self.compression_ratio = honest * 0.6
        try:
            return super().compress(module, hidden_states, keys, values, attentions, kwargs)
        finally:
            self.compression_ratio = honest


@dataclasses.dataclass
class RemembersOnTheModule(kvpress.ScorerPress):
    """Adds up scores on the attention module, so that later sources see earlier ones."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        fresh = keys.norm(dim=-1)
        old = getattr(module, "running_score", None)
        if old is not None and old.shape == fresh.shape:
            fresh = fresh + old
        module.running_score = fresh
        return fresh


@dataclasses.dataclass
class Unseeded(kvpress.ScorerPress):
    """Another set at every run."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return torch.rand(keys.shape[:3])


@dataclasses.dataclass
class HonestPress(kvpress.ScorerPress):
    """Keeps the longest keys: nothing wrong with it."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return keys.float().norm(dim=-1)
