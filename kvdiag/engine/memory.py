"""How much a replay may hold at once: chosen from the memory that is free, and halved when it was too much."""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from kvdiag.engine.shape import shape_of

# A replay forward holds at most this many tokens, so that its activations stay small beside the cache.
TOKENS_PER_FORWARD = 2048
# Share of the free memory that a forward's activations may take; the rest is for masks, gathers and logits.
SHARE = 0.25
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")

Result = TypeVar("Result")


@dataclass
class Budget:
    """Tokens of a forward, and rows of a decoding step (None: all). halved: how often either was too much."""

    tokens: int = TOKENS_PER_FORWARD
    rows: int | None = None
    halved: list[str] = field(default_factory=list)

    def rows_of(self, tokens_each: int) -> int:
        """Rows of so many tokens that a forward may hold; one at least."""
        return max(1, self.tokens // max(1, tokens_each))

    def attempt(self, stage: str, n: int, tokens_each: int | None, run: Callable[[], Result]) -> Result | None:
        """What `run` gives for n rows; None when memory ran out and the budget was halved, so that fewer may try.

        tokens_each: of a forward; None for a decoding step. Raises the error when a row alone is too much.
        """
        try:
            return run()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or n <= 1:
                raise
        # Outside the handler, whose traceback would keep the failed forward's tensors alive.
        let_go()
        if tokens_each is None:
            self.rows = n // 2
        else:
            self.tokens = max(1, n // 2) * tokens_each
        self.halved.append(stage)
        return None


def budget_for(config: Any, dtype: torch.dtype, device: torch.device) -> Budget:
    """The budget for a model on a device as it is now: TOKENS_PER_FORWARD, or fewer where little memory is free.

    Fewer are told as `halved: forward`, since last bits may go by the shape of a batch.
    """
    each = shape_of(config).activation_bytes(dtype.itemsize)
    tokens = max(1, min(TOKENS_PER_FORWARD, int(free_bytes(device) * SHARE) // each))
    return Budget(tokens=tokens, halved=["forward"] if tokens < TOKENS_PER_FORWARD else [])


def free_bytes(device: torch.device) -> int:
    """Memory that may still be taken: of the GPU, what its cache holds unused included; of the machine else."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    import psutil

    return min(int(psutil.virtual_memory().available), _free_of_groups(_GROUPS, _OWN_GROUPS))


def _free_of_groups(mount: Path, own: Path) -> int:
    """What a container or a batch system still allows; without end where there is no limit to read.

    The least over this process' control group and those above it. mount: where groups are; own: which are ours.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return sys.maxsize
    found = [sys.maxsize]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = mount / "memory" if controllers else mount  # version 1, version 2
        group = top / path.lstrip("/")
        found += [_free_of_group(folder) for folder in (group, *group.parents) if folder.is_relative_to(top)]
    return min(found)


def _free_of_group(folder: Path) -> int:
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most, now = int((folder / limit).read_text()), int((folder / used).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # not this version, or no limit ("max")
            continue
        return max(0, most - now + int(stat.get(cached, 0)))  # the page cache gives way
    return sys.maxsize


# How errors without a class of their own say it: the CPU's allocator, CUDA's runtime, cuBLAS and cuDNN.
_SAID = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error) for said in _SAID)


def let_go() -> None:
    """Give back what a failed run left behind."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
