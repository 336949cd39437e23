"""KVzip (arXiv:2505.23416): scores from reconstructing the context, in passes of its own after the prefill.

kvpress' press is run on the finished prefill: its own scoring passes over the shared keys (which they extend on
copies only), then its own selection for each setting.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from kvpress import KVzipPress
from transformers import DynamicCache

from kvdiag.methods.adapters.base import LayerChoice, LayerInput, PrefillInput
from kvdiag.methods.adapters.press import kept_of_masked
from kvdiag.methods.settings import Setting


class KVzipAdapter:
    """One scoring press, cut for every setting."""

    def __init__(self, settings: Sequence[Setting], model: Any) -> None:
        self._settings = settings

    def layer(self, layer: LayerInput) -> Mapping[Setting, LayerChoice]:
        """Nothing can be said before the prefill is done."""
        return {}

    def finish(
        self, prefill: PrefillInput, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> Mapping[Setting, Sequence[LayerChoice]]:
        """Scores once, then each setting's own cut."""
        model = prefill.model
        press = self._scored(prefill, keys, values)
        scores = press.score_val.clone()
        choices = {}
        for setting in self._settings:
            press.compression_ratio = 1 - setting.value
            press.score_val = scores.clone()
            try:
                press.compress_post(model)
                choices[setting] = [
                    LayerChoice(kept=kept_of_masked(layer.self_attn.masked_key_indices, k), ties=None)
                    for layer, k in zip(model.model.layers, keys, strict=True)
                ]
            finally:
                for layer in model.model.layers:
                    layer.self_attn.masked_key_indices = None
        return choices

    def _scored(self, prefill: PrefillInput, keys: Any, values: Any) -> Any:
        logging.getLogger("kvpress").setLevel(logging.ERROR)  # it warns of its passes, as the catalogue does
        press = KVzipPress(compression_ratio=0.5)
        cache = DynamicCache()
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            cache.update(k[None], v[None], layer)
        press.prefix_length = prefill.n_head
        press._context_ids, press._cache = prefill.ids, cache
        press._suffix_ids = prefill.tokenizer.encode(
            prefill.tail or "\n", return_tensors="pt", add_special_tokens=False
        )
        press.compress_post = lambda model: None  # scoring only; each setting is cut afterwards
        try:
            press._perform_kvzip_compression(prefill.model, prefill.tokenizer)
        finally:
            del press.compress_post
        return press
