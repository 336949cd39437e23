"""A fake Hub, a client of it in this process, and client libraries in processes of their own."""

import os
import socket
import subprocess
import sys
import textwrap

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

from kvdiag.publish import push as pushing
from kvdiag.publish import release
from tests.publish import made
from tests.publish.fake_hub import FakeHub

REPO = "kvdiag/c2w"
# Put before a script: no socket may leave this machine.
NO_NETWORK = """
import socket
_connect = socket.socket.connect
def connect(self, address):
    if isinstance(address, tuple) and address[0] != "127.0.0.1":
        raise OSError(f"the test may not reach {address}")
    return _connect(self, address)
socket.socket.connect = connect
"""


@pytest.fixture(scope="module")
def server():
    """One server for a module's tests."""
    hub = FakeHub()
    yield hub
    hub.close()


@pytest.fixture
def hub(server, monkeypatch, tmp_path):
    """An empty Hub; this process reaches it and nothing else."""
    server.forget()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)  # the Hub whose reach is looked at
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
    real = socket.socket.connect

    def connect(self, address):
        assert not isinstance(address, tuple) or address[0] == "127.0.0.1", address
        return real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    disable_progress_bars()
    yield server
    enable_progress_bars()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """A valid ledger with a workload whose texts may be published and one whose may not. Not to be written to."""
    folder = tmp_path_factory.mktemp("ledgers") / "made-up"
    made.write(folder, made.valid_rows(), made.valid_rows(2, "longbench"))
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another valid ledger. Not to be written to."""
    folder = tmp_path_factory.mktemp("ledgers") / "other"
    made.write(folder)
    return folder


_CHECKED: set[tuple[str, bytes]] = set()


def check_once(ledger):
    """The check of a ledger, which takes a second, once for each."""
    key = str(ledger), (ledger / "manifest.json").read_bytes()
    if key not in _CHECKED:
        release.check(ledger)
        _CHECKED.add(key)


@pytest.fixture
def publish(hub, monkeypatch):
    """Push as a user with a write token does, without waiting; `publish.waits` are the seconds it would have."""
    waits: list[float] = []
    monkeypatch.setattr(pushing, "check", check_once)

    def run(ledger, repo=REPO, token="write-token", **options):
        api = HfApi(endpoint=hub.endpoint, token=token)
        return pushing.push(ledger, repo, api=api, wait=waits.append, **options)

    run.waits = waits
    return run


@pytest.fixture
def python(hub, tmp_path):
    """Run a script against the Hub as a user does: a new process, an empty cache, real client libraries."""

    def run(script, expect=0, **environment):
        process = subprocess.run(
            [sys.executable, "-c", NO_NETWORK + textwrap.dedent(script)],
            env=user_environment(hub, tmp_path) | environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert process.returncode == expect, process.stderr[-3000:]
        return process.stdout if not expect else process.stderr

    return run


def user_environment(hub, home):
    """Environment variables of a process that knows only this Hub."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    return kept | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home / "hf"),
        "HF_TOKEN": "write-token",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }
