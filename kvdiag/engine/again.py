"""Sources that ran out of memory: once more after all others, as another process may have held it for a while."""

from collections.abc import Iterable
from typing import Any

from kvdiag.errors import DataError

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
        whole, cells = records["control"]["reason"] == "oom", out_of_memory(records)
        if whole or cells:
            lost.append((records["source"]["source_id"], whole, cells))
    return [source_id for source_id, whole, cells in lost if whole or cells & fits]


def is_better(second: Records, first: Records) -> bool:
    """Whether the second try has more answers. Valid rows are never given up for fewer."""
    return _answers(second) > _answers(first)


def _answers(records: Records) -> int:
    return sum(row["status"] == "available" for row in (records["control"], *records["runs"]))


def refuse_none(n: int) -> None:
    """Raise DataError: n sources ran out of memory twice and no source ran, which is no fault of theirs."""
    raise DataError(
        f"{n} sources ran out of memory, twice each, and none runs here: give a smaller --model or --length, "
        "--dtype bfloat16, or a device with more memory (where something else held it: run the same command again)"
    )
