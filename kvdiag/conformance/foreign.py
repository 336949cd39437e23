"""Methods that come from outside: `module:Class` or `file.py:Class`.

A kvpress press is run on copies and what it did is read off its result: masks, rows that are left, tensors that
changed. Slower than a tap, and right for any press of one prefill. A class with `layer` and `finish` methods
(kvdiag.methods.adapters.base.Adapter) is taken as it is.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import kvpress
import torch

from kvdiag.conformance.physical import matched_rows
from kvdiag.engine.tap import AdapterFactory
from kvdiag.errors import UsageError
from kvdiag.methods.adapters.base import LayerChoice, LayerInput, PrefillInput
from kvdiag.methods.adapters.build import make_adapter
from kvdiag.methods.adapters.press import kept_of_masked, rotary_on
from kvdiag.methods.catalogue import Method
from kvdiag.methods.settings import Setting


class ForeignPress:
    """Adapter of any press whose `compress` works layer by layer."""

    def __init__(self, press_class: Any, settings: Sequence[Setting], model: Any) -> None:
        self._rotary = model.model.rotary_emb
        self._presses = {s: press_class(compression_ratio=1 - s.value) for s in settings}
        for press in self._presses.values():
            press.post_init_from_model(model)

    def finish(self, prefill: PrefillInput, keys: Any, values: Any) -> None:
        """Presses choose during the prefill."""

    def layer(self, layer: LayerInput) -> Mapping[Setting, LayerChoice]:
        """What each press does to copies of the layer's tensors."""
        with rotary_on(layer.module, self._rotary):
            return {s: self._choice(press, layer) for s, press in self._presses.items()}

    @staticmethod
    def _choice(press: Any, layer: LayerInput) -> LayerChoice:
        keys, values = layer.keys.clone(), layer.values.clone()
        layer.module.masked_key_indices = None
        try:
            k, v = press.compress(layer.module, layer.hidden_states, keys, values, None, layer.kwargs)
            masked = layer.module.masked_key_indices
        finally:
            layer.module.masked_key_indices = None
        if masked is not None:
            return LayerChoice(kept=kept_of_masked(masked, layer.keys[0]), ties=None)
        if (
            k.shape[:2] != layer.keys.shape[:2]
            or k.shape[2] > layer.keys.shape[2]
            or k.shape[-1] != keys.shape[-1]
        ):
            raise ValueError(f"compress returned keys of shape {tuple(k.shape)} for {tuple(layer.keys.shape)}")
        if k.shape[2] < layer.keys.shape[2]:
            return LayerChoice(kept=matched_rows(k[0], layer.keys[0]), ties=None)
        same = torch.equal(k, layer.keys) and torch.equal(v, layer.values)
        return LayerChoice() if same else LayerChoice(keys=k[0], values=v[0])


def load(spec: str) -> tuple[Method, AdapterFactory, Callable[[Method, Setting], Any] | None]:
    """A foreign class as a method, how its adapter is made, and how its press is made (None for an own adapter).

    Raises UsageError when the class cannot be found or is neither a press nor an adapter.
    """
    found = _class(spec)
    name = spec.rpartition(":")[2]
    is_press = isinstance(found, type) and issubclass(found, kvpress.BasePress)
    if not is_press and not (callable(getattr(found, "layer", None)) and callable(getattr(found, "finish", None))):
        raise UsageError(f"{spec}: neither a kvpress press nor a class with `layer` and `finish` methods")
    method = Method(
        id=name.lower(),
        name=name,
        family=getattr(found, "family", "token_eviction"),
        paper=getattr(found, "paper", "https://github.com/NVIDIA/kvpress"),
        summary=(found.__doc__ or name).strip().splitlines()[0],
        query_visibility=getattr(found, "query_visibility", "none"),
        press=name,
        adapter="foreign",
        min_positions=getattr(found, "min_positions", 1),
        state="available",
    )

    def make(chosen: Method, settings: Sequence[Setting], model: Any) -> Any:
        if chosen.id != method.id:
            return make_adapter(chosen, settings, model)
        return ForeignPress(found, settings, model) if is_press else found(settings, model)

    press = (lambda _, setting: found(compression_ratio=1 - setting.value)) if is_press else None
    return method, make, press


def _class(spec: str) -> Any:
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise UsageError(f"{spec}: must look like module:Class or file.py:Class")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise UsageError(f"{spec}: cannot be imported ({error})") from error
    if not hasattr(module, name):
        raise UsageError(f"{spec}: {where} has no {name}")
    return getattr(module, name)


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    name = f"kvdiag_foreign_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path}: fails on import ({type(error).__name__}: {error})") from error
    return module
