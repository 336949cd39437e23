"""Likelihood of the gold answer under a compressed cache, against the control's."""

import torch

TOP_K = 50


def token_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood of each target, nats. logits: float32 [t, vocab]; targets: int64 [t]."""
    return -logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def top_sets(logits: torch.Tensor, k: int = TOP_K) -> torch.Tensor:
    """Ids of the k likeliest tokens at each step, int64 [t, min(k, vocab)]."""
    return logits.topk(min(k, logits.shape[-1]), dim=-1).indices


def top_overlap(control: torch.Tensor, run: torch.Tensor) -> float:
    """Mean over steps of |control and run| / k, both [t, k] of token ids."""
    shared = (control[:, :, None] == run[:, None, :]).any(-1)
    return shared.double().mean().item()
