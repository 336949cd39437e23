"""kvpress' presses, observed: which positions a press keeps, without pruning anything.

A press runs its own `compress`. The first gather of the keys shows the kept positions, and there it is
stopped: what follows only copies tensors. Scores that do not depend on the setting are computed once, yet
each setting is cut by the press' own selection, since tie-breaking decides which tied positions stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import kvpress
import torch
from torch.overrides import TorchFunctionMode

from kvdiag.errors import DataError
from kvdiag.methods.catalogue import Method
from kvdiag.methods.settings import Setting


@dataclass(frozen=True)
class LayerInput:
    """What one attention layer shows a method: the first n positions of the prefill.

    hidden_states [1, n, hidden]; keys and values [1, kv_heads, n, head_dim], shared with every other method
    and so not to be written to; kwargs: the layer's own keyword arguments, position embeddings cut to n.
    """

    module: torch.nn.Module
    layer: int
    hidden_states: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Selection:
    """Kept positions of a layer: bool [kv_heads, n], and how many evicted entries tie with the lowest kept."""

    kept: torch.Tensor
    ties: int


class _Observed(Exception):
    """Stops a press at its first gather."""


class _GatherTap(TorchFunctionMode):
    """Takes the index of the first `keys.gather(2, index)`."""

    def __init__(self, keys: torch.Tensor) -> None:
        super().__init__()
        self.keys = keys
        self.index: torch.Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.gather and args[0] is self.keys:
            self.index = args[2][..., 0]
            raise _Observed
        return func(*args, **(kwargs or {}))


class PressObserver:
    """One method on one source: a fresh press for each setting, scores shared between them.

    Built anew for every source and protocol, so nothing is carried over.
    """

    def __init__(self, method: Method, settings: Sequence[Setting], model: Any) -> None:
        self.method = method
        self._presses: dict[Setting, Any] = {}
        for setting in settings:
            press = getattr(kvpress, method.press)(compression_ratio=1 - setting.value, **method.defaults)
            press.post_init_from_model(model)
            self._presses[setting] = press

    def select(self, layer: LayerInput) -> dict[Setting, Selection]:
        """The kept positions of a layer for every setting.

        Raises DataError when the press writes to the shared keys or values, RuntimeError when it gathers
        nothing.
        """
        versions = layer.keys._version, layer.values._version
        arguments = (layer.module, layer.hidden_states, layer.keys, layer.values, None, layer.kwargs)
        scores: torch.Tensor | None = None
        selections = {}
        for setting, press in self._presses.items():
            if scores is None or not self.method.setting_free_score:
                # Scoring runs outside the tap, which would slow its every tensor operation.
                scores = type(press).score(press, *arguments)
            selections[setting] = self._observe(press, arguments, scores)
        if (layer.keys._version, layer.values._version) != versions:
            raise DataError(f"method {self.method.id} writes to the shared cache; it must work on copies")
        return selections

    def _observe(self, press: Any, arguments: tuple[Any, ...], scores: torch.Tensor) -> Selection:
        tap = _GatherTap(arguments[2])
        press.score = lambda *args, **kwargs: scores
        try:
            with tap:
                press.compress(*arguments)
        except _Observed:
            pass
        finally:
            del press.score
        if tap.index is None:
            raise RuntimeError(f"{self.method.id} gathered no keys")
        return _selection(tap.index[0], scores[0])


def _selection(index: torch.Tensor, scores: torch.Tensor) -> Selection:
    """index: int64 [kv_heads, n_kept]; scores: [kv_heads, n]."""
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, index, True)
    lowest_kept = scores.gather(1, index).amin(-1, keepdim=True)
    ties = ((scores == lowest_kept) & ~kept).sum()
    return Selection(kept, int(ties))
