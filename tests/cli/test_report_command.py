"""`kvdiag report` from the flags to the files."""

import importlib.util
import json
import subprocess
import sys

import pytest

from kvdiag.analysis.report import html, tables
from tests.command import ENVIRONMENT, kvdiag


def run(ledger, out, *more):
    return kvdiag("report", ledger, "-o", out, "--resamples", "100", *more)


@pytest.fixture(scope="module")
def expected(made_up):
    """Sections and page of `made_up`."""
    data = tables.gather(made_up, 100, 0)
    found = html.sections(data)
    return found, html.render(data, found, html.draw(found, "svg"))


def test_a_page(made_up, tmp_path, expected):
    out = tmp_path / "report.html"
    result = run(made_up, out)
    assert (result.code, result.err, result.out) == (0, "", f"report of made-up written to {out}\n")
    assert out.read_text(encoding="utf-8") == expected[1]
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("named", [True, False])
def test_the_ledger_by_flag_or_by_place(made_up, tmp_path, monkeypatch, expected, named):
    monkeypatch.chdir(tmp_path if named else made_up.parent)
    flag = ("--data", made_up) if named else ()
    result = kvdiag("report", *flag, "--out", tmp_path / "r.html", "--resamples", "100")
    assert result.code == 0 and (tmp_path / "r.html").read_text(encoding="utf-8") == expected[1]


@pytest.mark.parametrize(("form", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_figures_as_files(made_up, tmp_path, form, start, expected):
    result = run(made_up, tmp_path / "r.html", "--figures", tmp_path / "figures", "--format", form)
    assert result.code == 0, result
    names = {f"{p.name}.{form}" for s in expected[0] for p in s.panels}
    files = list((tmp_path / "figures").iterdir())
    assert {p.name for p in files} == names and len(names) > 5
    assert all(p.read_bytes().startswith(start) for p in files)
    assert f"{len(names)} figure(s) written to {tmp_path / 'figures'}" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "{tmp}/nowhere/r.html"), "make it first"),
        (("-o", "{tmp}"), "is a folder"),
        (("--format", "svgz", "--figures", "{tmp}/f"), "must be svg or png"),
        (("--format", "png"), "name that folder too"),
        (("--data", "{ledger}"), "name the ledger once"),
        (("--resamples", "3"), "--resamples"),
        (("--figures", "{tmp}/file/x", "-o", "{tmp}/r.html"), "cannot be written"),
    ],
)
def test_flags_that_are_wrong(made_up, tmp_path, arguments, message):
    (tmp_path / "file").write_text("")
    given = [a.format(tmp=tmp_path, ledger=made_up) for a in arguments]
    result = kvdiag("report", made_up, *given)
    assert result.is_one_line_error(2) and message in result.err, result
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("flag", [(), ("--data",)])
def test_no_ledger(tmp_path, flag):
    result = kvdiag("report", *flag, tmp_path, "-o", tmp_path / "r.html")
    assert result.is_one_line_error(2) and "not a ledger" in result.err
    assert result.err.startswith(f"kvdiag: {' '.join([*flag, str(tmp_path)])}: ")


def test_matplotlib_missing(made_up, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    result = run(made_up, tmp_path / "r.html")
    assert result.is_one_line_error(2) and "pip install 'kvdiag[report]'" in result.err
    assert not (tmp_path / "r.html").exists()


def test_a_page_never_replaces_a_file_of_the_ledger(made_up):
    before = (made_up / "manifest.json").read_bytes()
    for name in ("manifest.json", "README.md", json.loads(before)["files"][0]["path"]):
        assert run(made_up, made_up / name).is_one_line_error(3)
    assert (made_up / "manifest.json").read_bytes() == before


def test_no_torch_and_matplotlib_only_when_it_draws(made_up, tmp_path):
    script = (
        "import sys; import kvdiag.cli.report, kvdiag.analysis.report.html as html; "
        "import kvdiag.analysis.report.tables as tables; from pathlib import Path; "
        f"found = html.sections(tables.gather(Path({str(made_up)!r}), 100, 0)); "
        "assert not {'torch', 'transformers', 'datasets', 'matplotlib'} & set(sys.modules); "
        "html.draw(found[:1], 'svg'); "
        "assert not {'torch', 'transformers', 'datasets', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
