"""What is gathered of a run, and its two renderings."""

import io
import json
import re
from html.parser import HTMLParser
from itertools import product

import numpy as np
import pytest
from rich.console import Console

from kvdiag.analysis import show, show_html, show_text
from kvdiag.diagnostics.retention import slot_err
from kvdiag.errors import DataError, UsageError
from kvdiag.importers.kvdiagnosis import import_artifact
from kvdiag.query.connection import connect
from kvdiag.query.connection import rows as query
from kvdiag.records.schema import metric_names
from tests import rows
from tests.importers import mini
from tests.importers.conftest import ARTIFACT

CHOSEN = "ruler_1k/vt/0000::snapkv/keep=0.25"
SLOTS = {"n_layers": 2, "n_kv_heads": 2, "err_slots": [0.0, 0.25, 0.5, 1.0], "eam_layers": [0.125, 0.5]}


def ledger(folder, run=(), source=(), control=(), retention=()):
    """A made-up ledger whose chosen run, with its source and control, has these values; what show gathers of it.

    retention: None for no row.
    """
    made = rows.made_up_rows()
    chosen = next(r for r in made["runs"] if r["run_id"].startswith(CHOSEN))
    chosen |= {"ecov": 0.25, "err": 0.4375, "delta_nll": 2.0, "control_id": chosen["control_id"], **dict(run)}
    made["sources"][0] |= {"evidence_token_starts": [2], "evidence_token_ends": [6], **dict(source)}
    made["controls"][0] |= dict(control)
    kept = next(r for r in made["retention"] if r["run_id"] == chosen["run_id"])
    if retention is None:
        made["retention"].remove(kept)
    else:
        kept |= SLOTS | {"kept_slots": [1, 2, 3, 4], **dict(retention)}
    rows.write_made_up(folder, made)
    return show.gather(folder, chosen["run_id"])


def missing(metrics, status, reason):
    """Columns of metrics without a value."""
    return {
        key: value
        for m in metrics
        for key, value in ((m, None), (f"{m}__status", status), (f"{m}__reason", reason))
    }


def as_text(shown, width=120):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show_text.write(shown, console)
    return console.file.getvalue()


class _Text(HTMLParser):
    """The text a browser would show, and what the page would load or run."""

    VOID = ("meta", "link", "br", "img")
    APART = ("td", "th", "dt", "dd", "li", "p")  # a browser sets these off from what is before them

    def __init__(self):
        super().__init__()
        self.text, self.open, self.tags, self.attributes = [], [], set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.text += [" "] if tag in self.APART else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def parsed(page):
    parser = _Text()
    parser.feed(page)
    assert parser.open == []
    parser.words = re.sub(r"\s+", " ", "".join(parser.text))
    return parser


# --- Finding a run


def test_a_run_is_found_by_id_and_by_a_part_of_it(made_up):
    run_id = "ruler_1k/vt/0001::knorm/keep=0.5/agnostic::made-up"
    for which in (run_id, "0001::knorm/keep=0.5/"):
        assert show.gather(made_up, which).run["run_id"] == run_id


def test_an_id_that_is_part_of_another_is_still_itself(tmp_path):
    made = rows.made_up_rows()
    made["runs"][1]["run_id"] = made["runs"][0]["run_id"] + "2"
    made["retention"] = []
    rows.write_made_up(tmp_path, made)
    assert show.gather(tmp_path, made["runs"][0]["run_id"]).run["run_id"] == made["runs"][0]["run_id"]


def test_several_matches_are_listed_and_none_is_said(made_up):
    with pytest.raises(
        UsageError, match=r"'knorm' is part of 6 run ids \(ruler_1k/vt/0000.*, …\); give more"
    ) as error:
        show.gather(made_up, "knorm")
    assert str(error.value).count("::made-up") == 3
    with pytest.raises(UsageError, match=r"part of 2 run ids \([^…]*\)"):
        show.gather(made_up, "0000::knorm")
    for which in ("nope", "%", "ruler_1k_vt"):  # no wildcards
        with pytest.raises(UsageError, match="no run"):
            show.gather(made_up, which)


def test_first_and_worst(tmp_path):
    made = rows.made_up_rows()
    failures = [r for r in made["runs"] if r["transition"] == "C->W"]
    right = next(r for r in made["runs"] if r["transition"] == "C->C")
    failures[1]["delta_nll"], failures[2]["delta_nll"], right["delta_nll"] = 5.0, 9.0, 50.0
    failures[2]["degenerate"] = "kept_within_window"
    rows.write_made_up(tmp_path, made)
    ordered = sorted(f["run_id"] for f in failures if not f["degenerate"])
    assert show.gather(tmp_path, "first").run["run_id"] == ordered[0]
    assert show.gather(tmp_path, "worst").run["run_id"] == failures[1]["run_id"]


def test_first_and_worst_without_a_failure(tmp_path):
    made = rows.made_up_rows(all_right=True)
    made["runs"][2]["delta_nll"] = 4.0
    rows.write_made_up(tmp_path, made)
    assert show.gather(tmp_path, "worst").run["run_id"] == made["runs"][2]["run_id"]
    assert show.gather(tmp_path, "first").failure is None


def test_a_ledger_without_runs_has_none_to_show(tmp_path):
    made = {t: [] for t in ("sources", "controls", "runs", "retention", "methods")}
    rows.write_made_up(tmp_path, made)
    with pytest.raises(UsageError, match="has no runs"):
        show.gather(tmp_path, "first")


# --- Answers


@pytest.mark.parametrize(
    ("control", "run", "diverges", "expected"),
    [
        ("It is 12.", "It is 3125", 2, (["It is ", "▸12."], ["It is ", "▸3125"], "character 6, token 2, from 0")),
        ("12", "12 apples", 1, (["12", "▸"], ["12", "▸ apples"], "character 2, token 1, from 0")),
        ("12", "", 0, (["", "▸12"], ["", "▸"], "character 0, token 0, from 0")),
        ("12", "12", None, (["12"], ["12"], "the same text")),
        ("12", "12", 1, (["12"], ["12"], "the same text; their tokens part at 1, from 0")),
        ("a\x1b[31m", "a\n\u202e", None, (["a", r"▸\x1b[31m"], ["a", r"▸\n\u202e"], "character 1, from 0")),
    ],
)
def test_the_first_divergence(tmp_path, control, run, diverges, expected):
    own = {"output": run, "first_divergence": diverges}
    if diverges is None:
        own |= missing(["first_divergence"], "not_applicable", "same_answer")
    one, two, note = show.answers(ledger(tmp_path, own, control={"output": control}))
    assert [p.text for p in one] == expected[0]
    assert [p.text for p in two] == expected[1]
    assert note.endswith(expected[2])


def test_a_run_without_an_answer_says_why(tmp_path):
    made = rows.made_up_rows()
    rows.write_made_up(tmp_path, made)
    (lost,) = (r["run_id"] for r in made["runs"] if r["status"] == "failed")
    shown = show.gather(tmp_path, lost)
    for words in (as_text(shown), parsed(show_html.render(shown)).words):
        assert "no answer: failed (oom)" in words
        assert "only C->W runs have one; this run has no transition" in words
        assert "evidence kept: failed (oom)" in words.lower()
        assert "layer 0" not in words
    assert {m.text for m in show.metrics(shown)} == {"failed (oom)"}


def test_the_detail_of_a_failure_is_shown(tmp_path):
    own = {"status": "failed", "reason": "exception", "detail": "ValueError: no\nway", "transition": None}
    shown = ledger(tmp_path, own | {"output": None})
    assert r"no answer: failed (exception): ValueError: no\nway" in as_text(shown)


# --- Evidence


def test_one_span_has_its_own_share(tmp_path):
    found = show.evidence(ledger(tmp_path))
    assert [(s.text, s.kept) for s in found.spans] == [("The number is 12.", "44% kept")]
    assert "mean over all layer x head slots" in found.note


def test_of_several_spans_bounds_are_told(tmp_path):
    """6 positions, spans of 4 and 2: a slot with half of all keeps 1 to 3 of the first, 0 to 2 of the second."""
    source = {"evidence_starts": [7, 0], "evidence_ends": [24, 6]}
    source |= {"evidence_token_starts": [2, 8], "evidence_token_ends": [6, 10]}
    shown = ledger(tmp_path, source=source, retention={"err_slots": [0.5, 0.5, 1.0, 0.0]})
    found = show.evidence(shown)
    assert [(s.text, s.kept) for s in found.spans] == [
        ("The number is 12.", "38% to 62% kept"),
        ("Notes.", "25% to 75% kept"),
    ]
    assert "44% of all evidence tokens kept" in found.note


def test_several_spans_without_slots_have_only_a_mean(tmp_path):
    source = {"evidence_starts": [7, 0], "evidence_ends": [24, 6]}
    source |= {"evidence_token_starts": [2, 8], "evidence_token_ends": [6, 10]}
    found = show.evidence(ledger(tmp_path, source=source, retention=None))
    assert {s.kept for s in found.spans} == {"share of its own not known"}
    assert "only the mean over all evidence is known: 44% kept" in found.note


def test_bounds_hold_and_are_reached():
    """Every kept set of a small slot: bounds hold for all, and both ends occur."""
    spans = [(0, 3), (2, 4), (5, 6)]  # two share a position
    seen = {}
    for bits in product((False, True), repeat=6):
        kept = np.array(bits)[None, None]
        share = float(slot_err(kept, spans)[0, 0])
        for i, ((a, b), (low, high)) in enumerate(zip(spans, show.span_bounds([share], spans), strict=True)):
            own = kept[0, 0, a:b].mean()
            assert low - 1e-12 <= own <= high + 1e-12
            seen.setdefault((i, share, low, high), set()).add(round(float(own), 9))
    for (_, _, low, high), owns in seen.items():
        assert (min(owns), max(owns)) == pytest.approx((low, high))


def test_evidence_that_is_not_mapped_is_shown_without_shares(tmp_path):
    unmapped = {"evidence_status": "not_measured", "evidence_reason": "span_unmapped"}
    none = missing(["err", "ecov", "eam", "ear"], "not_measured", "span_unmapped")
    found = show.evidence(ledger(tmp_path, none, source=unmapped))
    assert [(s.text, s.kept) for s in found.spans] == [("The number is 12.", "")]
    assert found.note == "not_measured (span_unmapped)"


# --- Layers and heads


def test_the_map_is_layer_by_layer(tmp_path):
    found = show.layers(ledger(tmp_path, {"eam": 0.3125}, control={"eam": 0.5}))
    assert [(x.index, x.kept, x.attention) for x in found.layers] == [
        (0, [0.0, 0.25], 0.125),
        (1, [0.5, 1.0], 0.5),
    ]
    assert (found.kept_note, found.attention_note) == ("", "")
    assert found.mean == "mean 0.3125, the control's 0.5"


def test_the_map_in_the_terminal(tmp_path):
    text = as_text(ledger(tmp_path))
    (first,) = re.findall(r"layer +0 +(\S+) (\S+) +(\d+)% +0\.1250 (━+)", text)
    (second,) = re.findall(r"layer +1 +(\S+) (\S+) +(\d+)% +0\.5000 (━+)", text)
    assert first[:3] == ("··", "░░", "12")
    assert second[:3] == ("▒▒", "██", "75")
    assert len(second[3]) == 4 * len(first[3])


@pytest.mark.parametrize(
    ("share", "index"), [(0, 0), (0.01, 1), (0.33, 1), (0.34, 2), (0.66, 2), (0.67, 3), (0.99, 3), (1, 4)]
)
def test_shades(share, index):
    assert show_text.shade(share) == index


def test_structural_methods_have_no_retention_but_attention(tmp_path):
    own = missing(["err", "ecov", "distractor_retention"], "not_applicable", "structural_position")
    own |= {"coverage_type": "structural_position", "structurally_addressable": True}
    shown = ledger(tmp_path, own, retention={"err_slots": [1.0, 1.0, 1.0, 1.0]})
    found = show.layers(shown)
    assert [(x.kept, x.attention) for x in found.layers] == [(None, 0.125), (None, 0.5)]
    assert found.kept_note == show.evidence(shown).note.removeprefix("share kept: ")
    assert found.kept_note == "not_applicable (structural_position)"
    assert "structural_position_likelihood_drift" in as_text(shown)
    assert parsed(show_html.render(shown)).words.count("head 0") == 0


def test_a_run_without_retention_row_says_so(tmp_path):
    found = show.layers(ledger(tmp_path, retention=None))
    assert found.layers == []
    assert found.kept_note == found.attention_note.replace("layer", "slot") == "by slot: not in the ledger"


# --- Signature


def test_the_rule_that_fired_is_shown_with_its_threshold(tmp_path):
    shown = ledger(tmp_path)
    for words in (as_text(shown), parsed(show_html.render(shown)).words):
        assert "low_mapped_coverage: most of the evidence was evicted" in words
        assert "ecov 0.25 < 0.5 (low_coverage)" in words
        assert "did not fire" not in words


def test_thresholds_are_the_manifests(tmp_path):
    ledger(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["thresholds"]["low_coverage"] = 0.3
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert "ecov 0.25 < 0.3 (low_coverage)" in as_text(show.gather(tmp_path, CHOSEN))
    del manifest["thresholds"]["low_coverage"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="thresholds"):
        show.gather(tmp_path, CHOSEN)


def test_where_no_rule_fired_all_say_what_they_lack(tmp_path):
    shown = ledger(tmp_path, {"ecov": 0.95, "delta_nll": 0.5, "ear": 0.75})
    verdict = show.verdict(shown)
    assert (verdict.text, verdict.fired, len(verdict.rules)) == ("ambiguous: no rule fired", False, 6)
    assert "low_ear_candidate: ear 0.75 is not < 0.5 (low_ear)" in as_text(shown)


def test_several_rules(tmp_path):
    verdict = show.verdict(ledger(tmp_path, {"ecov": 0.95, "delta_nll": 1.5, "ear": 0.25}))
    assert verdict.text == "conflicting_diagnostic_signals: several rules fired"
    assert [r.name for r in verdict.rules] == ["high_mapped_coverage_likelihood_drift", "low_ear_candidate"]
    assert all(c.holds for r in verdict.rules for c in r.conditions)


def test_a_signature_that_cannot_be_told(tmp_path):
    verdict = show.verdict(ledger(tmp_path, missing(["ecov"], "not_measured", "span_unmapped")))
    assert (verdict.text, verdict.rules) == ("none: not_measured (span_unmapped)", [])


def test_a_run_that_did_not_fail_has_no_signature(made_up):
    verdict = show.verdict(show.gather(made_up, "0001::snapkv/keep=0.5"))
    assert verdict.text == "none: only C->W runs have one; this run is C->C"


# --- The rest


def test_every_metric_is_there_with_value_or_reason(tmp_path):
    own = {"kl": 0.123456} | missing(["ear"], "not_applicable", "control:no_attention_on_evidence")
    shown = ledger(tmp_path, own, control={"nll": 0.75})
    found = {m.name: m for m in show.metrics(shown)}
    assert list(found) == metric_names("runs")
    assert (found["kl"].text, found["kl"].unit, found["kl"].better) == ("0.1235", "nats", "lower")
    assert found["ear"].text == "not_applicable (control:no_attention_on_evidence)"
    assert (found["nll"].control, found["err"].control) == ("0.75", "")
    for words in (as_text(shown, 160), parsed(show_html.render(shown)).words):
        for metric in found.values():
            assert metric.name in words and metric.text in words


def test_positions_and_bytes(tmp_path):
    own = {"n_compressed": 400, "kept_tokens_mean": 100.25, "kept_tokens_min": 90, "kept_tokens_max": 120}
    own |= {"kv_bytes": 2_500_000, "kv_bytes_full": 10_000_000, "origin_label": "25%"}
    assert show.kept(ledger(tmp_path, own).run) == (
        "100 of 400 positions a head (90 to 120), 2.5 MB of 10.0 MB (25% of the bytes); "
        "labelled keep=0.25, 25% in its origin"
    )


def test_what_was_scored_is_named_where_it_is_not_the_output(tmp_path):
    for folder, extracted, named in (("a", "3125", True), ("b", " It is 3125\n", False), ("c", None, False)):
        shown = ledger(tmp_path / folder, {"extracted_answer": extracted})
        assert ("; scored as 3125;" in as_text(shown)) == named
        assert ("scored as" in as_text(shown)) == named


def test_a_degenerate_cell_is_named(tmp_path):
    shown = ledger(tmp_path, {"degenerate": "kept_within_window"})
    for words in (as_text(shown), parsed(show_html.render(shown)).words):
        assert "kept_within_window: the cell is no finding" in words


def test_texts_and_numbers_that_an_import_lacks(tmp_path):
    lacking = "not_measured", "not_in_artifact"
    source = dict.fromkeys(("context", "question", "answer_prefix"))
    source |= {"text_status": lacking[0], "text_reason": lacking[1]}
    source |= {
        "evidence_status": lacking[0],
        "evidence_reason": lacking[1],
        "evidence_starts": [],
        "evidence_ends": [],
    }
    own = dict.fromkeys(("kept_tokens_mean", "kept_tokens_min", "kept_tokens_max", "n_compressed", "kv_bytes"))
    own |= {"output_tokens": None, "n_new_tokens": None, "finish_reason": None}
    own |= missing(["err", "ecov", "eam", "ear", "first_divergence"], *lacking)
    shown = ledger(tmp_path, own, source=source, retention=None)
    for words in (as_text(shown), parsed(show_html.render(shown)).words):
        assert "not in the ledger: not_measured (not_in_artifact)" in words
        assert "positions and bytes are not in the ledger" in words
        assert "None" not in words


_ONE_OF_A_KIND = """
SELECT DISTINCT ON (workload, status, transition, coverage_type, err__status) run_id, status, transition
FROM runs ORDER BY run_id"""


def test_runs_of_an_imported_ledger(tmp_path):
    """The first sources of the real artifact: no texts, no slots, failures with coverage and without."""
    if not ARTIFACT.is_dir():
        pytest.skip("the KVDiagnosis artifact is not beside the checkout (../shared/data/kvdiagnosis)")
    import_artifact(mini.write(tmp_path / "mini", mini.first_records(ARTIFACT, 1)), tmp_path / "ledger")
    runs = query(connect(tmp_path / "ledger"), _ONE_OF_A_KIND)
    assert {r["status"] for r in runs} == {"available", "unsupported"}
    assert "C->W" in {r["transition"] for r in runs}
    for run in runs:
        shown = show.gather(tmp_path / "ledger", run["run_id"])
        for words in (as_text(shown), parsed(show_html.render(shown)).words):
            assert "not in the ledger: not_measured (not_in_artifact)" in words
            assert "None" not in words
            assert "layer 0" not in words


# --- The page


def test_text_from_models_is_escaped(tmp_path):
    evil = "<script>alert(1)</script><img src=http://x>&amp;"
    shown = ledger(tmp_path, {"output": evil}, {"question": evil, "references": [evil]}, {"output": "<b>" + evil})
    page = show_html.render(shown)
    assert "<script" not in page and "<img" not in page and "<b>" not in page
    assert parsed(page).words.count("alert(1)") == 4


def test_markup_of_the_terminal_is_only_text(tmp_path):
    shown = ledger(tmp_path, {"output": "[bold]x[/bold] [/nope]"}, {"question": "[red]?"})
    text = as_text(shown)
    assert "[bold]x[/bold] [/nope]" in text and "[red]?" in text


def test_the_page_needs_nothing_else(tmp_path):
    page = show_html.render(ledger(tmp_path))
    parser = parsed(page)
    assert not {"script", "link", "img", "iframe"} & parser.tags
    assert not [a for a in parser.attributes if a[0] in ("src", "href") or a[0].startswith("on")]
    assert "url(" not in page and "@import" not in page and "://" not in page
    assert "prefers-color-scheme: dark" in page
    assert ("lang", "en") in parser.attributes


def test_the_page_tells_the_map_in_numbers(tmp_path):
    words = parsed(show_html.render(ledger(tmp_path))).words
    assert re.search(r"layer head 0 head 1 mean attention 0 0 25 12 0\.1250 1 50 100 75 0\.5000", words)


def test_both_renderings_have_the_same_facts(tmp_path):
    shown = ledger(tmp_path)
    words = parsed(show_html.render(shown)).words
    squeezed = " ".join(as_text(shown, 400).split())
    for line in show_text.brief(shown):
        text = " ".join(line[11:].split())
        assert text in words and text in squeezed


# --- A real ledger


def test_every_run_of_a_real_build(built_ledger):
    for row in query(connect(built_ledger), "SELECT run_id, err, eam, transition FROM runs"):
        shown = show.gather(built_ledger, row["run_id"])
        found = show.layers(shown)
        assert np.mean([x.kept for x in found.layers]) == pytest.approx(row["err"])
        assert np.mean([x.attention for x in found.layers]) == pytest.approx(row["eam"])
        assert (shown.failure is not None) == (row["transition"] == "C->W")
        spans = show.evidence(shown).spans
        assert spans and all(span.text and span.kept for span in spans)
        assert as_text(shown) and parsed(show_html.render(shown)).words
