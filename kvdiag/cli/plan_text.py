"""`kvdiag build --plan` as text: what a recipe does and what it costs."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kvdiag.recipes import Recipe

if TYPE_CHECKING:
    from kvdiag.engine.price import Load


def lines(recipe: Recipe, load: "Load", target: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each line."""
    from kvdiag.engine.price import CONTEXTS, HARDWARE, Assumptions, cost, ledger_bytes, peak_bytes

    given = Assumptions()
    cells = (
        f"{len(recipe.methods)} methods at their settings ({', '.join(recipe.settings)}) x "
        f"{len(recipe.protocols)} protocols = {load.cells}"
    )
    yield "sources", f"{load.sources:,} of {recipe.workload} ({', '.join(recipe.tasks)})"
    yield "cells", cells
    yield (
        "runs",
        f"{load.sources:,} sources x {load.cells} cells = {load.sources * load.cells:,}, and the controls",
    )
    yield (
        "prompts",
        f"{load.mean_length:,.0f} tokens each, {max(load.lengths):,.0f} the longest ({load.tokens_from}), "
        f"{load.mean_length * load.sources / 1e6:,.1f} M in all; at most {load.new_tokens:,.0f} new ones",
    )
    yield (
        "model",
        f"{recipe.model}: {load.shape.parameters / 1e9:,.2f} billion parameters of {load.element} bytes, "
        f"by {load.shape_from}",
    )
    caches = [f"{n // 1024}k {_size(load.shape.kv_bytes(n, load.element))}" for n in CONTEXTS]
    yield "KV cache", f"{', '.join(caches)} a sequence"
    yield (
        "memory",
        f"{_size(peak_bytes(load))} at the longest prompt (weights, cache, replay, copies, masks)",
    )
    yield "ledger", f"about {_size(ledger_bytes(load, given))}"
    yield "GPU-hours", "in one pass, against every cell on its own; at most, since every cell decodes to its limit"
    for hardware in HARDWARE:
        found = cost(load, hardware, given)
        more = found.cell_by_cell_hours / found.hours
        room = "" if found.fits else "; does not fit"
        yield (
            "",
            f"{hardware.name:<15}{found.hours:>9,.2f} h  against {found.cell_by_cell_hours:>9,.2f} h "
            f"({more:.1f} x), {found.seconds_per_source:.1f} s a source{room}",
        )
    yield (
        "assumes",
        f"{given.compute_share:.0%} of bf16 peak, {given.memory_share:.0%} of bandwidth, at least "
        f"{given.step_seconds * 1000:.0f} ms a decoding step, scoring {given.tap_share:.0%} of the prefill",
    )
    yield "writes", str(target)
    yield "", "what the model or machine cannot run is found out as the build starts"


def _size(n: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n >= size:
            return f"{n / size:,.1f} {unit}"
    return f"{n / 1e3:,.0f} kB"
