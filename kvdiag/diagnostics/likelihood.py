"""Likelihood of an answer under a compressed cache, against the control's.

Shapes: t answer tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch

TOP_K = 50


@dataclass(frozen=True)
class Likelihood:
    """What one row's logits say of the gold answer.

    nll: nats of each gold token; rank: mean number of tokens likelier than the gold one; top: ids of the
    likeliest tokens, int64 [t, min(50, V)]; log_probs: float32 [t, V].
    """

    nll: list[float]
    rank: float
    top: torch.Tensor
    log_probs: torch.Tensor


def measure(logits: torch.Tensor, targets: torch.Tensor) -> Likelihood:
    """logits: float32 [t, V] that predict targets, int64 [t]."""
    log_probs = logits.log_softmax(-1)
    gold = log_probs.gather(-1, targets[:, None])
    return Likelihood(
        nll=(-gold[:, 0]).tolist(),
        rank=(log_probs > gold).sum(-1).double().mean().item(),
        top=log_probs.topk(min(TOP_K, logits.shape[-1]), dim=-1).indices,
        log_probs=log_probs,
    )


def token_nll(logits: torch.Tensor, targets: torch.Tensor) -> list[float]:
    """Negative log-likelihood of each target, nats."""
    return (-logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]).tolist()


def top_overlap(control: torch.Tensor, run: torch.Tensor) -> float:
    """Mean over steps of |control and run| / k, both [t, k] of token ids."""
    shared = (control[:, :, None] == run[:, None, :]).any(-1)
    return shared.double().mean().item()


def kl_divergence(control: torch.Tensor, run: torch.Tensor) -> float:
    """Mean over steps of KL(control || run), nats; both log-probabilities [t, V]."""
    return (control.exp() * (control - run)).sum(-1).double().mean().item()
