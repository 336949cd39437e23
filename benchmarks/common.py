"""What benchmarks share: timing, memory, printing."""

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


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
