"""Xet, the storage that huggingface_hub takes by default: a Hub without it, and one with it.

The second rests on `local://`, an internal scheme of hf_xet: it stores chunks in a folder in place of a server. A
failure there after an upgrade of hf_xet speaks of that scheme, not of kvdiag.
"""

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.publish import made
from tests.publish.conftest import user_environment
from tests.publish.fake_hub import FakeHub

PUSH = """
import sys
from pathlib import Path
from kvdiag.errors import KvdiagError
from kvdiag.publish.push import push
try:
    done = push(Path({ledger!r}), "kvdiag/c2w", wait=lambda seconds: None)
    print(done.plan.version, done.committed)
except KvdiagError as error:
    sys.exit(f"kvdiag: {{error}}")
"""


def test_a_hub_without_xet(hub, ledger, python):
    said = python(PUSH.format(ledger=str(ledger)), expect=1, HF_HUB_DISABLE_XET="0")
    assert "kvdiag: kvdiag/c2w: " in said and "set HF_HUB_DISABLE_XET=1" in said
    assert list(hub.repos["kvdiag/c2w"].head.files) == [".gitattributes"]
    assert not hub.repos["kvdiag/c2w"].tags


@pytest.fixture
def xet_hub(tmp_path):
    """A Hub whose Xet storage is a folder."""
    hub = FakeHub(xet=tmp_path / "cas")
    (tmp_path / "cas").mkdir()
    yield hub
    hub.close()


@pytest.mark.xfail(strict=False, reason="rests on hf_xet's internal local:// scheme")
def test_push_and_read_through_xet(xet_hub, tmp_path):
    made.write(tmp_path / "ledger")
    script = PUSH.format(ledger=str(tmp_path / "ledger")) + (
        "from huggingface_hub import snapshot_download\n"
        "print(snapshot_download('kvdiag/c2w', repo_type='dataset', revision='v1.0.0'))\n"
    )
    environment = user_environment(xet_hub, tmp_path) | {"HF_HUB_DISABLE_XET": "0"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[0] == "1.0.0 True"
    folder = Path(done.stdout.splitlines()[1])
    assert not xet_hub.requests("/lfs/") and xet_hub.requests("/xet-write-token/")
    for name in ("runs", "c2w"):
        path = f"data/{name}/ruler_1k-00000.parquet"
        assert pq.read_table(folder / path).equals(pq.read_table(tmp_path / "ledger" / path))
