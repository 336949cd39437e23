"""The oracle: kvpress prunes the cache for real, and the model's own attention reads what is left."""

import copy

import kvpress
import torch
from transformers import DynamicCache


def full_cache(model, ids):
    """Keys [kv_heads, n, d] of each layer after an ordinary prefill."""
    cache = DynamicCache()
    model.model(input_ids=torch.tensor([ids]), past_key_values=cache)
    return cache


def _feed(model, cache, ids, first_position):
    """Feed tokens with their original positions through a cache that may be pruned; logits [t, vocab]."""
    n = cache.get_seq_length()
    out = model(
        input_ids=torch.tensor([ids]),
        past_key_values=cache,
        position_ids=torch.arange(first_position, first_position + len(ids))[None],
        cache_position=torch.arange(n, n + len(ids)),
    )
    return out.logits[0]


def run(model, cell, prompt, max_new_tokens, stop_ids):
    """Kept positions by row matching, logits that predict the gold tokens, and the greedy answer."""
    n = cell.n_compressed(prompt.n_context, prompt.n_prefix)
    press_class = getattr(kvpress, cell.method.press)
    press = press_class(compression_ratio=1 - cell.setting.value, **cell.method.defaults)
    cache = DynamicCache()
    with press(model):
        model.model(input_ids=torch.tensor([prompt.ids[:n]]), past_key_values=cache)
    full = full_cache(model, prompt.ids[:n])
    kept = torch.stack(
        [_matched(layer.keys[0], whole.keys[0]) for layer, whole in zip(cache.layers, full.layers, strict=True)]
    )
    return (kept, *answer(model, cache, prompt, n, max_new_tokens, stop_ids))


def answer(model, cache, prompt, n, max_new_tokens, stop_ids):
    """Logits that predict the gold tokens, and the greedy answer, after positions [0, n) in `cache`."""
    logits = _feed(model, cache, prompt.ids[n:], n)[-1:]
    end = len(prompt.ids)
    forced = copy.deepcopy(cache)
    gold = torch.cat([logits, _feed(model, forced, prompt.gold_ids[:-1], end)])
    tokens = [int(logits[-1].argmax())]
    while tokens[-1] not in stop_ids and len(tokens) < max_new_tokens:
        tokens.append(int(_feed(model, cache, tokens[-1:], end + len(tokens) - 1)[-1].argmax()))
    return gold, tokens


def _matched(rows, whole):
    """bool [kv_heads, n]: rows of the full cache found again in the pruned one."""
    same = (rows[:, :, None] == whole[:, None]).all(-1)
    assert bool((same.sum(-1) == 1).all()), "a kept row must match exactly one row of the full cache"
    return same.any(1)
