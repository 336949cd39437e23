"""The public KVDiagnosis artifact, imported once for all tests. It lies beside the checkout, not in it."""

import copy
import csv
import json
from pathlib import Path

import pytest

from kvdiag.importers.kvdiagnosis import import_artifact
from tests.importers import mini

ARTIFACT = Path(__file__).parents[3] / "shared" / "data" / "kvdiagnosis"


@pytest.fixture(scope="session")
def artifact():
    """The folder of the artifact."""
    if not ARTIFACT.is_dir():
        pytest.skip("the KVDiagnosis artifact is not beside the checkout (../shared/data/kvdiagnosis)")
    return ARTIFACT


@pytest.fixture(scope="session")
def imported(artifact, tmp_path_factory):
    """The whole artifact as a ledger. Not to be written to."""
    ledger = tmp_path_factory.mktemp("imported") / "kvdiagnosis"
    import_artifact(artifact, ledger)
    return ledger


@pytest.fixture(scope="session")
def expected(artifact):
    """Reads one of the artifact's published tables."""

    def read(name):
        text = (artifact / "expected" / name).read_text(encoding="utf-8")
        return json.loads(text) if name.endswith(".json") else list(csv.DictReader(text.splitlines()))

    return read


@pytest.fixture(scope="session")
def _first(artifact):
    return mini.first_records(artifact)


@pytest.fixture
def records(_first):
    """Records of a small artifact, to be spoiled at will."""
    return copy.deepcopy(_first)
