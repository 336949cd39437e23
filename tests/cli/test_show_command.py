"""`kvdiag show` from the flags to the page."""

import json
import subprocess
import sys

import pytest

from kvdiag.analysis import show, show_html
from tests.command import ENVIRONMENT, kvdiag


def test_a_run_in_the_terminal(made_up):
    result = kvdiag("show", "first", "--data", made_up)
    assert (result.code, result.err) == (0, "")
    for part in ("Which number?", "▸It is 3125", "Evidence", "Rules", "Metrics", "top50_overlap"):
        assert part in result.out


def test_a_page(made_up, tmp_path):
    out = tmp_path / "new" / "run.html"
    result = kvdiag("show", "first", "--data", made_up, "--html", out)
    shown = show.gather(made_up, "first")
    assert (result.code, result.out) == (0, f"{shown.run['run_id']} written to {out}\n")
    assert out.read_text(encoding="utf-8") == show_html.render(shown)
    assert [p.name for p in out.parent.iterdir()] == ["run.html"]


@pytest.mark.parametrize(
    ("which", "message"),
    [("knorm", "is part of 6 run ids"), ("nope", "no run 'nope'"), ("", "is part of 12 run ids")],
)
def test_a_run_that_is_not_one(made_up, which, message):
    result = kvdiag("show", which, "--data", made_up)
    assert result.is_one_line_error(2), result
    assert message in result.err


def test_a_page_never_replaces_a_file_of_the_ledger(made_up):
    before = (made_up / "manifest.json").read_bytes()
    names = ["manifest.json", "README.md", *(f["path"] for f in json.loads(before)["files"])]
    for name in names:
        result = kvdiag("show", "first", "--data", made_up, "--html", made_up / name)
        assert result.is_one_line_error(3), result
    assert (made_up / "manifest.json").read_bytes() == before


def test_a_page_that_cannot_be_written(made_up, tmp_path):
    (tmp_path / "file").write_text("")
    result = kvdiag("show", "first", "--data", made_up, "--html", tmp_path / "file" / "x.html")
    assert result.is_one_line_error(2), result


def test_no_torch(made_up, tmp_path):
    script = (
        "import sys; from kvdiag.cli import cli; "
        f"cli.main(['show', 'first', '--data', {str(made_up)!r}, '--html', {str(tmp_path / 'x.html')!r}], "
        "standalone_mode=False); "
        "assert not {'torch', 'transformers', 'datasets', 'sklearn'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, check=True, capture_output=True)
