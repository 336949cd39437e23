"""Whose fault an exception is: the source's, or the machine's, on which every source would fail."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from kvdiag.engine.stopping import StopSwitch
from kvdiag.errors import DataError

# So many sources in a row that end in an exception are no fault of the sources.
IN_A_ROW = 5
_NONE_KEPT = "none of them was kept: mend the cause and run the same command again"

Done = TypeVar("Done")


def sound(
    found: Iterable[Done],
    works: Callable[[Done], bool],
    error: Callable[[Done], str | None],
    again: Callable[[], bool],
    switch: StopSwitch,
) -> Iterator[Done]:
    """Sources to commit. Those that ended in an exception wait until another one shows that the machine is well:

    a lost GPU or a missing file fails every source, and committing such failures would make them final.

    works: whether the model ran a source. error: of one that ended in an exception; one with neither (too long
    for the model) is committed and shows nothing. again: runs a source once more that ran well before, which
    decides on those that wait at the end. Where the switch was asked to stop they are left for the next start.

    Raises DataError after IN_A_ROW exceptions, or where `again` says no.
    """
    held: list[Done] = []
    last = None
    for done in found:
        failed = error(done)
        if failed is None:
            if works(done):
                yield from held
                held = []
            yield done
            continue
        held.append(done)
        last = failed
        if len(held) == IN_A_ROW:
            raise DataError(
                f"{IN_A_ROW} sources in a row ended in an exception, the last with {last}; {_NONE_KEPT}"
            )
    if not held or switch.asked is not None:
        return
    well = again()
    if switch.asked is not None:
        return
    if not well:
        raise DataError(
            f"the last {len(held)} sources ended in an exception, the last with {last}, and none before them "
            f"runs well here now; {_NONE_KEPT}"
        )
    yield from held
