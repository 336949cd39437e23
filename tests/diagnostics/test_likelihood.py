"""Likelihood metrics against plain NumPy in double precision."""

import numpy as np
import pytest
import torch

from kvdiag.diagnostics.likelihood import kl_divergence, measure, token_nll, top_overlap

STEPS, VOCAB = 4, 200


@pytest.fixture(scope="module")
def logits():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(STEPS, VOCAB, generator=generator) * 4 for _ in range(2)]


@pytest.fixture(scope="module")
def targets():
    return torch.tensor([3, 0, 199, 57])


def log_softmax(logits):
    wide = logits.double().numpy()
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def test_nll_and_rank(logits, targets):
    found, expected = measure(logits[0], targets), log_softmax(logits[0])
    gold = expected[np.arange(STEPS), targets.numpy()]
    assert found.nll == pytest.approx(-gold, abs=1e-5)
    assert token_nll(logits[0], targets) == pytest.approx(-gold, abs=1e-5)
    assert found.rank == np.mean([(row > g).sum() for row, g in zip(expected, gold, strict=True)])


def test_the_likeliest_token_has_rank_0(logits):
    assert measure(logits[0], logits[0].argmax(-1)).rank == 0


def test_top50_overlap_is_that_of_sets(logits, targets):
    control, run = (measure(x, targets) for x in logits)
    sets = [[set(np.argsort(-row)[:50]) for row in x.numpy()] for x in logits]
    expected = np.mean([len(a & b) / 50 for a, b in zip(*sets, strict=True)])
    assert top_overlap(control.top, run.top) == pytest.approx(expected)
    assert top_overlap(control.top, control.top) == 1.0


def test_kl_is_that_of_the_distributions(logits, targets):
    control, run = (measure(x, targets).log_probs for x in logits)
    p, q = (log_softmax(x) for x in logits)
    assert kl_divergence(control, run) == pytest.approx((np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-5)
    assert kl_divergence(control, control) == 0
    assert kl_divergence(control, run) != pytest.approx(kl_divergence(run, control))


def test_a_small_vocabulary_has_fewer_than_fifty(targets):
    small = torch.randn(2, 7)
    found = measure(small, torch.tensor([1, 6]))
    assert found.top.shape == (2, 7)
    assert top_overlap(found.top, found.top) == 1.0
