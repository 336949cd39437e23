"""Quest (arXiv:2406.10774): all keys stay, and each query reads only the pages that promise most.

Own code: kvpress has no method that chooses at each decoding step. Published defaults: pages of 16 positions, the
first two layers read everything. Each query head chooses for itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kvdiag.methods.adapters.base import LayerChoice, LayerInput, PageBounds, PrefillInput
from kvdiag.methods.settings import Setting

PAGE = 16
FULL_LAYERS = 2


class QuestAdapter:
    """Page bounds of a layer, one budget for each setting."""

    def __init__(self, settings: Sequence[Setting], model: Any) -> None:
        self._settings = settings

    def finish(self, prefill: PrefillInput, keys: Any, values: Any) -> None:
        """Bounds are made during the prefill."""

    def layer(self, layer: LayerInput) -> Mapping[Setting, LayerChoice]:
        """The shared keys, read by pages."""
        keys = layer.keys[0]
        full = keys.numel() * keys.element_size() + layer.values[0].numel() * layer.values.element_size()
        if layer.layer < FULL_LAYERS:
            return {s: LayerChoice(stored_bytes=full) for s in self._settings}
        low, high = page_bounds(keys)
        pages = low.shape[1]
        stored = full + (low.numel() + high.numel()) * low.element_size()
        return {
            s: LayerChoice(
                pages=PageBounds(low, high, PAGE, budget=max(1, int(pages * s.value))), stored_bytes=stored
            )
            for s in self._settings
        }


def page_bounds(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Least and greatest key of each page, [H, pages, D]; the last page may be short. keys [H, n, D]."""
    heads, n, dim = keys.shape
    short = -n % PAGE

    def paged(fill: float) -> torch.Tensor:
        return torch.nn.functional.pad(keys, (0, 0, 0, short), value=fill).view(heads, -1, PAGE, dim)

    return paged(float("inf")).amin(2), paged(float("-inf")).amax(2)
