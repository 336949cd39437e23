"""The oracle: a method's own code compresses the cache for real, and the model's own attention reads it.

Nothing of kvdiag's engine or adapters is used here. Tokens are fed one by one, since layers of unequal length have
no common causal mask. Head-wise masks are applied to the attention itself: kvpress hides entries behind fake keys,
which it does not always find.
"""

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import kvpress
import torch
from transformers import DynamicCache, QuantizedCache

from kvdiag.conformance import quest_reference
from kvdiag.methods.adapters.build import make_press
from kvdiag.methods.catalogue import Method
from kvdiag.methods.settings import Setting
from kvdiag.prompts import Prompt

logging.getLogger("kvpress").setLevel(logging.ERROR)  # KVzip warns of its passes at every use


@dataclass(frozen=True)
class Physical:
    """Kept positions (None for methods that keep all), logits that predict the gold tokens, the greedy answer."""

    kept: torch.Tensor | None
    gold_logits: torch.Tensor
    tokens: list[int]


@torch.no_grad()
def run(
    model: Any,
    method: Method,
    setting: Setting,
    prompt: Prompt,
    n: int,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    make: Callable[[Method, Setting], Any] = make_press,
) -> Physical:
    """Compress the first n positions of a prompt, feed the rest, force the gold answer, decode greedily."""
    if method.adapter == "quantized":
        return _run_quantized(model, method, setting, prompt, n, max_new_tokens, stop_ids)
    if method.adapter == "quest":
        return _run_quest(model, setting, prompt, n, max_new_tokens, stop_ids)
    cache = DynamicCache()
    eager = method.adapter == "own_press"  # kvpress' ObservedAttention needs eager attention weights
    press = kvpress.ObservedAttentionPress(compression_ratio=1 - setting.value) if eager else make(method, setting)
    with _backend(model, "eager" if eager else "sdpa"):
        with press(model):
            model.model(input_ids=_ids(model, prompt.ids[:n]), past_key_values=cache, output_attentions=eager)
        full = full_cache_without_press(model, prompt.ids[:n])
    masks = _take_masks(model, full)
    kept = masks
    evicted = any(layer.keys.shape[2] < n for layer in cache.layers)  # else rows may be altered, and match none
    if masks is None and evicted and not method.structural:
        name = "values" if method.alters == "keys" else "keys"
        kept = torch.stack(
            [
                matched_rows(getattr(pruned, name)[0], getattr(whole, name)[0])
                for pruned, whole in zip(cache.layers, full.layers, strict=True)
            ]
        )
    moved = n - cache.get_seq_length() if method.alters == "keys" else 0
    with _hidden(model, masks):
        logits, tokens = answer(model, cache, prompt, n, max_new_tokens, stop_ids, one_by_one=True, moved=moved)
    return Physical(kept, logits, tokens)


@contextmanager
def _backend(model: Any, name: str) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def full_cache_without_press(model: Any, ids: tuple[int, ...]) -> DynamicCache:
    """An ordinary prefill that leaves the masks of the press before it in place."""
    masks = [getattr(layer.self_attn, "masked_key_indices", None) for layer in model.model.layers]
    cache = full_cache(model, ids)
    for layer, mask in zip(model.model.layers, masks, strict=True):
        layer.self_attn.masked_key_indices = mask
    return cache


def _take_masks(model: Any, full: DynamicCache) -> torch.Tensor | None:
    """bool [layers, kv_heads, n] of what kvpress' masks leave, taken off the modules; None when there are none."""
    found = [getattr(layer.self_attn, "masked_key_indices", None) for layer in model.model.layers]
    for layer in model.model.layers:
        layer.self_attn.masked_key_indices = None
    if all(m is None for m in found):
        return None
    kept = torch.stack([torch.ones_like(layer.keys[0, :, :, 0], dtype=torch.bool) for layer in full.layers])
    for i, masked in enumerate(found):
        if masked is not None:
            kept[i, masked[1].to(kept.device), masked[2].to(kept.device)] = False
    return kept


@contextmanager
def _hidden(model: Any, masks: torch.Tensor | None) -> Iterator[None]:
    """Hide entries of the cache from every layer's attention, head by head."""
    if masks is None:
        yield
        return
    hooks = []

    def hook(kept: torch.Tensor) -> Any:
        def hide(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            length = kwargs["past_key_values"].layers[module.layer_idx].get_seq_length() + 1
            seen = torch.ones(kept.shape[0], length, dtype=torch.bool, device=kept.device)
            seen[:, : kept.shape[1]] = kept
            groups = module.num_key_value_groups
            return args, {**kwargs, "attention_mask": seen.repeat_interleave(groups, 0)[None, :, None]}

        return hide

    for layer, kept in zip(model.model.layers, masks, strict=True):
        hooks.append(layer.self_attn.register_forward_pre_hook(hook(kept), with_kwargs=True))
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def answer(
    model: Any,
    cache: Any,
    prompt: Prompt,
    n: int,
    max_new_tokens: int,
    stop_ids: frozenset[int],
    one_by_one: bool = False,
    moved: int = 0,
    forced: Any = None,
) -> tuple[torch.Tensor, list[int]]:
    """Logits that predict the gold tokens, and the greedy answer, after positions [0, n) in `cache`.

    moved: how far the positions that follow move back, for a re-rotated cache. forced: the same cache again, for
    one that cannot be copied.
    """

    def feed(stored: Any, ids: list[int], first: int) -> torch.Tensor:
        pieces = [[i] for i in ids] if one_by_one else [ids]
        out = []
        for piece in pieces:
            out.append(_feed(model, stored, piece, first - moved))
            first += len(piece)
        return torch.cat(out)

    logits = feed(cache, list(prompt.ids[n:]), n)[-1:]
    end = len(prompt.ids)
    if forced is None:
        forced = copy.deepcopy(cache)
    else:
        feed(forced, list(prompt.ids[n:]), n)
    gold = (
        torch.cat([logits, feed(forced, list(prompt.gold_ids[:-1]), end)]) if len(prompt.gold_ids) > 1 else logits
    )
    tokens = [int(logits[-1].argmax())]
    while tokens[-1] not in stop_ids and len(tokens) < max_new_tokens:
        tokens.append(int(feed(cache, tokens[-1:], end + len(tokens) - 1)[-1].argmax()))
    return gold, tokens


def full_cache(model: Any, ids: tuple[int, ...]) -> DynamicCache:
    """An ordinary prefill."""
    cache = DynamicCache()
    model.model(input_ids=_ids(model, ids), past_key_values=cache)
    return cache


def _ids(model: Any, ids: Any) -> torch.Tensor:
    return torch.tensor([list(ids)], device=model.device)


def _feed(model: Any, cache: Any, ids: list[int], first_position: int) -> torch.Tensor:
    """Feed tokens at their positions through a cache that may be pruned; logits [t, vocabulary]."""
    stored, steps = cache.get_seq_length(), torch.arange(len(ids), device=model.device)
    out = model(
        input_ids=_ids(model, ids),
        past_key_values=cache,
        position_ids=(first_position + steps)[None],
        cache_position=stored + steps,
    )
    return out.logits[0].float()


def matched_rows(rows: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """bool [heads, n]: rows [heads, kept, D] found again, bit for bit, among whole [heads, n, D].

    Raises ValueError unless each row matches exactly one.
    """
    found = torch.zeros(whole.shape[:2], dtype=torch.bool)
    for head, (some, every) in enumerate(zip(rows, whole, strict=True)):
        places: dict[bytes, list[int]] = {}
        for i, row in enumerate(_row_bytes(every)):
            places.setdefault(row, []).append(i)
        matches = [places.get(row, []) for row in _row_bytes(some)]
        if any(len(at) != 1 for at in matches):
            raise ValueError("a kept row must match exactly one row of the full cache")
        found[head, [at[0] for at in matches]] = True
    return found.to(whole.device)


def _row_bytes(rows: torch.Tensor) -> list[bytes]:
    """Each row of [n, D] as bytes. Looking them up takes n steps where comparing all with all takes n squared."""
    data = rows.contiguous().view(torch.uint8).cpu().numpy().tobytes()
    width = rows.shape[1] * rows.element_size()
    return [data[i : i + width] for i in range(0, len(data), width)]


def _run_quantized(
    model: Any,
    method: Method,
    setting: Setting,
    prompt: Prompt,
    n: int,
    max_new_tokens: int,
    stop_ids: frozenset[int],
) -> Physical:
    caches = []
    for _ in range(2):
        cache = QuantizedCache(
            backend=method.backend or "hqq", config=model.config, nbits=int(setting.value), **method.defaults
        )
        model.model(input_ids=_ids(model, prompt.ids[:n]), past_key_values=cache)
        caches.append(cache)
    logits, tokens = answer(model, caches[0], prompt, n, max_new_tokens, stop_ids, forced=caches[1])
    return Physical(None, logits, tokens)


def _run_quest(
    model: Any, setting: Setting, prompt: Prompt, n: int, max_new_tokens: int, stop_ids: frozenset[int]
) -> Physical:
    cache = full_cache(model, prompt.ids[:n])
    with quest_reference.attached(model, n, setting.value):
        logits, tokens = answer(model, cache, prompt, n, max_new_tokens, stop_ids)
    return Physical(None, logits, tokens)
