"""Methods that come from outside: `module:Class` or `file.py:Class`.

A kvpress press is run on copies and what it did is read off its result: masks, rows that are left, tensors that
changed. Slower than a tap, and right for any press of one prefill. A class with `layer` and `finish` methods
(kvdiag.methods.adapters.base.Adapter) is taken as it is; its reference is the same class on a prefill of its own,
whose choices the model's own attention then obeys.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kvpress
import torch

from kvdiag.conformance.physical import matched_rows
from kvdiag.engine.tap import AdapterFactory
from kvdiag.errors import UsageError
from kvdiag.methods.adapters.base import LayerChoice, LayerInput, PrefillInput, ScoreBoard
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


class AdapterPress(kvpress.BasePress):
    """An adapter as a press, for the reference: it sees a prefill of its positions alone, and no shared cache."""

    def __init__(self, adapter_class: Any, setting: Setting) -> None:
        self._class, self._setting = adapter_class, setting
        self._adapter: Any = None
        self._modules: dict[int, Any] = {}
        self._seen: dict[str, Any] = {}

    def compress(
        self,
        module: Any,
        hidden_states: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attentions: Any,
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the adapter leaves of a layer; all of it where it chooses at the end."""
        self._modules[module.layer_idx] = module
        self._seen["cache"] = kwargs["past_key_values"]
        # Copies: what it writes to them instead of choosing must show.
        own = keys.clone(), values.clone()
        seen = LayerInput(module, module.layer_idx, hidden_states, *own, kwargs, ScoreBoard())
        chosen = self._adapter.layer(seen)
        return _obeyed(chosen[self._setting], module, keys, values) if chosen else (keys, values)

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        """As every press: hooks while the model prefills, and the adapter's last word after it."""
        self._adapter = self._class([self._setting], model)

        def remember(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            self._seen["ids"] = kwargs["input_ids"]

        hook = model.model.register_forward_pre_hook(remember, with_kwargs=True)
        try:
            with super().__call__(model):
                yield
        finally:
            hook.remove()
        layers = self._seen["cache"].layers
        keys, values = [layer.keys[0].clone() for layer in layers], [layer.values[0].clone() for layer in layers]
        chosen = self._adapter.finish(PrefillInput(model, None, self._seen["ids"]), keys, values)
        for i, choice in enumerate(chosen[self._setting] if chosen else ()):
            layers[i].keys, layers[i].values = _obeyed(choice, self._modules[i], layers[i].keys, layers[i].values)


def _obeyed(
    choice: LayerChoice, module: Any, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [1, H, n, D] as a choice leaves them; hidden positions as kvpress marks them."""
    if choice.pages is not None or choice.requantize is not None:
        raise ValueError("a choice with pages or requantize has no reference here")
    kept = torch.ones(keys.shape[1:3], dtype=torch.bool) if choice.kept is None else choice.kept
    heads, positions = (~kept).nonzero(as_tuple=True)
    module.masked_key_indices = (torch.zeros_like(heads), heads, positions)
    keys = keys if choice.keys is None else choice.keys[None]
    values = values if choice.values is None else choice.values[None]
    return (keys if choice.channels is None else keys * choice.channels[None, :, None]), values


def load(spec: str) -> tuple[Method, AdapterFactory, Callable[[Method, Setting], Any]]:
    """A foreign class as a method, how its adapter is made, and how its press (the reference) is made.

    Raises UsageError when the class cannot be found or is neither a press nor an adapter.
    """
    found = find_class(spec)
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
        coverage_type=getattr(found, "coverage_type", "measured_token"),
        transforms=getattr(found, "transforms", "positions"),
        press=name,
        adapter="foreign",
        min_positions=getattr(found, "min_positions", 1),
        state="available",
    )

    def make(chosen: Method, settings: Sequence[Setting], model: Any) -> Any:
        if chosen.id != method.id:
            return make_adapter(chosen, settings, model)
        return ForeignPress(found, settings, model) if is_press else found(settings, model)

    def press(chosen: Method, setting: Setting) -> Any:
        return found(compression_ratio=1 - setting.value) if is_press else AdapterPress(found, setting)

    return method, make, press


def find_class(spec: str) -> Any:
    """The class that `module:Class` or `file.py:Class` names. Raises UsageError when there is none."""
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
