"""What a build says at its end."""

import json

from kvdiag.analysis import show, show_text, summary
from kvdiag.cli.progress import summarise
from tests import rows
from tests.command import kvdiag


def test_failure_table_and_controls(made_up):
    table = summary.failure_table(made_up)
    assert [
        (r["method"], r["setting"], r["n_runs"], r["n_answered"], r["n_eligible"], r["n_c2w"]) for r in table
    ] == [
        ("knorm", "keep=0.5", 3, 3, 2, 1),
        ("knorm", "keep=0.25", 3, 3, 2, 2),
        ("snapkv", "keep=0.5", 3, 2, 2, 1),
        ("snapkv", "keep=0.25", 3, 3, 2, 2),
    ]
    assert summary.controls(made_up) == {"n": 3, "n_answered": 3, "n_judged": 3, "n_correct": 2}


def test_the_example_is_the_clearest_failure(tmp_path):
    found = rows.made_up_rows()
    clear = next(r for r in found["runs"] if r["transition"] == "C->W" and r["keep"] == 0.5)
    clear |= {"ecov": 0.1, "delta_nll": 3.0}
    strange = next(r for r in found["runs"] if r["transition"] == "C->W" and r is not clear)
    strange |= {"ecov": 0.0, "delta_nll": 9.0, "keep": 0.9, "degenerate": "kept_within_window"}
    rows.write_made_up(tmp_path, found)
    example = summary.example(tmp_path)
    assert example["run_id"] == clear["run_id"]


def test_the_summary_explains_it_as_show_does(made_up, capsys):
    summarise(made_up, json.loads((made_up / "manifest.json").read_text()))
    out = capsys.readouterr().out
    shown = show.gather(made_up, summary.example(made_up)["run_id"])
    explained = out[out.index("One failure, explained:") :].splitlines()[1:]
    lines = show_text.brief(shown)
    assert explained[: len(lines)] == [f"  {line}" for line in lines]


def test_no_failure_is_said(tmp_path, capsys):
    manifest = rows.write_made_up(tmp_path, rows.made_up_rows(all_right=True))
    assert summary.example(tmp_path) is None
    summarise(tmp_path, manifest)
    out = capsys.readouterr().out
    assert "No right answer turned wrong." in out
    assert "Full cache: 3 of 3 answers right" in out


def test_the_summary_shows_denominators_and_what_to_type_next(made_up, capsys):
    summarise(made_up, json.loads((made_up / "manifest.json").read_text()))
    out = capsys.readouterr().out
    assert "Full cache: 2 of 3 answers right" in out
    assert any(
        line.split()[:5] == ["snapkv", "keep=0.5", "agnostic", "1/2", "50%"] for line in out.splitlines()
    ), out
    assert "2/3" in out  # answered / planned
    (line,) = [line for line in out.splitlines() if line.strip().startswith("kvdiag query")]
    sql = line.split('"')[1]
    assert kvdiag("query", "--data", made_up, sql).code == 0
