"""Quest in plain loops, to hold the adapter to: a head and a query at a time, page by page."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface

NAME = "kvdiag_quest_reference"
_PAGE, _FULL_LAYERS = 16, 2


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    *,
    scaling: float,
    **kw: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, Hq, T, D] over key [1, H, N, D]: the last T keys are the queries' own."""
    n, keep = module.quest_reference
    _, q_heads, steps, dim = query.shape
    total, groups = key.shape[2], q_heads // key.shape[1]
    out = torch.zeros(1, steps, q_heads, dim, dtype=query.dtype, device=query.device)
    for head in range(q_heads):
        k, v = key[0, head // groups], value[0, head // groups]
        for step in range(steps):
            q = query[0, head, step]
            seen = list(range(n, total - steps + step + 1))
            seen += _pages(q, k[:n], keep) if module.layer_idx >= _FULL_LAYERS else list(range(n))
            weights = torch.softmax((k[seen].float() @ q.float()) * scaling, dim=0)
            out[0, step, head] = (weights @ v[seen].float()).to(query.dtype)
    return out, None


def _pages(q: torch.Tensor, keys: torch.Tensor, keep: float) -> list[int]:
    starts = list(range(0, len(keys), _PAGE))
    bounds = []
    for start in starts:
        page = keys[start : start + _PAGE]
        bounds.append(float(torch.maximum(q * page.amin(0), q * page.amax(0)).sum()))
    budget = max(1, int(len(starts) * keep))
    best = sorted(range(len(starts)), key=lambda i: -bounds[i])[:budget]
    return [p for i in best for p in range(starts[i], min(starts[i] + _PAGE, len(keys)))]


AttentionInterface.register(NAME, _attention)


@contextmanager
def attached(model: Any, n: int, keep: float) -> Iterator[None]:
    """Read the first n positions by pages."""
    for layer in model.model.layers:
        layer.self_attn.quest_reference = (n, keep)
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
        for layer in model.model.layers:
            del layer.self_attn.quest_reference
