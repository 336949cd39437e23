"""Attention with its log-sum-exp, so that two parts of one softmax can be computed apart and merged.

Shapes: B batch, H heads, T queries, N keys, D head dimension.
"""

from functools import cache

import torch


def attention_lse(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention output [B, H, T, D] and log-sum-exp of its scaled logits, float32 [B, H, T].

    query [B, H, T, D]; key and value [B, H, N, D]; bias broadcasts to [B, H, T, N] and is added to the scaled
    logits (-inf hides a key; a query may not have all its keys hidden). Uses the fused kernel where it was
    found to agree with the plain formula on this device, dtype and torch version.
    """
    if _fused_agrees(query.device.type, query.dtype, bias is not None):
        return _fused(query, key, value, scale, bias)
    return plain_attention_lse(query, key, value, scale, bias)


def plain_attention_lse(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula itself, in float32."""
    logits = torch.matmul(query.float(), key.float().transpose(-1, -2)) * scale
    if bias is not None:
        logits = logits + bias
    lse = torch.logsumexp(logits, dim=-1)
    weights = torch.exp(logits - lse[..., None])
    return torch.matmul(weights, value.float()).to(query.dtype), lse


def merge(
    first: tuple[torch.Tensor, torch.Tensor], second: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One softmax over the keys of both: each part is weighed by its share of the whole sum."""
    (out_a, lse_a), (out_b, lse_b) = first, second
    lse = torch.logaddexp(lse_a, lse_b)
    share_a = torch.exp(lse_a - lse)[..., None]
    share_b = torch.exp(lse_b - lse)[..., None]
    return (out_a.float() * share_a + out_b.float() * share_b).to(out_a.dtype), lse


def _fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    if query.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=bias, scale=scale
        )
        return out, lse
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, compute_log_sumexp=True, scale=scale
    )
    return out, lse[..., : query.shape[2]]  # the kernel pads the log-sum-exp


@cache
def _fused_agrees(device: str, dtype: torch.dtype, biased: bool) -> bool:
    """Try the fused kernel once on a small case. Kernels differ between torch versions and devices."""
    if device != "cpu" and biased:
        return False  # asks for aligned, expanded biases; the plain formula is used for single steps only
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, n, 16, generator=generator).to(device=device, dtype=dtype) for n in (5, 70, 70)
    )
    bias = None
    if biased:
        bias = torch.zeros(2, 1, 5, 70, dtype=dtype, device=device)
        bias[..., ::3] = float("-inf")
    try:
        out, lse = _fused(query, key, value, 0.3, bias)
    except (RuntimeError, AttributeError, NotImplementedError, TypeError):
        return False
    want_out, want_lse = plain_attention_lse(query, key, value, 0.3, bias)
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    return bool(
        lse.shape == want_lse.shape
        and torch.allclose(out.float(), want_out.float(), atol=tolerance)
        and torch.allclose(lse.float(), want_lse, atol=tolerance)
    )
