"""Replay: the control and all cells as one batch over the shared prefix, each row with its own short suffix.

Shapes: R rows, T tokens of a forward, S suffix slots, P prefix positions, H KV heads, G query heads a KV
head, D head dimension.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from kvdiag.engine.attention import attention_lse, merge
from kvdiag.engine.views import CellView, SharedPrefix

ATTENTION_NAME = "kvdiag_replay"


def _replay_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    *,
    scaling: float,
    replay: "Replay",
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that the model's own layers call during a replay."""
    return replay.attend(module.layer_idx, query, key, value, scaling).transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, _replay_attention)


@dataclass
class EvidenceProbe:
    """Asks a forward for the attention mass on evidence positions.

    nodes: which of the fed tokens to ask; positions: evidence positions in the prefix. `mass` gets a tensor
    for each layer, float32 [R, nodes], mean over query heads.
    """

    nodes: torch.Tensor
    positions: torch.Tensor
    mass: list[torch.Tensor]


@dataclass
class _Forward:
    """What the attention of the forward under way must know."""

    rows: slice
    slots: slice
    bias: torch.Tensor  # additive, over the suffix: [1, 1, G*T, T] for a tree, [R, 1, 1, S] for a step
    step: bool
    probe: EvidenceProbe | None


class Replay:
    """Rows (None for the control, a CellView for a cell) over one prefix.

    Every row has a suffix of the same slots; which of them it sees is the caller's to say. The prefix is never
    copied: a step masks it, a longer forward gathers what a row keeps, a layer and a row at a time.
    """

    def __init__(self, model: Any, prefix: SharedPrefix, rows: Sequence[CellView | None], capacity: int) -> None:
        self.model = model
        self.prefix = prefix
        self.rows = list(rows)
        self._capacity = capacity
        heads, _, dim = prefix.keys[0].shape
        shape = (len(self.rows), heads, capacity, dim)
        self._keys = [k.new_zeros(shape) for k in prefix.keys]
        self._values = [v.new_zeros((*shape[:-1], v.shape[-1])) for v in prefix.values]
        self._step_bias: list[torch.Tensor | None] | None = None
        self._forward: _Forward | None = None

    @contextmanager
    def attached(self) -> Iterator["Replay"]:
        """Route the model's attention through this replay; restored whatever happens."""
        config = self.model.config
        before = config._attn_implementation
        config._attn_implementation = ATTENTION_NAME
        try:
            yield self
        finally:
            config._attn_implementation = before
            self._forward = None

    def feed_tree(
        self,
        rows: slice,
        first_slot: int,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        visible: torch.Tensor,
        probe: EvidenceProbe | None = None,
    ) -> torch.Tensor:
        """Feed the same tokens [T] to rows that have no suffix yet; hidden states [R, T, hidden].

        positions: int64 [T]; visible: bool [T, T].
        """
        n, t = rows.stop - rows.start, len(tokens)
        bias = self._bias(visible).repeat(self._groups(), 1)[None, None]
        self._forward = _Forward(rows, slice(first_slot, first_slot + t), bias, step=False, probe=probe)
        return self._run(tokens.expand(n, -1), positions.expand(n, -1))

    def step(
        self, tokens: torch.Tensor, positions: torch.Tensor, slot: int, visible: torch.Tensor
    ) -> torch.Tensor:
        """Feed one token to every row at `slot`; hidden states [R, hidden].

        tokens and positions: int64 [R]; visible: bool [R, slot + 1].
        """
        self._reserve(slot + 1)
        bias = self._bias(visible)[:, None, None]
        self._forward = _Forward(slice(0, len(self.rows)), slice(slot, slot + 1), bias, step=True, probe=None)
        return self._run(tokens[:, None], positions[:, None])[:, 0]

    def keep_rows(self, index: Sequence[int]) -> None:
        """Drop all rows but these: finished rows leave the batch."""
        if list(index) == list(range(len(self.rows))):
            return
        chosen = torch.tensor(list(index), device=self._keys[0].device)
        self.rows = [self.rows[i] for i in index]
        self._keys = [k.index_select(0, chosen) for k in self._keys]
        self._values = [v.index_select(0, chosen) for v in self._values]
        if self._step_bias is not None:
            self._step_bias = [b if b is None else b.index_select(2, chosen) for b in self._step_bias]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """One softmax over what each row sees of the prefix and of its suffix.

        query [R, H*G, T, D], key and value [R, H, T, D]; returns [R, H*G, T, D].
        """
        forward = self._forward
        assert forward is not None
        r, q_heads, t, d = query.shape
        heads = key.shape[1]
        self._keys[layer][forward.rows, :, forward.slots] = key
        self._values[layer][forward.rows, :, forward.slots] = value
        folded = query.reshape(r, heads, q_heads // heads * t, d)  # query heads of a KV head side by side
        if forward.step:
            end = forward.slots.stop
            near = self._keys[layer][:, :, :end], self._values[layer][:, :, :end]
            far = self._prefix_step(layer, folded, scale)
        else:
            near = key, value
            far = self._prefix_gathered(layer, folded, scale, forward.rows)
        out, lse = merge(far, attention_lse(folded, *near, scale, forward.bias))
        if forward.probe is not None:
            self._probe(layer, forward, query, lse, scale)
        return out.reshape(r, q_heads, t, d)

    def _run(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        out = self.model.model(input_ids=tokens, position_ids=positions, use_cache=False, replay=self)
        return out.last_hidden_state

    def _groups(self) -> int:
        config = self.model.config
        return config.num_attention_heads // config.num_key_value_heads

    def _bias(self, visible: torch.Tensor) -> torch.Tensor:
        like = self.prefix.keys[0]
        bias = torch.zeros(visible.shape, dtype=like.dtype, device=like.device)
        return bias.masked_fill_(~visible.to(like.device), float("-inf"))

    def _reserve(self, slots: int) -> None:
        if slots <= self._capacity:
            return
        grow = max(slots - self._capacity, 16)
        self._capacity += grow
        self._keys = [torch.nn.functional.pad(k, (0, 0, 0, grow)) for k in self._keys]
        self._values = [torch.nn.functional.pad(v, (0, 0, 0, grow)) for v in self._values]

    def _prefix_gathered(
        self, layer: int, query: torch.Tensor, scale: float, rows: slice
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prefix part for query [R, H, G*T, D]: each row over the keys it keeps."""
        keys, values = self.prefix.keys[layer], self.prefix.values[layer]
        heads, positions, _ = keys.shape
        outs, lses = [], []
        for i, view in enumerate(self.rows[rows]):
            bias = None
            k, v = keys[None], values[None]
            if view is not None:
                kept = view.layers[layer]
                counts = kept.sum(-1)
                if bool((counts == counts[0]).all()):
                    index = kept.flatten().nonzero()[:, 0]
                    k = keys.view(heads * positions, -1).index_select(0, index).view(1, heads, -1, k.shape[-1])
                    v = values.view(heads * positions, -1).index_select(0, index).view(1, heads, -1, v.shape[-1])
                else:  # heads with budgets of their own cannot be packed side by side
                    bias = self._bias(kept)[None, :, None].expand(-1, -1, query.shape[2], -1)
            out, lse = attention_lse(query[i : i + 1], k, v, scale, bias)
            outs.append(out)
            lses.append(lse)
        return torch.cat(outs), torch.cat(lses)

    def _prefix_step(self, layer: int, query: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Prefix part for query [R, H, G, D]: all rows at once over shared keys, under each row's mask."""
        if self._step_bias is None:
            self._step_bias = [self._row_bias(i) for i in range(self.prefix.n_layers)]
        groups = query.shape[2]
        by_head = query.permute(1, 2, 0, 3)  # [H, G, R, D]: heads are the batch, so keys are read in place
        k = self.prefix.keys[layer][:, None].expand(-1, groups, -1, -1)
        v = self.prefix.values[layer][:, None].expand(-1, groups, -1, -1)
        bias = self._step_bias[layer]
        if bias is not None:
            bias = bias.expand(-1, groups, -1, -1)
        out, lse = attention_lse(by_head, k, v, scale, bias)
        return out.permute(2, 0, 1, 3), lse.permute(2, 0, 1)

    def _row_bias(self, layer: int) -> torch.Tensor | None:
        """Additive mask [H, 1, R, P] of all rows; None when all of them are the control."""
        if all(view is None for view in self.rows):
            return None
        keys = self.prefix.keys[layer]
        everything = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
        kept = [everything if view is None else view.layers[layer] for view in self.rows]
        return self._bias(torch.stack(kept, dim=1))[:, None]

    def _probe(self, layer: int, forward: _Forward, query: torch.Tensor, lse: torch.Tensor, scale: float) -> None:
        probe = forward.probe
        assert probe is not None
        r, _, t, d = query.shape
        heads = self.prefix.keys[layer].shape[0]
        asked = query.view(r, heads, -1, t, d)[:, :, :, probe.nodes].float()
        keys = self.prefix.keys[layer][:, probe.positions].float()
        logits = torch.einsum("rhgnd,hed->rhgne", asked, keys) * scale
        log_weights = logits - lse.view(r, heads, -1, t)[:, :, :, probe.nodes, None]
        everything = torch.ones(heads, len(probe.positions), dtype=torch.bool, device=keys.device)
        kept = torch.stack(
            [everything if v is None else v.layers[layer][:, probe.positions] for v in self.rows[forward.rows]]
        )
        mass = (log_weights.exp() * kept[:, :, None, None]).sum(-1)
        probe.mass.append(mass.mean(dim=(1, 2)))
