"""What a crash, a full disk, a damaged file, a second writer and a bad source leave behind."""

import os
import shutil
import signal
import time

import pytest

from kvdiag.engine import source as engine_source
from kvdiag.errors import DataError
from kvdiag.ledger.layout import CARD, MANIFEST, read_manifest
from kvdiag.query.connection import connect, rows
from kvdiag.validation.validate import validate
from tests.faults.harness import (
    N_SOURCES,
    At,
    Bench,
    Ended,
    contents,
    die,
    disk_full,
    file_limit,
    kill_in_a_row,
    random_kills,
)


@pytest.fixture(scope="module")
def bench(model_folder, tmp_path_factory):
    return Bench(model_folder, tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def half(bench):
    """A build killed in the middle: nine sources kept. Copied, never written to."""
    out = bench.fresh()
    assert bench.run(out, hook=At("source:kept", 9, die)).code == -signal.SIGKILL
    assert len(bench.kept(out)) == 9
    return out


@pytest.fixture
def begun(bench, half):
    """A copy of it."""
    out = bench.fresh()
    shutil.copytree(half, out)
    return out


def one_line(ended: Ended, code: int) -> str:
    """The line of an error; no traceback."""
    assert ended.code == code, ended
    lines = [line for line in ended.err.splitlines() if not line.startswith(("started ", "warning: "))]
    assert len(lines) == 1 and lines[0].startswith("kvdiag: "), ended
    return lines[0]


def started(ended: Ended) -> int:
    return ended.err.count("started ")


def test_a_kill_at_any_moment_of_any_write_loses_nothing(bench):
    assert kill_in_a_row(bench) >= 40


def test_kills_at_random_moments_lose_nothing(bench):
    counts = random_kills(bench, 2, seed=1)
    assert counts["ledgers"] >= 1


@pytest.mark.parametrize(
    "moment", ["source:written", "runs/ruler_480-00000.parquet:flushed", "manifest.json:begun"]
)
def test_a_full_disk_is_one_line_and_the_build_goes_on(bench, begun, moment):
    ended = bench.run(begun, hook=At(moment, 1 + (moment == "source:written"), disk_full))
    line = one_line(ended, 1)
    kept = 10 if moment == "source:written" else N_SOURCES
    assert (
        f"--out {begun}: cannot be written (No space left on device); {kept} of {N_SOURCES} sources are kept"
        in line
    )
    assert not (begun / MANIFEST).exists()
    assert not list(begun.rglob("*.tmp"))
    assert bench.run(begun).code == 0
    bench.check_end(begun)


def test_a_write_that_the_system_cuts_off(bench, begun):
    """Not an error of ours: the kernel takes only the first bytes."""
    ended = bench.run(begun, prepare=file_limit(3000))
    assert f"cannot be written (File too large); 9 of {N_SOURCES} sources are kept" in one_line(ended, 1)
    assert bench.run(begun).code == 0
    bench.check_end(begun)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_commit_is_named_and_done_again(bench, begun, damage):
    files = sorted((begun / ".work" / "sources").glob("*.json"))
    data = bytearray(files[3].read_bytes())
    at = data.index(b'"nll": ') + 8
    data[at] ^= 1  # another digit: still JSON, still a number
    files[3].write_bytes({"flip": bytes(data), "cut": bytes(data[:1000]), "empty": b""}[damage])
    ended = bench.run(begun)
    assert ended.code == 0
    assert f"warning: {files[3]}: damaged (its checksum is wrong)" in ended.err
    assert started(ended) == N_SOURCES - 9 + 1
    bench.check_end(begun)


def test_a_damaged_plan_is_named(bench, begun):
    plan = begun / ".work" / "plan.json"
    plan.write_bytes(plan.read_bytes().replace(b'"seed": 42', b'"seed": 43'))
    assert f"{plan}: damaged" in one_line(bench.run(begun), 1)


def test_a_removed_folder_of_commits_is_done_again(bench, begun):
    shutil.rmtree(begun / ".work" / "sources")
    ended = bench.run(begun)
    assert (ended.code, started(ended)) == (0, N_SOURCES)
    bench.check_end(begun)


def test_damage_of_a_finished_ledger_is_named_by_validate_and_by_a_build(bench):
    paths = [f["path"] for f in read_manifest(bench.reference)["files"]]
    assert len(paths) == 5
    for path in paths:
        for damage in ("flip", "cut", "remove") if path == paths[0] else ("flip",):
            out = bench.fresh()
            shutil.copytree(bench.reference, out)
            file = out / path
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 4
            if damage == "remove":
                shutil.rmtree(file.parent)
            else:
                file.write_bytes(data if damage == "flip" else data[: len(data) // 2])
            assert any(path in finding.line() for finding in validate(out)), (path, damage)
            before = contents(out)
            assert path in one_line(bench.run(out), 1)
            assert contents(out) == before


@pytest.mark.parametrize("name", [MANIFEST, CARD])
def test_damage_of_its_manifest_and_card_is_named_too(bench, name):
    data = (bench.reference / name).read_bytes()
    words = data.index(b"kvdiag", len(data) // 3)
    changes = {
        "flip in words": data[:words] + b"j" + data[words + 1 :],
        "flip in the middle": data[: len(data) // 2]
        + bytes([data[len(data) // 2] ^ 4])
        + data[len(data) // 2 + 1 :],
        "cut": data[: len(data) // 2],
        "empty": b"",
        "seed": data.replace(b'"seed": 42', b'"seed": 43'),
        "threshold": data.replace(b'"thresholds": {', b'"thresholds": {"x": 1.0,'),
    }
    for what, changed in changes.items():
        if changed == data:
            continue  # the card has no such field
        out = bench.fresh()
        shutil.copytree(bench.reference, out)
        (out / name).write_bytes(changed)
        found = [f.line() for f in validate(out)]
        assert any(name in line for line in found), what
        before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
        line = one_line(bench.run(out), 1)
        assert name in line and ("bring " in line or "cannot be read" in line), what
        assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_a_card_that_was_edited_is_mended_by_its_removal_and_the_same_build(bench):
    out = bench.fresh()
    shutil.copytree(bench.reference, out)
    with (out / CARD).open("a") as card:
        card.write("My notes.\n")
    (finding,) = validate(out)
    ended = bench.run(out)
    for line in (finding.line(), one_line(ended, 1)):
        assert "README.md" in line and "was changed" in line and "remove it and run the same command" in line
    (out / CARD).unlink()
    assert [(f.rule, f.file) for f in validate(out)] == [("missing_card", CARD)]
    ended = bench.run(out)
    assert (ended.code, started(ended)) == (0, 0)
    assert not validate(out)
    bench.check_end(out)


def test_a_missing_card_is_not_written_into_a_ledger_that_is_damaged_else(bench):
    out = bench.fresh()
    shutil.copytree(bench.reference, out)
    (out / CARD).unlink()
    path = read_manifest(out)["files"][0]["path"]
    (out / path).unlink()
    assert f"{path} is missing (and 1 more)" in one_line(bench.run(out), 1)
    assert not (out / CARD).exists()


def loop(folder):
    """In place of a folder a link to itself: no file in it can be read or written, and the system says so."""
    shutil.rmtree(folder)
    folder.symlink_to(folder)


def test_a_disk_that_goes_away_is_one_line_that_says_what_is_kept(bench, begun):
    """Reads fail as writes do: what is kept cannot be asked for again."""
    sources, aside = begun / ".work" / "sources", begun.parent / "aside"

    def lose() -> None:
        shutil.copytree(sources, aside)
        loop(sources)

    ended = bench.run(begun, hook=At("source:begun", 3, lose))
    line = one_line(ended, 1)
    assert f"--out {begun}: cannot be written (Too many levels of symbolic links); 11 of {N_SOURCES}" in line
    assert "see that it can be written" in line

    line = one_line(bench.run(begun), 1)  # the first look at what is kept
    assert f"--out {begun}: " in line and "cannot be read (Too many levels of symbolic links)" in line
    sources.unlink()
    aside.rename(sources)
    assert bench.run(begun).code == 0
    bench.check_end(begun)


@pytest.mark.parametrize("name", ["plan.json", "sources"])
def test_a_work_file_that_cannot_be_read_is_named(bench, begun, name):
    path = begun / ".work" / name
    path = path if path.is_file() else sorted(path.iterdir())[4]
    kept = path.read_bytes()
    path.unlink()
    path.mkdir()  # as good as a bad sector: it is there, and reading it fails
    line = one_line(bench.run(begun), 1)
    assert f"--out {begun}: {path} cannot be read (Is a directory)" in line
    path.rmdir()
    path.write_bytes(kept)
    assert bench.run(begun).code == 0
    bench.check_end(begun)


def test_a_ledger_has_one_writer(bench, begun):
    gate = begun.parent / "gate"

    def hold() -> None:
        gate.touch()
        while gate.exists():
            time.sleep(0.01)

    first = bench.start(begun, hook=At("source:begun", 1, hold))
    try:
        while not gate.exists():
            time.sleep(0.01)
        assert "another build is writing there" in one_line(bench.run(begun), 3)
    finally:
        gate.unlink()
        ended = bench.end(*first)
    assert ended.code == 0
    bench.check_end(begun)


def test_a_build_that_loaded_while_another_finished_does_nothing(bench, begun):
    gate = begun.parent / "loading"
    gate.touch()

    def load() -> None:
        while gate.exists():
            time.sleep(0.01)

    second = bench.start(begun, wait=load)
    try:
        # Killed as it tidied up: the manifest is there, and so is `.work`.
        assert bench.run(begun, hook=At("work:finished", 1, die)).code == -signal.SIGKILL
        before = {p: p.stat().st_mtime_ns for p in begun.rglob("*.parquet")}
    finally:
        gate.unlink()
        ended = bench.end(*second)
    assert (ended.code, started(ended)) == (0, 0)
    assert {p: p.stat().st_mtime_ns for p in begun.rglob("*.parquet")} == before
    bench.check_end(begun)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_source_in_hand_finish(bench, begun, signum, code):
    ended = bench.run(begun, hook=At("source:begun", 1, lambda: os.kill(os.getpid(), signum)))
    assert ended.code == code
    assert "stopping after the source in hand" in ended.err
    assert (started(ended), len(bench.kept(begun))) == (1, 10)
    assert bench.run(begun).code == 0
    bench.check_end(begun)


def test_a_second_signal_stops_at_once(bench, begun):
    def twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    ended = bench.run(begun, hook=At("source:written", 1, twice))
    assert ended.code == 130
    assert len(bench.kept(begun)) == 9
    assert bench.run(begun).code == 0
    bench.check_end(begun)


class Poison:
    """run_source in which some sources raise, the first `times` times they are tried."""

    def __init__(self, ids, times=99):
        self.ids, self.times, self.real = set(ids), times, engine_source.run_source
        self.tried: dict[str, int] = {}

    def __call__(self, plan, prompts, source):
        n = self.tried[source.source_id] = self.tried.get(source.source_id, 0) + 1
        if source.source_id in self.ids and n <= self.times:
            raise ZeroDivisionError(f"at {self!r}")
        return self.real(plan, prompts, source)

    def put(self):
        engine_source.run_source = self


def test_a_poison_source_ends_as_failed_rows_and_the_others_are_untouched(bench, begun):
    bad = bench.plan.sources[12].source_id
    ended = bench.run(begun, prepare=Poison([bad]).put)
    assert ended.code == 0
    assert ended.err.count(bad) == 1  # begun once, tried twice
    assert not validate(begun)
    connection = connect(begun)
    failed = rows(
        connection,
        "SELECT DISTINCT source_id, status, reason, detail, score__status FROM runs WHERE output IS NULL",
    )
    assert failed == [
        {
            "source_id": bad,
            "status": "failed",
            "reason": "exception",
            "score__status": "failed",
            "detail": "ZeroDivisionError: at <tests.faults.test_faults.Poison object at 0x…>",
        }
    ]
    others = "SELECT * FROM runs WHERE source_id <> ? ORDER BY run_id"
    assert rows(connection, others, [bad]) == rows(connect(bench.reference), others, [bad])
    assert read_manifest(begun)["build"]["exceptions"] == {bad: failed[0]["detail"]}
    assert read_manifest(begun)["complete"] is True


def test_a_source_that_stumbles_once_is_as_if_nothing_was(bench, begun):
    ended = bench.run(begun, prepare=Poison([s.source_id for s in bench.plan.sources], times=1).put)
    assert ended.code == 0
    bench.check_end(begun)


def test_a_fault_of_all_sources_is_not_kept_as_theirs(bench, begun):
    ended = bench.run(begun, prepare=Poison([s.source_id for s in bench.plan.sources]).put)
    assert "5 sources in a row ended in an exception, the last with ZeroDivisionError" in one_line(ended, 1)
    assert len(bench.kept(begun)) == 9
    assert bench.run(begun).code == 0
    bench.check_end(begun)


def test_a_source_whose_prompt_cannot_be_made_is_a_row_too(bench):
    from kvdiag.prompts import PromptBuilder

    class Broken:
        def build(self, source):
            raise DataError("no prompt")

    prompts = PromptBuilder.create(bench.plan.model.tokenizer, "chat")
    source = bench.plan.sources[0]
    whole = engine_source.attempt(bench.plan, prompts, source)
    done = engine_source.attempt(bench.plan, Broken(), source)
    assert done.failed and [f.attempt for f in done.failures] == [1, 2]
    assert "DataError: no prompt" in done.failures[0].traceback
    assert done.records["control"]["detail"] == "DataError: no prompt"
    assert [r["run_id"] for r in done.records["runs"]] == [r["run_id"] for r in whole.records["runs"]]
    assert done.records["source"]["evidence_status"] == "failed"
