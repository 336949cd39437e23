"""A pool of one's own: who gets a place, what is told meanwhile, and workers that are lost or cannot load."""

import copy
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvdiag.engine.build import build, make_plan
from kvdiag.engine.stopping import StopSwitch
from kvdiag.engine.watch import Watcher
from kvdiag.errors import DataError, UsageError
from kvdiag.records.schema import to_table
from kvdiag.scale import crew, replica
from kvdiag.scale.crew import START_TRIES, Worker
from kvdiag.scale.pool import WORKER_TRIES, RayRunner
from kvdiag.scale.replica import Replica, Started
from kvdiag.scale.room import Pool
from tests.built import small_recipe
from tests.faults.harness import contents

pytest.importorskip("ray")
from ray.exceptions import ActorDiedError, ActorUnavailableError, ObjectLostError, OutOfMemoryError, RayTaskError

# As Ray says it when its memory monitor kills an actor, and when an actor's process is killed by anything.
FOR_MEMORY = OutOfMemoryError(
    "1 worker(s) were killed due to the node running low on memory. Memory on the node was 23GB used"
)
KILLED = ActorDiedError()
KILLED.error_msg += "\nThe actor is dead because its worker process has died. (1) killed by the OOM killer"


@pytest.fixture(scope="module")
def recipe(model_folder):
    return small_recipe(model_folder, limit=6, methods="knorm")


@pytest.fixture(scope="module")
def plan(recipe, tmp_path_factory):
    return make_plan(recipe, tmp_path_factory.mktemp("plan"))


@pytest.fixture(scope="module")
def here():
    """A Ray of our own for the whole file."""
    with RayRunner(Pool(workers=2)) as runner:
        yield runner


@pytest.fixture
def runner(here):
    """A fresh runner on it, whose pool a test may set."""
    runner = RayRunner(Pool(workers=2))
    runner._crew.ours = True
    yield runner
    runner._crew.dismiss()


class Killer(Watcher):
    """Kills a worker that is in the midst of its second source."""

    def __init__(self, runner):
        self.runner, self.started, self.warnings = runner, 0, []

    def source_started(self, source, worker=None):
        self.started += 1
        if self.started == 2:
            (found,) = [w for w in self.runner._crew.workers if w.name == worker]
            os.kill(found.started.pid, signal.SIGKILL)

    def warned(self, text):
        self.warnings.append(text)


def test_a_killed_worker_changes_nothing(runner, recipe, tmp_path, monkeypatch):
    build(recipe, tmp_path / "alone")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # two workers are too many then, which is told and kept
    killer = Killer(runner)
    manifest = build(recipe, tmp_path / "pool", killer, runner)
    assert manifest["build"]["workers_lost"] == 1
    crowded, lost = killer.warnings
    assert crowded == "2 workers x 1 threads share 1 core and slow each other; give --workers 1"
    assert "was lost (process" in lost
    assert contents(tmp_path / "pool") == contents(tmp_path / "alone")


def test_workers_that_no_node_can_ever_hold_are_refused_at_once(runner, recipe, tmp_path):
    runner._crew._pool = Pool(workers=2, gpus_per_worker=1)
    with pytest.raises(
        UsageError, match="--gpus-per-worker 1: no node of the cluster has a GPU; leave the flag out"
    ):
        runner.plan(recipe, tmp_path)
    runner._crew._pool = Pool(gpus_per_worker=1.5)
    with pytest.raises(UsageError, match=r"--gpus-per-worker 1.5: give a whole number"):
        runner.plan(recipe, tmp_path)


class Enough(Exception):
    pass


def test_a_cluster_that_may_grow_is_waited_for_and_says_so(runner, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(crew, "PATIENCE_SECONDS", 0.2)
    told = []

    def say(text):
        told.append(text)
        if len(told) == 3:
            raise Enough

    runner._crew._say, runner._crew._pool = say, Pool(address="auto", workers=2, gpus_per_worker=1)
    with pytest.raises(Enough):
        runner.plan(recipe, tmp_path)
    assert told[0].endswith("to run on CPUs. Until then the build waits for a node that can hold a worker")
    assert told[1].startswith(
        "--engine ray: no worker is up yet; 0 of 2 have a place and load, each takes 1 CPU and 1 GPU; "
    )


def test_what_is_told_before_the_plan_is_a_line_on_stderr(capsys):
    RayRunner(Pool())._crew._say("no worker")
    assert capsys.readouterr().err == "warning: no worker\n"


def test_memory_that_runs_out_while_a_worker_loads_is_one_line(runner, recipe, tmp_path, monkeypatch):
    class Large(Replica):
        def start(self, recipe, threads, folder):
            raise MemoryError("can't allocate 16 GB")

    monkeypatch.setattr(crew, "Replica", Large)
    with pytest.raises(
        DataError, match=r"memory ran out while worker-\d loaded \(can't allocate 16 GB\)"
    ) as caught:
        runner.plan(recipe, tmp_path)
    assert all(flag in str(caught.value) for flag in ("--workers", "--gpus-per-worker", "--device"))
    assert "\n" not in str(caught.value)


def test_a_mistake_of_ours_while_a_worker_loads_keeps_its_traceback(runner, recipe, tmp_path, monkeypatch):
    class Wrong(Replica):
        def start(self, recipe, threads, folder):
            raise KeyError("ours")

    monkeypatch.setattr(crew, "Replica", Wrong)
    with pytest.raises(RayTaskError, match="raise KeyError"):
        runner.plan(recipe, tmp_path)


class Fake:
    """Ray's calls, for what a test cannot make happen: `get` raises refs that are errors, all refs are ready."""

    def __init__(self, runner):
        self.killed, self.answers = [], {}
        self.exceptions = runner._ray.exceptions

    def get(self, ref):
        ref = self.answers.get(ref, ref) if isinstance(ref, str) else ref
        if isinstance(ref, Exception):
            raise ref
        return ref

    def wait(self, refs, num_returns=1, timeout=None):
        return list(refs)[:num_returns], list(refs)[num_returns:]

    def kill(self, actor):
        self.killed.append(actor)

    def nodes(self):
        return [{"NodeID": "n1", "Alive": True}, {"NodeID": "n2", "Alive": False}]

    def is_initialized(self):
        return False


@pytest.fixture
def loading(monkeypatch):
    """A runner on a fake Ray, and a function that lets a worker end its loading so."""
    runner = RayRunner(Pool(workers=2))
    runner._ray = runner._crew._ray = Fake(runner)
    monkeypatch.setattr(runner._crew, "_spawn", lambda: None)
    told = SimpleNamespace(runner=runner, watcher=Killer(runner))

    def end(answer, node="n1"):
        runner._crew.starting["ref"] = Worker("worker-9", "actor", node)
        runner._ray.answers = {"ref": answer}
        runner._crew.welcome("ref", told.watcher)

    told.end = end
    return told


GOOD = Started("n1", 1, {}, {}, {})


def test_only_starts_that_fail_in_a_row_end_a_build(loading):
    limit = START_TRIES + 2
    for _ in range(3):
        for _ in range(limit - 1):
            loading.end(KILLED)
        loading.end(GOOD)
    assert loading.runner._crew.lost == 3 * (limit - 1)
    for _ in range(limit - 1):
        loading.end(KILLED)
    with pytest.raises(
        DataError, match=rf"{limit} workers in a row died while they loaded \(The actor is dead"
    ) as e:
        loading.end(KILLED)
    assert "--workers" not in str(e.value)


def test_starts_that_memory_ends_say_what_to_give(loading):
    for _ in range(START_TRIES + 1):
        loading.end(FOR_MEMORY)
    with pytest.raises(DataError, match=r"running low on memory.*fewer --workers"):
        loading.end(FOR_MEMORY)


def test_lost_nodes_are_no_failed_starts(loading):
    preempted = ActorDiedError()
    preempted._preempted = True
    for error, node in ((KILLED, "n2"), (preempted, "n1"), (ActorUnavailableError("socket closed", None), "n1")):
        for _ in range(10):
            loading.end(error, node)
    assert loading.runner._crew._failed_starts == 0
    loading.end(KILLED, node=KILLED)  # it never said where it was
    assert loading.runner._crew._failed_starts == 1


def test_a_lost_answer_is_a_lost_worker(loading):
    lost = ObjectLostError("00" * 28, None, "")
    loading.end(lost)
    assert loading.runner._crew._failed_starts == 1
    assert loading.runner._ray.killed == ["actor"]  # it may live on, and hold what its successor waits for
    assert "worker-9 was lost while it loaded" in loading.watcher.warnings[0]


def test_a_first_worker_whose_answer_is_lost_is_replaced_too(loading, monkeypatch):
    runner, told = loading.runner, []
    runner._crew._say = told.append
    actor = SimpleNamespace(sources=SimpleNamespace(remote=lambda: ([], {})))
    runner._crew.starting["lost"] = Worker("worker-1", actor, "n1")
    runner._ray.answers = {"lost": ObjectLostError("00" * 28, None, ""), "good": GOOD}
    monkeypatch.setattr(
        runner._crew, "_spawn", lambda: runner._crew.starting.update(good=Worker("worker-2", actor, "n1"))
    )
    assert runner._crew._first_ready() == (GOOD, [], {})
    assert "worker-1 was lost while it loaded" in told[0]


def _died(recipe, plan, monkeypatch, errors):
    """What a source ends as when its workers end so, one after the other; the last that is up may give it up."""
    monkeypatch.setattr(replica, "_node", lambda: "n1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which a worker sets for good
    real = Replica()
    started = real.start(recipe, 1, str(Path.cwd()))
    left = iter(errors)
    runner = RayRunner(Pool())
    runner._ray = runner._crew._ray = Fake(runner)

    def give_up(*asked):
        runner._ray.answers["rows"] = real.give_up(*asked)
        return "rows"

    actor = SimpleNamespace(
        run=SimpleNamespace(remote=lambda source: next(left)), give_up=SimpleNamespace(remote=give_up)
    )
    worker = Worker("worker-1", actor, "n1", started)
    runner._crew.workers = [worker]
    monkeypatch.setattr(runner._crew, "_spawn", lambda: runner._crew.workers.append(worker))
    watcher = Killer(runner)
    watcher.started = 2  # kills none
    (done,) = runner.run(plan, plan.sources[:1], watcher, StopSwitch())
    for table in ("runs", "retention"):
        to_table(table, done.records[table])
    found = {
        (row["status"], row["reason"], row["detail"]) for row in [done.records["control"], *done.records["runs"]]
    }
    return done, found, watcher.warnings


def _errors(*kinds):
    """Errors that are not one another: they are keys while a source runs."""
    return [copy.copy(kind) for kind in kinds]


def test_a_source_whose_workers_are_killed_for_memory_is_out_of_memory(recipe, plan, monkeypatch):
    done, found, warnings = _died(recipe, plan, monkeypatch, _errors(*[FOR_MEMORY] * WORKER_TRIES))
    assert found == {("failed", "oom", "the worker was killed for memory 3 times while it ran this source")}
    assert not done.failed
    assert len(warnings) == WORKER_TRIES
    assert "killed for memory" in warnings[0]


def test_one_death_of_another_kind_makes_it_an_exception(recipe, plan, monkeypatch):
    done, found, _ = _died(recipe, plan, monkeypatch, _errors(FOR_MEMORY, KILLED, FOR_MEMORY))
    assert found == {("failed", "exception", "the worker died 3 times while it ran this source")}
    assert done.failed
    assert done.failures[0].attempt == WORKER_TRIES


def test_lost_nodes_are_no_deaths_of_a_source(recipe, plan, monkeypatch):
    unavailable = [ActorUnavailableError("socket closed", None) for _ in range(5)]
    done, _, warnings = _died(recipe, plan, monkeypatch, [*unavailable, *_errors(*[KILLED] * WORKER_TRIES)])
    assert "with its node" in warnings[4]
    assert done.failures[0].attempt == WORKER_TRIES


def test_a_cluster_keeps_a_cpu_for_each_thread_where_all_workers_have_room(monkeypatch):
    nodes = [{"CPU": 4.0}, {"CPU": 4.0}]
    for workers, ours, cpus in ((4, False, 2), (5, False, 1), (4, True, 1)):
        runner = RayRunner(Pool(address=None if ours else "auto", workers=workers, threads=2, gpus_per_worker=0))
        runner._crew.ours = ours
        monkeypatch.setattr(runner._crew, "_nodes", lambda: nodes)
        assert runner._crew._cpus() == cpus
        assert runner._crew._weigh() == []  # two threads were asked for, and eight workers of a CPU each fit


@pytest.mark.parametrize(("threads", "told"), [(None, True), (2, False)])
def test_more_threads_than_cores_are_told_unless_asked_for(runner, recipe, monkeypatch, threads, told):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(runner._crew, "_threads", lambda: 2)
    runner._crew._recipe, runner._crew._pool = recipe, Pool(workers=2, threads=threads)
    assert bool(runner._crew._weigh()) is told
