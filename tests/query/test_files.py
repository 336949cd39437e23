"""The ledger's files as SQL sees them: only they, only for reading, by many threads at once."""

import json
import random
import threading

import pytest

from kvdiag.errors import DataError
from kvdiag.query.connection import connect
from kvdiag.query.files import LedgerFiles
from tests.rows import write_made_up


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a").write_bytes(random.Random(0).randbytes(1_000_000))
    (tmp_path / "other").write_bytes(b"other")
    return LedgerFiles(tmp_path, ["a"])


def test_a_file_is_there_with_its_size(files):
    assert files.names() == ["ledger://a"]
    assert files.exists("ledger://a")
    assert files.size("ledger://a") == 1_000_000
    assert files.glob("ledger://a") == ["ledger://a"]
    assert files.open("ledger://a").read(3) == random.Random(0).randbytes(1_000_000)[:3]


@pytest.mark.parametrize(
    "name", ["ledger://other", "other", "a", "ledger://./a", "ledger://a/../other", "ledger://*"]
)
def test_no_other_file_is(files, name):
    assert not files.exists(name)
    assert files.glob(name) == []
    with pytest.raises(FileNotFoundError):
        files.open(name)
    with pytest.raises(FileNotFoundError):
        files.info(name)


@pytest.mark.parametrize("mode", ["wb", "ab", "r+b", "w", "xb"])
def test_none_is_written(files, mode):
    with pytest.raises(PermissionError):
        files.open("ledger://a", mode)
    for change in (files.rm, files.touch, lambda name: files.mv(name, "ledger://b")):
        with pytest.raises((NotImplementedError, OSError)):
            change("ledger://a")
    assert files.size("ledger://a") == 1_000_000


def test_seek_and_tell(files):
    file = files.open("ledger://a")
    assert file.seekable()
    assert (file.seek(10), file.tell()) == (10, 10)
    assert (file.seek(5, 1), file.seek(-1, 2)) == (15, 999_999)
    assert len(file.read()) == 1
    assert file.read(10) == b""
    file.close()


def test_threads_share_a_handle_without_disturbing_each_other(files):
    """DuckDB's threads do: one seeks, another seeks, and the first reads."""
    data = random.Random(0).randbytes(1_000_000)
    file = files.open("ledger://a")
    wrong = []

    def read(seed):
        draw = random.Random(seed)
        for _ in range(2000):
            at, n = draw.randrange(len(data)), draw.randrange(1, 20_000)
            file.seek(at)
            if file.read(n) != data[at : at + n]:
                wrong.append((seed, at, n))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", ["../outside.parquet", "/etc/passwd", "data/../../outside.parquet"])
def test_a_manifest_does_not_lead_out_of_the_ledger(tmp_path, name):
    manifest = write_made_up(tmp_path / "ledger")
    manifest["files"][0]["path"] = name
    (tmp_path / "ledger" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="outside the ledger"):
        connect(tmp_path / "ledger")
