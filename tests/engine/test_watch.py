"""A build's log: one that cannot be written costs a line, not the build."""

import io
import subprocess
import sys
from contextlib import suppress

import pytest

from kvdiag.engine.watch import EventLog
from tests.command import ENVIRONMENT, kvdiag, start

SMALL = ("build", "--workload", "ruler_512", "--tasks", "vt", "--methods", "knorm", "--settings", "keep=0.5")
SMALL += ("--protocol", "aware", "--max-new-tokens", "2", "--limit", "2")


def test_a_log_on_a_full_disk_is_given_up_once(capsys):
    log = EventLog("/dev/full")
    log.warned("one")
    log.warned("two")
    log.stopped("three")
    log.close()
    out, err = capsys.readouterr()
    assert err == (
        "warning: --log-json /dev/full: cannot be written (No space left on device); "
        "the build goes on without its log\n"
    )
    assert out == ""


def test_a_full_stderr_does_not_matter_either(monkeypatch):
    full = open("/dev/full", "w")  # noqa: SIM115, its closing fails
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", full)
        log = EventLog("/dev/full")
        log.warned("one")
        log.close()
    with suppress(OSError):
        full.close()


def test_a_stdout_that_fails_is_given_up_too(monkeypatch, capsys):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    gone = Gone()
    monkeypatch.setattr(sys, "stdout", gone)
    log = EventLog("-")
    log.warned("one")
    log.warned("two")
    log.close()
    assert not gone.closed
    assert capsys.readouterr().err.count("--log-json -: cannot be written (Broken pipe)") == 1


def test_a_build_outlives_its_log(model_folder, tmp_path):
    done = kvdiag(*SMALL, "--model", model_folder, "--out", tmp_path / "x", "--log-json", "/dev/full")
    assert done.code == 0, done.err
    assert done.err.count("warning: --log-json /dev/full: cannot be written") == 1
    assert "Traceback" not in done.err
    assert (tmp_path / "x" / "manifest.json").is_file()


@pytest.mark.parametrize("reader", ["gone", "full"])
def test_a_build_outlives_the_reader_of_its_log(model_folder, tmp_path, reader):
    """As with `| head -1`, in a process of its own: what stdout still holds at its end is not its exit code."""
    arguments = (*SMALL, "--model", model_folder, "--out", tmp_path / "x", "--log-json", "-")
    if reader == "gone":
        build = start(*arguments)
        assert '"event": "planned"' in build.stdout.readline()
        build.stdout.close()
        err = build.stderr.read()
        code = build.wait()
    else:
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "kvdiag", *map(str, arguments)]
            ended = subprocess.run(
                command, env=ENVIRONMENT, text=True, stdout=full, stderr=subprocess.PIPE, check=False
            )
        err, code = ended.stderr, ended.returncode
    assert code == 0, err
    assert err.count("warning: --log-json -: cannot be written") == 1
    assert "Traceback" not in err and "Exception ignored" not in err
    assert (tmp_path / "x" / "manifest.json").is_file()
