"""Builds of twenty sources, killed, starved and damaged; afterwards nothing may be lost, doubled or changed.

A build runs in a forked child of this process, which has torch and the model already: a kill costs a second.
`python -m tests.faults.harness --kills 200` is the long run; the tests use a few kills of the same kind.
"""

import argparse
import errno
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvdiag.engine import build as engine
from kvdiag.engine.build import LocalRunner, Plan, build
from kvdiag.engine.stopping import StopSwitch
from kvdiag.engine.watch import Watcher
from kvdiag.errors import KvdiagError
from kvdiag.ledger import faults
from kvdiag.ledger.intact import damage
from kvdiag.ledger.layout import MANIFEST, WORK
from kvdiag.ledger.work import WorkFolder
from kvdiag.query.connection import connect, rows
from kvdiag.recipes import Recipe
from kvdiag.validation.validate import validate
from kvdiag.workloads.base import Source
from tests.built import small_recipe

N_SOURCES = 20
KEYS = {"sources": "source_id", "controls": "control_id", "runs": "run_id", "retention": "run_id"}


class Planned(LocalRunner):
    """Runs a plan that is there already. wait: called where a model would load."""

    def __init__(self, plan: Plan, wait: Callable[[], None] = lambda: None) -> None:
        self._plan, self._wait = plan, wait

    def plan(self, recipe: Recipe, out: Path) -> Plan:
        self._wait()
        return replace(self._plan, out=out)


class Steps(Watcher):
    """Prints what the tests look at."""

    def source_started(self, source: Source, worker: str | None = None) -> None:
        print(f"started {source.source_id}", file=sys.stderr, flush=True)

    def warned(self, text: str) -> None:
        print(f"warning: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Ended:
    """How a build ended: exit code (negative: killed by that signal) and stderr."""

    code: int
    err: str


class Bench:
    """A recipe of twenty sources, its plan, and the ledger that an undisturbed build gives."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.folder = folder
        self.recipe = small_recipe(model, tasks="niah_single_1,vt", limit=N_SOURCES, max_new_tokens=2)
        self.plan = engine.make_plan(self.recipe, folder / "reference")
        self.reference = folder / "reference"
        start = time.monotonic()
        ended = self.run(self.reference)
        assert ended.code == 0, ended
        self.seconds = time.monotonic() - start
        self._count = 0
        self._check_reference()

    def _check_reference(self) -> None:
        """What is equal to it then is whole too: valid, every row once."""
        assert not validate(self.reference)
        connection = connect(self.reference)
        for table, key in KEYS.items():
            (found,) = rows(connection, f"SELECT count(*) AS n, count(DISTINCT {key}) AS d FROM {table}")
            cells = 1 if table in ("sources", "controls") else len(self.plan.cells)
            assert found == {"n": N_SOURCES * cells, "d": N_SOURCES * cells}, (table, found)
        connection.close()

    def fresh(self) -> Path:
        """An output folder that is not there yet."""
        self._count += 1
        return self.folder / f"ledger-{self._count}"

    def start(
        self,
        out: Path,
        hook: Callable[[str], None] | None = None,
        prepare: Callable[[], None] = lambda: None,
        wait: Callable[[], None] = lambda: None,
    ) -> tuple[int, Path]:
        """Fork a build; returns its process id and the file of its stderr. prepare: called in the child."""
        err = self.folder / f"stderr-{time.monotonic_ns()}"
        opened = os.open(err, os.O_CREAT | os.O_WRONLY)
        child = os.fork()
        if child:
            os.close(opened)
            return child, err
        code = 99
        try:
            os.dup2(opened, 2)
            sys.stderr = os.fdopen(2, "w", buffering=1)
            faults.hook = hook
            prepare()
            with StopSwitch() as switch:
                build(self.recipe, out, Steps(), Planned(self.plan, wait), switch)
            code = 0
        except KeyboardInterrupt as stop:
            code = getattr(stop, "exit_code", 98)
        except KvdiagError as error:
            print(f"kvdiag: {error}", file=sys.stderr)
            code = error.exit_code
        finally:
            sys.stderr.flush()
            os._exit(code)

    def end(self, child: int, err: Path) -> Ended:
        """Wait for a build."""
        _, status = os.waitpid(child, 0)
        text = err.read_text()
        err.unlink()
        return Ended(os.waitstatus_to_exitcode(status), text)

    def run(self, out: Path, **options: Any) -> Ended:
        """A build to its end, whatever that is."""
        return self.end(*self.start(out, **options))

    def kept(self, out: Path) -> set[str]:
        """Sources with a sound committed file."""
        work = WorkFolder(out)
        return {s.source_id for s in self.plan.sources if work.load(s.source_id) is not None}

    def points(self) -> list[str]:
        """Every named moment of an undisturbed build, in order."""
        log = self.folder / "points"
        log.unlink(missing_ok=True)

        def note(name: str) -> None:
            with log.open("a") as file:
                file.write(kind(name) + "\n")

        assert self.run(self.fresh(), hook=note).code == 0
        return log.read_text().split()

    def check_after_kill(self, out: Path, before: set[str]) -> set[str]:
        """Nothing that was kept is lost, and an unfinished ledger does not look like one. Returns what is kept."""
        if (out / MANIFEST).exists():
            assert not damage(out, json.loads((out / MANIFEST).read_bytes()))
            return before
        kept = self.kept(out)
        assert before <= kept, f"lost {before - kept}"
        return kept

    def check_end(self, out: Path) -> None:
        """The finished ledger is the undisturbed one, byte for byte (the manifest's `build` apart)."""
        one, two = contents(out), contents(self.reference)
        assert one.keys() == two.keys(), one.keys() ^ two.keys()
        assert [name for name in one if one[name] != two[name]] == []
        assert not (out / WORK).exists()


def contents(folder: Path) -> dict[str, Any]:
    """Files of a ledger by name; the manifest without `build`, which holds times."""
    found: dict[str, Any] = {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.parent.name != WORK
    }
    if MANIFEST in found:
        found[MANIFEST] = {k: v for k, v in json.loads(found[MANIFEST]).items() if k != "build"}
    return found


def kind(point: str) -> str:
    """A named moment without what differs from source to source."""
    path, _, moment = point.rpartition(":")
    folder, _, name = path.rpartition("/")
    if folder == "sources" and name.endswith(".json"):
        return f"source:{moment}"
    return point if name.endswith(".parquet") else f"{name}:{moment}"


class At:
    """A hook that acts at the n-th time a moment of that kind comes."""

    def __init__(self, point: str, n: int, act: Callable[[], None]) -> None:
        self._point, self._left, self._act = point, n, act

    def __call__(self, name: str) -> None:
        if kind(name) == self._point:
            self._left -= 1
            if self._left == 0:
                self._act()


def die() -> None:
    """End at once, as a lost machine does: nothing is tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)


def disk_full() -> None:
    """What a write on a full disk raises."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def file_limit(size: int) -> Callable[[], None]:
    """Files may not grow past `size` bytes: a real write that ends in the middle."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    return limit


def random_kills(
    bench: Bench, n: int, seed: int, tell: Callable[[str], None] = lambda text: None
) -> dict[str, int]:
    """Builds killed at random moments, again and again until each is whole; returns counts."""
    draw = random.Random(seed)
    counts = {"kills": 0, "ledgers": 0, "sources_kept_at_kills": 0}
    while counts["kills"] < n:
        out, kept = bench.fresh(), set[str]()
        while True:
            child, err = bench.start(out)
            # Half of the kills fall anywhere, half into the last steps, where the ledger is written.
            time.sleep(draw.random() * bench.seconds * (1.1 if draw.random() < 0.5 else 0.4))
            os.kill(child, signal.SIGKILL)
            ended = bench.end(child, err)
            if ended.code == 0:
                break
            assert ended.code == -signal.SIGKILL, ended
            counts["kills"] += 1
            kept = bench.check_after_kill(out, kept)
            counts["sources_kept_at_kills"] += len(kept)
        bench.check_end(out)
        shutil.rmtree(out)
        counts["ledgers"] += 1
        tell(f"{counts['kills']} kills, {counts['ledgers']} ledgers whole and equal")
    return counts


def kill_in_a_row(bench: Bench) -> int:
    """One ledger, killed at every kind of moment in turn, each time going on from the last; returns how many."""
    # Plan and manifest are written once: after a kill as they were renamed, this moment does not come again.
    once = ("plan.json:kept", "manifest.json:kept")
    points = [p for p in dict.fromkeys(bench.points()) if p not in once]
    out, kept = bench.fresh(), set[str]()
    for point in points:
        ended = bench.run(out, hook=At(point, 2 if point.startswith("source:") else 1, die))
        assert ended.code == -signal.SIGKILL, (point, ended)
        kept = bench.check_after_kill(out, kept)
    assert bench.run(out).code == 0
    bench.check_end(out)
    return len(points)


def kill_at_every_step(bench: Bench, points: Sequence[str] | None = None) -> int:
    """Kill once at every kind of moment (of the sources': at one in the middle), then go on; returns how many."""
    points = list(dict.fromkeys(points or bench.points()))
    written = bench.fresh()  # all sources committed, nothing compacted: where the late moments begin
    first_table = next(p for p in points if ".parquet" in p)
    assert bench.run(written, hook=At(first_table, 1, die)).code == -signal.SIGKILL
    assert len(bench.kept(written)) == N_SOURCES
    late = points.index(first_table)
    for i, point in enumerate(points):
        out, before = bench.fresh(), set[str]()
        if i >= late:
            shutil.copytree(written, out)
            before = bench.kept(out)
        n = 7 if point.startswith("source:") else 1
        ended = bench.run(out, hook=At(point, n, die))
        assert ended.code == -signal.SIGKILL, (point, ended)
        bench.check_after_kill(out, before)
        ended = bench.run(out)
        assert ended.code == 0, (point, ended)
        bench.check_end(out)
        shutil.rmtree(out)
    return len(points)


def main() -> None:
    """The long run."""
    import torch

    from tests.folder import save_model

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(save_model(Path(folder) / "tiny"), Path(folder))
        print(f"an undisturbed build takes {bench.seconds:.1f} s", flush=True)
        print(f"killed at {kill_at_every_step(bench)} named moments, once each", flush=True)
        counts = random_kills(bench, chosen.kills, chosen.seed, lambda text: print(text, flush=True))
    print(json.dumps(counts | {"seed": chosen.seed, "seconds": round(time.monotonic() - start, 1)}))


if __name__ == "__main__":
    main()
