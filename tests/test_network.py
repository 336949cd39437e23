"""A Hub that cannot be reached is found out at once, wherever one is asked for."""

import socket
import time

import pytest

from kvdiag import network
from tests.command import kvdiag


@pytest.fixture
def closed_port():
    """An address that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in network._PROXIES:
        monkeypatch.delenv(name, raising=False)


def test_a_listener_is_reachable_and_a_closed_port_is_not(monkeypatch, closed_port):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert network.hub_reachable()
    monkeypatch.setenv("HF_ENDPOINT", closed_port)
    assert not network.hub_reachable()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:8080")
    assert network.hub_reachable()  # what is behind it cannot be told


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("build", "--workload", "ruler_512", "--model", "org/model"), "--model org/model: "),
        (("workloads", "check", "qasper", "--model", "{model}"), "without a network give your own copy: --file"),
        (("query", "--data", "org/name@v1.0.0", "SELECT 1"), "the Hub cannot be reached"),
    ],
)
def test_without_a_network_there_is_one_line_at_once(monkeypatch, tmp_path, model_folder, closed_port, args, said):
    monkeypatch.setenv("HF_ENDPOINT", closed_port)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    result = kvdiag(*(a.format(model=model_folder) for a in args))
    assert time.monotonic() - start < 30  # the clients' own retries take longer
    assert result.is_one_line_error(1 if args[0] == "query" else 2), result
    assert said in result.err
