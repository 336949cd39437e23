"""Ledgers that reports are made of. Not to be written to."""

import pytest

from kvdiag.analysis.report import html, tables
from tests import random_ledgers as random
from tests import rows as made
from tests.analysis.report.page import Page

RESAMPLES = 200
CELLS = tuple(
    (method, setting, protocol)
    for method, setting in (
        ("snapkv", "keep=0.5"),
        ("snapkv", "keep=0.25"),
        ("knorm", "keep=0.5"),
        random.BITS[:2],
    )
    for protocol in ("query_agnostic", "query_aware")
)


def report(ledger):
    """Data, sections and page of a ledger."""
    data = tables.gather(ledger, RESAMPLES, 0)
    found = html.sections(data)
    return data, found, html.render(data, found, html.draw(found, "svg"))


def with_bytes(run):
    """Measured bytes, but for knorm; distinct answers; some without an answer."""
    share = {"keep=0.5": 0.5, "keep=0.25": 0.26, "bits=4": 0.28}[run["setting"]]
    run |= {"kv_bytes_full": 10_000, "kv_bytes": int(10_000 * share) + random.number(run)}
    run |= {"output": run["run_id"], "nll": random.number(run) / 10}
    if run["method"] == "knorm":
        run |= {"kv_bytes": None, "kv_bytes_full": None}
    if run["method"] == "snapkv" and random.number(run) < 3:
        return made.without_answer(run, "failed", "oom") | {"kv_bytes": None, "kv_bytes_full": None}
    return run


@pytest.fixture(scope="session")
def ledger(tmp_path_factory):
    """Two protocols, two workloads, four method settings, 60 sources; snapkv has holes."""
    folder = tmp_path_factory.mktemp("report") / "both"
    random.paired_runs(folder, CELLS, n=60, change=with_bytes)
    return folder


@pytest.fixture(scope="session")
def made_report(ledger):
    """Data, sections and page of `ledger`."""
    return report(ledger)


@pytest.fixture(scope="session")
def page(made_report):
    """The page of `ledger`, read."""
    return Page(made_report[2])
