"""The workers of a pool: how many have room, who is up or loads, and what becomes of those that are lost."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdiag import recipes
from kvdiag.engine.memory import is_out_of_memory
from kvdiag.engine.watch import Watcher
from kvdiag.errors import DataError, UsageError
from kvdiag.recipes import Recipe
from kvdiag.scale import room
from kvdiag.scale.replica import Replica, Started, checked
from kvdiag.scale.room import Pool
from kvdiag.workloads.base import Source

# Workers in a row that die while they load, beyond those that load at once, before the build gives up.
START_TRIES = 3
POLL_SECONDS = 1.0
PATIENCE_SECONDS = 60.0  # without any worker, before a warning
_COPIES = (
    "each worker holds a copy of the model: give fewer --workers, a GPU to each (--gpus-per-worker 1), "
    "or another --device"
)


@dataclass
class Worker:
    """where: what says its node once it has a place. started: once it has loaded."""

    name: str
    actor: Any
    where: Any = None
    started: Started | None = None


class Crew:
    """The workers that a RayRunner keeps.

    workers: those that are up. starting: those that load, by what tells of its end. lost: how many were.
    ours: whether it was this build that connected to Ray, and so lets go of it.
    """

    def __init__(self, ray: Any, pool: Pool, say: Callable[[str], None]) -> None:
        self._ray, self._pool, self._say = ray, pool, say
        self.workers: list[Worker] = []
        self.starting: dict[Any, Worker] = {}
        self.lost, self.ours = 0, False
        self._recipe: Recipe | None = None
        self._environment: dict[str, Any] = {}
        self._named = self._failed_starts = 0

    def prepare(self, recipe: Recipe) -> list[str]:
        """End the workers of an earlier recipe; what is wrong with the pool's size for this one (see `_weigh`)."""
        self.dismiss()
        self._recipe, self._failed_starts = recipe, 0
        return self._weigh()

    def start(self) -> tuple[Started, list[Source], dict[str, str]]:
        """Start the workers; the first that is ready, with the sources it makes and their files' digests."""
        for _ in range(self._pool.workers):
            self._spawn()
        return self._first_ready()

    def welcome(self, ref: Any, watcher: Watcher) -> None:
        """A further worker has loaded, or not. Raises DataError when it is of another kind than the first."""
        worker = self.starting.pop(ref)
        try:
            answer = checked(self._ray.get(ref))
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

    def replace(self, worker: Worker) -> None:
        """Start another worker for one that was lost while it ran a source."""
        self.workers.remove(worker)
        self._ray.kill(worker.actor)
        self.lost += 1
        self._spawn()

    def is_gone(self, worker: Worker, error: Exception) -> bool:
        """Whether the worker's node is lost, or the way to it, and not only its process."""
        # A process that dies is told of by its node at once; where nobody tells, the node is likely gone, though
        # the cluster counts it as alive for some seconds more.
        if getattr(error, "preempted", False) or isinstance(error, self._ray.exceptions.ActorUnavailableError):
            return True
        node = worker.started.node if worker.started else self._place(worker)
        return node is not None and not any(n["NodeID"] == node and n["Alive"] for n in self._ray.nodes())

    def is_for_memory(self, error: Exception) -> bool:
        """Whether memory ran out: in Python or CUDA, or the cluster's memory monitor killed the worker.

        Not by the word of an actor's death, which names the OOM killer as a possible cause of every kill.
        """
        if isinstance(error, self._ray.exceptions.RayTaskError):
            return is_out_of_memory(error.cause)
        return isinstance(error, self._ray.exceptions.OutOfMemoryError) or "running low on memory" in str(error)

    def awaited(self) -> str:
        """What is waited for while no worker is up."""
        waiting = [worker.where for worker in self.starting.values()]
        placed = len(self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0]) if waiting else 0
        each = room.amount(self._cpus(), self._gpus())
        free = room.free(self._ray.available_resources(), self._ray.cluster_resources())
        loads = f"{placed} of {len(waiting)} have a place and load, each takes {each}"
        return f"--engine ray: no worker is up yet; {loads}; {free}"

    def dismiss(self) -> None:
        """End all workers."""
        if self._ray.is_initialized():
            for worker in [*self.workers, *self.starting.values()]:
                self._ray.kill(worker.actor)
        self.workers, self.starting = [], {}

    def _spawn(self) -> None:
        """A new worker, which begins to load; it waits where the cluster has no room yet."""
        self._named += 1
        takes = {"num_cpus": self._cpus(), "num_gpus": self._gpus()}
        kind = self._ray.remote(Replica).options(max_restarts=0, scheduling_strategy="SPREAD", **takes)
        actor: Any = kind.remote()
        where = actor.where.remote()
        ref = actor.start.remote(self._recipe, self._threads(), str(Path.cwd()))
        self.starting[ref] = Worker(f"worker-{self._named}", actor, where)

    def _first_ready(self) -> tuple[Started, list[Source], dict[str, str]]:
        """The first worker that has loaded, with the sources it makes and their files' digests.

        Whichever it is: to wait for one in particular could be for ever, where a cluster has room for some only.
        """
        heard = time.monotonic()
        while True:
            ready, _ = self._ray.wait([*self.starting], num_returns=1, timeout=POLL_SECONDS)
            if not ready:
                if time.monotonic() - heard > PATIENCE_SECONDS:
                    heard = time.monotonic()
                    self._say(self.awaited())
                continue
            worker = self.starting.pop(ready[0])
            try:
                started = checked(self._ray.get(ready[0]))
                sources, files = checked(self._ray.get(worker.actor.sources.remote()))
            except self._ray.exceptions.RayError as error:
                self._say(self._start_again(worker, error))
                continue
            self._environment = started.environment
            self._take(worker, started)
            return started, sources, files

    def _take(self, worker: Worker, started: Started) -> None:
        worker.started = started
        self.workers.append(worker)
        self._failed_starts = 0

    def _start_again(self, worker: Worker, error: Exception) -> str:
        """Start another worker for one that was lost while it loaded; what to tell of it.

        Raises DataError where memory ran out or too many were lost in a row, the error itself where it is ours.
        """
        for_memory = self.is_for_memory(error)
        if isinstance(error, self._ray.exceptions.RayTaskError):
            if not for_memory:
                raise error
            raise DataError(
                f"--engine ray: memory ran out while {worker.name} loaded ({_reason(error)}); {_COPIES}"
            ) from error
        self.lost += 1
        self._failed_starts += not self.is_gone(worker, error)
        if self._failed_starts >= START_TRIES + self._pool.workers:
            mend = f"; {_COPIES}" if for_memory else ""
            raise DataError(
                f"--engine ray: {self._failed_starts} workers in a row died while they loaded "
                f"({_reason(error)}){mend}"
            ) from error
        self._ray.kill(worker.actor)  # which may still live, where only its answer was lost
        self._spawn()
        return f"{worker.name} was lost while it loaded ({_reason(error)}); another one is started"

    def _place(self, worker: Worker) -> str | None:
        """The node of a worker that has not loaded, whose answer the driver keeps; None where it never said."""
        if not self._ray.wait([worker.where], timeout=0)[0]:
            return None
        try:
            return str(self._ray.get(worker.where))
        except self._ray.exceptions.RayError:
            return None

    def _is_own(self) -> bool:
        """Whether the cluster is one that this build made, and nobody adds nodes to."""
        return self.ours and self._pool.address is None

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
        if not room.room(nodes, cpus, gpus):
            reason = room.why_none(nodes, gpus)
            if self._is_own():
                raise UsageError(reason)
            self._say(f"{reason}. Until then the build waits for a node that can hold a worker")
            return []
        notes = room.short(nodes, workers, cpus, gpus)
        # A GPU does the work of its worker, and an explicit --threads is what was asked for.
        if not gpus and self._pool.threads is None and (self._is_own() or cpus < self._threads()):
            cores: list[room.Node] = [{"CPU": os.cpu_count() or 1}] if self._is_own() else nodes
            notes += room.crowded(cores, workers, self._threads())
        return notes


def _reason(error: Exception) -> str:
    """The line of an error that says why: the last one of an actor's death, which begins with its names."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[-1 if hasattr(error, "actor_init_failed") else 0][:200]
