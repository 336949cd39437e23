"""Our solver against hqq's own: the same bits, and hqq left as it was."""

import pytest
import torch

pytest.importorskip("hqq")
from hqq.core.optimize import optimize_weights_proximal_legacy
from hqq.core.quantize import Quantizer

from kvdiag.methods.adapters.hqq_solver import in_place, optimize_weights


def problem(kind, bits, axis):
    generator = torch.Generator().manual_seed(bits)
    weights = torch.randn(64 * 301, generator=generator)
    if kind == "small errors":  # no power is taken, and most groups come to rest
        weights *= 0.05
    if kind == "some small errors":
        weights = torch.where(torch.rand(len(weights), generator=generator) < 0.01, weights, weights * 0.05)
    if kind == "not a number":
        weights[100] = torch.nan
    if kind == "constant groups":
        weights[: 64 * 40] = 0.25
    if kind == "outliers":
        weights[::97] *= 1e3
    weights = weights.reshape(64, -1) if axis == 0 else weights.reshape(-1, 64)
    low, high = weights.amin(axis, keepdim=True), weights.amax(axis, keepdim=True)
    most = 2**bits - 1
    scale = torch.where((high - low).abs() <= 1e-4, torch.ones(()), most / (high - low)).clamp(max=2e4)
    return weights, scale, -low * scale, [0, most]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", [8, 4, 2, 1])
@pytest.mark.parametrize(
    "kind", ["normal", "constant groups", "outliers", "small errors", "some small errors", "not a number"]
)
def test_the_same_bits(kind, bits, axis):
    asked = problem(kind, bits, axis)
    kept = [t.clone() for t in asked[:3]]
    expected = optimize_weights_proximal_legacy(*asked, axis=axis)
    found = optimize_weights(*asked, axis=axis)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    assert all(same(a, b) for a, b in zip(kept, asked[:3], strict=True))  # what was given is not written to


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["normal", "small errors"])
def test_the_same_bits_of_half_precision(kind, dtype):
    weights, *rest = problem(kind, 4, 0)
    expected = optimize_weights_proximal_legacy(weights.to(dtype), *rest)
    found = optimize_weights(weights.to(dtype), *rest)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def same(one, other):
    """Equal, dtype included, NaN in the same places."""
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(-7.0), other.nan_to_num(-7.0))


def test_a_whole_quantization_is_the_same_and_hqq_is_left_alone():
    tensor = torch.randn(1, 2, 128, 64, generator=torch.Generator().manual_seed(1))
    options = {"nbits": 2, "group_size": 64, "axis": 1, "device": "cpu", "compute_dtype": torch.float32}
    before = Quantizer.__dict__["optimize_weights"]
    codes, meta = Quantizer.quantize(tensor, **options)
    with in_place():
        assert Quantizer.__dict__["optimize_weights"] is not before
        own, own_meta = Quantizer.quantize(tensor, **options)
    assert Quantizer.__dict__["optimize_weights"] is before
    assert torch.equal(codes, own)
    assert torch.equal(meta["scale"], own_meta["scale"]) and torch.equal(meta["zero"], own_meta["zero"])
    with pytest.raises(RuntimeError), in_place():
        raise RuntimeError
    assert Quantizer.__dict__["optimize_weights"] is before
