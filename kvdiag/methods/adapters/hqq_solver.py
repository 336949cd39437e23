"""hqq's own proximal solver, without the work that changes nothing: the same bits.

On a CPU most of the original's time goes into fetching fresh memory for each operation and into powers. Here every
operation works in place; powers are taken only where some error is large enough to survive the shrinkage; and a
group whose zero point has come to rest, as it then does for good, is not looked at again. Used for our own
quantizing only, and put back after each call: transformers' cache, the oracle of the conformance suite, keeps
hqq's function.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

_OPTIONS = {"lp_norm": 0.7, "beta": 1e1, "kappa": 1.01, "iters": 20}


@contextmanager
def in_place() -> Iterator[None]:
    """While open, hqq quantizes CPU tensors with the solver below."""
    from hqq.core.quantize import Quantizer

    original = Quantizer.__dict__["optimize_weights"]
    whole = Quantizer.optimize_weights

    def solve(tensor: torch.Tensor, *args: Any, **known: Any) -> Any:
        return (optimize_weights if tensor.device.type == "cpu" else whole)(tensor, *args, **known)

    Quantizer.optimize_weights = staticmethod(solve)
    try:
        yield
    finally:
        Quantizer.optimize_weights = original


@dataclass
class _Groups:
    """Groups of weights that share a scale and a zero point, along `axis`: all of them, or those at `places`."""

    weights: torch.Tensor
    scale: torch.Tensor
    scaled: torch.Tensor  # weights * scale
    axis: int
    places: torch.Tensor | None = None

    def __post_init__(self) -> None:
        # Taken once, and only what is used: fetching memory costs more than an operation.
        n_spare = 2 if self.places is None else 4
        self._codes, self._error, *self._parts = (torch.empty_like(self.weights) for _ in range(n_spare))

    @property
    def n(self) -> int:
        """How many."""
        return self.weights.shape[1 - self.axis]

    def at(self, places: torch.Tensor) -> "_Groups":
        """Some of all of them."""
        weights, scale, scaled = (
            t.index_select(1 - self.axis, places) for t in (self.weights, self.scale, self.scaled)
        )
        return _Groups(weights, scale, scaled, self.axis, places)

    def step(
        self,
        zero: torch.Tensor,
        errors: torch.Tensor,
        targets: torch.Tensor,
        min_max: Sequence[float],
        power: float,
        inverse: float,
    ) -> None:
        """Set, at these groups, the weights' absolute errors under `zero` and what the next one is the mean of.

        zero: of all groups; errors and targets: shaped as all weights.
        """
        size, target = errors, targets
        if self.places is not None:
            size, target = self._parts
            zero = zero.index_select(1 - self.axis, self.places)
        codes = torch.add(self.scaled, zero, out=self._codes).round_().clamp_(min_max[0], min_max[1])
        error = torch.sub(codes, zero, out=self._error).div_(self.scale)
        torch.abs(torch.sub(self.weights, error, out=error), out=size)
        if _vanishes(size, power, inverse):
            torch.sub(codes, self.scaled, out=target)
        else:
            torch.pow(size, power, out=target)
            torch.sub(size, target.mul_(inverse), out=target).clamp_min_(0.0).mul_(error.sign_())
            torch.sub(codes, torch.sub(self.weights, target, out=target).mul_(self.scale), out=target)
        if self.places is not None:
            errors.index_copy_(1 - self.axis, self.places, size)
            targets.index_copy_(1 - self.axis, self.places, target)


def _vanishes(size: torch.Tensor, power: float, inverse: float) -> bool:
    """Whether shrinkage by inverse * size ** power leaves nothing of any error; NaN may leave something."""
    # A little less than where the two meet, which spares a judgement about rounding.
    return power < 0 and bool(size.amax() <= 0.999 * inverse ** (1 / (1 - power)))


@torch.no_grad()
def optimize_weights(
    tensor: torch.Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    min_max: Sequence[float],
    axis: int = 0,
    device: Any = None,
    opt_params: Mapping[str, Any] = _OPTIONS,
    verbose: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scale and zero point that minimise ||W - dequantize(quantize(W))||_p^p (Badri & Shaji 2023, HQQ).

    Arguments and results as hqq.core.optimize.optimize_weights_proximal_legacy has them, on a CPU in float32.
    """
    power, inverse = opt_params["lp_norm"] - 1, 1.0 / opt_params["beta"]
    weights, scale, zero = tensor.to(torch.float32), scale.to(torch.float32), zero.to(torch.float32)
    every = groups = _Groups(weights, scale, weights * scale, axis)
    errors, targets = torch.empty_like(weights), torch.empty_like(weights)
    best = torch.tensor(torch.inf)
    for _ in range(opt_params["iters"]):
        groups.step(zero, errors, targets, min_max, power, inverse)
        # Always over all groups: the order of a sum, and with it the last bit, goes by a group's place.
        mean, before, zero = errors.mean(), zero, torch.mean(targets, dim=axis, keepdim=True)
        if not mean < best:
            break
        best = mean
        moving = (zero != before).flatten().nonzero()[:, 0]
        if not len(moving):
            break
        if 2 * len(moving) < groups.n:
            groups = every.at(moving)
    codes = torch.add(every.scaled, zero, out=targets).round_().clamp_(min_max[0], min_max[1])
    return codes, scale, zero
