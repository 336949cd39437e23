"""Sources that ran out of memory: once more after all others, as another process may have held it for a while."""

from collections.abc import Iterable
from typing import Any

Records = dict[str, Any]


def ran(records: Records) -> bool:
    """Whether the model ran a source: rows that say `over_length` do not show that a machine is well."""
    return bool(records["control"]["status"] == "available")


def out_of_memory(records: Records) -> set[str]:
    """Cells that memory did not do for."""
    return {run["cell_id"] for run in records["runs"] if run["reason"] == "oom"}


def is_short(records: Records) -> bool:
    """Whether memory ran out for the control or a cell."""
    return records["control"]["reason"] == "oom" or bool(out_of_memory(records))


def short(committed: Iterable[Records]) -> list[str]:
    """Ids of the sources to run once more: their control ran out of memory, or a cell that fits elsewhere did.

    A cell that ran on no source is too much for this machine: to try it again would only run all sources twice.
    """
    fits: set[str] = set()
    lost: list[tuple[str, bool, set[str]]] = []
    for records in committed:
        fits |= {run["cell_id"] for run in records["runs"] if run["status"] == "available"}
        if is_short(records):
            lost.append((records["source"]["source_id"], ran(records), out_of_memory(records)))
    return [source_id for source_id, has_control, cells in lost if not has_control or cells & fits]


def is_better(second: Records, first: Records) -> bool:
    """Whether the second try has more answers. Valid rows are never given up for fewer."""
    return _answers(second) > _answers(first)


def _answers(records: Records) -> int:
    return sum(row["status"] == "available" for row in (records["control"], *records["runs"]))


def short_of_memory(committed: Iterable[Records]) -> dict[str, dict[str, Any]]:
    """What a manifest's `build` part says of it, by source: runs that failed, stages in which fewer went on."""
    facts: dict[str, dict[str, Any]] = {"out_of_memory": {}, "halved": {}}
    for records in committed:
        source_id = records["source"]["source_id"]
        if cells := out_of_memory(records):
            facts["out_of_memory"][source_id] = len(cells)
        if "halved" in records:
            facts["halved"][source_id] = records["halved"]
    return facts
