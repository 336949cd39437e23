"""A source whose cells are too much for the memory at once: fewer at a time, each time from a new prefill."""

from collections.abc import Callable, Sequence

from kvdiag.engine.matrix import MatrixResult
from kvdiag.engine.memory import Budget, is_out_of_memory, let_go
from kvdiag.engine.rows import Gap
from kvdiag.engine.views import Cell
from kvdiag.errors import first_line

Run = Callable[[Sequence[Cell], Budget | None], MatrixResult]


def in_parts(run: Run, cells: Sequence[Cell]) -> tuple[MatrixResult, dict[Cell, Gap]]:
    """All cells of a source at once; where memory runs out, halves of them, down to one cell.

    run: some cells, with a budget or the usual one. Returns what they gave together, and `failed: oom` for each
    cell that was too much alone. Raises the error when the control alone is too much.
    """
    whole, _ = _attempt(run, cells, None)
    if whole is not None:
        return whole, {}
    let_go()
    # The control first: where that is too much, no half of the cells will do.
    found, too_much = run([], _least()), {}
    waiting = _halves(cells)
    while waiting:
        part = waiting.pop()
        result, said = _attempt(run, part, _least())
        if result is not None:
            for view in result.views.values():
                view.shed()  # a cache of its own would be missing to the parts to come
            _add(found, result)
            continue
        let_go()
        if len(part) == 1:
            too_much[part[0]] = Gap("failed", "oom", said)
        else:
            waiting += _halves(part)
    # In the order of a whole run: of two equal cells the later one is the copy.
    found.cells = {cell: found.cells[cell] for cell in cells if cell in found.cells}
    found.views = {cell: found.views[cell] for cell in cells if cell in found.views}
    found.halved.append("cells")
    return found, too_much


def _attempt(run: Run, cells: Sequence[Cell], budget: Budget | None) -> tuple[MatrixResult | None, str]:
    """The result, or None and what the error said: as a text, since the error keeps the failed run's tensors."""
    try:
        return run(cells, budget), ""
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None, first_line(error)


def _least() -> Budget:
    """A row at a time."""
    return Budget(tokens=1, rows=1)


def _halves(cells: Sequence[Cell]) -> list[Sequence[Cell]]:
    middle = (len(cells) + 1) // 2
    return [half for half in (cells[:middle], cells[middle:]) if half]


def _add(found: MatrixResult, part: MatrixResult) -> None:
    """Take in the cells of a part. Every part has run the control again, with the same answer."""
    found.cells |= part.cells
    found.views |= part.views
    found.halved += part.halved
    for stage, seconds in part.seconds.items():
        found.seconds[stage] = found.seconds.get(stage, 0.0) + seconds
    for method, seconds in part.seconds_by_method.items():
        found.seconds_by_method[method] = found.seconds_by_method.get(method, 0.0) + seconds
