"""Which cells of a ledger are compared, from what a user named."""

from dataclasses import dataclass
from typing import Any

from kvdiag.errors import UsageError, near_matches
from kvdiag.methods.catalogue import methods as catalogue
from kvdiag.methods.settings import parse_setting
from kvdiag.query.connection import rows
from kvdiag.records.keys import PROTOCOLS, cell_id


@dataclass(frozen=True)
class Cell:
    """Runs of one method, setting and protocol under one model. tier: what pairs settings of different methods."""

    method: str
    setting: str
    protocol: str
    model: str
    tier: str

    @property
    def cell_id(self) -> str:
        """Key of the cell."""
        return cell_id(self.method, self.setting, self.protocol)


@dataclass(frozen=True)
class Choice:
    """What to compare.

    Settings and workload: None for all. setting_b: None for the one that pairs with the first method's.
    """

    method_a: str
    method_b: str
    setting_a: str | None = None
    setting_b: str | None = None
    protocols: tuple[str, ...] = PROTOCOLS
    workload: str | None = None


def pairs(connection: Any, choice: Choice) -> list[tuple[Cell, Cell]]:
    """Pairs of cells with the same protocol and model. Raises UsageError where a name matches nothing."""
    if choice.setting_b is not None and choice.setting_a is None:
        raise UsageError("--setting-b needs --setting, the setting of the first method")
    _check_workload(connection, choice.workload)
    cells = _cells(connection, choice.workload)
    for method in (choice.method_a, choice.method_b):
        _check_method(method, cells, choice.workload)
    cells = _of_protocols(cells, choice)
    own = [c for c in cells if c.method == choice.method_a]
    side_a = _with_setting(cells, choice.method_a, "--setting", choice.setting_a)
    side_b = _with_setting(cells, choice.method_b, "--setting-b", choice.setting_b)
    exact = choice.setting_b is not None
    found = [(a, b) for a in side_a for b in _partners(a, side_b, exact)]
    if not found:
        raise UsageError(_no_pair(choice, side_a, side_b))
    if any(a == b for a, b in found):
        raise UsageError(
            f"{choice.method_a} with itself: name two settings with --setting and --setting-b; "
            f"this ledger has {_settings(own)}"
        )
    return found


def _cells(connection: Any, workload: str | None) -> list[Cell]:
    where, parameters = ("", []) if workload is None else ("WHERE workload = ?", [workload])
    sql = (
        "SELECT method, setting, protocol, model, tier(any_value(origin_label), setting) AS tier "
        f"FROM runs {where} GROUP BY method, setting, protocol, model "
        "ORDER BY model, protocol, max(keep) DESC, setting, method"
    )
    return [Cell(**row) for row in rows(connection, sql, parameters)]


def _check_workload(connection: Any, workload: str | None) -> None:
    known = [r["workload"] for r in rows(connection, "SELECT DISTINCT workload FROM runs ORDER BY ALL")]
    if workload is not None and workload not in known:
        raise UsageError(f"--workload {workload}: not in this ledger; {near_matches(workload, known)}")


def _check_method(method: str, cells: list[Cell], workload: str | None) -> None:
    here = sorted({c.method for c in cells})
    if method in here:
        return
    if method not in catalogue():
        known = list(dict.fromkeys([*here, *catalogue()]))
        raise UsageError(f"{method}: no such method; {near_matches(method, known)}")
    where = "this ledger" if workload is None else f"{workload} in this ledger"
    raise UsageError(f"{method}: no runs of it for {where}, which has {', '.join(here)}")


def _of_protocols(cells: list[Cell], choice: Choice) -> list[Cell]:
    found = [c for c in cells if c.protocol in choice.protocols]
    for method in (choice.method_a, choice.method_b):
        if all(c.method != method for c in found):
            has = sorted({c.protocol.removeprefix("query_") for c in cells if c.method == method})
            asked = " or ".join(p.removeprefix("query_") for p in choice.protocols)
            raise UsageError(f"--protocol {asked}: no runs of {method}; this ledger has {', '.join(has)}")
    return found


def _with_setting(cells: list[Cell], method: str, flag: str, setting: str | None) -> list[Cell]:
    own = [c for c in cells if c.method == method]
    if setting is None:
        return own
    chosen = [c for c in own if c.setting == _spelt(setting)]
    if not chosen:
        raise UsageError(f"{flag} {setting}: no runs of {method} with it; this ledger has {_settings(own)}")
    return chosen


def _spelt(setting: str) -> str:
    """keep=0.50 as ledgers spell it. What does not parse stays, and matches nothing."""
    try:
        return str(parse_setting(setting))
    except UsageError:
        return setting


def _settings(cells: list[Cell]) -> str:
    return ", ".join(dict.fromkeys(c.setting for c in cells))


def _partners(cell: Cell, others: list[Cell], exact: bool) -> list[Cell]:
    """Cells to compare one with: all that are left when the user named the setting, else the same setting or tier.

    The same setting goes first: a tier's label (75%) may stand for settings of different kinds.
    """
    alike = [o for o in others if (o.protocol, o.model) == (cell.protocol, cell.model)]
    if exact:
        return alike
    return [o for o in alike if o.setting == cell.setting] or [o for o in alike if o.tier == cell.tier]


def _no_pair(choice: Choice, side_a: list[Cell], side_b: list[Cell]) -> str:
    if not {(a.protocol, a.model) for a in side_a} & {(b.protocol, b.model) for b in side_b}:
        return f"{choice.method_a} and {choice.method_b} share no protocol and model in this ledger"
    return (
        f"{choice.method_a} has {_settings(side_a)}, {choice.method_b} has {_settings(side_b)}: "
        "none alike; name two with --setting and --setting-b"
    )
