"""Methods that are no plain eviction, through a whole build."""

import pytest

from kvdiag.query.connection import connect, rows
from kvdiag.validation.validate import validate
from tests.command import kvdiag


def build(model, out, *more):
    return kvdiag(
        *("build", "--workload", "ruler_512", "--tasks", "vt", "--limit", "2", "--model", model, "--out", out),
        *("--max-new-tokens", "4", *more),
    )


def test_degenerate_cells_are_built_only_when_asked_for(model_folder, tmp_path):
    out = tmp_path / "ledger"
    settings = ("--methods", "think", "--settings", "keep=0.75,keep=0.5,keep=0.25")
    refused = build(model_folder, out, *settings)
    assert refused.is_one_line_error(2)
    assert "--allow-degenerate" in refused.err
    assert not out.exists()
    assert build(model_folder, out, *settings, "--allow-degenerate").code == 0
    sql = "SELECT setting, status, reason, degenerate, err__status AS err, err__reason AS why FROM runs"
    found = {tuple(r.values()) for r in rows(connect(out), sql)}
    structural = ("not_applicable", "structural_position")
    assert found == {
        ("keep=0.75", "available", None, None, *structural),
        ("keep=0.5", "available", None, "all_key_channels_zero", *structural),
        ("keep=0.25", "unsupported", "channels_exhausted", None, "unsupported", "channels_exhausted"),
    }
    assert validate(out) == []


def test_bytes_tell_methods_of_all_families_apart(model_folder, tmp_path):
    out = tmp_path / "ledger"
    outcome = build(
        model_folder,
        out,
        *("--methods", "snapkv,adakv_snapkv,pyramidkv,chunkkv_knorm,quest,merging_knorm,quantized_quanto,h2o"),
        *("--settings", "keep=0.5,bits=4"),
    )
    assert outcome.code == 0
    share = {
        r["method"]: r["share"]
        for r in rows(connect(out), "SELECT method, avg(kv_bytes / kv_bytes_full) AS share FROM runs GROUP BY 1")
    }
    for method in ("snapkv", "adakv_snapkv", "merging_knorm", "h2o"):
        assert share[method] == pytest.approx(0.5, abs=0.01)
    assert share["chunkkv_knorm"] == pytest.approx(0.5, abs=0.05)
    assert share["quest"] > 1  # all keys and values, and the bounds of the pages
    # Four bits of the tiny model's 32, and scales and zero points beside them.
    assert 0.125 < share["quantized_quanto"] < 0.25
    assert validate(out) == []
    told = rows(connect(out), "SELECT method, state, verification FROM methods")
    assert {r["state"] for r in told} == {"verified"}
    assert all(r["verification"] for r in told)


def test_settings_belong_to_methods(model_folder, tmp_path):
    for settings, words in (
        (("--methods", "snapkv", "--settings", "bits=4"), "snapkv needs a setting like keep=0.5"),
        (("--methods", "snapkv", "--settings", "keep=0.5,bits=4"), "no chosen method has such a setting"),
        (("--methods", "kivi", "--settings", "bits=2"), "does not run yet"),
    ):
        refused = build(model_folder, tmp_path / "ledger", *settings)
        assert refused.is_one_line_error(2)
        assert words in refused.err
