"""`kvdiag push` as a user sees it: the plan, the outcome, one line where something is wrong."""

import json
from functools import partial

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

from tests.command import kvdiag
from tests.publish import made
from tests.publish.fake_hub import FakeHub


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """A valid ledger. Not to be written to."""
    folder = tmp_path_factory.mktemp("ledgers") / "made-up"
    made.write(folder, made.valid_rows(), made.valid_rows(2, "longbench"))
    return folder


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The Hub that this process knows, with a login that may write."""
    hub = FakeHub()
    monkeypatch.setattr(huggingface_hub, "HfApi", partial(huggingface_hub.HfApi, endpoint=hub.endpoint))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub_cache"))
    monkeypatch.setenv("HF_TOKEN", "write-token")
    disable_progress_bars()
    yield hub
    enable_progress_bars()
    hub.close()


def test_push_says_what_it_does_before_and_after(hub, ledger):
    planned = kvdiag("push", ledger, "org/c2w", "--dry-run")
    assert (planned.code, planned.err) == (0, "")
    assert not hub.repos
    lines = planned.out.splitlines()
    assert lines[0] == "org/c2w 1.0.0 (a new repository)"
    assert "  new" in lines[1] and lines[-1] == "nothing was done (--dry-run)"
    assert "texts not published: longbench (licence, or not in the ledger)" in lines

    done = kvdiag("push", ledger, "org/c2w")
    assert (done.code, done.err) == (0, "")
    commit = hub.repos["org/c2w"].tags["v1.0.0"]
    assert done.out.splitlines()[:-1] == lines[:-1]
    assert done.out.splitlines()[-1] == f"published as org/c2w v1.0.0, commit {commit}"

    again = kvdiag("push", ledger, "org/c2w")
    assert again.code == 0
    assert "0 files to send (0 bytes)" in again.out
    assert again.out.splitlines()[-1] == f"nothing to do: org/c2w v1.0.0 holds it already, commit {commit}"


def test_push_as_json(hub, ledger):
    done = kvdiag("push", ledger, "org/c2w", "--version", "2.0.0", "--private", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert {k: found[k] for k in ("repo", "version", "tag", "committed", "tagged")} == {
        "repo": "org/c2w",
        "version": "2.0.0",
        "tag": "v2.0.0",
        "committed": True,
        "tagged": True,
    }
    assert found["commit"] == hub.repos["org/c2w"].head.id
    assert found["texts"] == {"longbench": False, "ruler_1k": True}
    assert "data/runs/ruler_1k-00000.parquet" in found["new"] and found["bytes_to_send"] > 0
    assert hub.repos["org/c2w"].private
    assert done.err.startswith("org/c2w 2.0.0 (a new repository)\n")  # the plan, for people


def test_a_tag_that_is_missing_is_made(hub, ledger):
    kvdiag("push", ledger, "org/c2w")
    hub.repos["org/c2w"].tags.clear()
    again = kvdiag("push", ledger, "org/c2w")
    assert again.code == 0 and "held it already" in again.out and "tagged v1.0.0" in again.out
    assert hub.repos["org/c2w"].tags


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["org/c2w", "--version", "one"], 2, "--version one: must be X.Y.Z"),
        (["org/c2w", "--version", "01.0.0"], 2, "--version 01.0.0: must be X.Y.Z"),
        (["c2w"], 2, "REPO c2w: must be org/name"),
        (["https://huggingface.co/datasets/org/c2w"], 2, "must be org/name"),
        ([], 2, "Missing argument 'REPO'"),
    ],
)
def test_a_wrong_call_is_one_line(hub, ledger, args, code, message):
    result = kvdiag("push", ledger, *args)
    assert result.is_one_line_error(code), result
    assert message in result.err
    assert not hub.log


def test_what_is_no_ledger_is_one_line(hub, ledger, tmp_path):
    for folder, message in ((tmp_path / "none", "no such folder"), (tmp_path, "not a ledger")):
        result = kvdiag("push", folder, "org/c2w")
        assert result.is_one_line_error(2), result
        assert message in result.err and "--data" not in result.err  # push has no such flag
        assert result.err.startswith(f"Error: LEDGER {folder}") or f"LEDGER {folder}" in result.err
    made.write(tmp_path / "bad")
    (tmp_path / "bad" / "data" / "runs" / "ruler_1k-00000.parquet").unlink()
    result = kvdiag("push", tmp_path / "bad", "org/c2w")
    assert result.is_one_line_error(1), result
    assert "not published" in result.err and "data/runs/ruler_1k-00000.parquet" in result.err
    assert not hub.log


def test_without_a_login(hub, ledger, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "nowhere")
    result = kvdiag("push", ledger, "org/c2w")
    assert result.code == 3 and "not logged in; run hf auth login" in result.err
    assert len(result.err.splitlines()) == 1
    assert not hub.repos


WHO = ("--contact", "A. Person <a@example.org>")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("submit", "{empty}", "{ledger}", *WHO, "--dry-run"), 2, "EVALUATION {empty}: not a ledger"),
        (("submit", "{ledger}", "{empty}", *WHO, "--dry-run"), 2, "REPO {empty}: not a ledger"),
        (("submit", "{ledger}", "no/such/thing", *WHO), 2, "REPO no/such/thing: no such folder"),
        (("merge", "{empty}", "{ledger}", "--out", "x"), 2, "LEDGER|REPO {empty}: not a ledger"),
        (("merge", "{ledger}", "{empty}", "--out", "x"), 2, "SUBMISSION {empty}: not a ledger"),
        (
            ("merge", "{ledger}", "{ledger}", "--out", "x", "--method", "f.py:F"),
            2,
            "--method f.py:F: is for running",
        ),
        (
            ("merge", "{ledger}", "{ledger}", "--out", "x", "--model", "m"),
            2,
            "--model m: is for running rows again",
        ),
        (("merge", "{ledger}", "{ledger}", "--out", "x", "--seed", "0"), 2, "say how many with --sample N"),
    ],
)
def test_submit_and_merge_name_what_they_take(hub, ledger, tmp_path, args, code, message):
    (tmp_path / "empty").mkdir()
    names = {"empty": tmp_path / "empty", "ledger": ledger}
    result = kvdiag(*(a.format(**names) for a in args))
    assert result.is_one_line_error(code), result
    assert message.format(**names) in result.err and "--data" not in result.err
    assert not hub.log
