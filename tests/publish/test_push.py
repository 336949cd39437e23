"""A push is one commit and one tag, or nothing: against a fake Hub, with its real client library."""

import json

import pytest
import yaml

from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.ledger.layout import read_manifest
from tests.publish import made
from tests.publish.conftest import REPO


def texts(hub, path):
    """A small file on main."""
    return hub.blobs[hub.repos[REPO].head.files[path]].decode()


def state(hub):
    """What others can see of the data set."""
    repo = hub.repos.get(REPO)
    return (repo.head.id, dict(repo.tags)) if repo else None


def test_a_first_push_makes_one_commit_and_one_tag(hub, publish, ledger):
    plans = []
    done = publish(ledger, report=plans.append)
    repo = hub.repos[REPO]
    assert [c.title for c in repo.commits] == ["initial commit", "kvdiag push: v1.0.0"]
    assert repo.tags == {"v1.0.0": repo.head.id} == {"v1.0.0": done.commit}
    names = {f["path"] for f in read_manifest(ledger)["files"]}
    assert set(repo.head.files) == names | {"README.md", "manifest.json", "croissant.json", ".gitattributes"}
    assert set(plans[0].paths("new")) == set(repo.head.files) - {".gitattributes"}
    assert plans[0].bytes_to_send > sum(hub.sizes.values()) > 0
    front = yaml.safe_load(texts(hub, "README.md").split("---\n")[1])
    assert {c["version"] for c in front["configs"]} == {"1.0.0"}


def test_a_second_push_of_the_same_does_nothing(hub, publish, ledger):
    first = publish(ledger)
    seen = state(hub)
    again = publish(ledger)
    assert state(hub) == seen
    assert (again.committed, again.tagged, again.commit, again.plan.version) == (
        False,
        False,
        first.commit,
        "1.0.0",
    )
    assert publish(ledger, version="1.0.0").commit == first.commit
    assert state(hub) == seen


def test_an_equal_build_is_the_same_release(hub, publish, tmp_path):
    """Its times differ, and its folder."""
    for name in ("one", "two"):
        made.write(tmp_path / name)
        manifest = json.loads((tmp_path / name / "manifest.json").read_text())
        manifest["build"] = {"seconds_by_stage": {"prefill": len(name) * 1.5 if name == "one" else 9.0}}
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
        publish(tmp_path / name)
    assert len(hub.repos[REPO].commits) == 2
    assert json.loads(texts(hub, "manifest.json"))["build"] == {}


def test_unchanged_partitions_are_not_sent_again(hub, publish, other, tmp_path):
    publish(other)
    before = dict(hub.repos[REPO].head.files)
    made.write(tmp_path / "two", made.valid_rows(), made.valid_rows(2, "ruler_4k"))
    done = publish(tmp_path / "two")
    assert done.plan.version == "1.0.1"
    kept = [n for n in before if n.startswith("data/")]
    assert kept and all(hub.repos[REPO].head.files[n] == before[n] for n in kept)
    assert sorted(done.plan.paths("new")) == sorted(
        f"data/{t}/ruler_4k-00000.parquet" for t in ("sources", "controls", "runs", "c2w", "retention", "repairs")
    )
    assert len(hub.sent) == len(kept) + len(done.plan.paths("new"))


def test_files_that_are_gone_are_deleted_and_others_stay(hub, publish, other, tmp_path):
    made.write(tmp_path / "one", made.valid_rows(), made.valid_rows(2, "ruler_4k"))
    publish(tmp_path / "one")
    hub.put(REPO, "figure.png", b"a picture")
    done = publish(other)
    files = hub.repos[REPO].head.files
    assert "figure.png" in files
    assert not [n for n in files if "ruler_4k" in n]
    assert len(done.plan.paths("deleted")) == 6
    assert len(hub.repos[REPO].commits) == 4  # initial, first, the picture, second


def test_versions(hub, publish, ledger, other):
    assert publish(ledger, version="1.2.0").plan.version == "1.2.0"
    seen = state(hub)
    with pytest.raises(RefusedError, match=r"--version 1\.2\.0: .* has v1\.2\.0 with other content"):
        publish(other, version="1.2.0")
    with pytest.raises(RefusedError, match=r"--version 1\.1\.9: must be above 1\.2\.0"):
        publish(other, version="1.1.9")
    assert state(hub) == seen
    assert publish(other).plan.version == "1.2.1"
    for wrong in ("1.2", "v1.3.0", "1.3.0rc1", "01.3.0", "1.03.0", "1.3.00", "1.3.\u0661"):
        with pytest.raises(UsageError, match="--version"):
            publish(ledger, version=wrong)
    with pytest.raises(UsageError, match="org/name"):
        publish(ledger, repo="c2w")


def without_a_tag(hub, publish, ledger, version):
    """A push whose tag failed: the release is on main, and nobody pinned it."""
    hub.faults["tag"] = [403]
    with pytest.raises(RefusedError, match="push again to tag it"):
        publish(ledger, version=version)
    hub.faults.clear()


def test_two_contents_never_share_a_version(hub, publish, ledger, other):
    """Loaders cache by the version in the card, tagged or not."""
    without_a_tag(hub, publish, ledger, "1.5.0")
    seen = state(hub)
    with pytest.raises(
        RefusedError, match=r"--version 1\.5\.0: main of .* has it, not tagged, with other content \("
    ):
        publish(other, version="1.5.0")
    with pytest.raises(RefusedError, match=r"--version 1\.4\.9: must be above 1\.5\.0 .* on its main"):
        publish(other, version="1.4.9")
    assert state(hub) == seen
    done = publish(ledger, version="1.5.0")
    assert (done.committed, done.tagged) == (False, True)
    assert hub.repos[REPO].tags == {"v1.5.0": seen[0]}
    assert publish(other, version="1.5.1").committed


def test_a_version_above_an_untagged_one(hub, publish, ledger, other):
    without_a_tag(hub, publish, ledger, "1.5.0")
    assert publish(other).plan.version == "1.5.1"


def test_a_dry_run_changes_nothing(hub, publish, ledger):
    done = publish(ledger, dry_run=True)
    assert done.commit is None and len(done.plan.paths("new")) == len(done.plan.changes)
    assert not hub.repos
    assert {method for method, _ in hub.log} == {"GET"}


def test_a_private_repository(hub, publish, ledger):
    publish(ledger, private=True)
    assert hub.repos[REPO].private
    hub.create("kvdiag/public")
    with pytest.raises(RefusedError, match="public already"):
        publish(ledger, repo="kvdiag/public", private=True)


def test_what_is_written_by_hand_in_the_card_stays(hub, publish, ledger, other):
    publish(ledger)
    mark = "<!-- end of notes -->"
    hub.put(REPO, "README.md", texts(hub, "README.md").replace(mark, f"1.0.0: first.\n{mark}").encode())
    seen = state(hub)
    for version in (None, "1.0.0"):
        done = publish(ledger, version=version)
        assert (done.committed, done.tagged, done.commit) == (False, False, hub.repos[REPO].tags["v1.0.0"])
    with pytest.raises(RefusedError, match="other content"):
        publish(other, version="1.0.0")
    assert state(hub) == seen
    publish(other)
    assert texts(hub, "README.md").count("1.0.0: first.\n") == 1


@pytest.mark.parametrize("name", [".huggingface.yaml", ".gitignore"])
def test_a_file_that_would_hide_the_release_is_refused(hub, publish, ledger, name):
    hub.create(REPO)
    hub.put(REPO, name, b"data/\n")
    seen = state(hub)
    with pytest.raises(RefusedError, match=name):
        publish(ledger)
    assert state(hub) == seen


# What fails at each step, and whether the commit was made nonetheless: then it is the whole release.
@pytest.mark.parametrize(
    ("step", "fault", "landed"),
    [
        ("yaml", 503, False),
        ("refs", 403, False),
        ("preupload", 403, False),
        ("batch", 403, False),
        ("put", 403, False),
        ("commit", 403, False),
        ("commit", 400, False),
        ("commit", 503, False),
        ("commit", "cut", False),
        ("tag", 403, True),
        ("tag", 503, True),
    ],
)
def test_a_failure_leaves_main_as_it_was(hub, publish, ledger, other, step, fault, landed):
    publish(other)
    before = state(hub)
    hub.faults[step] = [fault] * 50
    with pytest.raises((DataError, RefusedError)) as raised:
        publish(ledger)
    assert len(str(raised.value).splitlines()) == 1 and REPO in str(raised.value)
    hub.faults.clear()
    if landed:
        assert "push again to tag it" in str(raised.value)
        assert state(hub)[1] == before[1]
    else:
        assert state(hub) == before
    again = publish(ledger)
    assert again.committed != landed and again.tagged
    assert again.plan.version == "1.0.1"
    assert hub.repos[REPO].tags["v1.0.1"] == hub.repos[REPO].head.id
    assert len(hub.repos[REPO].commits) == 3
    assert not publish(ledger).tagged


@pytest.mark.parametrize("status", [409, 429, 500, 502, 503, 504, "cut"])
def test_a_commit_is_tried_again(hub, publish, ledger, status):
    hub.faults["commit"] = [status, status]
    assert publish(ledger).committed
    assert len(hub.repos[REPO].commits) == 2
    assert publish.waits == [1.0, 2.0]


def test_a_commit_whose_answer_was_lost_is_not_made_twice(hub, publish, ledger):
    hub.faults["commit"] = ["lost"]
    done = publish(ledger)
    assert done.committed and done.commit == hub.repos[REPO].head.id
    assert len(hub.repos[REPO].commits) == 2
    assert len(hub.requests("/commit/main")) == 1


def test_a_lost_answer_under_anothers_commit(hub, publish, ledger):
    """Ours landed, the answer did not, and another's commit is on top: the tag names ours."""
    hub.faults["commit"] = ["lost"]
    hub.faults["commits"] = [lambda: hub.put(REPO, "figure.png", b"a picture")]
    done = publish(ledger)
    ours = hub.repos[REPO].commits[1]
    assert done.commit == ours.id == hub.repos[REPO].tags["v1.0.0"]
    assert len(hub.repos[REPO].commits) == 3


def test_a_tag_whose_answer_was_lost_is_fine(hub, publish, ledger):
    hub.faults["tag"] = ["lost"]
    assert publish(ledger).tagged
    assert list(hub.repos[REPO].tags) == ["v1.0.0"]


def test_anothers_commit_in_between_is_planned_on_anew_once(hub, publish, ledger, other):
    publish(other)
    hub.faults["commit"] = [lambda: hub.put(REPO, "figure.png", b"theirs")]
    plans = []
    assert publish(ledger, report=plans.append).committed
    assert len(plans) == 2 and plans[0].base != plans[1].base
    assert [c.title for c in hub.repos[REPO].commits][-2:] == ["by hand", "kvdiag push: v1.0.1"]
    assert "figure.png" in hub.repos[REPO].head.files


def test_412_twice_is_a_clear_error(hub, publish, ledger):
    for faults in ([412, 412], [lambda: hub.put(REPO, "a", b"1"), lambda: hub.put(REPO, "a", b"2")]):
        hub.create(REPO)
        hub.faults["commit"] = faults
        with pytest.raises(RefusedError, match="others are changing it"):
            publish(ledger)
        assert not hub.repos[REPO].tags
        assert "README.md" not in hub.repos[REPO].head.files
    hub.faults["commit"] = [412]
    assert publish(ledger).committed


def test_two_pushes_of_one_version_cannot_both_tag_it(hub, publish, ledger):
    hub.faults["tag"] = [lambda: hub.repos[REPO].tags.update({"v1.0.0": hub.repos[REPO].commits[0].id})]
    with pytest.raises(RefusedError, match=r"v1\.0\.0 was taken meanwhile"):
        publish(ledger)
    publish(ledger)
    assert hub.repos[REPO].tags["v1.0.1"] == hub.repos[REPO].head.id


@pytest.mark.parametrize(
    ("token", "message"),
    [(False, "not logged in; run hf auth login"), ("read-token", "may not write there")],
)
def test_who_may_push(hub, publish, ledger, token, message):
    with pytest.raises(RefusedError, match=message):
        publish(ledger, token=token)
    assert not hub.repos


def test_a_card_that_the_hub_refuses(hub, publish, ledger):
    hub.bad_yaml = '"license" must be one of the known ones'
    with pytest.raises(DataError, match=r"refuses the card's metadata.*must be one of the known ones"):
        publish(ledger)
    assert list(hub.repos[REPO].head.files) == [".gitattributes"]
    assert not hub.sent


def test_a_hub_that_goes_away_while_its_card_is_read(hub, publish, ledger):
    publish(ledger)
    hub.faults["resolve"] = [404] * 40
    with pytest.raises(DataError, match=r"reading README.md: "):
        publish(ledger)


def test_a_hub_that_is_down(hub, publish, ledger):
    hub.faults["info"] = ["cut"] * 40
    with pytest.raises(DataError, match=r"cannot be reached .* after 4 attempts"):
        publish(ledger)
    assert not hub.repos
