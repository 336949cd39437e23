"""How large a pool is to be, and what there is room for, from what nodes have in all (`CPU`, `GPU`)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Node = dict[str, float]


@dataclass(frozen=True)
class Pool:
    """What to run on. address: of a running cluster, None for one here. threads: of a worker, None as here."""

    address: str | None = None
    workers: int = 1
    gpus_per_worker: float | None = None
    threads: int | None = None


def room(nodes: Sequence[Node], cpus: int, gpus: float) -> int:
    """Workers that the nodes can hold at once. A share of a GPU is never of two of them."""
    return sum(min(math.floor(node.get("CPU", 0) / cpus), _by_gpu(node.get("GPU", 0), gpus)) for node in nodes)


def _by_gpu(there: float, each: float) -> int:
    if not each:
        return 2**31  # as many as the CPUs allow
    return math.floor(there / each) if each >= 1 else math.floor(there) * math.floor(1 / each + 1e-9)


def why_none(nodes: Sequence[Node], gpus: float) -> str:
    """Why no node can hold a worker, and the mend."""
    most = max((node.get("GPU", 0) for node in nodes), default=0)
    if gpus and not most:
        return f"--gpus-per-worker {gpus:g}: no node of the cluster has a GPU; leave the flag out to run on CPUs"
    if gpus > most:
        return f"--gpus-per-worker {gpus:g}: no node of the cluster has more than {most:g}; give {most:g} or fewer"
    return "--engine ray: no node of the cluster has a CPU to offer; start its nodes with --num-cpus"


def short(nodes: Sequence[Node], workers: int, cpus: int, gpus: float) -> list[str]:
    """A warning where not all workers have room at once."""
    fitting = room(nodes, cpus, gpus)
    if fitting >= workers:
        return []
    each = amount(cpus, gpus)
    return [f"--workers {workers}: there is room for {fitting} at a time, {each} each; the others wait"]


def free(now: Node, there: Node) -> str:
    """What is free of what a cluster has, in words."""
    left, total = (amount(found.get("CPU", 0), found.get("GPU", 0)) for found in (now, there))
    return f"of the cluster's {total}, {left} are free"


def crowded(nodes: Sequence[Node], workers: int, threads: int) -> list[str]:
    """A warning, with the mend, where workers have more threads than the nodes have cores."""
    if room(nodes, threads, 0) >= workers:
        return []
    cores = sum(int(node.get("CPU", 0)) for node in nodes)
    fitting = [n for n in range(1, threads) if room(nodes, n, 0) >= workers]
    fewer = f"--workers {max(1, room(nodes, 1, 0))}"
    mend = f"--threads {fitting[-1]}" if fitting else fewer if threads == 1 else f"--threads 1 and {fewer}"
    shared = f"{cores} core{'' if cores == 1 else 's'}"
    return [f"{workers} workers x {threads} threads share {shared} and slow each other; give {mend}"]


def amount(cpus: float, gpus: float) -> str:
    """Resources in words."""
    found = [f"{n:g} {kind}{'' if n == 1 else 's'}" for n, kind in ((cpus, "CPU"), (gpus, "GPU")) if n]
    return " and ".join(found) or "nothing"
