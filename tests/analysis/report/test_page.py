"""The page: its numbers, what it says where there are none, and that it needs nothing else."""

import re

import pytest

from kvdiag.analysis.audit.coverage import coverage
from kvdiag.analysis.audit.desk import Options
from kvdiag.analysis.audit.protocol import audit
from kvdiag.analysis.quality import flags
from kvdiag.analysis.report import html, tables
from kvdiag.analysis.separation import separation
from kvdiag.query.connection import connect, rows
from tests import random_ledgers as random
from tests import rows as made
from tests.analysis.report.conftest import RESAMPLES, report
from tests.analysis.report.page import Page, columns

KEYS = ("failures", "bytes", "overlap", "signatures", "separation", "delta", "coverage", "quality")


def test_all_sections_in_order(page):
    assert tuple(k for k in page.sections if k) == KEYS
    links = [a["href"] for tag, a in page.tags if tag == "a"]
    assert links == [f"#{key}" for key in KEYS]


def test_the_header_says_what_it_is(page):
    text = page.sections[""].text
    for part in ("both", "Modelmade-up", "ruler_2k: 30 sources, 24/30 full-cache answers right (80.0%)"):
        assert part in text
    assert "knorm/keep=0.25/agnostic: 60 missing" in text
    assert "incomplete: 72 of 540 runs missing, in 5 of 9 cells (no row 60, oom 12)" in text
    assert "130 of 364 right answers turned wrong (35.7%), all cells together" in text


def test_rates_equal_sql(page, ledger):
    sql = (
        "SELECT method, setting, c2w_rate, c2w_low, c2w_high, n_c2w, n_eligible, n_answered, n_runs "
        "FROM failure_rates WHERE workload = 'ruler_1k' AND protocol = 'query_agnostic'"
    )
    expected = {
        (
            r["method"],
            r["setting"],
            f"{r['c2w_rate']:.1%}",
            f"{r['c2w_low']:.1%} to {r['c2w_high']:.1%}",
            *(str(r[n]) for n in ("n_c2w", "n_eligible", "n_answered", "n_runs")),
        )
        for r in rows(connect(ledger), sql)
    }
    names = ("method", "setting", "C→W rate", "95 % interval", "C→W", "control right", "answered", "runs")
    own = page.sections["failures"]
    assert set(columns(own.tables[0], *names)) == expected and len(expected) == 4
    for _, setting, rate, _, c2w, eligible, _, _ in expected:
        assert setting in own.svg_texts and f"{rate} ({c2w}/{eligible})" in own.svg_texts


def test_jaccard_equals_sql(page, ledger):
    sql = (
        "SELECT sum(n_intersection) AS n_both, sum(n_union) AS n_union FROM failure_overlap "
        "WHERE protocol = 'query_aware' AND method_a = 'knorm' AND method_b = 'snapkv'"
    )
    (r,) = rows(connect(ledger), sql)
    share = r["n_both"] / r["n_union"]
    own = page.sections["overlap"]
    shown = columns(own.tables[1], "method", "and", "Jaccard", "both C→W", "either C→W")
    assert shown == [("knorm", "snapkv", f"{share:.3f}", str(r["n_both"]), str(r["n_union"]))]
    assert f"{share:.2f}" in own.svg_texts


def test_signatures_equal_sql(page, ledger):
    sql = (
        "SELECT signature, count(*) AS n FROM c2w WHERE method = 'snapkv' AND setting = 'keep=0.25' "
        "AND protocol = 'query_agnostic' GROUP BY ALL"
    )
    counts = {r["signature"]: r["n"] for r in rows(connect(ledger), sql)}
    header, *lines = page.sections["signatures"].tables[1]
    (line,) = [x for x in lines if x[:2] == ["snapkv", "keep=0.25"]]
    n = sum(counts.values())
    assert line[2] == str(n)
    for name, cell in zip(header[3:], line[3:], strict=True):
        k = counts.get(name[2:], 0)
        assert cell == f"{k} ({k / n:.1%})"
    assert len(counts) > 1


def test_separation_equals_the_function(page, ledger):
    expected = [
        (d["diagnostic"], f"{d['auroc']:.3f}", f"{d['low']:.3f} to {d['high']:.3f}", str(d["n_pairs"]))
        for d in separation(ledger, RESAMPLES, 0)["diagnostics"]
    ]
    own = page.sections["separation"]
    assert columns(own.tables[0], "diagnostic", "AUROC", "95 % interval", "pairs") == expected
    assert f"{expected[0][1]} ({expected[0][2]})" in own.svg_texts


def test_delta_equals_the_audit(page, ledger):
    found = audit(ledger, Options(resamples=RESAMPLES, seed=0, allow_incomplete=True))

    def shown(r, setting):
        interval = f"{r['low']:+.3f} to {r['high']:+.3f}"
        return (r["method"], setting, f"{r['delta']:+.3f}", interval, str(r["n"]), str(r["n_planned"]))

    names = ("95 % interval", "pairs", "of planned")
    summary, cells = page.sections["delta"].tables
    assert columns(summary, "method", "settings", "Δ", *names) == [
        shown(r, ", ".join(r["settings"])) for r in found["summary"]
    ]
    assert set(columns(cells, "method", "setting", "Δ", *names)) == {
        shown(r, r["setting"]) for r in found["delta"]
    }
    assert "incomplete: 3 of 60 sources missing (oom 3)" in {line[-1] for line in cells}


def test_coverage_equals_the_audit(page, ledger):
    found = coverage(ledger)
    agnostic, aware, gaps = page.sections["coverage"].tables
    expected = [(c["method"], c["setting"], str(c["n_planned"]), str(c["n_available"])) for c in found["cells"]]
    shown = columns(agnostic, "method", "setting", "planned", "answered")
    shown += columns(aware, "method", "setting", "planned", "answered")
    assert sorted(shown) == sorted(expected)
    assert ("knorm", "keep=0.25", "60", "0") in expected
    assert sum(int(line[-1]) for line in gaps[1:]) == found["n_planned"] - found["n_available"] == 72
    assert ["made-up", "snapkv/keep=0.5/aware", "ruler_1k", "failed", "oom", "2"] in gaps


def test_flags_equal_the_function(page, ledger):
    found = flags(ledger)
    assert [line[0] for line in page.sections["quality"].tables[0][1:]] == [f["flag"] for f in found] != []


def test_every_figure_has_a_table_and_alt_text(made_report, page):
    _, sections, _ = made_report
    for section in sections:
        own = page.sections[section.key]
        assert own.alts == [p.alt for p in section.panels] and all(own.alts)
        assert len(own.tables) == len(section.panels) + (section.table is not None)
        assert own.text.count("How to read it.") == (section.empty is None)
    assert sum(len(s.panels) for s in sections) > 15


def test_the_page_needs_nothing_else(made_report, page):
    text = made_report[2]
    assert not {"script", "link", "img", "iframe", "image", "object"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "style"):
            value = attributes.get(name) or ""
            assert "//" not in value and (not name.endswith("href") or value[:1] in ("", "#")), (tag, attributes)
    assert not re.search(r"@import|url\((?!#)", text)


def test_ids_are_unique_and_references_lead_somewhere(made_report, page):
    assert len(page.ids) == len(set(page.ids))
    used = re.findall(r'(?:xlink:href="|url\()#([^")]+)', made_report[2])
    assert used and set(used) <= set(page.ids)


def test_two_renders_are_equal(made_report, ledger):
    assert report(ledger)[2] == made_report[2]
    _, sections, _ = made_report
    assert html.draw(sections[:1], "png") == html.draw(sections[:1], "png")


def test_what_a_ledger_holds_is_escaped(tmp_path):
    evil = '<script>alert("1")</script>&amp;$x_1$\x07'
    found = made.made_up_rows()
    for row in found["runs"]:
        row |= {"method": evil, "cell_id": "x", "workload": "w<b>"}
    for row in found["controls"]:
        row["model"] = evil
    environment = {"environment": {"gpu": evil}}
    made.write_made_up(tmp_path, found)
    data, sections, _ = report(tmp_path)
    data.manifest["environment"] = environment
    text = html.render(data, sections, html.draw(sections, "svg"))
    assert "<script" not in text and "<b>" not in text
    page = Page(text)
    assert evil in page.sections[""].text and evil in page.sections["failures"].tables[0][1]
    assert any(t.startswith('<script>alert("1")</scr') for t in page.sections["failures"].svg_texts)


# -- what is missing ---------------------------------------------------------------------------------------------


def lines(ledger):
    """What each section says beside its figures, which are not drawn."""
    found = html.sections(tables.gather(ledger, RESAMPLES, 0))
    return {s.key: s.empty or " ".join([s.read, *s.notes]) for s in found}


def test_one_protocol_says_so(made_up):
    text = report(made_up)[2]
    said = lines(made_up)["delta"]
    assert "this ledger has query_agnostic only" in said
    own = Page(text).sections["delta"]
    assert said in own.text and "How to read it" not in own.text and not own.alts and not own.tables


@pytest.fixture(scope="module")
def all_right(tmp_path_factory):
    """A ledger in which nothing turned wrong."""
    folder = tmp_path_factory.mktemp("right")
    made.write_made_up(folder, made.made_up_rows(all_right=True))
    return lines(folder)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("overlap", "No right answer turned wrong in this ledger: there are no C→W rows."),
        ("signatures", "No right answer turned wrong in this ledger: there are no C→W rows."),
        ("separation", "(no C→W rows), so there is nothing to tell apart."),
        ("failures", "Each line is one method at one setting"),
    ],
)
def test_nothing_turned_wrong(all_right, key, said):
    assert said in all_right[key]


def one_method(wrong):
    """Rows of one method whose runs are all wrong, under right or wrong controls."""
    found = made.made_up_rows()
    found["runs"] = [r for r in found["runs"] if r["method"] == "knorm"]
    for control in found["controls"]:
        control["correct"] = not wrong
    for run in found["runs"]:
        run |= {
            "correct": False,
            "transition": "W->W" if wrong else "C->W",
            "kv_bytes": None,
            "kv_bytes_full": None,
        }
        run |= {f"kv_bytes__{part}": v for part, v in (("status", "x"),) if f"kv_bytes__{part}" in run}
    return found | {"repairs": []}


@pytest.mark.parametrize(
    ("wrong", "key", "said"),
    [
        (True, "failures", "No run of this ledger has a right control and an answer"),
        (True, "bytes", "No run of this ledger has measured KV bytes"),
        (False, "overlap", "No two methods share a setting, protocol and model"),
        (False, "separation", "No right answer stayed right in this ledger"),
    ],
)
def test_reasons_of_empty_sections(tmp_path, wrong, key, said):
    made.write_made_up(tmp_path, one_method(wrong))
    assert said in lines(tmp_path)[key]


def test_all_degenerate(tmp_path):
    found = made.made_up_rows()
    for run in found["runs"]:
        run["degenerate"] = "kept_within_window"
    made.write_made_up(tmp_path, found)
    said = lines(tmp_path)
    assert "All C→W rows of this ledger are labelled degenerate." in said["signatures"]
    assert "Hollow dots are no finding: 4 cells, counted by workload" in said["failures"]
    panel = html.sections(tables.gather(tmp_path, RESAMPLES, 0))[0].panels[0]
    assert {row[-1] for row in panel.table.rows} == {"no finding: labelled kept_within_window"}


def test_values_that_no_stratum_compares(tmp_path):
    def without(run):
        return run | {k: v for m in random.METRICS for k, v in random.gap(m).items()}

    random.paired_runs(tmp_path, change=without)
    found = {s.key: s for s in html.sections(tables.gather(tmp_path, RESAMPLES, 0))}
    own = found["separation"]
    assert own.empty == "No diagnostic has values for both C→W and C→C rows of any one stratum."
    assert own.table.rows[0][:2] == ("1-err", "-") and "not_measured (lost)" in own.table.rows[0][-1]
    assert ("A not_measured: lost", "no signature, for this reason") in found["signatures"].terms


def test_no_flags_says_so(tmp_path):
    found = random.paired_runs(tmp_path / "flagged", n=10)
    for i, source in enumerate(found["sources"]):
        source["prompt_hash"] = f"{i:064x}"
    for i, run in enumerate(found["runs"]):
        run |= {"output": run["run_id"], "nll": i / 7, "kv_bytes": 5, "kv_bytes_full": 10}
    for control in found["controls"]:
        control["nll"] = control["nll_control_answer"]
    made.write_made_up(tmp_path / "sound", found)
    assert flags(tmp_path / "flagged") and not flags(tmp_path / "sound")
    assert lines(tmp_path / "sound")["quality"] == "No data-quality rule found anything in this ledger."
