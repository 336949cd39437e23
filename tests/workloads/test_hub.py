"""Fetching from the Hub, with the library's download replaced: no test reaches the network."""

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from kvdiag.errors import UsageError
from kvdiag.workloads import hotpotqa, hub, longbench, qasper

ANSWER = httpx.Response(404, request=httpx.Request("GET", "https://example.invalid/x"))
ERRORS = [
    RepositoryNotFoundError("404 Client Error.\nRepository Not Found", response=ANSWER),
    RevisionNotFoundError("404 Client Error.", response=ANSWER),
    RemoteEntryNotFoundError("404 Client Error.", response=ANSWER),
    GatedRepoError("401 Client Error.", response=ANSWER),
    LocalEntryNotFoundError("An error happened while trying to locate the file on the Hub"),
    OfflineModeIsEnabled("Cannot reach the Hub: offline mode is enabled."),
    HFValidationError("Repo id must be in the form 'repo_name' or 'namespace/repo_name'"),
    httpx.ReadTimeout("The read operation timed out"),
    OSError(28, "No space left on device"),
    ConnectionError(),
]


@pytest.fixture
def calls(monkeypatch, tmp_path):
    """The arguments of each download; every file is there."""
    seen = []

    def download(**kwargs):
        seen.append(kwargs)
        return str(tmp_path / kwargs["filename"])

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(hub, "hub_reachable", lambda: True)
    return seen


def test_a_file_is_asked_for_by_data_set_and_revision(calls, tmp_path):
    assert hub.fetch("some/set", "a/b.parquet", "0123456789ab") == tmp_path / "a" / "b.parquet"
    assert calls == [
        {
            "repo_id": "some/set",
            "filename": "a/b.parquet",
            "revision": "0123456789ab",
            "repo_type": "dataset",
            "local_files_only": False,
        }
    ]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_a_failed_download_is_one_line_that_names_the_way_out(monkeypatch, error):
    def download(**kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(UsageError) as caught:
        hub.fetch("some/set", "a/b.parquet", "0123456789abcdef")
    message = str(caught.value)
    assert "\n" not in message
    for word in ("a/b.parquet", "some/set", "0123456789ab", type(error).__name__, "--file PATH"):
        assert word in message
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("module", "repo", "filename"),
    [
        (qasper, "allenai/qasper", "qasper/validation/0000.parquet"),
        (hotpotqa, "hotpotqa/hotpot_qa", "distractor/validation-00000-of-00001.parquet"),
        (longbench, "zai-org/LongBench", "data.zip"),
    ],
)
def test_default_files_are_pinned(calls, tmp_path, module, repo, filename):
    assert module.default_files(module.TASKS) == [tmp_path / filename]
    (call,) = calls
    assert (call["repo_id"], call["filename"]) == (repo, filename)
    assert len(call["revision"]) == 40 and int(call["revision"], 16)
