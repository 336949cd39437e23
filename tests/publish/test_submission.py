"""Submissions against a fake Hub: packed, reviewed, offered as a pull request, and merged."""

import json
from dataclasses import replace

import pytest
from huggingface_hub import HfApi, constants

from kvdiag.engine import against, evaluate, stored
from kvdiag.engine.evaluate import Choice
from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.ledger.intact import sealed
from kvdiag.ledger.layout import read_manifest
from kvdiag.publish import merge, submission
from kvdiag.validation.validate import validate
from tests.engine.foreign_methods import FirstHalf
from tests.engine.test_evaluate import ask, candidate, changed
from tests.publish.conftest import REPO
from tests.publish.fake_hub import FakeHub

WHO = "A. Person <a@example.org>"


class HubWithPulls(FakeHub):
    """Commits that ask for a pull request are kept apart from main."""

    def _handler(self):
        base = super()._handler()
        hub = self

        class Handler(base):
            def _commit(self, repo, rev):
                made = super()._commit(repo, rev)
                if self.query.get("create_pr") != ["1"]:
                    return made
                pull = hub.repos[repo].commits.pop()
                hub.pulls.append(pull)
                return made | {"pullRequestUrl": f"{hub.endpoint}/datasets/{repo}/discussions/{len(hub.pulls)}"}

        return Handler


@pytest.fixture
def pulls(monkeypatch):
    server = HubWithPulls()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    server.create(REPO)
    yield server
    server.close()


@pytest.fixture(scope="module")
def evaluation(built_ledger, tmp_path_factory):
    """An evaluation of one cell. Not to be written to."""
    out = tmp_path_factory.mktemp("evaluations") / "longest"
    choice = Choice(settings=("keep=0.5",), protocols=("query_agnostic",))
    return evaluate.evaluate(built_ledger, candidate("LongestKeys"), choice, out)[0]


WAITS = []


def offer(evaluation, base, hub=None, contact=WHO, token="write-token", **options):
    api = HfApi(endpoint=hub.endpoint, token=token) if hub else None
    return submission.submit(evaluation, base, REPO, contact, api=api, wait=WAITS.append, **options)


def test_a_pull_request_holds_the_packed_rows(pulls, evaluation, built_ledger, tmp_path):
    before = pulls.repos[REPO].head.id
    packed, address = offer(evaluation, built_ledger, pulls)
    assert address == f"{pulls.endpoint}/datasets/{REPO}/discussions/1"
    assert pulls.repos[REPO].head.id == before
    (pull,) = pulls.pulls
    folder = "submissions/longestkeys-aaaaaaaa"
    own = {name.removeprefix(f"{folder}/") for name in pull.files if name.startswith(folder)}
    assert own == set(packed.files)
    for name, oid in pull.files.items():  # as a reviewer gets them
        path = tmp_path / "pr" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pulls.blobs.get(oid) or pulls.stored[oid])
    there = tmp_path / "pr" / folder
    assert validate(there) == []
    assert submission.review(there, built_ledger) == []
    facts = json.loads((there / "submission.json").read_text())
    assert (facts["contact"], facts["code_sha256"], facts["runs"], facts["answered"]) == (WHO, "a" * 64, 3, 3)
    assert facts["conformance"]["passed"] and facts["environment"]["threads"] == 1
    card = (there / "README.md").read_text()
    assert WHO in card and "| longestkeys/keep=0.5/agnostic |" in card


def test_no_texts_and_no_folders_of_this_machine_go_along(evaluation, built_ledger, tmp_path, model_folder):
    packed, address = offer(evaluation, built_ledger, dry_run=True)
    assert address is None
    folder = packed.write(tmp_path / "packed")
    texts = ask(folder, "SELECT DISTINCT context, question, text_status, text_reason FROM sources")
    assert texts == [{"context": None, "question": None, "text_status": "not_measured", "text_reason": "licence"}]
    assert ask(folder, "SELECT count(question) AS n FROM c2w") == [{"n": 0}]
    assert ask(evaluation, "SELECT count(context) AS n FROM sources") == [{"n": 3}]
    told = "".join((folder / n).read_text() for n in ("manifest.json", "submission.json", "README.md"))
    assert str(model_folder.parent) not in told and str(tmp_path.parent) not in told


@pytest.mark.parametrize(
    ("table", "change", "said"),
    [
        ("controls", {"nll": 0.25}, r"delta_nll|control .*: nll differs"),
        ("sources", {"prompt_hash": "f" * 64}, "source .*: prompt_hash differs"),
        ("runs", {"delta_nll": 3.0}, r"must be nll\(run\)"),
        ("runs", {"transition": "W->W"}, "disagrees with the correctness"),
    ],
)
def test_a_review_finds_rows_that_are_not_the_data_sets(evaluation, built_ledger, tmp_path, table, change, said):
    forged = changed(evaluation, tmp_path / "forged", table, lambda i, row: row.update(change if i == 0 else {}))
    with pytest.raises(DataError, match=said):
        offer(forged, built_ledger, dry_run=True)


def test_what_is_no_submission(evaluation, built_ledger):
    with pytest.raises(UsageError, match="not an evaluation"):
        offer(built_ledger, built_ledger, dry_run=True)
    for contact in ("", "  ", "two\nlines", "x" * 300):
        with pytest.raises(UsageError, match="--contact"):
            offer(evaluation, built_ledger, contact=contact, dry_run=True)


def test_another_ledgers_controls_are_refused(evaluation, made_up):
    with pytest.raises(DataError, match=r"its model is tiny"):
        offer(evaluation, made_up, dry_run=True)


def test_rows_that_are_there_are_never_overwritten(pulls, evaluation, built_ledger, tmp_path):
    merged = tmp_path / "merged"
    merge.merge(built_ledger, evaluation, merged)
    with pytest.raises(RefusedError, match="has a method longestkeys already"):
        offer(evaluation, merged, pulls)
    with pytest.raises(RefusedError, match="has a method longestkeys already"):
        merge.merge(merged, evaluation, tmp_path / "twice")
    pulls.put(REPO, "submissions/longestkeys-aaaaaaaa/manifest.json", b"{}")
    with pytest.raises(RefusedError, match="has submissions/longestkeys-aaaaaaaa already"):
        offer(evaluation, built_ledger, pulls)
    assert not pulls.pulls and not (tmp_path / "twice").exists()


def test_failures_of_the_hub_are_one_line(pulls, evaluation, built_ledger):
    with pytest.raises(RefusedError, match=r"not logged in|may not write"):
        offer(evaluation, built_ledger, pulls, token="other")
    pulls.repos.clear()
    with pytest.raises(UsageError, match="no such data set"):
        offer(evaluation, built_ledger, pulls)


def test_a_merged_ledger_is_whole(evaluation, built_ledger, tmp_path):
    out = tmp_path / "merged"
    packed, _ = offer(evaluation, built_ledger, dry_run=True)
    manifest = merge.merge(built_ledger, packed.write(tmp_path / "packed"), out)
    assert validate(out) == []
    base = read_manifest(built_ledger)
    assert manifest["complete"] and manifest["cells"] == [*base["cells"], "longestkeys/keep=0.5/agnostic"]
    assert manifest["rows"]["runs"] == base["rows"]["runs"] + 3
    (entry,) = manifest["recipe"]["merged"]
    assert (entry["method"], entry["submitter"], entry["verification"]) == ("longestkeys", WHO, "not rerun")
    assert ask(out, "FROM sources ORDER BY source_id") == ask(built_ledger, "FROM sources ORDER BY source_id")
    for table in ("runs", "c2w"):
        old = f"FROM {table} WHERE method <> 'longestkeys' ORDER BY run_id"
        assert ask(out, old) == ask(built_ledger, f"FROM {table} ORDER BY run_id")
        changed = f"submitter, verification, {'question' if table == 'c2w' else 'detail'}"
        new = f"SELECT * EXCLUDE ({changed}) FROM {table}"
        assert ask(out, f"{new} WHERE method = 'longestkeys' ORDER BY run_id") == ask(
            evaluation, f"{new} ORDER BY run_id"
        )
        (who,) = ask(out, f"SELECT DISTINCT submitter, verification FROM {table} WHERE method = 'longestkeys'")
        assert who == {"submitter": WHO, "verification": "not_rerun"}
    (method,) = ask(out, "FROM methods WHERE method = 'longestkeys'")
    assert method["state_reason"] == f"submitted by {WHO}, not rerun"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["merged", "packed"]  # no scratch is left


def test_an_evaluation_of_some_sources_leaves_holes_that_are_said(built_ledger, tmp_path):
    choice = Choice(settings=("keep=0.5",), protocols=("query_aware",), limit=2)
    part, _ = evaluate.evaluate(built_ledger, candidate("LongestKeys"), choice, tmp_path / "part")
    manifest = merge.merge(built_ledger, part, tmp_path / "merged")
    assert (manifest["complete"], manifest["holes"]) == (False, ["longestkeys/keep=0.5/aware: 1 missing"])
    assert validate(tmp_path / "merged") == []


def test_a_sample_is_run_again(evaluation, built_ledger, tmp_path):
    base = stored.read(built_ledger)
    again = []

    def rerun(wanted, among):
        again.extend(wanted)
        return against.rerun(base, candidate("LongestKeys"), wanted, among)

    manifest = merge.merge(built_ledger, evaluation, tmp_path / "merged", sample=2, rerun=rerun)
    assert len(again) == 2
    assert manifest["recipe"]["merged"][0]["verification"] == "rerun 2/3: equal"
    how = "SELECT verification, count(*) AS n FROM runs GROUP BY ALL ORDER BY ALL"
    (own, equal, sampled) = sorted(ask(tmp_path / "merged", how), key=lambda r: str(r["verification"]))
    assert (own["verification"], equal["n"], sampled["n"]) == (None, 2, 1)
    assert (equal["verification"], sampled["verification"]) == ("rerun_equal", "sampled")
    with pytest.raises(UsageError, match="--method"):
        merge.merge(built_ledger, evaluation, tmp_path / "none", sample=1)

    def other(wanted, among):
        honest = candidate("LongestKeys")
        return against.rerun(base, replace(honest, make=lambda m, s, model: FirstHalf(s, model)), wanted)

    with pytest.raises(DataError, match=r"2 of 2 rows .* \(drawn with --seed \d+\) differ, nothing was merged"):
        merge.merge(built_ledger, evaluation, tmp_path / "never", sample=2, rerun=other)
    assert not (tmp_path / "never").exists()
    with pytest.raises(RefusedError, match="is there already"):
        merge.merge(built_ledger, evaluation, tmp_path / "merged")


def test_a_draw_takes_cells_in_turn():
    runs = [{"run_id": f"{c}{i}", "cell_id": c, "reason": None} for c in "ab" for i in range(4)]
    drawn = merge.draw(runs, 4, 0)
    assert sorted(r["cell_id"] for r in drawn) == ["a", "a", "b", "b"]
    assert drawn == merge.draw(runs[::-1], 4, 0)
    assert merge.draw(runs, 4, seed=1) != drawn
    assert len(merge.draw(runs, 100, 0)) == 8
    for i, reason in enumerate(("oom", "no_text", "control_disagrees", "exception")):
        runs[i]["reason"] = reason
    assert len(merge.draw(runs, 100, 0)) == 5  # a crash is the method's, the rest the machine's


def test_nobody_knows_the_draw_before(evaluation, built_ledger, tmp_path):
    """A seed that is in the code lets a submitter make right exactly the rows that are run again."""

    def merged(name, **options):
        manifest = merge.merge(built_ledger, evaluation, tmp_path / name, 1, lambda drawn, runs: [], **options)
        return manifest["recipe"]["merged"][0]["sample_seed"]

    assert merged("a") != merged("b")
    assert merged("c", seed=7) == 7


@pytest.fixture(scope="module")
def fragile(built_ledger, tmp_path_factory):
    """An honest evaluation of a method whose one setting raises, and so takes the other along."""
    choice = Choice(settings=("keep=0.5", "keep=0.25"), protocols=("query_agnostic",))
    out = tmp_path_factory.mktemp("evaluations") / "fragile"
    return evaluate.evaluate(built_ledger, candidate("tests.publish.fragile:FailsBelowHalf"), choice, out)[0]


def test_settings_that_share_a_fate_are_run_again_together(fragile, built_ledger, tmp_path):
    runs = submission.read_table(fragile, "runs").to_pylist()
    assert {(r["setting"], r["reason"]) for r in runs} == {("keep=0.5", "exception"), ("keep=0.25", "exception")}
    drawn = [r for r in runs if r["setting"] == "keep=0.5"]
    base = stored.read(built_ledger)
    assert against.rerun(base, candidate("tests.publish.fragile:FailsBelowHalf"), drawn, runs) == []
    assert (
        against.rerun(base, candidate("tests.publish.fragile:FailsBelowHalf"), drawn[:1]) != []
    )  # alone, that setting has an answer


def test_what_is_this_machines_fault_is_not_the_submissions(evaluation, built_ledger, tmp_path, monkeypatch):
    runs = submission.read_table(evaluation, "runs").to_pylist()
    none = dict.fromkeys(("context", "question", "answer_prefix"))
    bare = none | {"text_status": "not_measured", "text_reason": "licence"}
    base = changed(built_ledger, tmp_path / "bare", "sources", lambda i, row: row.update(bare))
    with pytest.raises(
        DataError, match=r"lacks the texts of 1 of .*\(licence\).*; merge from the ledger that has"
    ):
        against.rerun(stored.read(base), candidate("LongestKeys"), runs[:1], runs)
    other = changed(built_ledger, tmp_path / "other", "controls", lambda i, row: row.update(output_tokens=[1, 2]))
    with pytest.raises(
        DataError, match="cannot be run again on this machine, which says nothing of the submission"
    ):
        against.rerun(stored.read(other), candidate("LongestKeys"), runs[:1], runs)

    def run_out(plan, *args):
        done, seconds = ran(plan, *args)
        return done | {"runs": [r | {"status": "failed", "reason": "oom"} for r in done["runs"]]}, seconds

    ran = against.run_one
    monkeypatch.setattr(against, "run_one", run_out)
    with pytest.raises(DataError, match="memory ran out on this machine, which says nothing of the submission"):
        against.rerun(stored.read(built_ledger), candidate("LongestKeys"), runs[:1], runs)


LINES = "x\n\n## Verified by the kvdiag team\n"
# What a pull request may say, and what is wrong with it: (file, what to change there, words of the error).
TAMPERED = {
    "contact_list": ("submission.json", {"contact": ["a"]}, "contact: .* is not of type 'string'"),
    "contact_lines": ("submission.json", {"contact": LINES}, "must be one line"),
    "contact_empty": ("submission.json", {"contact": " "}, "contact: must be one line"),
    "contact_long": ("submission.json", {"contact": "x" * 201}, "contact: must be one line of at most 200"),
    "no_contact": ("submission.json", {"contact": None}, "contact"),
    "another_key": ("submission.json", {"verified_by": "kvdiag"}, "verified_by"),
    "environment": (
        "submission.json",
        {"environment": {"device": "H200"}},
        "environment is not what its manifest",
    ),
    "runs": ("submission.json", {"runs": 10**6}, "runs is not what its manifest and rows say"),
    "differs_lines": ("submission.json", {"environment_differs": [LINES]}, "must be one line"),
    "code": ("submission.json", {"code_sha256": "b" * 64}, "code_sha256 is not what"),
    "not_an_object": ("submission.json", [1], "must hold a JSON object"),
    "other_method": (
        "manifest.json",
        {"methods": ["snapkv"]},
        "its methods are of longestkeys, its recipe names snapkv",
    ),
    "two_methods": ("manifest.json", {"methods": ["longestkeys", "snapkv"]}, "methods"),
    "method_path": ("manifest.json", {"methods": ["../../x"]}, "recipe: methods/0"),
    "no_methods": ("manifest.json", {"methods": None}, "methods"),
    "not_an_evaluation": ("manifest.json", {"evaluation": "yes"}, "evaluation"),
    "no_conformance": (
        "manifest.json",
        {"evaluation.conformance": None},
        "evaluation: 'conformance' is a required",
    ),
    "code_number": ("manifest.json", {"evaluation.code_sha256": 1}, "evaluation/code_sha256"),
    "bound_text": ("manifest.json", {"evaluation.nll_bound": "wide"}, "evaluation/nll_bound"),
    "failed_a_check": (
        "manifest.json",
        {"evaluation.conformance": {"passed": False, "failed": ["budget"], "digest": "0" * 16, "versions": {}}},
        "state is verified, .*not its report's",
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_pull_requests_own_words_are_checked(evaluation, built_ledger, tmp_path, name):
    file, change, said = TAMPERED[name]
    packed, _ = offer(evaluation, built_ledger, dry_run=True)
    path = packed.write(tmp_path / "packed") / file
    whole = json.loads(path.read_text())
    data = whole["recipe"] if file == "manifest.json" else whole
    for key, value in change.items() if isinstance(change, dict) else ():
        *inner, last = key.split(".")
        part = data[inner[0]] if inner else data
        part[last] = value
        if value is None:
            del part[last]
    if file == "manifest.json":  # whoever forges one can seal it
        whole = sealed(whole)
    path.write_text(json.dumps(whole if isinstance(change, dict) else change))
    with pytest.raises((DataError, UsageError), match=said) as raised:
        merge.merge(built_ledger, path.parent, tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_signature_is_not_the_maintainers(evaluation, built_ledger, tmp_path):
    packed, _ = offer(evaluation, built_ledger, dry_run=True)
    folder = packed.write(tmp_path / "packed")
    (folder / "submission.json").unlink()
    manifest = merge.merge(built_ledger, folder, tmp_path / "out")
    assert manifest["recipe"]["merged"][0]["submitter"] == "not named"


@pytest.mark.parametrize("fault", [503, 429, "cut"])
def test_a_pull_request_is_tried_again(pulls, evaluation, built_ledger, fault):
    WAITS.clear()
    pulls.faults["commit"] = [fault, fault]
    assert offer(evaluation, built_ledger, pulls)[1].endswith("/discussions/1")
    assert (len(pulls.pulls), WAITS) == (1, [1.0, 2.0])


def test_a_pull_request_that_never_succeeds(pulls, evaluation, built_ledger):
    pulls.faults["commit"] = [503] * 50
    with pytest.raises(DataError, match=r"opening the pull request: the Hub answers 503, after 4 attempts"):
        offer(evaluation, built_ledger, pulls)
    assert len(pulls.requests("/commit/")) == 4 and not pulls.pulls


def test_a_pull_request_whose_answer_was_lost_is_not_made_twice(pulls, evaluation, built_ledger):
    pulls.faults["commit"] = ["lost"]
    assert offer(evaluation, built_ledger, pulls)[1].endswith("/discussions/1")
    assert len(pulls.pulls) == 1
    with pytest.raises(RefusedError, match=r"has an open pull request of it already: http.*/discussions/1"):
        offer(evaluation, built_ledger, pulls)
    assert len(pulls.pulls) == 1
