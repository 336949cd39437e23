"""Methods of others, held at arm's length: what they raise or return wrongly costs their own rows only."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kvdiag.engine.tap import AdapterFactory
from kvdiag.errors import KvdiagError
from kvdiag.methods.adapters.base import Adapter, LayerChoice, LayerInput, PrefillInput
from kvdiag.methods.settings import Setting


def guarded(make: AdapterFactory) -> AdapterFactory:
    """The same adapters, each behind a guard."""
    return lambda method, settings, model: _Guarded(lambda: make(method, settings, model), settings)


class _Guarded:
    """Turns whatever a method raises into what the tap takes as its own failure, and checks what it gives."""

    def __init__(self, build: Callable[[], Adapter], settings: Sequence[Setting]) -> None:
        self._settings = set(settings)
        self._adapter: Adapter | None = None
        self._error: Exception | None = None
        self._layers = 0  # with choices
        try:
            self._adapter = _ask(build)
        except Exception as error:  # said at the first layer, where it fails this method and no other
            self._error = error

    def layer(self, layer: LayerInput) -> Mapping[Setting, LayerChoice]:
        """Choices of a layer. Raises the method's error, or ValueError for choices of a wrong form."""
        if self._error is not None:
            raise self._error
        assert self._adapter is not None
        adapter, before = self._adapter, (layer.keys._version, layer.values._version)
        chosen = _ask(lambda: adapter.layer(layer))
        if (layer.keys._version, layer.values._version) != before:
            raise ValueError("writes to the shared keys or values; it must work on copies")
        if chosen:  # a method with passes of its own gives its choices at the end
            self._layers += 1
            self._check_settings(chosen)
            for choice in chosen.values():
                _check(choice, layer.keys[0], layer.values[0])
        return chosen

    def finish(
        self, prefill: PrefillInput, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> Mapping[Setting, Sequence[LayerChoice]] | None:
        """Choices of all layers. Raises as `layer` does."""
        assert self._adapter is not None
        adapter = self._adapter
        chosen = _ask(lambda: adapter.finish(prefill, keys, values))
        if (0 if chosen else len(keys)) != self._layers:
            raise ValueError(
                f"gives choices for {self._layers} of {len(keys)} layers, and {len(chosen or ())} at the end"
            )
        if chosen:
            self._check_settings(chosen)
            for choices in chosen.values():
                for choice, layer_keys, layer_values in zip(choices, keys, values, strict=True):
                    _check(choice, layer_keys, layer_values)
        return chosen

    def _check_settings(self, chosen: Mapping[Setting, Any]) -> None:
        if set(chosen) != self._settings:
            raise ValueError(
                f"gives choices for {sorted(map(str, chosen))}, not {sorted(map(str, self._settings))}"
            )


def _ask(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (KvdiagError, SystemExit) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _check(choice: LayerChoice, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Raise ValueError unless a choice has the form of its layer; keys and values [H, n, D]."""
    wanted: list[tuple[str, torch.Tensor | None, Any, torch.dtype]] = [
        ("kept", choice.kept, keys.shape[:2], torch.bool),
        ("keys", choice.keys, keys.shape, keys.dtype),
        ("values", choice.values, values.shape, values.dtype),
        ("channels", choice.channels, (keys.shape[0], keys.shape[2]), torch.bool),
    ]
    for name, found, shape, dtype in wanted:
        if found is None:
            continue
        if not isinstance(found, torch.Tensor) or tuple(found.shape) != tuple(shape) or found.dtype != dtype:
            said = (
                f"{tuple(found.shape)} {found.dtype}" if isinstance(found, torch.Tensor) else type(found).__name__
            )
            raise ValueError(f"gives {name} as {said}; they must be {tuple(shape)} {dtype}")
