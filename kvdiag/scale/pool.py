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

from kvdiag import recipes
from kvdiag.engine.memory import is_out_of_memory
from kvdiag.engine.models import LoadedModel, load_tokenizer
from kvdiag.engine.plan import Plan
from kvdiag.engine.source import SourceDone
from kvdiag.engine.stopping import StopSwitch
from kvdiag.engine.views import Cell
from kvdiag.engine.watch import Watcher
from kvdiag.errors import DataError, KvdiagError, UsageError
from kvdiag.recipes import Recipe
from kvdiag.scale import room
from kvdiag.scale.replica import Replica, Started
from kvdiag.workloads.base import Source

# A source during which so many workers died ends as `failed: exception`, or `failed: oom` where each of them was
# killed for memory. Lost nodes do not count.
WORKER_TRIES = 3
# Workers in a row that die while they load, beyond those that load at once, before the build gives up.
START_TRIES = 3
OBJECT_STORE_BYTES = 256 * 2**20  # sources and rows are small
_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0  # without any worker, before a warning
_COPIES = (
    "each worker holds a copy of the model: give fewer --workers, a GPU to each (--gpus-per-worker 1), "
    "or another --device"
)


@dataclass(frozen=True)
class Pool:
    """What to run on. address: of a running cluster, None for one here. threads: of a worker, None as here."""

    address: str | None = None
    workers: int = 1
    gpus_per_worker: float | None = None
    threads: int | None = None


@dataclass
class _Worker:
    """where: what says its node once it has a place. started: once it has loaded."""

    name: str
    actor: Any
    where: Any = None
    started: Started | None = None


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
        self._ray, self._pool, self._say = ray, pool, say
        self._ours = False
        self._recipe: Recipe | None = None
        self._environment: dict[str, Any] = {}
        self._workers: list[_Worker] = []
        self._starting: dict[Any, _Worker] = {}
        self._named = self._lost = self._failed_starts = 0
        self._notes: list[str] = []  # of the plan, for the watcher of its run

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
        self._recipe, self._failed_starts = recipe, 0
        self._notes = self._weigh()
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
        for note in self._notes:
            watcher.warned(note)
        self._notes = []
        queue = deque(sorted(todo, key=_length, reverse=True))
        deaths: defaultdict[str, _Deaths] = defaultdict(_Deaths)
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
                    how = self._count_death(deaths[source.source_id], worker, error)
                    _refuse_deadly(source, deaths[source.source_id].n)
                    queue.appendleft(source)
                    watcher.warned(f"{worker.name} {how} in {source.source_id}, which is run again")
                    self._replace(worker)
            if not self._workers and time.monotonic() - heard > _PATIENCE_SECONDS:
                heard = time.monotonic()
                watcher.warned(self._awaited())

    def about(self) -> dict[str, Any]:
        """The pool, for the manifest's `build` part."""
        return {"engine": "ray", "workers": self._pool.workers, "workers_lost": self._lost}

    def _hand(self, worker: _Worker, source: Source, deaths: _Deaths) -> Any:
        if deaths.n < WORKER_TRIES:
            return worker.actor.run.remote(source)
        return worker.actor.give_up.remote(source, deaths.n, deaths.memory == deaths.n)

    def _count_death(self, deaths: _Deaths, worker: _Worker, error: Exception) -> str:
        """Count that a worker died in a source, if it is not its node that went; how it was lost."""
        if self._is_gone(worker, error):
            return "was lost with its node, or the way to it,"
        deaths.n += 1
        if self._is_for_memory(error):
            deaths.memory += 1
            return "was lost (killed for memory: fewer --workers need less)"
        return f"was lost (process {_pid(worker)})"

    def _spawn(self) -> None:
        """A new worker, which begins to load; it waits where the cluster has no room yet."""
        self._named += 1
        options = {
            "num_cpus": self._cpus(),
            "num_gpus": self._gpus(),
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        actor: Any = self._ray.remote(Replica).options(**options).remote()
        where = actor.where.remote()
        ref = actor.start.remote(self._recipe, self._threads(), str(Path.cwd()))
        self._starting[ref] = _Worker(f"worker-{self._named}", actor, where)

    def _is_own(self) -> bool:
        """Whether the cluster is one that this build made, and nobody adds nodes to."""
        return self._ours and self._pool.address is None

    def _gpus(self) -> float:
        if self._pool.gpus_per_worker is not None:
            return self._pool.gpus_per_worker
        assert self._recipe is not None
        there = self._ray.cluster_resources().get("GPU", 0) and self._recipe.device != "cpu"
        return 1 if there else 0

    def _cpus(self) -> int:
        """CPUs that a worker asks for: one a thread, where that leaves room for all workers, else one.

        A pool of our own offers one a worker, however few there are: it must not wait for ever for the second.
        """
        threads = self._threads()
        roomy = not self._is_own() and room.room(self._nodes(), threads, self._gpus()) >= self._pool.workers
        return threads if roomy else 1

    def _threads(self) -> int:
        import torch

        return self._pool.threads or torch.get_num_threads()

    def _nodes(self) -> list[dict[str, float]]:
        """What each node has in all, taken or not."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _weigh(self) -> list[str]:
        """What is wrong with the pool's size, and does not keep it from running.

        Raises UsageError where no worker could ever run; a cluster that we did not start may still grow.
        """
        nodes, cpus, gpus, workers = self._nodes(), self._cpus(), self._gpus(), self._pool.workers
        if gpus > 1 and gpus % 1:
            raise UsageError(f"--gpus-per-worker {gpus:g}: give a whole number, or a share below 1")
        fitting = room.room(nodes, cpus, gpus)
        if not fitting:
            reason = room.why_none(nodes, gpus)
            if self._is_own():
                raise UsageError(reason)
            self._say(f"{reason}. Until then the build waits for a node that can hold a worker")
            return []
        notes = []
        if fitting < workers:
            notes.append(
                f"--workers {workers}: there is room for {fitting} at a time, {room.amount(cpus, gpus)} each; "
                "the others wait"
            )
        # A GPU does the work of its worker, and an explicit --threads is what was asked for.
        if not gpus and self._pool.threads is None and (self._is_own() or cpus < self._threads()):
            cores: list[room.Node] = [{"CPU": os.cpu_count() or 1}] if self._is_own() else nodes
            notes += room.crowded(cores, workers, self._threads())
        return notes

    def _awaited(self) -> str:
        """What is waited for while no worker is up."""
        waiting = [worker.where for worker in self._starting.values()]
        placed = len(self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]) if waiting else 0
        free, there = (
            room.amount(found.get("CPU", 0), found.get("GPU", 0))
            for found in (self._ray.available_resources(), self._ray.cluster_resources())
        )
        each = room.amount(self._cpus(), self._gpus())
        return (
            f"--engine ray: no worker is up yet; {placed} of {len(waiting)} have a place and load, each takes "
            f"{each}; of the cluster's {there}, {free} are free"
        )

    def _first_ready(self) -> tuple[Started, list[Source], dict[str, str]]:
        """The first worker that has loaded, with the sources it makes and their files' digests.

        Whichever it is: to wait for one in particular could be for ever, where a cluster has room for some only.
        """
        heard = time.monotonic()
        while True:
            ready, _ = self._ray.wait([*self._starting], num_returns=1, timeout=_POLL_SECONDS)
            if not ready:
                if time.monotonic() - heard > _PATIENCE_SECONDS:
                    heard = time.monotonic()
                    self._say(self._awaited())
                continue
            worker = self._starting.pop(ready[0])
            try:
                started = _checked(self._ray.get(ready[0]))
                sources, files = _checked(self._ray.get(worker.actor.sources.remote()))
            except self._ray.exceptions.RayError as error:
                self._say(self._start_again(worker, error))
                continue
            self._take(worker, started)
            return started, sources, files

    def _welcome(self, ref: Any, watcher: Watcher) -> None:
        """A further worker has loaded, or not. Raises DataError when it is of another kind than the first."""
        worker = self._starting.pop(ref)
        try:
            answer = _checked(self._ray.get(ref))
        except self._ray.exceptions.RayError as error:
            watcher.warned(self._start_again(worker, error))
            return
        changed = recipes.differences(self._environment, answer.environment)
        if changed:
            raise DataError(
                f"--engine ray: {worker.name} differs from the first worker in {'; '.join(changed[:3])}; "
                "numbers would depend on who ran a source: use machines of one kind"
            )
        self._take(worker, answer)

    def _take(self, worker: _Worker, started: Started) -> None:
        worker.started = started
        self._workers.append(worker)
        self._failed_starts = 0

    def _start_again(self, worker: _Worker, error: Exception) -> str:
        """Start another worker for one that was lost while it loaded; what to tell of it.

        Raises DataError where memory ran out or too many were lost in a row, the error itself where it is ours.
        """
        for_memory = self._is_for_memory(error)
        if isinstance(error, self._ray.exceptions.RayTaskError):
            if not for_memory:
                raise error
            raise DataError(
                f"--engine ray: memory ran out while {worker.name} loaded ({_reason(error)}); {_COPIES}"
            ) from error
        self._lost += 1
        self._failed_starts += not self._is_gone(worker, error)
        if self._failed_starts >= START_TRIES + self._pool.workers:
            mend = f"; {_COPIES}" if for_memory else ""
            raise DataError(
                f"--engine ray: {self._failed_starts} workers in a row died while they loaded "
                f"({_reason(error)}){mend}"
            ) from error
        self._ray.kill(worker.actor)  # which may still live, where only its answer was lost
        self._spawn()
        return f"{worker.name} was lost while it loaded ({_reason(error)}); another one is started"

    def _replace(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._ray.kill(worker.actor)
        self._lost += 1
        self._spawn()

    def _is_gone(self, worker: _Worker, error: Exception) -> bool:
        """Whether the worker's node is lost, or the way to it, and not only its process."""
        # A process that dies is told of by its node at once; where nobody tells, the node is likely gone, though
        # the cluster counts it as alive for some seconds more.
        if getattr(error, "preempted", False) or isinstance(error, self._ray.exceptions.ActorUnavailableError):
            return True
        node = worker.started.node if worker.started else self._place(worker)
        return node is not None and not any(n["NodeID"] == node and n["Alive"] for n in self._ray.nodes())

    def _place(self, worker: _Worker) -> str | None:
        """The node of a worker that has not loaded, whose answer the driver keeps; None where it never said."""
        if not self._ray.wait([worker.where], timeout=0)[0]:
            return None
        try:
            return str(self._ray.get(worker.where))
        except self._ray.exceptions.RayError:
            return None

    def _is_for_memory(self, error: Exception) -> bool:
        """Whether memory ran out: in Python or CUDA, or the cluster's memory monitor killed the worker.

        Not by the word of an actor's death, which names the OOM killer as a possible cause of every kill.
        """
        if isinstance(error, self._ray.exceptions.RayTaskError):
            return is_out_of_memory(error.cause)
        return isinstance(error, self._ray.exceptions.OutOfMemoryError) or "running low on memory" in str(error)

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


def _reason(error: Exception) -> str:
    """The line of an error that says why: the last one of an actor's death, which begins with its names."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[-1 if hasattr(error, "actor_init_failed") else 0][:200]


def _pid(worker: _Worker) -> int | None:
    return worker.started.pid if worker.started else None


def _refuse_deadly(source: Source, died: int) -> None:
    """A source that kills even workers that only write its failure is no row: raise, with its name."""
    if died > WORKER_TRIES + 1:
        raise DataError(f"--engine ray: {died} workers died of {source.source_id}; take it out of the workload")


def _length(source: Source) -> int:
    """Longest first, so that no long source is left for the end; by characters, which cost nothing to count."""
    return len(source.context) + len(source.question)
