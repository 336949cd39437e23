"""`kvdiag build --engine ray`: a pool of model replicas on one machine or many.

The driver plans, hands out sources (longest first), commits what comes back and replaces workers that are lost.
It needs no GPU. What the ledger says does not depend on the pool: sources do not know of each other, every worker
must report the environment of the first, and rows are put in the plan's order at the end.
"""

import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag.engine.models import LoadedModel, load_tokenizer
from kvdiag.engine.plan import Plan
from kvdiag.engine.source import SourceDone
from kvdiag.engine.stopping import StopSwitch
from kvdiag.engine.views import Cell
from kvdiag.engine.watch import Watcher
from kvdiag.errors import DataError, UsageError, first_line
from kvdiag.recipes import Recipe
from kvdiag.scale.crew import PATIENCE_SECONDS, POLL_SECONDS, Crew, Worker
from kvdiag.scale.room import Pool
from kvdiag.workloads.base import Source

# A source during which so many workers died ends as `failed: exception`, or `failed: oom` where each of them was
# killed for memory. Lost nodes do not count.
WORKER_TRIES = 3
OBJECT_STORE_BYTES = 256 * 2**20  # sources and rows are small


@dataclass
class _Deaths:
    """Of workers while they ran one source. memory: those that were killed for it."""

    n: int = 0
    memory: int = 0


def _say(text: str) -> None:
    sys.stderr.write(f"warning: {text}\n")
    sys.stderr.flush()


class RayRunner:
    """A Runner (kvdiag.engine.build) over a pool. Use as a context manager: it lets go of what it took.

    say: told of what is wrong while there is no plan yet, and so no watcher.
    """

    def __init__(self, pool: Pool, say: Callable[[str], None] = _say) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError("--engine ray: needs ray; run: pip install 'kvdiag[scale]'") from None
        self._ray, self._pool = ray, pool
        self._crew = Crew(ray, pool, say)
        self._notes: list[str] = []  # of the plan, for the watcher of its run

    def __enter__(self) -> "RayRunner":
        if not self._ray.is_initialized():
            self._connect()
            self._crew.ours = True
        return self

    def __exit__(self, *_: object) -> None:
        self._crew.dismiss()
        if self._crew.ours:
            self._ray.shutdown()

    def _connect(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._pool.address is None:
            options |= {
                "num_cpus": max(os.cpu_count() or 1, self._pool.workers),
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
        try:
            self._ray.init(address=self._pool.address or "local", **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"--address {self._pool.address or 'local'}: no Ray cluster answers there ({first_line(error)}); "
                "one that asks for a token needs RAY_AUTH_MODE and RAY_AUTH_TOKEN here too"
            ) from error

    def plan(self, recipe: Recipe, out: Path) -> Plan:
        """Start the workers; the first that is ready makes the sources and says what numbers depend on."""
        self._notes = self._crew.prepare(recipe)
        # Before the workers, which would else all fetch or convert the model's files at once.
        tokenizer = load_tokenizer(recipe.model, recipe.trust_remote_code).tokenizer
        started, sources, files = self._crew.start()
        model = LoadedModel(model=None, tokenizer=tokenizer, **started.facts)
        cells = [Cell(*cell) for cell in recipe.cells()]
        used = started.environment | {"files": files}
        return Plan(recipe, out, model, sources, cells, started.cannot, used)

    def run(
        self, plan: Plan, todo: Sequence[Source], watcher: Watcher, switch: StopSwitch
    ) -> Generator[SourceDone]:
        """Sources as workers finish them. After the switch asked, those in hand are waited for."""
        for note in self._notes:
            watcher.warned(note)
        self._notes = []
        queue = deque(sorted(todo, key=_length, reverse=True))
        deaths: defaultdict[str, _Deaths] = defaultdict(_Deaths)
        busy: dict[Any, tuple[Worker, Source]] = {}
        heard = time.monotonic()
        while queue or busy:
            if switch.asked is not None:
                queue.clear()
                if not busy:
                    return
            taken = {id(worker) for worker, _ in busy.values()}
            for worker in [w for w in self._crew.workers if id(w) not in taken]:
                if queue:
                    source = queue.popleft()
                    watcher.source_started(source, worker.name)
                    busy[self._hand(worker, source, deaths[source.source_id])] = worker, source
            ready, _ = self._ray.wait([*busy, *self._crew.starting], num_returns=1, timeout=POLL_SECONDS)
            for ref in ready:
                heard = time.monotonic()
                if ref in self._crew.starting:
                    self._crew.welcome(ref, watcher)
                    continue
                worker, source = busy.pop(ref)
                try:
                    yield self._ray.get(ref)
                except self._ray.exceptions.RayTaskError:
                    raise  # ours: an exception of a source comes back as its rows
                except self._ray.exceptions.RayError as error:  # the worker died, or its answer with its node
                    how = self._count_death(deaths[source.source_id], worker, error)
                    _refuse_deadly(source, deaths[source.source_id].n)
                    queue.appendleft(source)
                    watcher.warned(f"{worker.name} {how} in {source.source_id}, which is run again")
                    self._crew.replace(worker)
            if not self._crew.workers and time.monotonic() - heard > PATIENCE_SECONDS:
                heard = time.monotonic()
                watcher.warned(self._crew.awaited())

    def about(self) -> dict[str, Any]:
        """The pool, for the manifest's `build` part."""
        return {"engine": "ray", "workers": self._pool.workers, "workers_lost": self._crew.lost}

    def _hand(self, worker: Worker, source: Source, deaths: _Deaths) -> Any:
        if deaths.n < WORKER_TRIES:
            return worker.actor.run.remote(source)
        return worker.actor.give_up.remote(source, deaths.n, deaths.memory == deaths.n)

    def _count_death(self, deaths: _Deaths, worker: Worker, error: Exception) -> str:
        """Count that a worker died in a source, if it is not its node that went; how it was lost."""
        if self._crew.is_gone(worker, error):
            return "was lost with its node, or the way to it,"
        deaths.n += 1
        if self._crew.is_for_memory(error):
            deaths.memory += 1
            return "was lost (killed for memory: fewer --workers need less)"
        return f"was lost (process {_pid(worker)})"


def _pid(worker: Worker) -> int | None:
    return worker.started.pid if worker.started else None


def _refuse_deadly(source: Source, died: int) -> None:
    """A source that kills even workers that only write its failure is no row: raise, with its name."""
    if died > WORKER_TRIES + 1:
        raise DataError(f"--engine ray: {died} workers died of {source.source_id}; take it out of the workload")


def _length(source: Source) -> int:
    """Longest first, so that no long source is left for the end; by characters, which cost nothing to count."""
    return len(source.context) + len(source.question)
