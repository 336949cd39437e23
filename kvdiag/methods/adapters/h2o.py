"""H2O (arXiv:2306.14048): keep what has drawn most attention. Own code, since kvpress' ObservedAttention needs
eager attention and its n x n weights.

Column sums of the softmax attention are accumulated a block of queries at a time, under the model's ordinary
backend; memory is one block of rows.
"""

from dataclasses import dataclass
from typing import Any

import torch
from kvpress import ScorerPress
from kvpress.utils import get_prerope_query_states
from transformers.models.llama.modeling_llama import rotate_half

BLOCK = 128  # queries at a time


@dataclass
class HeavyHitterPress(ScorerPress):
    """ScorerPress whose score is the mean attention a position has drawn; equals ObservedAttentionPress."""

    compression_ratio: float = 0.0

    def score(
        self, module: Any, hidden_states: Any, keys: Any, values: Any, attentions: Any, kwargs: Any
    ) -> torch.Tensor:
        """Scores [1, H, n]: column sums over the queries that see a position, per query, mean over the group."""
        query = get_prerope_query_states(module, hidden_states)
        cos, sin = kwargs["position_embeddings"]
        query = query * cos.unsqueeze(1) + rotate_half(query) * sin.unsqueeze(1)
        sums = column_sums(query[0], keys[0], module.scaling)
        n = keys.shape[2]
        seen_by = torch.arange(n, 0, -1, device=keys.device, dtype=sums.dtype)
        scores = (sums / seen_by).view(keys.shape[1], -1, n).mean(1)
        return scores[None].to(keys.dtype)


def column_sums(query: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """Sum over queries of causal softmax attention, float32 [query heads, n].

    query [query heads, n, D], keys [KV heads, n, D]. Row i sees keys 0 to i.
    """
    q_heads, n, _ = query.shape
    groups = q_heads // keys.shape[0]
    sums = torch.zeros(q_heads, n, dtype=torch.float32, device=query.device)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        block = query[:, start:stop].reshape(keys.shape[0], groups * (stop - start), -1)
        logits = torch.matmul(block, keys[:, :stop].transpose(1, 2)) * scale
        logits = logits.view(q_heads, stop - start, stop)
        future = torch.ones(stop - start, stop - start, dtype=torch.bool, device=query.device).triu(1)
        logits[:, :, start:].masked_fill_(future, float("-inf"))
        weights = torch.softmax(logits, dim=-1, dtype=torch.float32).to(query.dtype)
        sums[:, :stop] += weights.sum(1, dtype=torch.float32)
    return sums
