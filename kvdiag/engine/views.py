"""Cells as views of one shared cache."""

from dataclasses import dataclass

import torch

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


class CellView:
    """What one cell sees of the prefix: kept bool [kv_heads, positions] a layer, filled during the prefill.

    `error` is set, and the view is unusable, when the method failed on some layer.
    """

    def __init__(self, cell: Cell, n_compressed: int, n_positions: int) -> None:
        self.cell = cell
        self.n_compressed = n_compressed
        self.n_positions = n_positions
        self.layers: list[torch.Tensor] = []
        self.ties = 0
        self.error: str | None = None

    def add_layer(self, kept: torch.Tensor, ties: int) -> None:
        """kept: bool [kv_heads, n_compressed]; later positions (the question) are not in this cell's cache."""
        hidden = self.n_positions - self.n_compressed
        self.layers.append(torch.nn.functional.pad(kept, (0, hidden)))
        self.ties += ties

    def kept(self) -> torch.Tensor:
        """bool [layers, kv_heads, positions]."""
        return torch.stack(self.layers)
