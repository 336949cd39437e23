"""Replay: the control and all cells as one batch over the shared prefix, each row with its own short suffix.

Shapes: R rows, T tokens of a forward, S suffix slots, P prefix positions, H KV heads, G query heads a KV
head, D head dimension.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from kvdiag.engine.attention import attention_lse, merge
from kvdiag.engine.rowcache import RowCache
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
        self.rows = [RowCache(view, prefix) for view in rows]
        self._capacity = capacity
        heads, _, dim = prefix.keys[0].shape
        shape = (len(self.rows), heads, capacity, dim)
        self._keys = [k.new_zeros(shape) for k in prefix.keys]
        self._values = [v.new_zeros((*shape[:-1], v.shape[-1])) for v in prefix.values]
        self._step_masks: list[_StepMask] | None = None
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
        return self._run(tokens.expand(n, -1), positions - self._shifts(rows)[:, None])

    def step(
        self, tokens: torch.Tensor, positions: torch.Tensor, slot: int, visible: torch.Tensor
    ) -> torch.Tensor:
        """Feed one token to every row at `slot`; hidden states [R, hidden].

        tokens and positions: int64 [R]; visible: bool [R, slot + 1].
        """
        self._reserve(slot + 1)
        bias = self._bias(visible)[:, None, None]
        self._forward = _Forward(slice(0, len(self.rows)), slice(slot, slot + 1), bias, step=True, probe=None)
        return self._run(tokens[:, None], (positions - self._shifts(slice(0, len(self.rows))))[:, None])[:, 0]

    def keep_rows(self, index: Sequence[int]) -> None:
        """Drop all rows but these: finished rows leave the batch."""
        if list(index) == list(range(len(self.rows))):
            return
        chosen = torch.tensor(list(index), device=self._keys[0].device)
        self.rows = [self.rows[i] for i in index]
        self._keys = [k.index_select(0, chosen) for k in self._keys]
        self._values = [v.index_select(0, chosen) for v in self._values]
        self._step_masks = None

    def subset(self, index: Sequence[int]) -> "Replay":
        """A replay of some of the rows over the same prefix, which can go on without changing this one."""
        chosen = torch.tensor(list(index), device=self._keys[0].device)
        part = copy(self)
        part.rows = [copy(self.rows[i]) for i in index]
        part._keys = [k.index_select(0, chosen) for k in self._keys]
        part._values = [v.index_select(0, chosen) for v in self._values]
        part._step_masks = None
        return part

    def absorb(self, row: int, slots: torch.Tensor) -> None:
        """A quantized row takes its suffix (the given slots, in feeding order) into its cache."""
        suffix = [
            (k[row].index_select(1, slots), v[row].index_select(1, slots))
            for k, v in zip(self._keys, self._values, strict=True)
        ]
        self.rows[row].absorb(suffix)
        self._step_masks = None

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
            parts = [r.attend(layer, q, scale) for r, q in zip(self.rows[forward.rows], folded, strict=True)]
            far = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        out, lse = merge(far, attention_lse(folded, *near, scale, forward.bias))
        if forward.probe is not None:
            self._probe(layer, forward, folded, lse, scale)
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

    def _shifts(self, rows: slice) -> torch.Tensor:
        return torch.tensor([row.shift for row in self.rows[rows]], device=self.prefix.keys[0].device)

    def _prefix_step(self, layer: int, query: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Prefix part for query [R, H, G, D]: all rows at once over shared keys, under each row's mask.

        Rows with keys or pages of their own are attended to one by one.
        """
        if self._step_masks is None:
            self._step_masks = [self._step_mask(i) for i in range(self.prefix.n_layers)]
        mask = self._step_masks[layer]
        if len(mask.plain) == len(self.rows):
            return self._plain_step(layer, query, mask, scale)
        out = torch.empty_like(query)
        lse = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
        if mask.plain:
            out[mask.plain], lse[mask.plain] = self._plain_step(layer, query[mask.plain], mask, scale)
        for row in set(range(len(self.rows))).difference(mask.plain):
            out[row : row + 1], lse[row : row + 1] = self.rows[row].attend(layer, query[row], scale)
        return out, lse

    def _plain_step(
        self, layer: int, query: torch.Tensor, mask: "_StepMask", scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if mask.channels is not None:
            query = query * mask.channels
        groups = query.shape[2]
        by_head = query.permute(1, 2, 0, 3)  # [H, G, R, D]: heads are the batch, so keys are read in place
        k = self.prefix.keys[layer][:, None].expand(-1, groups, -1, -1)
        v = self.prefix.values[layer][:, None].expand(-1, groups, -1, -1)
        bias = mask.bias.expand(-1, groups, -1, -1) if mask.bias is not None else None
        out, lse = attention_lse(by_head, k, v, scale, bias)
        return out.permute(2, 0, 1, 3), lse.permute(2, 0, 1)

    def _step_mask(self, layer: int) -> "_StepMask":
        plain = [i for i, row in enumerate(self.rows) if row.is_plain(layer)]
        rows = [self.rows[i] for i in plain]
        if all(row.view is None for row in rows):
            return _StepMask(plain, None, None)
        bias = self._bias(torch.stack([row.kept(layer) for row in rows], dim=1))[:, None]
        for i, row in enumerate(rows):
            boost = row.view.bias(layer) if row.view is not None else None
            if boost is not None:
                bias[:, :, i] += boost.to(bias.dtype)
        channels = None
        if any(row.channels(layer) is not None for row in rows):
            heads, _, dim = self.prefix.keys[layer].shape
            whole = torch.ones(heads, dim, dtype=torch.bool, device=bias.device)
            found = [row.channels(layer) for row in rows]
            channels = torch.stack([whole if c is None else c for c in found])[:, :, None]
        return _StepMask(plain, bias, channels)

    def _probe(self, layer: int, forward: _Forward, query: torch.Tensor, lse: torch.Tensor, scale: float) -> None:
        """query [R, H, G*T, D], lse [R, H, G*T]."""
        probe = forward.probe
        assert probe is not None
        t = forward.slots.stop - forward.slots.start
        nodes = (torch.arange(self._groups(), device=query.device)[:, None] * t + probe.nodes).flatten()
        mass = [
            row.evidence_mass(layer, q[:, nodes], w[:, nodes], probe.positions, scale)
            for row, q, w in zip(self.rows[forward.rows], query, lse, strict=True)
        ]
        per_node = torch.stack(mass).unflatten(-1, (self._groups(), -1))  # [R, H, G, nodes]
        probe.mass.append(per_node.mean(dim=(1, 2)))


@dataclass(frozen=True)
class _StepMask:
    """A layer's masks over the plain rows: positions [H, 1, R, P] (None: all are the control), channels."""

    plain: list[int]
    bias: torch.Tensor | None
    channels: torch.Tensor | None
