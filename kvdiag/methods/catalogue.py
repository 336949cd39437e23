"""What a catalogued method is, and looking methods up. Light: no torch here. The entries are in entries.py."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from kvdiag.errors import UsageError, near_matches
from kvdiag.methods.settings import Setting

FAMILIES = (
    "token_eviction",
    "budget_allocation",
    "query_aware_access",
    "representation_compression",
    "chunk_compression",
)

# How much of a question inside the compressed part a score sees, least first.
VISIBILITY = ("none", "window", "last_query", "all_queries", "decode_time")


@dataclass(frozen=True)
class Method:
    """A compression method at its published defaults.

    What it is: transforms (positions, head budgets, layer budgets, channels, representation, chunks, access),
    query_visibility, coverage_type (how kept positions are known).
    How it runs: adapter ("press" for a kvpress press, else the name of its own adapter), press and defaults, inner
    press and its defaults for a wrapper, backend of a quantizer, alters ("keys" or "values" where kept tensors are
    changed), iterative (scores what it gathered before), setting_free_score (one score serves all settings).
    What it needs: min_positions, extra_passes over the context, requires (a package), needs (in words).
    window: positions at the end it always keeps; a kept set no larger is degenerate.
    state: `verified` (passes kvdiag methods verify), `available` (runs, unproven), `catalogued` (does not run;
    state_reason says why).
    """

    id: str
    name: str
    family: str
    paper: str
    summary: str
    query_visibility: str
    press: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    adapter: str = "press"
    inner: str | None = None
    inner_defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    backend: str | None = None
    alters: str | None = None
    iterative: bool = False
    setting_free_score: bool = True
    setting_kind: str = "keep"
    transforms: str = "positions"
    coverage_type: str = "measured_token"
    min_positions: int = 1
    window: int = 0
    extra_passes: str = "none"
    requires: str | None = None
    needs: str = "any backend"
    state: str = "available"
    state_reason: str | None = None

    @property
    def structural(self) -> bool:
        """Whether all positions stay addressable, at a fidelity that positions cannot tell."""
        return self.coverage_type == "structural_position"

    @property
    def implementation(self) -> str:
        """What runs."""
        if self.adapter == "quantized":
            return f"transformers QuantizedCache ({self.backend})"
        if self.adapter == "own_press" or self.adapter == "quest":
            return f"kvdiag {self.press}"
        if not self.press:
            return "none"
        return f"kvpress.{self.press}" + (f"(kvpress.{self.inner})" if self.inner else "")

    def diagnostics(self) -> dict[str, str]:
        """For each kind of diagnostic: `valid`, or why it is not."""
        retention = "valid"
        if self.structural:
            retention = "all positions stay addressable; what is lost is fidelity, not positions"
        return {"retention": retention, "likelihood": "valid", "attention": "valid", "decoding": "valid"}

    def unsupported(self, setting: Setting) -> str | None:
        """Reason code why a setting cannot run at all, None when it can."""
        if self.press == "ThinKPress" and setting.value < 0.5:
            return "channels_exhausted"  # only keys lose channels, and they have no more than all to lose
        if self.backend == "quanto" and setting.value not in (2, 4):
            return "bits_not_offered"
        return None

    def degenerate(self, setting: Setting) -> str | None:
        """Reason code why a setting is no finding whatever the source, None when it may be one."""
        if self.press == "ThinKPress" and setting.value == 0.5:
            return "all_key_channels_zero"
        return None


@cache
def verifications() -> dict[str, dict[str, str]]:
    """Methods that passed the conformance suite: digest of the report, and the versions it was made with.

    Written by `kvdiag methods verify --write`.
    """
    return json.loads((Path(__file__).parent / "verified.json").read_text(encoding="utf-8"))


@cache
def methods() -> dict[str, Method]:
    """The whole catalogue by id. A method is `verified` only where the suite's report says so."""
    from kvdiag.methods.entries import METHODS

    proven = verifications()
    return {i: replace(m, state="verified") if i in proven else m for i, m in METHODS.items()}


def get(method_id: str) -> Method:
    """A method by id. Raises UsageError naming near matches."""
    known = methods()
    if method_id not in known:
        raise UsageError(f"--methods {method_id}: no such method; {near_matches(method_id, list(known))}")
    return known[method_id]


def runnable() -> list[Method]:
    """Methods that `kvdiag build` can run."""
    return [m for m in methods().values() if m.state != "catalogued"]


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
        "implementation": method.implementation,
        "defaults": json.dumps({**method.defaults, **method.inner_defaults}, sort_keys=True),
        "transforms": method.transforms,
        "query_visibility": method.query_visibility,
        "coverage_type": method.coverage_type,
        "diagnostics": json.dumps(method.diagnostics()),
        "needs": method.needs,
        "extra_passes": method.extra_passes,
        "state": method.state,
        "state_reason": method.state_reason,
        "verification": verifications().get(method.id, {}).get("digest"),
    }
