"""The prefill tap: one forward over context and question, in which every method scores every layer."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from kvdiag.engine.views import Cell, CellView, SharedPrefix
from kvdiag.errors import KvdiagError
from kvdiag.methods.observe import LayerInput, PressObserver


class PrefillTap:
    """Hooks on all attention layers while the model prefills. Use as a context manager.

    Causal attention makes the first n positions of the long prefill those of a prefill of n tokens, so the
    query-agnostic view is a cut of the query-aware one.
    """

    def __init__(self, model: Any, cells: Sequence[Cell], n_context: int, n_prefix: int) -> None:
        self._model = model
        self._cache = DynamicCache()
        self.views = {c: CellView(c, c.n_compressed(n_context, n_prefix), n_prefix) for c in cells}
        self._groups: list[tuple[PressObserver, int, dict[Any, CellView]]] = []
        for method, protocol in dict.fromkeys((c.method, c.protocol) for c in cells):
            group = {c.setting: v for c, v in self.views.items() if (c.method, c.protocol) == (method, protocol)}
            observer = PressObserver(method, list(group), model)
            self._groups.append((observer, next(iter(group.values())).n_compressed, group))
        self._hooks: list[Any] = []
        self.seconds = 0.0  # spent in methods

    def __enter__(self) -> "PrefillTap":
        for layer in self._model.model.layers:
            self._hooks.append(layer.self_attn.register_forward_hook(self._observe, with_kwargs=True))
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

    def _observe(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        start = time.perf_counter()
        self._select(module, kwargs)
        self.seconds += time.perf_counter() - start

    def _select(self, module: Any, kwargs: dict[str, Any]) -> None:
        hidden = kwargs["hidden_states"]
        stored = self._cache.layers[module.layer_idx]
        cos, sin = kwargs["position_embeddings"]
        cut: dict[int, LayerInput] = {}
        for observer, n, views in self._groups:
            if any(view.error for view in views.values()):
                continue
            if n not in cut:
                cut[n] = LayerInput(
                    module=module,
                    layer=module.layer_idx,
                    hidden_states=hidden[:, :n],
                    keys=stored.keys[:, :, :n],
                    values=stored.values[:, :, :n],
                    kwargs={**kwargs, "position_embeddings": (cos[:, :n], sin[:, :n])},
                )
            try:
                selections = observer.select(cut[n])
            except (torch.OutOfMemoryError, KvdiagError):
                raise  # the source's or the shared cache's trouble, not this method's alone
            except Exception as error:
                # A method that fails costs its own cells, never the others'.
                for view in views.values():
                    view.error = f"{type(error).__name__}: {error}"
                continue
            for setting, view in views.items():
                view.add_layer(selections[setting].kept, selections[setting].ties)
