"""The adapter of a catalogued method."""

from collections.abc import Sequence
from typing import Any

import kvpress

from kvdiag.methods.adapters.base import Adapter
from kvdiag.methods.adapters.h2o import HeavyHitterPress
from kvdiag.methods.adapters.kvzip import KVzipAdapter
from kvdiag.methods.adapters.press import PressAdapter
from kvdiag.methods.adapters.quantized import QuantizedAdapter
from kvdiag.methods.adapters.quest import QuestAdapter
from kvdiag.methods.catalogue import Method
from kvdiag.methods.settings import Setting

_OWN_PRESSES = {"HeavyHitterPress": HeavyHitterPress}


def make_press(method: Method, setting: Setting) -> Any:
    """A fresh press of a method that is one, at a setting."""
    ratio = 1 - setting.value
    outer = _OWN_PRESSES.get(method.press) or getattr(kvpress, method.press)
    if method.press == "ThinKPress":
        # Only keys lose channels, so half of what goes from the keys goes from the cache.
        return outer(key_channel_compression_ratio=2 * ratio, **method.defaults)
    if method.inner is None:
        return outer(compression_ratio=ratio, **method.defaults)
    inner = getattr(kvpress, method.inner)(compression_ratio=ratio, **method.inner_defaults)
    return outer(press=inner, **method.defaults)


def make_adapter(method: Method, settings: Sequence[Setting], model: Any) -> Adapter:
    """A fresh adapter for one source and protocol."""
    if method.adapter == "quantized":
        return QuantizedAdapter(method.backend or "hqq", settings, method.defaults)
    if method.adapter == "quest":
        return QuestAdapter(settings, model)
    if method.adapter == "kvzip":
        return KVzipAdapter(settings, model)
    return PressAdapter(
        method.id,
        lambda setting: make_press(method, setting),
        settings,
        model,
        alters=method.alters,
        iterative=method.iterative,
        setting_free_score=method.setting_free_score,
    )
