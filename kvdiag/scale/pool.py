"""`kvdiag build --engine ray`: a pool of model replicas on one machine or many.

The driver plans, hands out sources (longest first), commits what comes back and replaces workers that are lost.
It needs no GPU. What the ledger says does not depend on the pool: sources do not know of each other, every worker
must report the environment of the first, and rows are put in the plan's order at the end.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag import recipes
from kvdiag.engine.models import LoadedModel, load_tokenizer
from kvdiag.engine.plan import Plan
from kvdiag.engine.source import SourceDone
from kvdiag.engine.stopping import StopSwitch
from kvdiag.engine.views import Cell
from kvdiag.engine.watch import Watcher
from kvdiag.errors import DataError, KvdiagError, UsageError
from kvdiag.recipes import Recipe
from kvdiag.scale.replica import Replica, Started
from kvdiag.workloads.base import Source

# A source during which so many workers died ends as `failed: exception`. Lost nodes do not count.
WORKER_TRIES = 3
# Workers that die while they load, before the build gives up.
START_TRIES = 3
OBJECT_STORE_BYTES = 256 * 2**20  # sources and rows are small
_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0  # without any worker, before a warning


@dataclass(frozen=True)
class Pool:
    """What to run on. address: of a running cluster, None for one here. threads: of a worker, None as here."""

    address: str | None = None
    workers: int = 1
    gpus_per_worker: float | None = None
    threads: int | None = None


@dataclass
class _Worker:
    name: str
    actor: Any
    started: Started | None = None


class RayRunner:
    """A Runner (kvdiag.engine.build) over a pool. Use as a context manager: it lets go of what it took."""

    def __init__(self, pool: Pool) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError("--engine ray: needs ray; run: pip install 'kvdiag[scale]'") from None
        self._ray, self._pool = ray, pool
        self._ours = False
        self._recipe: Recipe | None = None
        self._environment: dict[str, Any] = {}
        self._workers: list[_Worker] = []
        self._starting: dict[Any, _Worker] = {}
        self._named = self._lost = self._failed_starts = 0

    def __enter__(self) -> "RayRunner":
        if not self._ray.is_initialized():
            self._connect()
            self._ours = True
        return self

    def __exit__(self, *_: object) -> None:
        self._dismiss()
        if self._ours:
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
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"--address {self._pool.address or 'local'}: no Ray cluster answers there ({reason}); "
                "one that asks for a token needs RAY_AUTH_MODE and RAY_AUTH_TOKEN here too"
            ) from error

    def plan(self, recipe: Recipe, out: Path) -> Plan:
        """Start the workers; the first that is ready makes the sources and says what numbers depend on."""
        self._dismiss()
        self._recipe = recipe
        # Before the workers, which would else all fetch or convert the model's files at once.
        tokenizer = load_tokenizer(recipe.model, recipe.trust_remote_code).tokenizer
        for _ in range(self._pool.workers):
            self._spawn()
        started, sources, files = self._first_ready()
        self._environment = started.environment
        model = LoadedModel(model=None, tokenizer=tokenizer, **started.facts)
        cells = [Cell(*cell) for cell in recipe.cells()]
        used = started.environment | {"files": files}
        return Plan(recipe, out, model, sources, cells, started.cannot, used)

    def run(
        self, plan: Plan, todo: Sequence[Source], watcher: Watcher, switch: StopSwitch
    ) -> Generator[SourceDone]:
        """Sources as workers finish them. After the switch asked, those in hand are waited for."""
        queue = deque(sorted(todo, key=_length, reverse=True))
        deaths: Counter[str] = Counter()
        busy: dict[Any, tuple[_Worker, Source]] = {}
        heard = time.monotonic()
        while queue or busy:
            if switch.asked is not None:
                queue.clear()
                if not busy:
                    return
            taken = {id(worker) for worker, _ in busy.values()}
            for worker in [w for w in self._workers if id(w) not in taken]:
                if queue:
                    source = queue.popleft()
                    watcher.source_started(source, worker.name)
                    busy[self._hand(worker, source, deaths[source.source_id])] = worker, source
            ready, _ = self._ray.wait([*busy, *self._starting], num_returns=1, timeout=_POLL_SECONDS)
            for ref in ready:
                heard = time.monotonic()
                if ref in self._starting:
                    self._welcome(ref, watcher)
                    continue
                worker, source = busy.pop(ref)
                try:
                    yield self._ray.get(ref)
                except self._ray.exceptions.RayTaskError:
                    raise  # ours: an exception of a source comes back as its rows
                except self._ray.exceptions.RayError as error:  # the worker died, or its answer with its node
                    gone = getattr(error, "preempted", False) or self._is_gone(worker)
                    deaths[source.source_id] += not gone
                    _refuse_deadly(source, deaths[source.source_id])
                    queue.appendleft(source)
                    where = "with its node" if gone else f"(process {_pid(worker)})"
                    watcher.warned(f"{worker.name} was lost {where} in {source.source_id}, which is run again")
                    self._replace(worker)
            if not self._workers and time.monotonic() - heard > _PATIENCE_SECONDS:
                heard = time.monotonic()
                watcher.warned(f"no worker is up; the cluster offers {self._ray.available_resources()}")

    def about(self) -> dict[str, Any]:
        """The pool, for the manifest's `build` part."""
        return {"engine": "ray", "workers": self._pool.workers, "workers_lost": self._lost}

    def _hand(self, worker: _Worker, source: Source, died: int) -> Any:
        if died >= WORKER_TRIES:
            return worker.actor.give_up.remote(source, f"the worker died {died} times while it ran this source")
        return worker.actor.run.remote(source)

    def _spawn(self) -> None:
        """A new worker, which begins to load; it waits where the cluster has no room yet."""
        self._named += 1
        gpus = self._gpus()
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        actor: Any = self._ray.remote(Replica).options(**options).remote()
        ref = actor.start.remote(self._recipe, self._threads(), str(Path.cwd()))
        self._starting[ref] = _Worker(f"worker-{self._named}", actor)

    def _gpus(self) -> float:
        if self._pool.gpus_per_worker is not None:
            return self._pool.gpus_per_worker
        assert self._recipe is not None
        there = self._ray.cluster_resources().get("GPU", 0) and self._recipe.device != "cpu"
        return 1 if there else 0

    def _threads(self) -> int:
        import torch

        return self._pool.threads or torch.get_num_threads()

    def _first_ready(self) -> tuple[Started, list[Source], dict[str, str]]:
        """The first worker that has loaded, with the sources it makes and their files' digests.

        Whichever it is: to wait for one in particular could be for ever, where a cluster has room for some only.
        """
        while True:
            (ref, *_), _ = self._ray.wait([*self._starting], num_returns=1)
            worker = self._starting.pop(ref)
            try:
                started = _checked(self._ray.get(ref))
                sources, files = _checked(self._ray.get(worker.actor.sources.remote()))
            except self._ray.exceptions.RayActorError as error:
                self._count_failed_start(error)
                self._spawn()
                continue
            worker.started = started
            self._workers.append(worker)
            return started, sources, files

    def _welcome(self, ref: Any, watcher: Watcher) -> None:
        """A further worker has loaded, or not. Raises DataError when it is of another kind than the first."""
        worker = self._starting.pop(ref)
        try:
            answer = _checked(self._ray.get(ref))
        except self._ray.exceptions.RayActorError as error:
            self._count_failed_start(error)
            watcher.warned(f"{worker.name} was lost while it loaded; another one is started")
            self._spawn()
            return
        changed = recipes.differences(self._environment, answer.environment)
        if changed:
            raise DataError(
                f"--engine ray: {worker.name} differs from the first worker in {'; '.join(changed[:3])}; "
                "numbers would depend on who ran a source: use machines of one kind"
            )
        worker.started = answer
        self._workers.append(worker)

    def _count_failed_start(self, error: Exception) -> None:
        self._lost += 1
        self._failed_starts += 1
        if self._failed_starts >= START_TRIES + self._pool.workers:
            reason = str(error).strip().splitlines()[0]
            raise DataError(f"--engine ray: {self._failed_starts} workers died while they loaded ({reason})")

    def _replace(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._ray.kill(worker.actor)
        self._lost += 1
        self._spawn()

    def _is_gone(self, worker: _Worker) -> bool:
        """Whether the worker's node is lost, and not only its process."""
        node = worker.started.node if worker.started else ""
        return not any(n["NodeID"] == node and n["Alive"] for n in self._ray.nodes())

    def _dismiss(self) -> None:
        """End all workers."""
        if self._ray.is_initialized():
            for worker in [*self._workers, *self._starting.values()]:
                self._ray.kill(worker.actor)
        self._workers, self._starting = [], {}


def _checked(answer: Any) -> Any:
    """What a worker gave. Raises the user's mistake that it met instead."""
    if isinstance(answer, KvdiagError):
        raise answer
    return answer


def _pid(worker: _Worker) -> int | None:
    return worker.started.pid if worker.started else None


def _refuse_deadly(source: Source, died: int) -> None:
    """A source that kills even workers that only write its failure is no row: raise, with its name."""
    if died > WORKER_TRIES + 1:
        raise DataError(f"--engine ray: {died} workers died of {source.source_id}; take it out of the workload")


def _length(source: Source) -> int:
    """Longest first, so that no long source is left for the end; by characters, which cost nothing to count."""
    return len(source.context) + len(source.question)
