"""The commit that runs is the package's own, or none."""

import subprocess

from kvdiag import commit
from kvdiag.recipes import differences


def git(folder, *command):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run(
        ["git", *identity, *command], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def test_a_checkout_tells_its_commit_and_whether_it_was_changed(tmp_path):
    package = tmp_path / "kvdiag"
    package.mkdir()
    file = package / "__init__.py"
    file.write_text("")
    assert commit._checked_out(package) is None  # no repository
    git(tmp_path, "init", "-q")
    assert commit._checked_out(package) is None  # another's: a wheel inside some checkout
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    assert commit._checked_out(package) == head
    (package / "scratch.txt").write_text("not tracked")
    (tmp_path / "README.md").write_text("outside the package")
    assert commit._checked_out(package) == head
    file.write_text("changed = True\n")
    assert commit._checked_out(package) == f"{head}+changes"


def test_without_git_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit._checked_out(tmp_path) is None


def test_pip_tells_what_it_installed_from_a_repository(monkeypatch):
    texts = {
        "vcs": '{"url": "https://example.org/kvdiag", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}',
        "editable": '{"url": "file:///src", "dir_info": {"editable": true}}',
        "index": None,
    }
    for kind, expected in (("vcs", "c0ffee"), ("editable", None), ("index", None)):

        class Installed:
            def read_text(self, name, kind=kind):
                assert name == "direct_url.json"
                return texts[kind]

        monkeypatch.setattr(commit.importlib.metadata, "distribution", lambda _, found=Installed: found())
        assert commit._installed() == expected


def test_another_commit_is_no_other_build():
    old = {"kvdiag": "0.1.0", "kvdiag_commit": "a"}
    assert differences(old, {"kvdiag": "0.1.0"}) == []
    assert differences(old, {"kvdiag": "0.2.0", "kvdiag_commit": "b"}) == ["kvdiag: 0.1.0 -> 0.2.0"]
