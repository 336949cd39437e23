"""Cells as views of one shared cache."""

import copy
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from kvdiag.methods.adapters.base import LayerChoice
from kvdiag.methods.catalogue import Method
from kvdiag.methods.settings import Setting
from kvdiag.records import keys


@dataclass(frozen=True)
class Cell:
    """Method x setting x protocol."""

    method: Method
    setting: Setting
    protocol: str

    @property
    def id(self) -> str:
        """`snapkv/keep=0.5/agnostic`."""
        return keys.cell_id(self.method.id, str(self.setting), self.protocol)

    def n_compressed(self, n_context: int, n_prefix: int) -> int:
        """Positions the method sees: the context, or context and question."""
        return n_prefix if self.protocol == "query_aware" else n_context


@dataclass(frozen=True)
class SharedPrefix:
    """Keys and values of context and question, each layer [kv_heads, positions, head_dim]. Read only."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @property
    def n_layers(self) -> int:
        """Number of attention layers."""
        return len(self.keys)

    @property
    def n_positions(self) -> int:
        """Positions of context and question."""
        return self.keys[0].shape[1]

    def bytes_per_position(self) -> int:
        """Bytes one position of one KV head takes, keys and values, in one layer."""
        k, v = self.keys[0], self.values[0]
        return k.shape[-1] * k.element_size() + v.shape[-1] * v.element_size()


@dataclass(frozen=True)
class Boost:
    """A bias on the attention logits of some positions of the prefix: the intervention of targeted repair.

    positions: int64 [p]; value: added to their logits; layers: where, None for all.
    """

    positions: torch.Tensor
    value: float
    layers: frozenset[int] | None = None

    def on(self, layer: int) -> bool:
        """Whether the bias acts on a layer."""
        return self.layers is None or layer in self.layers


class CellView:
    """What one cell sees of the prefix: a choice for each layer, and kept bool [kv_heads, n_positions].

    Positions from n_compressed on (the question, under query_agnostic) are not in the cell's cache. `error` is
    set, and the view is unusable, when the method failed on some layer.
    """

    def __init__(self, cell: Cell, n_compressed: int, n_positions: int) -> None:
        self.cell = cell
        self.n_compressed = n_compressed
        self.n_positions = n_positions
        self.layers: list[torch.Tensor] = []
        self.choices: list[LayerChoice] = []
        self.error: str | None = None
        self.boost: Boost | None = None

    def boosted(self, boost: Boost) -> "CellView":
        """The same view with a bias; tensors are shared."""
        twin = copy.copy(self)
        twin.boost = boost
        return twin

    def bias(self, layer: int) -> torch.Tensor | None:
        """Added to the logits of the prefix' positions, float32 [n_positions]; None without a boost there."""
        if self.boost is None or not self.boost.on(layer):
            return None
        bias = torch.zeros(self.n_positions, device=self.layers[0].device)
        bias[self.boost.positions] = self.boost.value
        return bias

    def add(self, choice: LayerChoice, prefix_keys: torch.Tensor) -> None:
        """A layer's choice; prefix_keys [kv_heads, positions, head_dim] give shape and device."""
        kept = choice.kept
        if kept is None:
            kept = torch.ones(prefix_keys.shape[0], self.n_compressed, dtype=torch.bool, device=prefix_keys.device)
        hidden = self.n_positions - self.n_compressed
        self.layers.append(torch.nn.functional.pad(kept, (0, hidden)))
        self.choices.append(choice)

    def kept(self) -> torch.Tensor:
        """bool [layers, kv_heads, positions]."""
        return torch.stack(self.layers)

    @property
    def ties(self) -> int | None:
        """Evicted entries that tie with the lowest kept score; None where no one score decides."""
        counts = [c.ties for c in self.choices]
        return None if any(c is None for c in counts) else sum(c for c in counts if c is not None)

    @property
    def shift(self) -> int:
        """How far following positions move back: a re-rotated cache counts its kept positions from 0."""
        if self.cell.method.alters != "keys":
            return 0
        return self.n_compressed - int(self.layers[0][0].sum())

    def is_plain(self, layer: int) -> bool:
        """Whether the layer is the shared keys and values under a mask that leaves every head something."""
        choice = self.choices[layer]
        shared = choice.keys is None and choice.values is None and choice.pages is None
        return shared and bool(self.layers[layer].any(-1).all())

    def stored_bytes(self, bytes_per_position: int) -> int:
        """Bytes the cell's cache takes, as measured."""
        total = 0
        for kept, choice in zip(self.layers, self.choices, strict=True):
            own = choice.stored_bytes
            total += int(kept.sum()) * bytes_per_position if own is None else own
        return total

    def shed(self) -> None:
        """Give up keys and values of its own for their digests: all that rows need is whether two are the same."""
        self.choices = [
            replace(choice, keys=_digest(choice.keys), values=_digest(choice.values), requantize=None)
            for choice in self.choices
        ]

    def same_cache(self, other: "CellView") -> bool:
        """Whether both views are the same cache: kept positions, channels, replaced tensors and pages."""
        return self.n_compressed == other.n_compressed and all(
            _same(a, b) and torch.equal(k, o)
            for a, b, k, o in zip(self.choices, other.choices, self.layers, other.layers, strict=True)
        )


def _digest(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """uint8 [32] that is the same for the same values of the same type and shape."""
    if tensor is None:
        return None
    data = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{data.dtype} {tuple(data.shape)} ".encode())
    digest.update(data.view(torch.uint8).numpy().data)
    return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def _same(one: LayerChoice, other: LayerChoice) -> bool:
    pairs: Iterable[tuple[torch.Tensor | None, torch.Tensor | None]] = (
        (one.keys, other.keys),
        (one.values, other.values),
        (one.channels, other.channels),
    )
    budgets: Sequence[int | None] = [c.pages.budget if c.pages else None for c in (one, other)]
    return budgets[0] == budgets[1] and all(
        (a is None) == (b is None) and (a is None or b is None or torch.equal(a, b)) for a, b in pairs
    )
