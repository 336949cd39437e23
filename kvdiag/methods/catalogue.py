"""The catalogue of methods: what each is, needs and may be measured by. Light: no torch here."""

import json
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

    press: class name in kvpress, built with `defaults`. transforms: what it changes. query_visibility: how much
    of a question inside the compressed part its score sees (none, window, last_query). min_positions:
    fewest positions it can compress. window: positions at the end it always keeps; a kept set no larger is
    degenerate. setting_free_score: one score serves all settings. coverage_type: how kept positions are known. A
    `catalogued` method does not run yet; `state_reason` says why.
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
    transforms: str = "positions"
    state: str = "available"
    state_reason: str | None = None

    @property
    def structural(self) -> bool:
        """Whether all positions stay addressable, at a fidelity that positions cannot tell."""
        return self.coverage_type == "structural_position"


_IMPORTED_ONLY = "known from imported results; its adapter is not here yet"

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
    Method(
        id="think",
        name="ThinK",
        family="query_aware_access",
        paper="https://arxiv.org/abs/2407.21018",
        press="ThinKPress",
        summary="Keeps the key channels that the last 32 queries use; all positions stay.",
        query_visibility="window",
        defaults={"window_size": 32},
        coverage_type="structural_position",
        transforms="channels",
        state="catalogued",
        state_reason=_IMPORTED_ONLY,
    ),
    Method(
        id="chunkkv_knorm",
        name="ChunkKV over Knorm",
        family="chunk_compression",
        paper="https://arxiv.org/abs/2502.00299",
        press="ChunkKVPress",
        summary="Keeps whole chunks of 20 positions by their Knorm scores.",
        query_visibility="none",
        defaults={"chunk_length": 20},
        coverage_type="projected_chunk",
        transforms="chunks",
        state="catalogued",
        state_reason=_IMPORTED_ONLY,
    ),
    Method(
        id="adakv_snapkv",
        name="AdaKV over SnapKV",
        family="budget_allocation",
        paper="https://arxiv.org/abs/2407.11550",
        press="AdaKVPress",
        summary="SnapKV scores, budgets shared among the heads of a layer (safeguard 0.2).",
        query_visibility="window",
        defaults={"alpha_safeguard": 0.2},
        transforms="head budgets",
        state="catalogued",
        state_reason=_IMPORTED_ONLY,
    ),
    Method(
        id="quantized_hqq",
        name="QuantizedCache (hqq)",
        family="representation_compression",
        paper="https://arxiv.org/abs/2402.02750",
        press="QuantizedCache",
        summary="Keeps all positions in 8, 4 or 2 bits (group 64, residual 128).",
        query_visibility="none",
        defaults={"q_group_size": 64, "residual_length": 128},
        coverage_type="structural_position",
        transforms="representation",
        state="catalogued",
        state_reason=_IMPORTED_ONLY,
    ),
)

METHODS: dict[str, Method] = {m.id: m for m in _METHODS}


def get(method_id: str) -> Method:
    """A method by id. Raises UsageError naming near matches."""
    if method_id not in METHODS:
        raise UsageError(f"--methods {method_id}: no such method; {near_matches(method_id, list(METHODS))}")
    return METHODS[method_id]


def runnable() -> list[Method]:
    """Methods that `kvdiag build` can run."""
    return [m for m in METHODS.values() if m.state != "catalogued"]


def select(ids: Sequence[str]) -> list[Method]:
    """Methods to run by id, in the order given, each once. Raises UsageError for one that does not run."""
    chosen = [get(i) for i in dict.fromkeys(ids)]
    for method in chosen:
        if method.state == "catalogued":
            raise UsageError(f"--methods {method.id}: does not run yet ({method.state_reason})")
    return chosen


def method_row(method: Method) -> dict[str, Any]:
    """A row of the `methods` table."""
    return {
        "method": method.id,
        "name": method.name,
        "family": method.family,
        "paper": method.paper,
        "implementation": f"kvpress.{method.press}",
        "defaults": json.dumps(dict(method.defaults), sort_keys=True),
        "transforms": method.transforms,
        "query_visibility": method.query_visibility,
        "coverage_type": method.coverage_type,
        "state": method.state,
        "state_reason": method.state_reason,
    }
