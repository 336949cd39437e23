"""Retention of evidence: from kept masks to ERR and ECov."""

from collections.abc import Sequence

import numpy as np


def evidence_positions(spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Sorted distinct token positions of all spans (end exclusive), int64 [n]."""
    if not spans:
        return np.zeros(0, dtype=np.int64)
    return np.unique(np.concatenate([np.arange(a, b, dtype=np.int64) for a, b in spans]))


def slot_err(kept: np.ndarray, spans: Sequence[tuple[int, int]]) -> np.ndarray:
    """Share of evidence positions kept by each slot.

    kept: bool [layers, kv_heads, positions]. Returns float64 [layers, kv_heads]. KVDiagnosis' `ERR_slot`
    is its mean; positions are never pooled over slots.
    """
    return kept[:, :, evidence_positions(spans)].mean(axis=-1)


def slot_ecov(kept: np.ndarray, spans: Sequence[tuple[int, int]], threshold: float = 0.5) -> np.ndarray:
    """Share of spans of which a slot keeps at least `threshold`, float64 [layers, kv_heads]."""
    covered = [kept[:, :, a:b].mean(axis=-1) >= threshold for a, b in spans]
    return np.mean(covered, axis=0)
