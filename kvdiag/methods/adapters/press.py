"""kvpress' presses, observed.

A press runs its own `compress`. A tap on tensor operations sees which positions it gathers (or which key channels
it zeroes, or which entries it masks), and where nothing else is of interest the press is stopped there: what
follows only copies tensors. Scores that do not depend on the setting are computed once, for all methods that
share a scorer, yet each setting is cut by the press' own selection, since tie-breaking decides which tied
positions stay.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import kvpress
import torch
from torch.overrides import TorchFunctionMode

from kvdiag.errors import DataError
from kvdiag.methods.adapters.base import LayerChoice, LayerInput, PrefillInput, ties_at_cut
from kvdiag.methods.settings import Setting

# Makes a fresh press for a setting.
PressFactory = Callable[[Setting], Any]


class _Observed(Exception):
    """Stops a press once all is seen."""


class Tap(TorchFunctionMode):
    """Sees a press gather positions of the keys, or zero channels of them.

    stop: end the press at what is seen first. Otherwise it runs on and the last gather counts.
    """

    def __init__(self, keys: torch.Tensor, stop: bool) -> None:
        super().__init__()
        self.keys, self.stop = keys, stop
        self.positions: torch.Tensor | None = None  # int64 [1, H, kept]
        self.channels: torch.Tensor | None = None  # int64 [1, H, zeroed]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.gather and args[0] is self.keys:
            self.positions = args[2][..., 0]
            if self.stop:
                raise _Observed
        elif func is torch.Tensor.scatter_ and args[0] is self.keys:
            self.channels = args[2][:, :, 0]
            raise _Observed  # before the shared keys are written to
        return func(*args, **(kwargs or {}))


@contextmanager
def rotary_on(module: Any, rotary: Any) -> Iterator[None]:
    """Lend an attention module the model's rotary embedding, which some presses look for there."""
    if hasattr(module, "rotary_emb"):
        yield
        return
    module.rotary_emb = rotary
    try:
        yield
    finally:
        del module.rotary_emb


class PressAdapter:
    """Presses of one method, one for each setting.

    alters: "keys" or "values" when the press changes the tensors it keeps, which are then taken over. iterative:
    the press gathers more than once, and scores what it gathered, so nothing is shared or cut short.
    """

    def __init__(
        self,
        method_id: str,
        factory: PressFactory,
        settings: Sequence[Setting],
        model: Any,
        alters: str | None = None,
        iterative: bool = False,
        setting_free_score: bool = True,
    ) -> None:
        self.method_id = method_id
        self._alters, self._iterative, self._free = alters, iterative, setting_free_score
        self._rotary = model.model.rotary_emb
        self._presses: dict[Setting, Any] = {}
        for setting in settings:
            press = factory(setting)
            press.post_init_from_model(model)
            self._presses[setting] = press

    def finish(self, prefill: PrefillInput, keys: Any, values: Any) -> None:
        """Presses choose during the prefill."""

    def layer(self, layer: LayerInput) -> Mapping[Setting, LayerChoice]:
        """Choices of every setting. Raises DataError when the press writes to the shared tensors."""
        versions = layer.keys._version, layer.values._version
        try:
            with rotary_on(layer.module, self._rotary):
                return {setting: self._choose(press, layer) for setting, press in self._presses.items()}
        finally:
            layer.module.masked_key_indices = None
            if (layer.keys._version, layer.values._version) != versions:
                raise DataError(f"method {self.method_id} writes to the shared cache; it must work on copies")

    def _choose(self, press: Any, layer: LayerInput) -> LayerChoice:
        arguments = (layer.module, layer.hidden_states, layer.keys, layer.values, None, layer.kwargs)
        scorer = None if self._iterative else _scorer(press)
        scores: torch.Tensor | None = None
        if scorer is not None:
            # Scoring runs before the tap, which would slow its every tensor operation.
            scores = self._scores(scorer, layer, arguments)
            scorer.score = lambda *args, **kwargs: scores.clone()  # some wrappers write to them
        if isinstance(press, kvpress.CriticalKVPress):
            _share_value_norm(press, layer)
        tap = Tap(layer.keys, stop=self._alters is None and not self._iterative)
        layer.module.masked_key_indices = None
        result: tuple[torch.Tensor, torch.Tensor] | None = None
        try:
            with tap:
                result = press.compress(*arguments)
        except _Observed:
            pass
        finally:
            if scorer is not None:
                del scorer.score
        masked = layer.module.masked_key_indices
        if tap.channels is not None:
            return _channel_choice(tap.channels[0], layer)
        if masked is not None:
            return LayerChoice(kept=kept_of_masked(masked, layer.keys[0]), ties=None)
        if tap.positions is None:
            raise RuntimeError(f"{self.method_id}: the press selects nothing that can be observed")
        cut_by_score = scorer is not None and (press is scorer or self._alters is not None)
        return self._positions_choice(tap.positions[0], layer, result, scores if cut_by_score else None)

    def _scores(self, scorer: Any, layer: LayerInput, arguments: tuple[Any, ...]) -> torch.Tensor:
        def compute() -> torch.Tensor:
            return type(scorer).score(scorer, *arguments)

        return layer.scores.get(_score_key(scorer, layer), compute) if self._free else compute()

    def _positions_choice(
        self,
        index: torch.Tensor,
        layer: LayerInput,
        result: tuple[torch.Tensor, torch.Tensor] | None,
        scores: torch.Tensor | None,
    ) -> LayerChoice:
        """index: int64 [H, kept], in the order of the press' own result."""
        shape = layer.keys.shape[1:3]
        kept = torch.zeros(shape, dtype=torch.bool, device=layer.keys.device).scatter_(1, index, True)
        keys = values = None
        if self._alters is not None:
            assert result is not None
            wide = index[..., None].expand(-1, -1, layer.keys.shape[-1])
            if self._alters == "keys":
                keys = torch.zeros_like(layer.keys[0]).scatter_(1, wide, result[0][0])
            else:
                values = torch.zeros_like(layer.values[0]).scatter_(1, wide, result[1][0])
        ties = None if scores is None else ties_at_cut(kept, scores[0])
        return LayerChoice(kept=kept, keys=keys, values=values, ties=ties)


def kept_of_masked(masked: Sequence[torch.Tensor], keys: torch.Tensor) -> torch.Tensor:
    """bool [H, n] from kvpress' `masked_key_indices` (batch, head, position); keys [H, n, D]."""
    kept = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
    kept[masked[1].to(kept.device), masked[2].to(kept.device)] = False
    return kept


def _share_value_norm(press: Any, layer: LayerInput) -> None:
    """The norm of the values behind the output projection depends on no setting, and costs more than the score."""
    original = kvpress.CriticalKVPress.vwl1norm

    def shared(values: torch.Tensor, module: Any) -> torch.Tensor:
        return layer.scores.get(("vwl1norm", values.shape[2]), lambda: original(values, module))

    press.vwl1norm = shared


def _scorer(press: Any) -> Any | None:
    """The innermost scorer: what a wrapper asks for scores."""
    while hasattr(press, "press"):
        press = press.press
    return press if isinstance(press, kvpress.ScorerPress) else None


def _score_key(scorer: Any, layer: LayerInput) -> Hashable:
    """What makes a score: the function that computes it, its parameters but the ratio, and the positions seen."""
    parameters = tuple(
        (k, v)
        for k, v in sorted(vars(scorer).items())
        if k not in ("compression_ratio", "score") and isinstance(v, int | float | str | bool | None)
    )
    # PyramidKV's scores are SnapKV's, with one parameter more that the score does not read.
    shared = tuple(p for p in parameters if p[0] != "beta")
    return type(scorer).score, shared, layer.keys.shape[2]


def _channel_choice(zeroed: torch.Tensor, layer: LayerInput) -> LayerChoice:
    """zeroed: int64 [H, channels] of the keys."""
    _, heads, n, dim = layer.keys.shape
    channels = torch.ones(heads, dim, dtype=torch.bool, device=layer.keys.device).scatter_(1, zeroed, False)
    size = layer.keys.element_size()
    stored = int(channels.sum()) * n * size + layer.values.numel() * layer.values.element_size()
    return LayerChoice(channels=channels, stored_bytes=stored)
