"""One run and everything its ledger says of it, and the words all parts of the page share."""

import unicodedata
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvdiag.diagnostics.signatures import Thresholds
from kvdiag.errors import DataError, UsageError
from kvdiag.ledger.layout import MANIFEST, read_manifest
from kvdiag.query.connection import connect, rows

# Failures come before the rest, and real ones before those of degenerate cells.
_FAILED = "coalesce(transition = 'C->W', false) DESC, degenerate IS NULL DESC"
WORDS = {
    "first": f"SELECT run_id FROM runs ORDER BY {_FAILED}, run_id LIMIT 1",
    "worst": f"SELECT run_id FROM runs ORDER BY {_FAILED}, delta_nll DESC NULLS LAST, run_id LIMIT 1",
}
_LISTED = 3
MARK = "▸"
NOT_HERE = "not in the ledger"


@dataclass(frozen=True)
class Shown:
    """Rows of one run. failure: its row of c2w. What is None has no row."""

    run: dict[str, Any]
    control: dict[str, Any] | None
    source: dict[str, Any] | None
    retention: dict[str, Any] | None
    failure: dict[str, Any] | None
    thresholds: Thresholds


def gather(ledger: Path, which: str) -> Shown:
    """Everything about a run. which: its run_id, a part that only it has, `first` or `worst`.

    Raises UsageError when no run or several match.
    """
    connection = connect(ledger)
    run_id = _find(connection, which)

    def one(table: str, key: str, value: str) -> dict[str, Any] | None:
        found = rows(connection, f"SELECT * FROM {table} WHERE {key} = ? LIMIT 1", [value])
        return found[0] if found else None

    run = one("runs", "run_id", run_id)
    assert run is not None
    return Shown(
        run=run,
        control=one("controls", "control_id", run["control_id"]),
        source=one("sources", "source_id", run["source_id"]),
        retention=one("retention", "run_id", run_id),
        failure=one("c2w", "run_id", run_id),
        thresholds=_thresholds(ledger),
    )


def _find(connection: Any, which: str) -> str:
    if which in WORDS:
        found = rows(connection, WORDS[which])
        if not found:
            raise UsageError(f"{which}: the ledger has no runs")
        return found[0]["run_id"]
    if rows(connection, "SELECT 1 FROM runs WHERE run_id = ? LIMIT 1", [which]):
        return which
    sql = "SELECT run_id, count(*) OVER () AS n FROM runs WHERE contains(run_id, ?) ORDER BY run_id LIMIT ?"
    found = rows(connection, sql, [which, _LISTED])
    if not found:
        raise UsageError(f'no run {which!r}; kvdiag query "SELECT run_id FROM runs" lists them')
    if found[0]["n"] > 1:
        listed = ", ".join(row["run_id"] for row in found) + (", …" if found[0]["n"] > _LISTED else "")
        raise UsageError(f"{which!r} is part of {found[0]['n']} run ids ({listed}); give more of one")
    return found[0]["run_id"]


def _thresholds(ledger: Path) -> Thresholds:
    """Those the ledger's signatures were told by."""
    given = read_manifest(ledger).get("thresholds")
    if not isinstance(given, dict) or given.keys() != {f.name for f in fields(Thresholds)}:
        raise DataError(f"{ledger / MANIFEST}: its thresholds are not those of the signature rules")
    return Thresholds(**given)


def visible(text: str) -> str:
    """Text on one line, with control characters and changes of direction written out: it may come from a model."""

    def one(char: str) -> str:
        odd = unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or "\u202a" <= char <= "\u202e"
        if odd or "\u2066" <= char <= "\u2069":
            return char.encode("unicode_escape").decode("ascii")
        return char

    return "".join(map(one, text))


def gap(row: dict[str, Any], name: str = "") -> str:
    """Why a row, or a metric of it, has no value."""
    status, reason = (f"{name}__status", f"{name}__reason") if name else ("status", "reason")
    return f"{row[status]} ({row[reason]})"


def measure(row: dict[str, Any], name: str) -> str:
    """A metric's value in four digits, or why it has none."""
    return gap(row, name) if row[name] is None else f"{row[name]:.4g}"
