"""How much a replay may hold at once: chosen from the memory that is free, and halved when it was too much."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

# A replay forward holds at most this many tokens, so that its activations stay small beside the cache.
TOKENS_PER_FORWARD = 2048
# Share of the free memory that a forward's activations may take; the rest is for masks, gathers and logits.
SHARE = 0.25

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
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if tokens_each is None:
            self.rows = n // 2
        else:
            self.tokens = max(1, n // 2) * tokens_each
        self.halved.append(stage)
        return None


def budget_for(config: Any, dtype: torch.dtype, device: torch.device) -> Budget:
    """The budget for a model on a device: TOKENS_PER_FORWARD, or fewer where little memory is free."""
    each = activation_bytes(config, dtype)
    return Budget(tokens=max(1, min(TOKENS_PER_FORWARD, int(free_bytes(device) * SHARE) // each)))


def activation_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes that a token takes while it passes a layer without gradients: the widest moment, in the MLP.

    Hidden state, residual and norm, gate, up and their product; queries, keys, values and output of attention.
    """
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    numbers = 3 * config.hidden_size + 3 * config.intermediate_size + (2 * heads + 2 * kv) * dim
    # Attention parts are merged in float32.
    return numbers * dtype.itemsize + 2 * heads * dim * 4


def free_bytes(device: torch.device) -> int:
    """Memory that may still be taken: of the GPU, what its cache holds unused included; of the machine else."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    import psutil

    return int(psutil.virtual_memory().available)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out; a CPU has no error class of its own for it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
