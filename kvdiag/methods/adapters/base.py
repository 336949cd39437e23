"""What adapters see and say. Shapes: n positions, H KV heads, D head dimension."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kvdiag.methods.settings import Setting


@dataclass(frozen=True)
class PrefillInput:
    """What all layers share: the model, its tokenizer and the tokens a method may see.

    ids: int64 [1, n]. n_head: how many of them the chat template put before the text. tail: the template's text
    after the user's. Methods with passes of their own (KVzip) need these.
    """

    model: Any
    tokenizer: Any
    ids: torch.Tensor
    n_head: int = 0
    tail: str = ""


@dataclass(frozen=True)
class LayerInput:
    """What one attention layer shows a method: the first n positions of the prefill.

    hidden_states [1, n, hidden]; keys and values [1, H, n, D], shared with every other method and so not to be
    written to; kwargs: the layer's own keyword arguments, hidden states and position embeddings cut to n.
    scores: inner scores that methods share.
    """

    module: Any
    layer: int
    hidden_states: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    kwargs: dict[str, Any]
    scores: "ScoreBoard"


class ScoreBoard:
    """Scores of one layer by what makes them, each computed once. Callers get copies: some write to them."""

    def __init__(self) -> None:
        self._known: dict[Hashable, torch.Tensor] = {}

    def get(self, key: Hashable, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The score of a key, computed if need be."""
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key].clone()


@dataclass(frozen=True)
class LayerChoice:
    """What one setting leaves of a layer.

    kept: bool [H, n], None for all positions. keys, values [H, n, D]: replaced ones (only kept positions count),
    None for the shared ones. channels: bool [H, D], key channels that stay. pages: query-dependent access.
    ties: evicted entries whose score equals the lowest kept one, None where no one
    score decides. stored_bytes: what the method would store, None
    for kept positions at full size.
    """

    kept: torch.Tensor | None = None
    keys: torch.Tensor | None = None
    values: torch.Tensor | None = None
    channels: torch.Tensor | None = None
    pages: "PageBounds | None" = None
    ties: int | None = 0
    stored_bytes: int | None = None
    requantize: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None


@dataclass(frozen=True)
class PageBounds:
    """Least and greatest key of each page, [H, pages, D]; a query reads the `budget` most promising pages.

    Quest (arXiv:2406.10774): a page's bound is the sum over channels of the greater of q * low and q * high.
    """

    low: torch.Tensor
    high: torch.Tensor
    size: int
    budget: int

    def visible(self, query: torch.Tensor, n: int) -> torch.Tensor:
        """Which of n positions each query reads. query [H, T, D]; bool [H, T, n]."""
        bound = torch.einsum("htd,hpd->htp", query.clamp(min=0), self.high)
        bound += torch.einsum("htd,hpd->htp", query.clamp(max=0), self.low)
        chosen = torch.zeros_like(bound, dtype=torch.bool)
        chosen.scatter_(-1, bound.topk(self.budget, dim=-1).indices, True)
        return chosen.repeat_interleave(self.size, dim=-1)[..., :n]


class Adapter(Protocol):
    """One method on one source and protocol, all settings together. Built anew each time."""

    def layer(self, layer: LayerInput) -> Mapping[Setting, LayerChoice]:
        """Choices for a layer, called during the prefill, layer by layer."""

    def finish(
        self, prefill: PrefillInput, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> Mapping[Setting, Sequence[LayerChoice]] | None:
        """Choices for all layers at once, for methods that need the whole prefill; None for the others.

        keys and values: [H, n, D] of each layer.
        """


def ties_at_cut(kept: torch.Tensor, scores: torch.Tensor) -> int:
    """Evicted entries that tie with the lowest kept score of their head; kept and scores [H, n]."""
    lowest = scores.masked_fill(~kept, float("inf")).amin(-1, keepdim=True)
    return int(((scores == lowest) & ~kept).sum())
