"""Work in progress: whole files or none, one plan, one writer."""

import json
import math
import os
import subprocess
import sys
import time
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.ledger.files import seal, to_json, write_atomic
from kvdiag.ledger.work import WorkFolder, check_recipe
from tests import rows


def records(index=0):
    source = rows.source_row(index)
    control = rows.control_row(source)
    return {"source": source, "control": control, "runs": [rows.run_row(source, control, right=False)]}


def work_file(work, index=0):
    work.commit(records(index))
    (path,) = (work.folder / "sources").glob("*.json")
    return path


@pytest.fixture
def work(tmp_path):
    return WorkFolder(tmp_path / "ledger")


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    write_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_atomic(path, "text is not bytes")
    assert path.read_bytes() == b"old"
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_kill_leaves_the_old_file_or_the_new(tmp_path):
    path = tmp_path / "file.bin"
    script = """
import sys
from pathlib import Path
from kvdiag.ledger.files import write_atomic
while True:
    for letter in (b"a", b"b"):
        write_atomic(Path(sys.argv[1]), letter * 3_000_000)
"""
    writer = subprocess.Popen([sys.executable, "-c", script, str(path)])
    try:
        for _ in range(40):
            while not path.exists():
                assert writer.poll() is None
                time.sleep(0.01)
            data = path.read_bytes()
            assert len(data) == 3_000_000
            assert len(set(data)) == 1
    finally:
        writer.kill()
        writer.wait()
    assert path.read_bytes() in (b"a" * 3_000_000, b"b" * 3_000_000)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_nan_reaches_a_file(number):
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"runs": [{"nll": number}]})


def test_what_is_committed_is_loaded(work):
    first, second = records(0), records(1)
    assert work.load(first["source"]["source_id"]) is None
    work.commit(first)
    work.commit(second)
    again = WorkFolder(work.ledger)
    assert again.load(first["source"]["source_id"]) == first
    assert again.load(second["source"]["source_id"]) == second


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\x00" * 64, lambda b: b"\xff\xfe"]
)
def test_a_damaged_work_file_is_done_again(work, damage):
    path = work_file(work)
    path.write_bytes(damage(path.read_bytes()))
    assert work.load(records()["source"]["source_id"]) is None
    work.commit(records())
    assert work.load(records()["source"]["source_id"]) == records()


def test_a_work_file_of_another_source_is_not_taken(work):
    path = work_file(work)
    path.write_bytes(seal("records", records(1)))
    assert work.load(records(0)["source"]["source_id"]) is None
    assert "holds another source" in work.damaged[0]


def test_any_wrong_byte_of_a_commit_is_noticed(work):
    path = work_file(work)
    data = path.read_bytes()
    source_id = records()["source"]["source_id"]
    assert json.loads(data)["records"] == records()  # it is JSON for whoever looks
    for at in range(0, len(data), 97):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert work.load(source_id) is None, at
    assert all(str(path) in text and source_id in text for text in work.damaged)
    path.write_bytes(data)
    assert work.load(source_id) == records()


@pytest.mark.parametrize(
    "damage", [lambda b: b.replace(b'"seed": 1', b'"seed": 2'), lambda b: b[:-3], lambda b: b""]
)
def test_a_damaged_plan_is_named(work, damage):
    work.adopt(rows.plan())
    path = work.folder / "plan.json"
    path.write_bytes(damage(path.read_bytes()))
    for look in (lambda: work.adopt(rows.plan()), lambda: check_recipe(work.ledger, rows.plan()["recipe"])):
        with pytest.raises(DataError, match=r"plan\.json: damaged .*remove"):
            look()


def test_work_files_may_be_anywhere_that_fsspec_reaches(tmp_path):
    """As when the machine that drives a build may be taken away: another one goes on from the same address."""
    address = "memory://kvdiag-test/work"
    one = WorkFolder(tmp_path / "one", address)
    one.adopt(rows.plan())
    one.commit(records())
    assert not (tmp_path / "one" / ".work" / "sources").exists()
    fsspec.filesystem("memory").pipe_file("/kvdiag-test/work/notes.txt", b"mine")

    two = WorkFolder(tmp_path / "two", address)
    two.adopt(rows.plan())
    assert two.load(records()["source"]["source_id"]) == records()
    assert two.load("another") is None
    with pytest.raises(RefusedError, match="another recipe"):
        WorkFolder(tmp_path / "three", address).adopt(rows.plan(seed=2))
    (name,) = fsspec.filesystem("memory").find("/kvdiag-test/work/kvdiag-work/sources")
    fsspec.filesystem("memory").pipe_file(name, b"{}")
    assert two.load(records()["source"]["source_id"]) is None
    assert address in two.damaged[0]
    two.remove()
    assert fsspec.filesystem("memory").find("/kvdiag-test") == ["/kvdiag-test/work/notes.txt"]
    fsspec.filesystem("memory").rm("/kvdiag-test", recursive=True)


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_what_else_is_in_the_users_folder_stays(tmp_path, scheme):
    """Whatever its name: files called as ours are the user's too."""
    root = f"/kvdiag-mine{tmp_path}" if scheme == "memory://" else f"{tmp_path}/scratch"
    system = fsspec.filesystem(scheme.removesuffix("://") or "file")
    theirs = {"thesis.txt": b"mine", "sub/x": b"x", "sources/data.csv": b"1", "plan.json": b"{}", ".work/y": b"y"}
    for name, data in theirs.items():
        system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        system.pipe_file(f"{root}/{name}", data)
    work = WorkFolder(tmp_path / "ledger", scheme + root)
    with work.locked():
        work.adopt(rows.plan())
        work.commit(records())
        assert len(system.find(f"{root}/kvdiag-work/sources")) == 1
        work.remove()
    assert {p.removeprefix(f"{root}/"): system.cat_file(p) for p in system.find(root)} == theirs
    assert not system.exists(f"{root}/kvdiag-work")
    assert list((tmp_path / "ledger").iterdir()) == []


def test_a_disk_that_fails_says_what_is_kept_and_where(tmp_path, work):
    work.commit(records())
    ids = [records(i)["source"]["source_id"] for i in range(3)]
    elsewhere = WorkFolder(tmp_path / "ledger", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DataError, match=r"--out \S+: cannot be written \(full\); 1 of 3 sources"),
        work.writing(ids),
    ):
        raise OSError(28, "full")
    with (
        pytest.raises(DataError, match=r"or --work \S+/file: cannot be written \(Not a directory\); 0 of 3"),
        elsewhere.writing(ids),
    ):
        elsewhere.commit(records())


class Flaky(MemoryFileSystem):
    """Another machine's files, with errors that are no OSErrors, as object stores' libraries raise them."""

    protocol = "flaky"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    down = False

    def cat_file(self, path, *args, **kwargs):
        self._answer()
        return super().cat_file(path, *args, **kwargs)

    def pipe_file(self, path, value, *args, **kwargs):
        self._answer()
        return super().pipe_file(path, value, *args, **kwargs)

    def rm(self, path, *args, **kwargs):
        self._answer()
        return super().rm(path, *args, **kwargs)

    def _answer(self):
        if Flaky.down:
            raise LookupError("Could not connect to the endpoint\nfor hours")


@pytest.fixture
def flaky(monkeypatch):
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    monkeypatch.setattr(Flaky, "store", {})
    monkeypatch.setattr(Flaky, "pseudo_dirs", [""])
    return lambda down: monkeypatch.setattr(Flaky, "down", down)


def test_a_store_that_goes_away_is_one_line(tmp_path, flaky):
    ids = [records(i)["source"]["source_id"] for i in range(3)]
    work = WorkFolder(tmp_path / "one", "flaky://run-7")
    work.adopt(rows.plan())
    work.commit(records(0))
    assert work.load(ids[1]) is None
    flaky(True)
    said = "LookupError: Could not connect to the endpoint"
    with (
        pytest.raises(
            DataError, match=rf"--work flaky://run-7: cannot be written \({said}\); at least 1 of 3 sources"
        ),
        work.writing(ids),
    ):
        work.commit(records(1))
    with pytest.raises(DataError, match=rf"--work flaky://run-7: \S+ cannot be read \({said}\); .* 1 are kept"):
        work.load(ids[0])

    again = WorkFolder(tmp_path / "two", "flaky://run-7")
    with (
        pytest.raises(DataError, match=rf"--work flaky://run-7: \S+/plan\.json cannot be read \({said}\); see"),
        again.writing(ids),
    ):
        again.adopt(rows.plan())
    flaky(False)
    with again.writing(ids):
        again.adopt(rows.plan())
        assert again.load(ids[0]) == records(0)


def test_what_is_kept_elsewhere_is_counted_when_nothing_was_read_yet(tmp_path):
    address = str(tmp_path / "scratch")
    one = WorkFolder(tmp_path / "one", address)
    one.commit(records(0))
    ids = [records(i)["source"]["source_id"] for i in range(3)]
    again = WorkFolder(tmp_path / "two", address)
    with pytest.raises(DataError, match=r"\(full\); 1 of 3 sources are kept: make room"), again.writing(ids):
        raise OSError(28, "full")


def test_a_store_that_goes_away_at_the_end_leaves_a_whole_ledger_and_a_word(tmp_path, flaky):
    work = WorkFolder(tmp_path / "ledger", "flaky://run-8")
    with work.locked():
        work.adopt(rows.plan())
        flaky(True)
        told = work.remove()
    assert "flaky://run-8/kvdiag-work: cannot be removed (LookupError" in told and "is whole" in told
    assert work.folder.is_dir()  # so that the same command tidies up
    flaky(False)
    with work.locked():
        assert work.remove() is None
    assert list(work.ledger.iterdir()) == []


def test_an_unknown_address_is_the_users_mistake(tmp_path):
    with pytest.raises(UsageError, match="--work nowhere://x: cannot be reached"):
        WorkFolder(tmp_path, "nowhere://x")


def test_new_folders_are_flushed_too(tmp_path, monkeypatch):
    """A file that is on the disk in a folder that is not would be lost."""
    flushed, real = [], os.fsync

    def note(opened):
        flushed.append(os.readlink(f"/proc/self/fd/{opened}"))
        real(opened)

    monkeypatch.setattr(os, "fsync", note)
    write_atomic(tmp_path / "a" / "b" / "file.json", b"{}")
    assert flushed == [str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/b/.file.json.tmp", f"{tmp_path}/a/b"]


def test_the_same_plan_goes_on(work):
    work.adopt(rows.plan())
    work.adopt(rows.plan())
    work.adopt(rows.plan(name="another label"))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (rows.plan(seed=2), "of another recipe (seed: 1 -> 2)"),
        (rows.plan(methods=["knorm"]), "of another recipe (methods: "),
        (
            rows.plan() | {"environment": {"kvdiag": "0.1.0", "threads": 8}},
            "of another environment (threads: 1 -> 8)",
        ),
    ],
)
def test_another_plan_is_refused(work, other, message):
    work.adopt(rows.plan())
    before = {p: p.read_bytes() for p in work.ledger.rglob("*") if p.is_file()}
    with pytest.raises(RefusedError) as raised:
        work.adopt(other)
    assert message in str(raised.value)
    assert str(work.ledger) in str(raised.value)
    assert raised.value.exit_code == 3
    assert {p: p.read_bytes() for p in work.ledger.rglob("*") if p.is_file()} == before


def test_a_ledger_has_one_writer(work):
    with work.locked():
        with pytest.raises(RefusedError, match="another build is writing there"), WorkFolder(work.ledger).locked():
            pass
        # Nor can another process come in, and the first one's lock has survived that try.
        script = (
            "import sys; from pathlib import Path; from kvdiag.ledger.work import WorkFolder\n"
            "with WorkFolder(Path(sys.argv[1])).locked(): pass"
        )
        other = subprocess.run(
            [sys.executable, "-c", script, str(work.ledger)], capture_output=True, text=True, check=False
        )
        assert "RefusedError" in other.stderr
    with WorkFolder(work.ledger).locked():
        pass
    work.remove()
    assert list(work.ledger.iterdir()) == []


def test_the_lock_goes_when_a_build_fails(work):
    with pytest.raises(ZeroDivisionError), work.locked():
        raise ZeroDivisionError
    with work.locked():
        pass


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path):
    (tmp_path / "file").write_text("")
    work = WorkFolder(tmp_path / "file" / "ledger")
    with pytest.raises(UsageError, match="cannot be written"), work.locked():
        pass


def test_a_recipe_is_checked_against_the_folder(tmp_path):
    recipe = rows.plan()["recipe"]
    check_recipe(tmp_path / "none", recipe)
    assert not (tmp_path / "none").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    check_recipe(empty, recipe)

    work = WorkFolder(tmp_path / "begun")
    work.adopt(rows.plan())
    finished = tmp_path / "finished"
    rows.write_made_up(finished)
    for folder in (work.ledger, finished):
        check_recipe(folder, recipe)
        with pytest.raises(RefusedError, match="another recipe"):
            check_recipe(folder, recipe | {"seed": 9})


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path):
    recipe = rows.plan()["recipe"]
    (tmp_path / "thesis.txt").write_text("")
    with pytest.raises(RefusedError, match="holds other files"):
        check_recipe(tmp_path, recipe)
    with pytest.raises(UsageError, match="is a file"):
        check_recipe(tmp_path / "thesis.txt", recipe)
