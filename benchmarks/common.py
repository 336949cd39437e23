"""What benchmarks share: timing, memory, printing."""

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kvdiag.engine.shape import shape_of


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Result and wall seconds."""
    gc.collect()
    start = time.perf_counter()
    result = function(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result, time.perf_counter() - start


def peak_bytes(function: Callable[[], Any]) -> int | None:
    """Most memory in use during a call beyond what was in use before; None where the system cannot tell."""
    gc.collect()
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        return torch.cuda.max_memory_allocated() - before
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    before = _resident("VmRSS")
    reset.write_text("5")  # forget the old peak
    function()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def report(results: list[dict[str, Any]], as_json: bool) -> None:
    """JSON, or a block of lines a result."""
    if as_json:
        print(json.dumps(results))
        return
    for result in results:
        print()
        for name, value in result.items():
            text = f"{value:.3g}" if isinstance(value, float) else str(value)
            print(f"{name:<44} {text}")


def roofline(
    config: Any, prompt: Any, seconds: dict[str, float], rows: int, kept: float, element: int
) -> dict[str, Any]:
    """What the device did against what a matrix asks of it: GFLOP/s of prefill and replay, and GB read.

    rows: of the replay, the control included; kept: mean share of the keys that a row sees. Of a row count its
    question, cue and gold answer; a draft adds to them, so the replay figure is a lower bound.
    """
    shape = shape_of(config)
    n, tokens = prompt.n_prefix, len(prompt.ids) - prompt.n_context + len(prompt.gold_ids)
    prefill = shape.prefill_flops(n) / 1e9
    replay = rows * shape.step_flops(tokens, n * kept, logits=len(prompt.gold_ids)) / 1e9
    weights, cache = shape.parameters * element / 1e9, shape.kv_bytes(n, element) / 1e9
    return {
        "roofline: prefill GFLOP / GFLOP/s": f"{prefill:.0f} / {prefill / seconds['prefill']:.0f}",
        "roofline: replay GFLOP / GFLOP/s": f"{replay:.0f} / {replay / seconds['replay']:.0f}",
        "roofline: GB read by prefill, replay": f"{weights + cache:.2f}, {weights + rows * kept * cache:.2f}",
        "roofline: replay FLOP / prefill FLOP": replay / prefill,
    }
