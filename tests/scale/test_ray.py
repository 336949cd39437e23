"""`--engine ray` on a cluster of two nodes: workers and nodes are lost midway, and the bytes are the same."""

import json
import os
import signal
import sys
import tempfile
from types import SimpleNamespace

import pytest

from kvdiag.engine.build import build, make_plan
from kvdiag.engine.watch import Watcher
from kvdiag.errors import DataError, UsageError
from kvdiag.ledger.layout import read_manifest
from kvdiag.query.connection import connect, rows
from kvdiag.scale.crew import Worker
from kvdiag.scale.pool import WORKER_TRIES, RayRunner, _refuse_deadly
from kvdiag.scale.replica import Started
from kvdiag.scale.room import Pool
from tests.built import small_recipe
from tests.faults.harness import contents

N_SOURCES = 12
STORE = 80 * 2**20


@pytest.fixture(scope="module")
def recipe(model_folder):
    return small_recipe(model_folder, tasks="niah_single_1,vt", limit=N_SOURCES, protocols="both")


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory):
    """The ledger of a single process."""
    out = tmp_path_factory.mktemp("alone") / "ledger"
    build(recipe, out)
    return out


@pytest.fixture
def cluster(monkeypatch):
    """A head without room for workers, and two nodes with room for one each."""
    pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Sockets are named after it, and such names must be short.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        options = {"object_store_memory": STORE, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "temp_dir": folder, **options})
        try:
            cluster.nodes = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(2)]
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


class Trouble(Watcher):
    """Kills a worker at the third source, another one's node at the sixth; and all that get the deadly source."""

    def __init__(self, cluster, runner, deadly):
        self.cluster, self.runner, self.deadly = cluster, runner, deadly
        self.done = self.deaths = 0
        self.started, self.warnings, self.killed = [], [], set()

    def _up(self):
        return next(w for w in self.runner._crew.workers if w.name not in self.killed)

    def _kill(self, worker):
        self.killed.add(worker.name)
        os.kill(worker.started.pid, signal.SIGKILL)

    def source_started(self, source, worker=None):
        self.started.append(source.source_id)
        if source.source_id == self.deadly and self.deaths < 3:
            self.deaths += 1
            self._kill(next(w for w in self.runner._crew.workers if w.name == worker))

    def source_done(self, source, seconds):
        self.done += 1
        if self.done == 3:
            self._kill(self._up())
        if self.done == 6:
            # That of a worker which is up: of one that loads it may not be noticed before the end, and of one that
            # was killed it would hide that.
            node = next(n for n in self.cluster.nodes if n.node_id == self._up().started.node)
            self.cluster.remove_node(node, allow_graceful=False)
            self.cluster.add_node(num_cpus=1, object_store_memory=STORE)

    def warned(self, text):
        self.warnings.append(text)


@pytest.mark.slow
@pytest.mark.parametrize("poison", [False, True])
def test_lost_workers_and_nodes_change_nothing(recipe, alone, cluster, tmp_path, poison):
    source_id = rows(connect(alone), "SELECT source_id FROM sources ORDER BY 1 LIMIT 1")[0]["source_id"]
    out = tmp_path / "ledger"
    with RayRunner(Pool(address=cluster.address, workers=2)) as runner:
        trouble = Trouble(cluster, runner, source_id if poison else None)
        manifest = build(recipe, out, trouble, runner)
    assert manifest["build"]["workers_lost"] >= 2
    assert any("was lost" in text for text in trouble.warnings)
    if not poison:
        assert contents(out) == contents(alone)
        return
    assert manifest["build"]["exceptions"] == {source_id: "the worker died 3 times while it ran this source"}
    others = "FROM runs WHERE source_id <> ? ORDER BY run_id"
    assert rows(connect(out), others, [source_id]) == rows(connect(alone), others, [source_id])
    failed = rows(connect(out), "SELECT DISTINCT status, reason FROM runs WHERE source_id = ?", [source_id])
    assert failed == [{"status": "failed", "reason": "exception"}]


def test_a_worker_of_another_kind_is_refused():
    """Numbers would depend on who ran a source."""
    pytest.importorskip("ray")
    runner = RayRunner(Pool(workers=2))
    runner._crew._environment = {"device": "NVIDIA H100", "threads": 1}
    answers = {
        "same": Started("n1", 1, {}, {}, {"device": "NVIDIA H100", "threads": 1}),
        "other": Started("n2", 2, {}, {}, {"device": "NVIDIA A100", "threads": 1}),
        "wrong": UsageError("--model x: no such folder"),
    }
    runner._crew._ray = SimpleNamespace(get=answers.get, exceptions=runner._ray.exceptions)
    for ref in answers:
        runner._crew.starting[ref] = Worker(ref, None)
    runner._crew.welcome("same", Watcher())
    with pytest.raises(DataError, match=r"device: NVIDIA H100 -> NVIDIA A100.*machines of one kind"):
        runner._crew.welcome("other", Watcher())
    with pytest.raises(UsageError, match="no such folder"):
        runner._crew.welcome("wrong", Watcher())
    assert [w.name for w in runner._crew.workers] == ["same"]


def test_a_deadly_source_is_given_up_once_and_then_named(recipe, alone):
    (source, *_) = make_plan(recipe, alone).sources
    _refuse_deadly(source, WORKER_TRIES)  # another worker writes its failure
    with pytest.raises(DataError, match=source.source_id):
        _refuse_deadly(source, WORKER_TRIES + 2)


def test_without_the_package_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'kvdiag\[scale\]'"):
        RayRunner(Pool())


def test_the_manifest_says_who_ran_it_only_in_its_build_part(alone):
    manifest = read_manifest(alone)
    del manifest["build"]
    assert "worker" not in json.dumps(manifest)
