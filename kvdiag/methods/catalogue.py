"""The catalogue of methods: what each is, needs and may be measured by. Light: no torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvdiag.errors import UsageError, near_matches

FAMILIES = (
    "token_eviction",
    "budget_allocation",
    "query_aware_access",
    "representation_compression",
    "chunk_compression",
)


@dataclass(frozen=True)
class Method:
    """A compression method at its published defaults.

    press: class name in kvpress, built with `defaults`. query_visibility: how much of what follows the
    compressed part its score sees when the question is inside (none, window, last_query). min_positions:
    fewest positions it can compress. window: positions at the end it always keeps; a kept set no larger is
    degenerate. setting_free_score: one score serves all settings.
    """

    id: str
    name: str
    family: str
    paper: str
    press: str
    summary: str
    query_visibility: str
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    min_positions: int = 1
    window: int = 0
    setting_free_score: bool = True
    coverage_type: str = "measured_token"


_METHODS = (
    Method(
        id="streaming_llm",
        name="StreamingLLM",
        family="token_eviction",
        paper="https://arxiv.org/abs/2309.17453",
        press="StreamingLLMPress",
        summary="Keeps 4 first (sink) and the most recent positions.",
        query_visibility="none",
        defaults={"n_sink": 4},
        min_positions=5,
        setting_free_score=False,
    ),
    Method(
        id="snapkv",
        name="SnapKV",
        family="token_eviction",
        paper="https://arxiv.org/abs/2404.14469",
        press="SnapKVPress",
        summary="Keeps what the last 64 queries attend to, pooled over 5 positions.",
        query_visibility="window",
        defaults={"window_size": 64, "kernel_size": 5},
        min_positions=65,
        window=64,
    ),
    Method(
        id="tova",
        name="TOVA",
        family="token_eviction",
        paper="https://arxiv.org/abs/2401.06104",
        press="TOVAPress",
        summary="Keeps what the last query attends to, one set for all heads.",
        query_visibility="last_query",
        min_positions=2,
        window=1,
    ),
    Method(
        id="keydiff",
        name="KeyDiff",
        family="token_eviction",
        paper="https://arxiv.org/abs/2504.15364",
        press="KeyDiffPress",
        summary="Keeps the keys least like the mean key.",
        query_visibility="none",
    ),
    Method(
        id="knorm",
        name="Knorm",
        family="token_eviction",
        paper="https://arxiv.org/abs/2406.11430",
        press="KnormPress",
        summary="Keeps the keys of smallest norm.",
        query_visibility="none",
    ),
)

METHODS: dict[str, Method] = {m.id: m for m in _METHODS}


def get(method_id: str) -> Method:
    """A method by id. Raises UsageError naming near matches."""
    if method_id not in METHODS:
        raise UsageError(f"--methods {method_id}: no such method; {near_matches(method_id, list(METHODS))}")
    return METHODS[method_id]


def select(ids: Sequence[str]) -> list[Method]:
    """Methods by id, in the order given, each once."""
    return [get(i) for i in dict.fromkeys(ids)]
