"""What one row of a replay reads of its compressed cache.

Shapes: H KV heads, G query heads a KV head, T queries, Q = G*T, n positions, D head dimension.
"""

from collections.abc import Sequence

import torch

from kvdiag.engine.attention import attention_lse
from kvdiag.engine.views import CellView, SharedPrefix


class RowCache:
    """The control's cache (view None: the whole prefix) or a cell's.

    A quantized cache takes over the row's suffix when that reaches the residual length; from then on the row has
    keys and values of its own that are longer than the prefix's.
    """

    def __init__(self, view: CellView | None, prefix: SharedPrefix) -> None:
        self.view = view
        self._prefix = prefix
        self._extended: list[tuple[torch.Tensor, torch.Tensor]] | None = None

    @property
    def shift(self) -> int:
        """How far positions after the prefix move back."""
        return self.view.shift if self.view is not None else 0

    def is_plain(self, layer: int) -> bool:
        """Whether the layer is the shared keys and values, under masks of positions and channels at most."""
        return self.view is None or (self._extended is None and self.view.is_plain(layer))

    def kept(self, layer: int) -> torch.Tensor:
        """bool [H, positions] of the prefix."""
        keys = self._prefix.keys[layer]
        if self.view is None:
            return torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
        return self.view.layers[layer]

    def channels(self, layer: int) -> torch.Tensor | None:
        """bool [H, D] of key channels that are left, None for all."""
        return self.view.choices[layer].channels if self.view is not None else None

    def attend(self, layer: int, query: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention of query [H, Q, D] over what the row keeps: output [1, H, Q, D], log-sum-exp [1, H, Q]."""
        keys, values = self._tensors(layer)
        query = self._masked(layer, query)[None]
        n = keys.shape[1]
        bias = self._bias(layer, n)
        choice = self.view.choices[layer] if self.view is not None else None
        if choice is not None and choice.pages is not None:
            hidden = torch.zeros((*query.shape[1:3], n), dtype=torch.float32, device=query.device)
            hidden.masked_fill_(~choice.pages.visible(query[0], n), float("-inf"))
            bias = hidden if bias is None else hidden + bias
        kept = None
        if self.view is not None and choice is not None and choice.kept is not None and self._extended is None:
            kept = self.view.layers[layer][:, :n]
        if kept is not None:
            return _attend_kept(query, keys, values, kept, bias, scale)
        if bias is not None:
            bias = bias.to(query.dtype).expand(query.shape[1], query.shape[2], n)[None]
        return attention_lse(query, keys[None], values[None], scale, bias)

    def _bias(self, layer: int, n: int) -> torch.Tensor | None:
        """The boost over the first n positions; a quantized cache that took its suffix in has more of them."""
        bias = self.view.bias(layer) if self.view is not None else None
        if bias is None:
            return None
        return torch.nn.functional.pad(bias[:n], (0, max(0, n - len(bias))))

    def evidence_mass(
        self, layer: int, query: torch.Tensor, lse: torch.Tensor, positions: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Attention weight on evidence positions, [H, Q]. query [H, Q, D]; lse [H, Q] of its whole softmax."""
        keys, _ = self._tensors(layer)
        query = self._masked(layer, query)
        logits = torch.einsum("hqd,hed->hqe", query.float(), keys[:, positions].float()) * scale
        bias = self._bias(layer, keys.shape[1])
        if bias is not None:
            logits = logits + bias[positions]
        weights = torch.exp(logits - lse[..., None])
        seen = self.kept(layer)[:, None, positions]
        pages = self.view.choices[layer].pages if self.view is not None else None
        if pages is not None:
            seen = seen & pages.visible(query, keys.shape[1])[..., positions]
        return (weights * seen).sum(-1)

    def absorb(self, suffix: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Quantize the whole history anew. suffix: keys and values [H, s, D] of each layer, in feeding order."""
        assert self.view is not None
        extended = []
        for layer, (k, v) in enumerate(suffix):
            keys, values = self._tensors(layer)
            again = self.view.choices[layer].requantize
            assert again is not None
            extended.append(again(torch.cat([keys, k], dim=1), torch.cat([values, v], dim=1)))
        self._extended = extended

    def _tensors(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [H, n, D], before any mask."""
        if self._extended is not None:
            return self._extended[layer]
        shared = self._prefix.keys[layer], self._prefix.values[layer]
        if self.view is None:
            return shared
        n, choice = self.view.n_compressed, self.view.choices[layer]
        return (
            shared[0][:, :n] if choice.keys is None else choice.keys,
            shared[1][:, :n] if choice.values is None else choice.values,
        )

    def _masked(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Channel pruning acts on the query: q . (k * m) = (q * m) . k."""
        channels = self.channels(layer)
        return query if channels is None else query * channels[:, None]


def _attend_kept(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    kept: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather what is kept and attend to it: half the arithmetic of a mask, and no mask to build.

    query [1, H, Q, D]; keys, values [H, n, D]; kept [H, n]; bias [n] on the logits.
    """
    heads, n, dim = keys.shape
    counts = kept.sum(-1).tolist()
    index = kept.flatten().nonzero()[:, 0]
    k = keys.reshape(heads * n, dim).index_select(0, index)
    v = values.reshape(heads * n, -1).index_select(0, index)
    added = bias.index_select(0, index % n).to(query.dtype) if bias is not None else None
    if min(counts) == max(counts) > 0:
        k, v = k.view(1, heads, -1, dim), v.view(1, heads, counts[0], -1)
        rows = added.view(1, heads, 1, -1).expand(-1, -1, query.shape[2], -1) if added is not None else None
        return attention_lse(query, k, v, scale, rows)
    outs, lses = [], []  # heads with budgets of their own cannot be packed side by side
    for head, (k_head, v_head) in enumerate(zip(k.split(counts), v.split(counts), strict=True)):
        asked = query[:, head : head + 1]
        if counts[head] == 0:  # nothing left: no weight at all in the merge
            outs.append(torch.zeros_like(asked))
            lses.append(torch.full((1, 1, query.shape[2]), float("-inf"), device=query.device))
            continue
        row = None
        if added is not None:
            row = added.split(counts)[head].expand(1, 1, query.shape[2], -1)
        out, lse = attention_lse(asked, k_head[None, None], v_head[None, None], scale, row)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs, dim=1), torch.cat(lses, dim=1)
