"""What the matrix is held against: the ordinary run, and kvpress cell by cell with and without diagnostics."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from common import timed
from transformers import DynamicCache, QuantizedCache

from kvdiag.engine.views import Cell
from kvdiag.methods import catalogue
from kvdiag.methods.adapters.build import make_press
from kvdiag.methods.settings import Setting
from kvdiag.prompts import Prompt

KEEP = [Setting("keep", k) for k in (0.75, 0.5, 0.25)]
BITS = [Setting("bits", b) for b in (8, 4, 2)]
MATRICES = {
    "five": ["streaming_llm", "snapkv", "tova", "keydiff", "knorm"],
    "paper": [
        *("streaming_llm", "snapkv", "tova", "keydiff", "think"),
        *("chunkkv_knorm", "adakv_snapkv", "quantized_hqq"),
    ],
}


def matrix_cells(name: str, protocols: list[str]) -> list[Cell]:
    """Cells that run: 15 of five methods, or 23 of the paper's eight (ThinK has no keep=0.25)."""
    return [
        Cell(method, setting, protocol)
        for method in catalogue.select(MATRICES[name])
        for setting in (BITS if method.setting_kind == "bits" else KEEP)
        if method.unsupported(setting) is None
        for protocol in protocols
    ]


def time_peer(
    peer: Callable[..., Any], model: Any, prompt: Prompt, cells: list[Cell], n: int, *rest: Any
) -> tuple[float | None, str]:
    """Seconds that all cells would take by what n of them, at even distances, took (None: all failed); which ones.

    Cells that kvpress itself cannot run are left out and named: 0.5.5 gives the layers of ChunkKV unequal lengths
    under one mask, and refuses AdaKV under eager attention.
    """
    some = [cells[i * len(cells) // n] for i in range(n)] if n < len(cells) else cells
    seconds, failed = [], []
    for cell in some:
        try:
            seconds.append(timed(peer, model, prompt, cell, *rest)[1])
        except (RuntimeError, AssertionError):
            failed.append(cell.id)
    told = f"{len(seconds)} of {len(cells)} cells, taken for all"
    if failed:
        told += f"; kvpress fails on {', '.join(failed)}"
    return (sum(seconds) / len(seconds) * len(cells) if seconds else None), told


@torch.no_grad()
def full_cache_run(model: Any, prompt: Prompt, max_new_tokens: int, stop_ids: frozenset[int]) -> list[int]:
    """The ordinary run."""
    ids = torch.tensor([prompt.ids], device=model.device)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(stop_ids) or None,
    )
    return out[0, len(prompt.ids) :].tolist()


def compressed(model: Any, prompt: Prompt, cell: Cell) -> tuple[Any, int]:
    """A prefill that kvpress compresses (or transformers quantizes): the cache, and the tokens it has seen."""
    n = cell.n_compressed(prompt.n_context, prompt.n_prefix)
    ids = torch.tensor([prompt.ids], device=model.device)
    cache: Any
    if cell.method.adapter == "quantized":
        bits = int(cell.setting.value)
        cache = QuantizedCache(cell.method.backend, model.config, nbits=bits, **cell.method.defaults)
        model.model(input_ids=ids[:, :n], past_key_values=cache)
    else:
        cache = DynamicCache()
        with make_press(cell.method, cell.setting)(model):
            model.model(input_ids=ids[:, :n], past_key_values=cache)
    return cache, n


def _feed(model: Any, cache: Any, tokens: torch.Tensor, position: int, **options: Any) -> Any:
    steps = torch.arange(tokens.shape[1], device=model.device)
    return model(
        input_ids=tokens,
        past_key_values=cache,
        position_ids=(position + steps)[None],
        cache_position=cache.get_seq_length() + steps,
        **options,
    )


@torch.no_grad()
def kvpress_run(
    model: Any, prompt: Prompt, cell: Cell, max_new_tokens: int, stop_ids: frozenset[int]
) -> list[int]:
    """One cell as kvpress runs it: prefill and evict (or quantize), feed the rest, decode."""
    cache, position = compressed(model, prompt, cell)
    feed = torch.tensor([prompt.ids[position:]], device=model.device)
    tokens: list[int] = []
    while not tokens or (tokens[-1] not in stop_ids and len(tokens) < max_new_tokens):
        out = _feed(model, cache, feed, position, logits_to_keep=1)
        position += feed.shape[1]
        tokens.append(int(out.logits[0, -1].argmax()))
        feed = torch.tensor([tokens[-1:]], device=model.device)
    return tokens


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Attention that hands out its weights."""
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    try:
        yield
    finally:
        model.config._attn_implementation = before


@torch.no_grad()
def separate_passes(model: Any, prompt: Prompt, cell: Cell, max_new_tokens: int, stop_ids: frozenset[int]) -> None:
    """One cell with its diagnostics as the public artifact has them: a prefill for each of generation, NLL, top 50
    and attention on the evidence (the last one eager)."""
    kvpress_run(model, prompt, cell, max_new_tokens, stop_ids)
    gold = torch.tensor([prompt.gold_ids], device=model.device)
    for diagnostic in ("nll", "top50", "attention"):
        with eager(model) if diagnostic == "attention" else torch.no_grad():
            cache, position = compressed(model, prompt, cell)
            rest = torch.tensor([[*prompt.ids[position:], *prompt.gold_ids]], device=model.device)
            weights = diagnostic == "attention" and cell.method.adapter != "quantized"
            out = _feed(model, cache, rest, position, output_attentions=weights)
        logits = out.logits[0, -gold.shape[1] - 1 : -1].float()
        if diagnostic == "nll":
            logits.log_softmax(-1).gather(-1, gold[0, :, None]).mean().item()
        elif diagnostic == "top50":
            logits.topk(50).indices.cpu()
        elif weights:
            torch.stack([w[0].mean().float() for w in out.attentions]).mean().item()
