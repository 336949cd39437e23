"""The import of the KVDiagnosis artifact: what arrives, what is said of what does not, and who can read it."""

import gzip
import json
import shutil

import pyarrow as pa
import pytest
from datasets import load_dataset

from kvdiag.diagnostics.signatures import signature, signature_flags
from kvdiag.importers.artifact import METHODS
from kvdiag.importers.kvdiagnosis import import_artifact
from kvdiag.query.run import query
from kvdiag.records.schema import TABLES, arrow_schema, metric_names
from tests.command import kvdiag
from tests.importers import mini

ROWS = {"sources": 2600, "controls": 2600, "runs": 62400, "c2w": 12520, "retention": 0, "methods": 8, "repairs": 0}


def ask(ledger, sql):
    return query(ledger, sql).to_pylist()


def manifest(ledger):
    return json.loads((ledger / "manifest.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def qa_failures(artifact):
    """The artifact's own records of question answering failures, by run."""
    found = {}
    for dataset in ("qasper", "hotpotqa"):
        with gzip.open(artifact / f"{mini.failures(dataset)}.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                found[mini.key(record)] = record
    return found


def test_counts(imported):
    assert manifest(imported)["rows"] == ROWS
    for table, rows in ROWS.items():
        assert ask(imported, f"SELECT count(*) AS n FROM {table}") == [{"n": rows}]
    assert ask(imported, "SELECT count(*) AS n FROM runs WHERE status = 'unsupported'") == [{"n": 2600}]
    assert ask(imported, "SELECT count(*) AS n FROM runs WHERE status = 'available'") == [{"n": 59800}]


def test_it_is_an_ordinary_ledger(imported):
    about = manifest(imported)
    assert about["complete"]
    assert about["holes"] == []
    assert len(about["cells"]) == 24
    assert about["origin"]["licence"] == "MIT"
    checked = kvdiag("validate", imported)
    assert checked.code == 0, checked


def test_every_key_is_there_once_and_joins(imported):
    for table, name in (
        ("sources", "source_id"),
        ("controls", "control_id"),
        ("runs", "run_id"),
        ("c2w", "run_id"),
    ):
        assert ask(imported, f"SELECT count(*) AS n, count(DISTINCT {name}) AS k FROM {table}") == [
            {"n": ROWS[table], "k": ROWS[table]}
        ]
    assert ask(imported, "SELECT count(*) AS n FROM runs ANTI JOIN controls USING (control_id, source_id)") == [
        {"n": 0}
    ]
    assert ask(imported, "SELECT count(*) AS n FROM runs ANTI JOIN sources USING (source_id)") == [{"n": 0}]


@pytest.mark.parametrize("table", ["controls", "runs", "c2w"])
def test_value_status_and_reason_agree_in_every_row(imported, table):
    checks = []
    for name in metric_names(table):
        status, reason = f"{name}__status", f"{name}__reason"
        finite = f"isfinite({name})" if arrow_schema(table).field(name).type == pa.float64() else "true"
        checks.append(
            f"SELECT '{name}' AS metric, count(*) AS n FROM {table} WHERE {status} IS NULL "
            f"OR ({name} IS NOT NULL) <> ({status} = 'available') "
            f"OR ({reason} IS NULL) <> ({status} = 'available') OR NOT coalesce({finite}, true)"
        )
    found = ask(imported, " UNION ALL ".join(checks))
    assert len(found) == len(metric_names(table)) > 5
    assert [f for f in found if f["n"]] == []


def test_think_at_25_percent_is_unsupported_and_says_why(imported):
    found = ask(
        imported,
        """SELECT DISTINCT method, setting, origin_label, reason, detail, output, correct, transition,
                  score__status, nll__status, err__status, delta_nll__status, delta_nll__reason
           FROM runs WHERE status <> 'available'""",
    )
    (row,) = found
    assert row.pop("detail").startswith("N/A: ThinKPress prunes key channels but not values")
    assert row == {
        "method": "think",
        "setting": "keep=0.25",
        "origin_label": "25%",
        "reason": "channels_exhausted",
        "output": None,
        "correct": None,
        "transition": None,
        "score__status": "unsupported",
        "nll__status": "unsupported",
        "err__status": "unsupported",
        "delta_nll__status": "unsupported",
        "delta_nll__reason": "run:channels_exhausted",
    }


def test_labels_of_the_artifact_stand_beside_our_settings(imported):
    found = ask(imported, "SELECT DISTINCT setting, origin_label, keep FROM runs WHERE method = 'quantized_hqq'")
    assert {(r["setting"], r["origin_label"], r["keep"]) for r in found} == {
        ("bits=8", "75%", None),
        ("bits=4", "50%", None),
        ("bits=2", "25%", None),
    }
    found = ask(imported, "SELECT DISTINCT setting, origin_label, keep FROM runs WHERE method = 'snapkv'")
    assert {(r["setting"], r["origin_label"], r["keep"]) for r in found} == {
        ("keep=0.75", "75%", 0.75),
        ("keep=0.5", "50%", 0.5),
        ("keep=0.25", "25%", 0.25),
    }


def test_coverage_is_where_it_was_measured_and_nowhere_else(imported, qa_failures):
    found = ask(
        imported,
        """SELECT structurally_addressable AS structural, workload IN ('qasper', 'hotpotqa') AS qa,
                  transition IS NOT DISTINCT FROM 'C->W' AS failed, err__status, err__reason, ecov__status,
                  count(*) AS n
           FROM runs WHERE status = 'available' GROUP BY ALL""",
    )
    mapped = 0
    for row in found:
        if row["structural"]:
            expected = ("not_applicable", "structural_position", "not_applicable")
        elif row["qa"] and row["failed"]:
            expected, mapped = ("available", None, "available"), mapped + row["n"]
        else:
            expected = ("not_measured", "not_in_artifact", "not_measured")
        assert (row["err__status"], row["err__reason"], row["ecov__status"]) == expected, row
    assert mapped == sum(r["ECov_slot_status"] == "available" for r in qa_failures.values())


def test_what_the_artifact_lacks_is_not_measured(imported):
    """Attention, Top-50, KL, ranks, first token, own answer, repetition, agreement: for no run at all."""
    for table, held in (
        ("runs", {"score", "nll", "delta_nll", "gpr", "err", "ecov"}),
        ("controls", {"score", "nll"}),
    ):
        lacking = sorted(set(metric_names(table)) - held)
        each = [
            f"SELECT DISTINCT '{name}' AS metric, {name}__status AS s, {name}__reason AS r "
            f"FROM {table} WHERE status = 'available'"
            for name in lacking
        ]
        found = ask(imported, " UNION ALL ".join(each) + " ORDER BY metric")
        assert found == [{"metric": name, "s": "not_measured", "r": "not_in_artifact"} for name in lacking]
    (sources,) = ask(
        imported,
        """SELECT any_value(text_status) AS text, any_value(evidence_status) AS evidence,
                  count(DISTINCT text_status || evidence_status) AS n, count(context) AS contexts,
                  count(question) AS questions, count(prompt_hash) AS hashes FROM sources""",
    )
    assert sources == {
        "text": "not_measured",
        "evidence": "not_measured",
        "n": 1,
        "contexts": 0,
        "questions": 0,
        "hashes": 2600,
    }


def test_signatures_of_question_answering_failures_are_the_artifacts(imported, qa_failures):
    """All 1,154, from the ledger's metrics: by our rules anew, and as the c2w table has them."""
    sql = """
        SELECT split_part(source_id, '/', 3) AS sample, workload, method, origin_label, coverage_type, ecov,
               delta_nll, ear, top50_overlap, signature, signature_flags
        FROM c2w WHERE workload IN ('qasper', 'hotpotqa')"""
    rows = {(r["workload"], r["sample"], r["method"], r["origin_label"]): r for r in ask(imported, sql)}
    assert len(rows) == len(qa_failures) == 1154
    for (dataset, sample, method, budget), theirs in qa_failures.items():
        row = rows[dataset, sample, METHODS[method][0], f"{budget:.0%}"]
        names = ("coverage_type", "ecov", "delta_nll", "ear", "top50_overlap")
        flags = signature_flags(**{n: row[n] for n in names})
        assert flags == row["signature_flags"] == theirs["primitive_flags"]
        assert signature(flags) == row["signature"] == theirs["failure_signature"]


def test_ruler_failures_have_no_signature_and_say_so(imported):
    found = ask(
        imported,
        """SELECT DISTINCT signature, signature__status AS status, signature__reason AS reason,
                  len(signature_flags) AS n
           FROM c2w WHERE workload LIKE 'ruler%'""",
    )
    assert found == [{"signature": None, "status": "not_measured", "reason": "not_in_artifact", "n": 0}]


def test_plain_and_gzipped_files_give_the_same_ledger(records, tmp_path):
    for ending in (".jsonl", ".jsonl.gz"):
        import_artifact(mini.write(tmp_path / f"from{ending}", records, ending), tmp_path / ending[1:])
    plain, zipped = tmp_path / "jsonl", tmp_path / "jsonl.gz"
    names = [p.relative_to(plain) for p in sorted(plain.rglob("*")) if p.is_file()]
    assert names == [p.relative_to(zipped) for p in sorted(zipped.rglob("*")) if p.is_file()]
    for name in names:
        assert (plain / name).read_bytes() == (zipped / name).read_bytes(), name
    assert manifest(plain)["rows"]["runs"] == 4 * 3 * 24


def test_coverage_of_ruler_failures_is_taken_where_it_is_there(records, tmp_path):
    run = next(
        r
        for r in records[mini.runs("ruler8k")]
        if r["outcome_transition"] == "C->W" and r["method_name"] == "SnapKVPress"
    )
    measured = {"ERR_slot": 0.94, "ECov_slot": 0.96, "EAR": 0.25, "TopK": 0.5, "KL": 1.5, "gold_rank_shift": 3.0}
    records[mini.failures("ruler8k")] = [run | measured]
    out = tmp_path / "ledger"
    import_artifact(mini.write(tmp_path / "artifact", records), out)
    found = ask(
        out,
        """SELECT split_part(source_id, '/', 3) AS sample, method, err, ecov, ear, top50_overlap, kl,
                  gold_rank_shift, delta_nll, coverage_type, signature, signature_flags
           FROM c2w WHERE workload = 'ruler_8k' AND ear IS NOT NULL""",
    )
    (row,) = found
    assert (row["sample"], row["method"]) == (run["sample_id"], "snapkv")
    assert [row[n] for n in ("err", "ecov", "ear", "top50_overlap", "kl", "gold_rank_shift")] == list(
        measured.values()
    )
    names = ("coverage_type", "ecov", "delta_nll", "ear", "top50_overlap")
    assert "low_ear_candidate" in row["signature_flags"]
    assert row["signature_flags"] == signature_flags(**{n: row[n] for n in names})
    assert row["signature"] == signature(row["signature_flags"])
    # The other failures of the file still say that theirs is not there.
    rest = ask(out, "SELECT DISTINCT signature__status AS s FROM c2w WHERE workload = 'ruler_8k' AND ear IS NULL")
    assert rest == [{"s": "not_measured"}]


def test_a_run_that_is_not_there_is_a_hole_and_the_manifest_says_so(records, tmp_path):
    gone = records[mini.runs("qasper")].pop()
    records[mini.failures("qasper")] = [
        r for r in records[mini.failures("qasper")] if mini.key(r) != mini.key(gone)
    ]
    about = import_artifact(mini.write(tmp_path / "artifact", records), tmp_path / "ledger")
    assert not about["complete"]
    assert len(about["holes"]) == 1
    assert about["holes"][0].endswith(": 1 missing")


def test_the_command_says_what_it_wrote(records, tmp_path):
    folder = mini.write(tmp_path / "artifact", records)
    done = kvdiag("import", "kvdiagnosis", folder, "--out", tmp_path / "ledger")
    assert (done.code, done.err) == (0, "")
    assert "12 sources, 12 controls, 288 runs" in done.out
    again = kvdiag("import", "kvdiagnosis", folder, "--out", tmp_path / "ledger")
    assert again.is_one_line_error(3), again
    assert "not empty" in again.err


def load(ledger, cache, name=None):
    """All rows of a configuration, as `datasets` reads it."""
    splits = load_dataset(str(ledger), name, cache_dir=str(cache))
    return {split: found.num_rows for split, found in splits.items()}, next(iter(splits.values())).column_names


def rows_by_split(ledger, table):
    return {f["split"]: f["rows"] for f in manifest(ledger)["files"] if f["table"] == table}


def test_every_configuration_loads_with_datasets(imported, tmp_path):
    tables = [t for t in TABLES if ROWS[t]]
    assert tables == ["sources", "controls", "runs", "c2w", "methods"]
    for table in tables:
        counts, columns = load(imported, tmp_path, table)
        assert counts == rows_by_split(imported, table)
        assert sum(counts.values()) == ROWS[table]
        assert columns == query(imported, f"FROM {table} LIMIT 0").column_names
    default, columns = load(imported, tmp_path)
    assert sum(default.values()) == ROWS["c2w"]
    assert "signature" in columns


def test_a_rebuild_with_one_row_more_is_seen(records, tmp_path):
    """`datasets` caches by folder and version; the version must follow the files."""
    ledger, cache = tmp_path / "ledger", tmp_path / "cache"
    whole = mini.write(tmp_path / "whole", records)
    last = records[mini.runs("hotpotqa")].pop()
    records[mini.failures("hotpotqa")] = [
        r for r in records[mini.failures("hotpotqa")] if mini.key(r) != mini.key(last)
    ]
    import_artifact(mini.write(tmp_path / "less", records), ledger)
    tables = [t for t, n in manifest(ledger)["rows"].items() if n]
    before = {t: load(ledger, cache, t)[0] for t in tables}
    assert before == {t: rows_by_split(ledger, t) for t in tables}
    shutil.rmtree(ledger)
    import_artifact(whole, ledger)
    after = {t: load(ledger, cache, t)[0] for t in tables}
    assert after == {t: rows_by_split(ledger, t) for t in tables}
    assert after["runs"]["hotpotqa"] == before["runs"]["hotpotqa"] + 1
