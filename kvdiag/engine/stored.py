"""A ledger's own sources and controls, to run a method against: read, compared, and paired with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag import recipes
from kvdiag.engine.rows import differences
from kvdiag.ledger.derive import transition
from kvdiag.ledger.intact import refuse_altered
from kvdiag.ledger.layout import read_manifest
from kvdiag.query.connection import connect, rows
from kvdiag.records.missing import Value

# Nats a token by which the mean NLL of a control's gold answer may differ from the stored one: processors and
# numbers of threads add up in another order. A wrong prompt, model or template moves it by far more.
NLL_BOUNDS = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 5e-2}

_PAIRED = ("nll", "nll_first", "nll_control_answer", "gold_rank", "eam")
# As many of each task as there are, one task after the other, so that any limit covers all tasks.
_CHOSEN = """
SELECT s.* FROM sources s JOIN controls c USING (source_id) WHERE c.model = ?
ORDER BY row_number() OVER (PARTITION BY s.workload, s.task ORDER BY s."index", s.source_id), s.workload, s.task
LIMIT ?
"""


@dataclass(frozen=True)
class Stored:
    """What a ledger holds of the chosen sources. controls: by source id."""

    ledger: Path
    manifest: dict[str, Any]
    sources: Sequence[dict[str, Any]]
    controls: Mapping[str, dict[str, Any]]

    @property
    def model(self) -> str:
        """The model of the ledger's build, as in its keys."""
        return str(self.manifest["environment"].get("model"))


def read(ledger: Path, limit: int | None = None) -> Stored:
    """Sources and controls of the ledger's model, tasks in turn; limit: sources in all, None for all."""
    manifest = read_manifest(ledger)
    refuse_altered(ledger, manifest, "--data ")
    model = manifest["environment"].get("model")
    connection = connect(ledger)
    try:
        sources = rows(connection, _CHOSEN, [model, 2**62 if limit is None else limit])
        controls = rows(connection, "SELECT * FROM controls WHERE model = ?", [model])
    finally:
        connection.close()
    wanted = {s["source_id"] for s in sources}
    return Stored(ledger, manifest, sources, {c["source_id"]: c for c in controls if c["source_id"] in wanted})


def nll_bound(dtype: str) -> float:
    """How far two NLL of the same control may lie apart, in nats a token."""
    return NLL_BOUNDS.get(dtype, min(NLL_BOUNDS.values()))


def disagreement(stored: Mapping[str, Any], own: Mapping[str, Any], dtype: str) -> str | None:
    """How a control computed here differs from the stored one, None when they agree.

    They agree when the answers are equal token for token and the gold answer's NLL lies within the bound.
    """
    if stored["output_tokens"] is not None:
        if stored["output_tokens"] != own["output_tokens"]:
            return f"the full cache answers {_cut(own['output'])}, the ledger has {_cut(stored['output'])}"
    elif stored["output"] != own["output"]:
        return f"the full cache answers {_cut(own['output'])}, the ledger has {_cut(stored['output'])}"
    bound = nll_bound(dtype)
    if stored["nll"] is not None and own["nll"] is not None and abs(stored["nll"] - own["nll"]) > bound:
        return f"nll of the full cache is {own['nll']:.4f}, the ledger has {stored['nll']:.4f} (bound {bound:g})"
    return None


def _cut(text: str | None) -> str:
    return repr(text if text is None or len(text) <= 40 else text[:40] + "…")


def paired(run: Mapping[str, Any], control: Mapping[str, Any]) -> dict[str, Any]:
    """A run with all that compares it to its control computed anew, against this control."""
    sides = [{name: _value(row, name) for name in _PAIRED} for row in (control, run)]
    again = dict(run) | {"transition": transition(control["correct"], run["correct"])}
    for name, value in differences(*sides).items():
        again |= value.columns(name)
    return again


def _value(row: Mapping[str, Any], name: str) -> Value:
    return Value(row[name], row[f"{name}__status"], row[f"{name}__reason"])


def environment_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What two environments differ in and numbers may depend on, as `field: then -> now`."""
    apart = ("cannot_run", "files", "kvdiag")
    return recipes.differences(*({k: v for k, v in e.items() if k not in apart} for e in (then, now)))
