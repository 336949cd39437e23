"""Methods that others might bring: one that is sound, and faults that an evaluation must outlive."""

import dataclasses

import kvpress
import torch

from kvdiag.errors import DataError
from kvdiag.methods.adapters.base import LayerChoice


@dataclasses.dataclass
class LongestKeys(kvpress.ScorerPress):
    """Keeps the longest keys."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        return keys.float().norm(dim=-1)


@dataclasses.dataclass
class CrashesOnThird(LongestKeys):
    """Raises on the third source: an object is made for the probe, then one a source."""

    made = 0

    def post_init_from_model(self, model):
        CrashesOnThird.made += 1
        self.number = CrashesOnThird.made

    def score(self, *args):
        if self.number == 4:
            raise KeyError("planted crash")
        return super().score(*args)


@dataclasses.dataclass
class GivesNaN(kvpress.BasePress):
    """Keys that are no numbers."""

    compression_ratio: float = 0.0

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        return keys * float("nan"), values


@dataclasses.dataclass
class ChangesShapes(kvpress.BasePress):
    """Values of half the width: no cache that attention could read."""

    compression_ratio: float = 0.0

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        return keys, values[..., ::2]


@dataclasses.dataclass
class WantsAttention(kvpress.ObservedAttentionPress):
    """Needs attention weights, which eager attention alone writes out."""


@dataclasses.dataclass
class RaisesWhenMade(LongestKeys):
    """Fails before it sees a layer."""

    def post_init_from_model(self, model):
        raise OSError("no statistics for this model")


class Own:
    """Base of faults of the small interface: keeps the first half."""

    def __init__(self, settings, model):
        self.settings = settings

    def layer(self, layer):
        kept = torch.zeros(layer.keys.shape[1:3], dtype=torch.bool)
        kept[:, : kept.shape[1] // 2] = True
        return dict.fromkeys(self.settings, LayerChoice(kept=kept, ties=None))

    def finish(self, prefill, keys, values):
        """Chose before."""


class FirstHalf(Own):
    """Nothing wrong with its form."""


class WrongWidth(Own):
    """A mask of one position too many."""

    def layer(self, layer):
        kept = torch.ones(layer.keys.shape[1], layer.keys.shape[2] + 1, dtype=torch.bool)
        return dict.fromkeys(self.settings, LayerChoice(kept=kept))


class SaysNothing(Own):
    """No choice, ever."""

    def layer(self, layer):
        return {}


class RaisesOurError(Own):
    """An error class of kvdiag itself, which a build would take as the whole source's trouble."""

    def layer(self, layer):
        raise DataError("planted")


class Leaves(Own):
    """Ends the process."""

    def layer(self, layer):
        raise SystemExit(3)


class WritesInPlace(Own):
    """Zeroes shared keys, so that the control itself changes."""

    def layer(self, layer):
        layer.keys[:, :, ::2] = 0
        return super().layer(layer)
