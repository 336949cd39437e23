"""What a recipe costs, told from the model's config and tokenizer: no weights are loaded, nothing is run.

FLOPs count a multiply-add as two. A forward costs 2 FLOPs a parameter of its matrices and token, and attention
4 x head_dim x heads x layers x keys for a query (a causal prefill has n/2 keys on average). Decoding reads weights
and kept keys and values once a step. Shares of the peak and the time that a step cannot go below are assumptions,
printed with every estimate; docs/scaling.md says where they come from.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvdiag.engine.models import load_config, load_tokenizer
from kvdiag.engine.plan import check_length
from kvdiag.engine.shape import Shape, shape_of
from kvdiag.errors import KvdiagError, UsageError
from kvdiag.prompts import PromptBuilder
from kvdiag.recipes import Recipe
from kvdiag.workloads import registry

# Of a task whose sources are generated, so many are made to learn their length.
SAMPLE = 2
CONFIG = "its config"
NEW_TOKENS = 128  # where neither the recipe nor sources say
CONTEXTS = (2048, 8192, 32768, 131072)


@dataclass(frozen=True)
class Hardware:
    """A GPU by its published figures: bf16 FLOPs a second without sparsity, memory bytes and bytes a second."""

    name: str
    flops: float
    bytes_per_second: float
    memory: float


HARDWARE = (
    Hardware("H200 SXM", 989e12, 4.8e12, 141e9),
    Hardware("H100 SXM", 989e12, 3.35e12, 80e9),
    Hardware("A100 SXM 80GB", 312e12, 2.04e12, 80e9),
)


@dataclass(frozen=True)
class Assumptions:
    """What the estimate rests on beside arithmetic.

    compute_share, memory_share: of the GPU's peaks. step_seconds: least time of a decoding step, since an eager
    model launches each kernel. tap_share: methods' scoring over the prefill's time (quantizers that optimize take
    more). Every cell decodes to the token limit, and quantized cells are read at full width.
    """

    compute_share: float = 0.4
    memory_share: float = 0.6
    step_seconds: float = 0.03
    tap_share: float = 0.1
    replay_tokens: int = 60  # question, cue, gold answer and draft of a row
    run_bytes: int = 400  # of a row in Parquet
    slot_bytes: int = 4  # of a slot's numbers in `retention`
    text_bytes: float = 1.4  # of a token's text in Parquet


# For a look at a model that cannot be fetched here; figures of its published config.json.
PUBLISHED = {
    "Qwen/Qwen3-8B": Shape(36, 4096, 32, 8, 128, 12288, 151936),
    "meta-llama/Llama-3.1-8B-Instruct": Shape(32, 4096, 32, 8, 128, 14336, 128256),
    "Qwen/Qwen2.5-7B-Instruct": Shape(28, 3584, 28, 4, 128, 18944, 152064),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": Shape(28, 3584, 28, 4, 128, 18944, 152064),
}


@dataclass(frozen=True)
class Load:
    """What goes through the model. lengths: tokens by source, or one mean; tokens_from: how they are known."""

    shape: Shape
    shape_from: str
    element: int  # bytes
    sources: int
    lengths: tuple[float, ...]
    tokens_from: str
    new_tokens: float
    cells: int
    keeps: tuple[float, ...]
    replaced: int = 0  # cells with keys and values of their own

    @property
    def mean_length(self) -> float:
        """Prompt tokens of a source."""
        return sum(self.lengths) / len(self.lengths)


@dataclass(frozen=True)
class Cost:
    """GPU-hours on a machine: the shared pass, and every cell on its own (as published tools do)."""

    hardware: str
    hours: float
    seconds_per_source: float
    cell_by_cell_hours: float
    fits: bool


def measure(recipe: Recipe, tokens: int | None = None) -> Load:
    """Sizes and lengths. tokens: mean prompt length, where sources cannot be made here.

    Raises UsageError when the model's config or the sources' length cannot be known.
    """
    shape, origin = _shape(recipe)
    cells = recipe.cells()
    sources, lengths, known, new = _lengths(recipe, tokens, here=origin == CONFIG)
    element = 4 if recipe.dtype == "float32" else 2  # auto is bfloat16 on a GPU
    keeps = tuple(s.keep if s.keep is not None else 1.0 for _, s, _ in cells)
    replaced = sum(m.alters is not None or m.adapter == "quantized" for m, _, _ in cells)
    return Load(shape, origin, element, sources, lengths, known, new, len(cells), keeps, replaced)


def _shape(recipe: Recipe) -> tuple[Shape, str]:
    """Shape, and where it is from."""
    try:
        config = load_config(recipe.model, recipe.trust_remote_code)
    except UsageError:
        published = PUBLISHED.get(recipe.model.partition("@")[0])
        if published is None:
            raise
        return published, "its published sizes (the config cannot be read here)"
    return shape_of(config), CONFIG


def _lengths(recipe: Recipe, tokens: int | None, here: bool) -> tuple[int, tuple[float, ...], str, float]:
    """Sources, their prompt tokens, how those are known, and the mean limit of new tokens. here: is the model?"""
    new = float(recipe.max_new_tokens or NEW_TOKENS)
    if tokens is not None:
        return recipe.limit, (float(tokens),), "--assume-tokens", new
    length = registry.get(recipe.workload).length
    if not here:
        if length is None:
            raise UsageError(
                f"--model {recipe.model}: its tokenizer cannot be read here to measure {recipe.workload}; "
                "give the mean length: --assume-tokens N"
            )
        return recipe.limit, (float(length),), f"the nominal length of {recipe.workload} (no tokenizer here)", new
    loaded = load_tokenizer(recipe.model, recipe.trust_remote_code)
    check_length(recipe, loaded.name, loaded.max_positions)
    prompts = PromptBuilder.create(loaded.tokenizer, recipe.prompt)
    sampled = recipe if length is None else replace(recipe, limit=min(recipe.limit, SAMPLE * len(recipe.tasks)))
    try:
        sources = sampled.sources(prompts.count)
    except KvdiagError as error:
        raise type(error)(f"{error} (to price it without its sources: --assume-tokens N)") from error
    limits = sum(source.max_new_tokens for source in sources) / len(sources)
    how = f"{len(sources)} sources of {recipe.workload}, by its tokenizer"
    return (
        len(sources) if length is None else recipe.limit,
        tuple(float(prompts.count(source)) for source in sources),
        how,
        limits,
    )


def ledger_bytes(load: Load, given: Assumptions = Assumptions()) -> float:
    """Bytes of the finished ledger, roughly."""
    slots = load.shape.layers * load.shape.kv_heads
    runs = load.sources * load.cells
    return runs * (given.run_bytes + given.slot_bytes * slots) + load.sources * load.mean_length * given.text_bytes


def peak_bytes(load: Load) -> float:
    """Bytes on the GPU at the longest source.

    Weights; the full cache, and half of it again for the replay; for each cell that replaces keys and values
    (quantized, merged) another cache; for each other one, a position and KV head, a mask held as a byte and the
    bias that a decoding step makes of it; and what the prefill's tokens take while they pass a layer.
    """
    shape, longest = load.shape, max(load.lengths)
    cache = shape.kv_bytes(longest, load.element)
    masks = (load.cells - load.replaced) * shape.layers * shape.kv_heads * longest * (1 + load.element)
    passing = longest * shape.activation_bytes(load.element)
    return shape.parameters * load.element + (1.5 + load.replaced) * cache + masks + passing


def cost(load: Load, hardware: Hardware, given: Assumptions = Assumptions()) -> Cost:
    """GPU-hours of all sources."""
    together = alone = 0.0
    for length in load.lengths:
        a, b = _source_seconds(load, length, hardware, given)
        together, alone = together + a, alone + b
    n = load.sources / len(load.lengths)
    return Cost(
        hardware=hardware.name,
        hours=together * n / 3600,
        seconds_per_source=together / len(load.lengths),
        cell_by_cell_hours=alone * n / 3600,
        fits=peak_bytes(load) < 0.95 * hardware.memory,
    )


def _source_seconds(load: Load, n: float, hardware: Hardware, given: Assumptions) -> tuple[float, float]:
    """Seconds of a source with n prompt tokens: in one pass, and cell by cell."""
    shape, rows = load.shape, load.cells + 1
    compute, read = hardware.flops * given.compute_share, hardware.bytes_per_second * given.memory_share
    weights, whole = shape.parameters * load.element, shape.kv_bytes(n, load.element)

    def decode(cached: Sequence[float]) -> float:
        """Rows that decode together, each over so many bytes of cache."""
        keys = sum(cached) / whole * n
        flops = shape.step_flops(len(cached), keys / len(cached), logits=len(cached))
        step = max((weights + sum(cached)) / read, flops / compute, given.step_seconds)
        return load.new_tokens * step

    prefill = shape.prefill_flops(n) / compute
    kept = [keep * whole for keep in load.keeps]
    replay = shape.step_flops(rows * given.replay_tokens, n * (1 + sum(load.keeps)) / rows, rows) / compute
    together = prefill * (1 + given.tap_share) + decode([whole]) + replay + (decode(kept) if kept else 0)
    alone = prefill + decode([whole]) + sum(prefill * (1 + given.tap_share) + decode([k]) for k in kept)
    return together, alone


def as_dict(recipe: Recipe, load: Load, given: Assumptions = Assumptions()) -> dict[str, Any]:
    """The price as JSON."""
    return {
        "recipe": recipe.as_dict(),
        "sources": load.sources,
        "cells": load.cells,
        "runs": load.sources * load.cells,
        "prompt_tokens": {"mean": load.mean_length, "max": max(load.lengths), "from": load.tokens_from},
        "new_tokens_at_most": load.new_tokens,
        "model": {"parameters": load.shape.parameters, "from": load.shape_from, **asdict(load.shape)},
        "kv_bytes": {str(n): load.shape.kv_bytes(n, load.element) for n in CONTEXTS},
        "gpu_bytes_at_most": peak_bytes(load),
        "ledger_bytes": ledger_bytes(load, given),
        "assumptions": asdict(given),
        "cost": [asdict(cost(load, hardware, given)) for hardware in HARDWARE],
    }
