"""What a release consists of: the card and its numbers, Croissant metadata, texts that stay at home."""

import hashlib
import io
import json
import re

import pyarrow.parquet as pq
import pytest
import yaml

from kvdiag.ledger import card
from kvdiag.ledger.coverage import coverage
from kvdiag.ledger.files import to_json
from kvdiag.ledger.layout import read_manifest
from kvdiag.publish import licences
from kvdiag.publish.release import gather
from kvdiag.publish.texts import withhold
from kvdiag.records.dictionary import columns
from kvdiag.records.schema import TABLES, to_table
from kvdiag.validation.validate import validate
from tests import rows
from tests.publish import made


def release(ledger, scratch, notes="", **options):
    """All files of release 1.0.0, as bytes."""
    contents = gather(ledger, scratch, options.pop("redistributable", licences.redistributable), **options)
    files = contents.at("kvdiag/c2w", "1.0.0", notes)
    return {name: c if isinstance(c, bytes) else c.read_bytes() for name, c in files.items()}


@pytest.fixture(scope="module")
def files(ledger, tmp_path_factory):
    """A release of the ledger."""
    return release(ledger, tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def readme(files):
    """The card of the release: front matter and text."""
    _, front, text = files["README.md"].decode().split("---\n", maxsplit=2)
    return yaml.safe_load(front), text


def read(files, table, split):
    return pq.read_table(io.BytesIO(files[f"data/{table}/{split}-00000.parquet"]))


def digest(content):
    return hashlib.sha256(content).hexdigest()


def section(text, title):
    """The text under a heading."""
    return re.search(rf"(?ms)^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text)[1]


def test_a_release_is_a_valid_ledger(files, tmp_path):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert validate(tmp_path) == []
    # Its card may be edited on the Hub; its manifest is sealed as any ledger's.
    (tmp_path / "README.md").write_bytes(files["README.md"] + b"A note.\n")
    assert validate(tmp_path) == []
    (tmp_path / "manifest.json").write_bytes(files["manifest.json"].replace(b'"seed": ', b'"seed": 1'))
    assert [(f.rule, f.file) for f in validate(tmp_path)] == [("hash", "manifest.json")]


def test_two_renders_are_equal(ledger, files, tmp_path):
    assert release(ledger, tmp_path) == files


def test_the_card_counts_what_the_files_hold(files, readme):
    front, text = readme
    info = {i["config_name"]: i for i in front["dataset_info"]}
    assert set(info) == {c["config_name"] for c in front["configs"]} == set(TABLES)
    for config in front["configs"]:
        splits = {s["name"]: s for s in info[config["config_name"]]["splits"]}
        for entry in config["data_files"]:
            (path,) = entry["path"]
            content = files[path]
            held = pq.read_table(io.BytesIO(content))
            assert splits[entry["split"]]["num_examples"] == held.num_rows
            assert splits[entry["split"]]["num_bytes"] == len(content)
            (row,) = re.findall(rf"\| {re.escape(path)} \|.*", text)
            assert f"`{digest(content)}`" in row
            assert f"| {held.num_rows} | {len(content)} |" in row
    assert {c["config_name"]: c["version"] for c in front["configs"]} == dict.fromkeys(TABLES, "1.0.0")
    assert [c["config_name"] for c in front["configs"] if c.get("default")] == ["c2w"]
    assert front["license"] == "apache-2.0"
    assert front["source_datasets"] == ["original", "zai-org/LongBench"]


def test_the_card_has_all_its_parts(readme):
    front, text = readme
    wanted = """Quick start|Tables, files, columns|Coverage|Missing values and denominators|Pairing|Provenance|
        Licences|Limitations|Uses|Uncertainty|Personal and sensitive content|Whose rows|Submitting|
        Versions|Citation"""
    assert re.findall(r"(?m)^## (.+)$", text) == [t.strip() for t in wanted.split("|")]
    assert all(section(text, title.strip()).strip() for title in wanted.split("|"))
    for marker in ("More Information Needed", "PATH_OR_REPO", "{{", "{%", "TODO", "None", "path/to"):
        assert marker not in text, marker
    assert not re.findall(r"\]\((?!https?://)", text)  # no link that leads nowhere on the Hub
    for table in TABLES:
        for column in columns(table):
            assert f"| `{column['column']}` |" in text, (table, column)
    assert {"pretty_name", "license", "language", "size_categories", "task_categories", "tags"} <= front.keys()


def test_the_card_says_which_code_how_to_submit_and_how_to_cite(ledger, readme):
    _, text = readme
    version = read_manifest(ledger)["kvdiag_version"]
    assert f"| code of kvdiag | kvdiag {version} |" in section(text, "Provenance")
    assert "no files but kvdiag's own" in section(text, "Provenance")
    assert "kvdiag submit evaluations/mypress kvdiag/c2w --contact" in section(text, "Submitting")
    assert "CITATION.cff" in section(text, "Citation") and "DOI:" in section(text, "Citation")
    manifest = read_manifest(ledger)
    manifest["environment"] |= {"kvdiag": "0.0.9", "kvdiag_commit": "c0ffee"}
    assert f"| code of kvdiag | kvdiag 0.0.9, commit c0ffee; files written by {version} |" in card.render(manifest)


def test_rows_of_others_are_named_with_how_they_were_verified(tmp_path, readme):
    assert "no rows handed in by others" in section(readme[1], "Whose rows")
    entry = {"method": "mine", "submitter": "a | b", "verification": "rerun 3/12: equal", "runs": 12}
    made.write(tmp_path / "ledger", merged=[entry])
    text = release(tmp_path / "ledger", tmp_path)["README.md"].decode()
    whose = section(text, "Whose rows")
    assert "| mine | a \\| b | rerun 3/12: equal | 12 |" in whose
    assert "no rows handed in" not in whose


def test_coverage_is_counted_from_runs(files, readme):
    _, text = readme
    runs = [r for split in ("ruler_1k", "longbench") for r in read(files, "runs", split).to_pylist()]
    lines = [line.strip("| ").split(" | ") for line in section(text, "Coverage").splitlines() if "made-up" in line]
    assert len(lines) == 4
    for line in lines:
        _, method, workload, task, *counts = line
        own = [r for r in runs if (r["method"], r["workload"], r["task"]) == (method, workload, task)]
        available = sum(r["status"] == "available" for r in own)
        assert [int(c) for c in counts[:5]] == [len(own)] * 4 + [available]
        assert ("1 failed (oom)" in line[-1]) == (available < len(own))
    totals = section(text, "Missing values and denominators")
    assert "Here: 20 runs, 20 eligible, 20 supported, 20 attempted, 18 available." in totals


def test_coverage_tells_the_kinds_of_missing_apart(tmp_path):
    found = rows.made_up_rows()["runs"][:6]
    states = [("unsupported", "bits"), ("not_measured", "lost"), ("not_applicable", "no_sense"), ("failed", "oom")]
    runs = [rows.without_answer(r, *s) for r, s in zip(found, states, strict=False)] + found[4:]
    runs = [r | {"method": "snapkv"} for r in runs]
    pq.write_table(to_table("runs", runs), tmp_path / "runs.parquet")
    (line,) = coverage([tmp_path / "runs.parquet"])
    counts = {k: line[k] for k in ("total", "eligible", "supported", "attempted", "available")}
    assert counts == {"total": 6, "eligible": 5, "supported": 4, "attempted": 3, "available": 2}
    assert (
        line["reasons"]
        == "1 failed (oom), 1 not_applicable (no_sense), 1 not_measured (lost), 1 unsupported (bits)"
    )
    assert coverage([]) == []


def test_a_ledgers_own_card_comes_from_the_same_template(ledger, readme):
    manifest = read_manifest(ledger)
    own = (ledger / "README.md").read_text(encoding="utf-8")
    assert own == card.render(manifest) == card.render(manifest)
    titles = set(re.findall(r"(?m)^## (.+)$", own))
    assert set(re.findall(r"(?m)^## (.+)$", readme[1])) - titles == {"Coverage"}


def test_notes_written_by_hand_are_found(ledger, tmp_path):
    text = release(ledger, tmp_path, notes="1.0.0: first | release\n")["README.md"].decode()
    assert card.notes(text) == "1.0.0: first | release\n"
    assert card.notes("# another card") == ""


def test_texts_that_may_not_be_published(files, ledger):
    before = {r["source_id"]: r for f in ("ruler_1k", "longbench") for r in read_rows(ledger, "sources", f)}
    for split, barred in (("ruler_1k", False), ("longbench", True)):
        for row in read(files, "sources", split).to_pylist():
            texts = dict.fromkeys(("context", "question", "answer_prefix"))
            gold = before[row["source_id"]]["gold"]
            texts |= {"gold": mark(gold), "references": [mark(gold)]}
            gone = {**texts, "text_status": "not_measured", "text_reason": "licence"} if barred else {}
            assert row == before[row["source_id"]] | gone
    assert {r["question"] for r in read(files, "c2w", "longbench").to_pylist()} == {None}
    assert None not in {r["question"] for r in read(files, "c2w", "ruler_1k").to_pylist()}
    manifest = json.loads(files["manifest.json"])
    assert {f["sha256"] for f in manifest["files"]} & {f["sha256"] for f in read_manifest(ledger)["files"]}


def mark(text):
    return f"withheld (licence), sha256 {digest(text.encode())}"


def test_gold_answers_that_are_text_stay_at_home_too(tmp_path):
    """Those that are names, numbers or labels may go; either way the release is valid, and withheld once only."""
    part = made.valid_rows(2, "longbench")
    for row in (r for t in ("sources", "c2w") for r in part.get(t, [])):
        row["task"] = "gov_report"
    table = to_table("sources", part["sources"])
    done = withhold("sources", table, {"longbench"})
    assert done["gold"].to_pylist() == [mark(s["gold"]) for s in part["sources"]]
    assert done["references"].to_pylist() == [[mark(r) for r in s["references"]] for s in part["sources"]]
    assert withhold("sources", done, {"longbench"}).equals(done)
    assert withhold("sources", table, {"ruler_1k"}).equals(table)
    short = [s | {"task": "hotpotqa_e"} for s in part["sources"]]
    kept = withhold("sources", to_table("sources", short), {"longbench"})
    assert kept["gold"].to_pylist() == [s["gold"] for s in short] and kept["context"].null_count == 2


@pytest.mark.parametrize(
    ("workload", "task", "fact"),
    [
        *(("longbench", t, True) for t in ("hotpotqa", "2wikimqa", "trec", "passage_count", "triviaqa_e")),
        *(
            ("longbench", t, False)
            for t in ("gov_report", "lcc", "repobench-p", "samsum", "qasper", "narrativeqa")
        ),
        *(("ruler_8k", "vt", True), ("ruler_8k", "qa_1", False), ("hotpotqa", "bridge", True)),
        *(("qasper", "qasper", False), ("mine", "any", False)),
    ],
)
def test_which_gold_answers_are_facts(workload, task, fact):
    assert licences.gold_is_fact(workload, task) is fact


def read_rows(ledger, table, split):
    return pq.read_table(ledger / "data" / table / f"{split}-00000.parquet").to_pylist()


def test_texts_that_are_gone_already_keep_their_reason():
    source = rows.source_row(0, "longbench") | dict.fromkeys(("context", "question", "answer_prefix"))
    source |= {"text_status": "not_measured", "text_reason": "not_in_artifact"}
    table = to_table("sources", [source, rows.source_row(1, "longbench")])
    done = withhold("sources", table, {"longbench"})
    assert done["text_reason"].to_pylist() == ["not_in_artifact", "licence"]
    assert done.schema.equals(table.schema)
    assert withhold("sources", table, set()).equals(table)


@pytest.mark.parametrize(
    ("workload", "may"),
    [("ruler_8k", True), ("qasper", True), ("hotpotqa", True), ("longbench", False), ("mine", False)],
)
def test_which_texts_may_be_published(workload, may):
    assert licences.redistributable(workload) is may


@pytest.mark.parametrize(
    "recipe",
    [
        {"haystack": "/home/me/essays.txt"},
        {"files": ["qa_1=/home/me/squad.json"]},
        # Called as the haystacks that kvdiag makes itself: without its folder it would be taken for one.
        {"haystack": "/home/me/private/prose"},
        {"haystack": "~/noise"},
    ],
)
def test_the_users_own_files_stay_at_home_unless_they_say_so(tmp_path, recipe):
    made.write(tmp_path / "ledger", model="/home/me/models/small", **recipe)
    withheld = release(tmp_path / "ledger", tmp_path)
    assert {r["context"] for r in read(withheld, "sources", "ruler_1k").to_pylist()} == {None}
    published = release(tmp_path / "ledger", tmp_path, own_texts=True)
    assert None not in {r["context"] for r in read(published, "sources", "ruler_1k").to_pylist()}
    for files in (withheld, published):
        assert not [n for n, content in files.items() if not n.endswith(".parquet") and b"/home/me" in content]
        kept = json.loads(files["manifest.json"])["recipe"]
        front = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
        assert front["license"] == (["apache-2.0", "other"] if files is published else "apache-2.0")
        assert kept["model"] == "small" and (kept.get("haystack") or kept["files"][0]).endswith(
            ("essays.txt", "qa_1=squad.json", "./prose", "./noise")
        )
        assert licences.own_texts(kept)  # so that it is still told when the release is published again


def test_no_folder_of_the_machine_is_in_the_environment(tmp_path):
    """Its `files` are named as they were given."""
    made.write(tmp_path / "ledger", files=["/home/me/a/x.jsonl", "/home/me/b/x.jsonl"])
    manifest = read_manifest(tmp_path / "ledger")
    manifest["environment"]["files"] = {"/home/me/a/x.jsonl": "a" * 64, "/home/me/b/x.jsonl": "b" * 64}
    (tmp_path / "ledger" / "manifest.json").write_bytes(to_json(manifest))
    files = release(tmp_path / "ledger", tmp_path)
    assert not [n for n, content in files.items() if not n.endswith(".parquet") and b"/home/me" in content]
    kept = json.loads(files["manifest.json"])["environment"]["files"]
    assert kept == {"x.jsonl": "a" * 64, "x.jsonl (2)": "b" * 64}
    _, text = files["README.md"].decode().split("# KV-cache", maxsplit=1)
    assert f"| x.jsonl | `{'a' * 64}` |" in section(text, "Provenance")


def test_the_licences_of_published_texts_are_the_data_sets(tmp_path):
    made.write(tmp_path / "ledger", made.valid_rows(workload="hotpotqa"), workload="hotpotqa")
    front = yaml.safe_load(release(tmp_path / "ledger", tmp_path)["README.md"].decode().split("---\n")[1])
    assert front["license"] == ["apache-2.0", "cc-by-sa-4.0"]
    assert front["source_datasets"] == ["original", "hotpotqa/hotpot_qa"]
    kept_back = release(tmp_path / "ledger", tmp_path / "b", redistributable=lambda workload: False)
    assert yaml.safe_load(kept_back["README.md"].decode().split("---\n")[1])["license"] == "apache-2.0"


def test_an_imported_ledgers_licence_travels_with_it(tmp_path):
    made.write(tmp_path / "ledger")
    manifest = read_manifest(tmp_path / "ledger")
    origin = {"name": "X", "what": "an artifact", "licence": "MIT", "copyright": "its authors", "lacks": ["texts"]}
    manifest["origin"] = origin | {"known_defects": "kvdiag analyze quality"}
    (tmp_path / "ledger" / "manifest.json").write_bytes(to_json(manifest))
    (tmp_path / "ledger" / "LICENSE").write_text("MIT License")
    files = release(tmp_path / "ledger", tmp_path)
    assert files["LICENSE"] == b"MIT License"
    front = yaml.safe_load(files["README.md"].decode().split("---\n")[1])
    assert front["license"] == ["mit", "apache-2.0"]
    assert "Imported: an artifact (MIT, copyright its authors)" in files["README.md"].decode()


def test_croissant_is_valid_and_reads_the_files(files, tmp_path):
    croissant = pytest.importorskip(
        "mlcroissant", reason="mlcroissant is not installed (pip install 'kvdiag[croissant]')"
    )
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    dataset = croissant.Dataset(jsonld=str(tmp_path / "croissant.json"))
    issues = dataset.metadata.ctx.issues
    assert not issues.errors
    assert all("datePublished" in w for w in issues.warnings)  # a date would make each push another release
    records = list(dataset.records("sources/ruler_1k-00000"))
    ids = [r["sources/ruler_1k-00000/source_id"].decode() for r in records]
    assert ids == read(files, "sources", "ruler_1k")["source_id"].to_pylist()


def test_croissant_says_what_missing_means(files):
    data = json.loads(files["croissant.json"])
    for word in ("failed", "unsupported", "not_measured", "not_applicable", "score 0"):
        assert word in data["rai:dataCollectionMissingData"]
    assert data["rai:dataImputationProtocol"].startswith("None")
    assert data["version"] == "1.0.0"
    listed = {f["contentUrl"]: f["sha256"] for f in data["distribution"]}
    assert listed == {n: digest(c) for n, c in files.items() if n.endswith(".parquet")}
    for record, entry in zip(data["recordSet"], json.loads(files["manifest.json"])["files"], strict=True):
        assert [f["name"] for f in record["field"]] == pq.read_schema(io.BytesIO(files[entry["path"]])).names
