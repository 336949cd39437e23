"""The prefill tap: one forward over context and question, in which every method sees every layer."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache

from kvdiag.engine.memory import is_out_of_memory
from kvdiag.engine.views import Cell, CellView, SharedPrefix
from kvdiag.errors import KvdiagError
from kvdiag.methods.adapters.base import Adapter, LayerChoice, LayerInput, PrefillInput, ScoreBoard
from kvdiag.methods.adapters.build import make_adapter
from kvdiag.methods.catalogue import Method
from kvdiag.methods.settings import Setting

AdapterFactory = Callable[[Method, Sequence[Setting], Any], Adapter]


@dataclass
class _Group:
    """The cells of one method under one protocol, which share an adapter."""

    adapter: Adapter
    n: int
    views: dict[Setting, CellView]

    def fail(self, error: Exception) -> None:
        for view in self.views.values():
            view.error = f"{type(error).__name__}: {error}"

    @property
    def method(self) -> str:
        return next(iter(self.views.values())).cell.method.id

    @property
    def failed(self) -> bool:
        return any(view.error for view in self.views.values())


class PrefillTap:
    """Hooks on all attention layers while the model prefills. Use as a context manager.

    Causal attention makes the first n positions of the long prefill those of a prefill of n tokens, so the
    query-agnostic view is a cut of the query-aware one.
    """

    def __init__(
        self,
        model: Any,
        cells: Sequence[Cell],
        n_context: int,
        n_prefix: int,
        make: AdapterFactory = make_adapter,
    ) -> None:
        self._model = model
        self._cache = DynamicCache()
        self.views = {c: CellView(c, c.n_compressed(n_context, n_prefix), n_prefix) for c in cells}
        self._groups: list[_Group] = []
        for method, protocol in dict.fromkeys((c.method, c.protocol) for c in cells):
            views = {c.setting: v for c, v in self.views.items() if (c.method, c.protocol) == (method, protocol)}
            n = next(iter(views.values())).n_compressed
            self._groups.append(_Group(make(method, list(views), model), n, views))
        self._hooks: list[Any] = []
        self.seconds = 0.0  # spent in methods
        self.seconds_by_method: dict[str, float] = {}

    def __enter__(self) -> "PrefillTap":
        for layer in self._model.model.layers:
            self._hooks.append(layer.self_attn.register_forward_hook(self._on_layer, with_kwargs=True))
        return self

    def __exit__(self, *exc: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def prefill(self, ids: torch.Tensor) -> SharedPrefix:
        """Run the model over ids, int64 [1, positions]."""
        self._model.model(input_ids=ids, past_key_values=self._cache, use_cache=True)
        layers = self._cache.layers
        return SharedPrefix(
            keys=[layer.keys[0].contiguous() for layer in layers],
            values=[layer.values[0].contiguous() for layer in layers],
        )

    def finish(self, prefix: SharedPrefix, prefill: PrefillInput) -> None:
        """Let methods with passes of their own run them, after the hooks are gone."""
        start = time.perf_counter()
        for group in self._groups:
            if group.failed:
                continue
            n = group.n
            seen = PrefillInput(prefill.model, prefill.tokenizer, prefill.ids[:, :n], prefill.n_head, prefill.tail)
            keys, values = [k[:, :n] for k in prefix.keys], [v[:, :n] for v in prefix.values]
            chosen = self._ask(group, partial(group.adapter.finish, seen, keys, values))
            for setting, choices in (chosen or {}).items():
                for choice, layer_keys in zip(choices, prefix.keys, strict=True):
                    group.views[setting].add(choice, layer_keys)
        self.seconds += time.perf_counter() - start

    def _ask(self, group: _Group, call: Callable[[], Any]) -> Any:
        """What a method gives. A method that fails costs its own cells, never the others'."""
        start = time.perf_counter()
        try:
            return call()
        except KvdiagError:
            raise  # the shared cache's trouble, not this method's alone
        except Exception as error:
            if is_out_of_memory(error):
                raise  # fewer cells may try
            group.fail(error)
            return None
        finally:
            spent = self.seconds_by_method.get(group.method, 0.0)
            self.seconds_by_method[group.method] = spent + time.perf_counter() - start

    def _on_layer(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        start = time.perf_counter()
        stored = self._cache.layers[module.layer_idx]
        seen: dict[int, LayerInput] = {}
        for group in self._groups:
            if group.failed:
                continue
            if group.n not in seen:
                seen[group.n] = _cut(module, kwargs, stored, group.n)
            chosen: Mapping[Setting, LayerChoice] | None
            chosen = self._ask(group, partial(group.adapter.layer, seen[group.n]))
            for setting, choice in (chosen or {}).items():
                group.views[setting].add(choice, stored.keys[0])
        self.seconds += time.perf_counter() - start


def _cut(module: Any, kwargs: dict[str, Any], stored: Any, n: int) -> LayerInput:
    """The first n positions of a layer, in every argument: some presses read them from kwargs."""
    hidden = kwargs["hidden_states"][:, :n]
    cos, sin = kwargs["position_embeddings"]
    mask = kwargs.get("attention_mask")  # a tensor under backends that want one written out
    if isinstance(mask, torch.Tensor):
        mask = mask[..., :n, :n]
    return LayerInput(
        module=module,
        layer=module.layer_idx,
        hidden_states=hidden,
        keys=stored.keys[:, :, :n],
        values=stored.values[:, :, :n],
        kwargs={
            **kwargs,
            "hidden_states": hidden,
            "position_embeddings": (cos[:, :n], sin[:, :n]),
            "attention_mask": mask,
        },
        scores=ScoreBoard(),
    )
