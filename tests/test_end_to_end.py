"""Every workload from its real data to a ledger, on the embedded model. Slow: `make test-all`."""

import json
from pathlib import Path

import pytest

from kvdiag.query.connection import connect, rows
from tests.command import kvdiag

DATA = Path(__file__).parents[2] / "shared" / "data"
CELLS = ("--methods", "streaming_llm,snapkv,knorm", "--settings", "keep=0.5,keep=0.25", "--protocol", "agnostic")

pytestmark = [pytest.mark.slow, pytest.mark.model]


def built(out, *flags):
    """A ledger of these sources, checked as `kvdiag validate` does."""
    if not DATA.is_dir():
        pytest.skip("the data sets are not beside the checkout (../shared/data)")
    result = kvdiag("build", "--recipe", "default", *flags, *CELLS, "--model", "smollm2", "--out", out)
    assert result.code == 0, result.err
    checked = kvdiag("validate", out)
    assert checked.code == 0, checked.out
    return connect(out)


def chosen(folder, file, answers, n):
    """A file of n questions: the shortest one of each of these answers, then the shortest of the rest."""
    items = sorted(json.loads(file.read_text()), key=lambda item: len(str(item["context"])))
    first = [next(item for item in items if item["answer"] == answer) for answer in answers]
    path = folder / file.name
    path.write_text(json.dumps([*first, *(item for item in items if item not in first)][:n]))
    return path


def count(connection, table, where="true"):
    return rows(connection, f"SELECT count(*) AS n FROM {table} WHERE {where}")[0]["n"]


def test_ruler_with_all_its_tasks(tmp_path):
    squad, hotpot = DATA / "ruler/xquad.en.json", DATA / "hotpotqa/hotpot_dev_distractor_sample110.json"
    ledger = built(
        tmp_path / "ledger",
        *("--workload", "ruler_1k", "--tasks", "all", "--limit", 13, "--max-new-tokens", 40),
        *("--haystack", DATA / "ruler/haystack_emerson_essays.txt"),
        *("--file", f"qa_1={squad}", "--file", f"qa_2={hotpot}"),
    )
    assert count(ledger, "(SELECT DISTINCT task FROM sources)") == 13
    assert count(ledger, "runs", "status = 'available'") == 13 * 6
    assert count(ledger, "runs", "err IS NOT NULL AND ear IS NOT NULL") == 13 * 6
    assert count(ledger, "c2w") > 0


def test_hotpotqa(tmp_path):
    # This small model answers few of them: two that it does, with the full cache, and two short ones.
    file = chosen(tmp_path, DATA / "hotpotqa/hotpot_dev_distractor_sample110.json", ("Animorphs", "no"), 4)
    ledger = built(tmp_path / "ledger", "--workload", "hotpotqa", "--file", file, "--limit", 4)
    assert count(ledger, "runs", "err IS NOT NULL") == 4 * 6
    assert count(ledger, "controls", "correct") > 0
    assert count(ledger, "c2w", "ecov IS NOT NULL AND signature IS NOT NULL") > 0


def test_qasper(tmp_path):
    papers = json.loads((DATA / "qasper/qasper-train-v0.3-sample10.json").read_text())
    brief = min(papers, key=lambda p: len(str(papers[p]["full_text"])))
    file = tmp_path / "one.json"
    file.write_text(json.dumps({brief: papers[brief]}))
    ledger = built(tmp_path / "ledger", "--workload", "qasper", "--file", file, "--limit", 6)
    n = count(ledger, "sources")
    assert n == len(papers[brief]["qas"][:6])
    mapped = count(ledger, "sources", "evidence_status = 'available'")
    assert count(ledger, "runs", "err IS NOT NULL") == 6 * mapped > 0
    assert count(ledger, "runs", "status = 'available'") == 6 * n


def test_longbench(tmp_path):
    tasks = "2wikimqa,lcc,passage_retrieval_en"
    ledger = built(
        tmp_path / "ledger",
        *("--workload", "longbench", "--file", DATA / "longbench", "--tasks", tasks, "--limit", 6),
    )
    assert count(ledger, "sources", "task = 'lcc' AND NOT chat") == 2
    # passage_retrieval_en is longer than the model: rows that say so, for the control too.
    assert count(ledger, "runs", "task = 'passage_retrieval_en' AND reason = 'over_length'") == 2 * 6
    assert count(ledger, "controls", "task = 'passage_retrieval_en' AND status = 'unsupported'") == 2
    assert count(ledger, "runs", "task <> 'passage_retrieval_en' AND status = 'available'") == 4 * 6
    assert count(ledger, "runs", "err__reason = 'not_annotated'") == 4 * 6
