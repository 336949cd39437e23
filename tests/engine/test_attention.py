"""Two parts of one softmax, computed apart and merged, equal one softmax over both."""

import pytest
import torch

from kvdiag.engine.attention import attention_lse, merge, plain_attention_lse

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def random(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("biased", [False, True])
def test_fused_equals_plain(dtype, biased):
    query, key, value = (random(2, 3, n, 32, seed=i, dtype=dtype) for i, n in enumerate((7, 90, 90)))
    bias = None
    if biased:
        bias = torch.zeros(2, 1, 7, 90, dtype=dtype)
        bias[:, :, :, 10:40] = float("-inf")
    out, lse = attention_lse(query, key, value, 0.2, bias)
    want, want_lse = plain_attention_lse(query, key, value, 0.2, bias)
    torch.testing.assert_close(out.float(), want.float(), atol=TOLERANCE[dtype], rtol=0)
    torch.testing.assert_close(lse.float(), want_lse, atol=TOLERANCE[dtype], rtol=0)


def test_merge_equals_one_softmax():
    query = random(1, 2, 5, 16, seed=0) * 3
    key, value = random(1, 2, 40, 16, seed=1), random(1, 2, 40, 16, seed=2)
    parts = [attention_lse(query, key[:, :, s], value[:, :, s], 0.25) for s in (slice(0, 9), slice(9, 40))]
    out, lse = merge(*parts)
    want, want_lse = attention_lse(query, key, value, 0.25)
    torch.testing.assert_close(out, want, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(lse, want_lse, atol=1e-6, rtol=1e-5)
