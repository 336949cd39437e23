"""transformers' QuantizedCache: the real quantizer's round trip on what a method sees.

The prefill is quantized whole; what is fed later stays in full precision until it reaches the residual length,
when the cache quantizes its whole history again (transformers 5.2, cache_utils.QuantizedLayer).
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from transformers import cache_utils

from kvdiag.methods.adapters.base import LayerChoice, LayerInput, PrefillInput
from kvdiag.methods.adapters.hqq_solver import in_place
from kvdiag.methods.settings import Setting

_LAYERS = {"hqq": cache_utils.HQQQuantizedLayer, "quanto": cache_utils.QuantoQuantizedLayer}


class QuantizedAdapter:
    """One quantizing cache layer for each setting (bits)."""

    def __init__(self, backend: str, settings: Sequence[Setting], defaults: Mapping[str, Any]) -> None:
        store = _LAYERS[backend]
        self._make = {s: partial(store, nbits=int(s.value), **defaults) for s in settings}
        self._solving = in_place if backend == "hqq" else nullcontext

    def finish(self, prefill: PrefillInput, keys: Any, values: Any) -> None:
        """Everything happens during the prefill."""

    def layer(self, layer: LayerInput) -> Mapping[Setting, LayerChoice]:
        """Keys and values after the round trip."""
        return {s: self._choice(make(), layer) for s, make in self._make.items()}

    def _choice(self, store: Any, layer: LayerInput) -> LayerChoice:
        keys, values = layer.keys.contiguous(), layer.values.contiguous()
        store.lazy_initialization(keys, values)
        with self._solving():
            packed = store._quantize(keys, axis=store.axis_key), store._quantize(values, axis=store.axis_value)

        def again(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with self._solving():
                return _round_trip(store, k, store.axis_key), _round_trip(store, v, store.axis_value)

        return LayerChoice(
            keys=store._dequantize(packed[0])[0].to(keys.dtype),
            values=store._dequantize(packed[1])[0].to(values.dtype),
            stored_bytes=sum(_bytes(p) for p in packed),
            requantize=again,
        )


def _round_trip(store: Any, tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """[H, n, D] quantized and read back."""
    return store._dequantize(store._quantize(tensor[None].contiguous(), axis=axis))[0].to(tensor.dtype)


def _bytes(packed: Any) -> int:
    """Codes, scales and zero points."""
    if isinstance(packed, tuple):  # hqq: codes and a dictionary
        codes, meta = packed
        parts = [codes, meta["scale"], meta["zero"]]
    else:  # quanto: a tensor subclass
        parts = [getattr(packed._data, "_data", packed._data), packed._scale, packed._shift]
    return sum(t.numel() * t.element_size() for t in parts if isinstance(t, torch.Tensor))
