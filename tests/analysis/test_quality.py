"""Data-quality flags: the artifact's known defects with their counts, and planted ones."""

from pathlib import Path

import pytest

from kvdiag.analysis.quality import flags
from kvdiag.importers.kvdiagnosis import import_artifact
from tests.rows import made_up_rows, write_made_up

ARTIFACT = Path(__file__).parents[3] / "shared" / "data" / "kvdiagnosis"


@pytest.fixture(scope="module")
def artifact_flags(tmp_path_factory):
    if not ARTIFACT.is_dir():
        pytest.skip("the KVDiagnosis artifact is not beside the checkout")
    ledger = tmp_path_factory.mktemp("quality") / "ledger"
    import_artifact(ARTIFACT, ledger)
    return flags(ledger)


def found(entries, flag):
    return {e["workload"]: (e["n_found"], e["n_checked"], e["n_c2w"]) for e in entries if e["flag"] == flag}


def test_first_tokens_that_saw_no_compression(artifact_flags):
    got = found(artifact_flags, "first_token_uncompressed")
    assert got == {
        "qasper": (29, 200, 44),
        "hotpotqa": (31, 200, 59),
        "ruler_8k": (28, 1100, 247),
        "ruler_16k": (26, 1100, 136),
    }
    assert sum(c2w for _, _, c2w in got.values()) == 486


def test_the_null_cell(artifact_flags):
    (cell,) = [e for e in artifact_flags if e["flag"] == "degenerate_cell"]
    assert (cell["subject"], cell["n_c2w"]) == ("think/keep=0.5/aware", 2089)


def test_repeated_prompts_yes_no_and_tiers(artifact_flags):
    assert found(artifact_flags, "repeated_prompt") == {"qasper": (70, 200, None)}
    assert found(artifact_flags, "yes_no_inside_words") == {"hotpotqa, qasper": (10, 33, None)}
    tiers = {e["subject"]: e["what"] for e in artifact_flags if e["flag"] == "unequal_bytes"}
    assert set(tiers) == {"tier 75%", "tier 50%", "tier 25%"}
    assert "quantized_hqq 0.5" in tiers["tier 75%"]
    assert "snapkv 0.75" in tiers["tier 75%"]


def test_gold_answers_unlikely_by_format(artifact_flags):
    """The facts: median gold NLL 2.5 to 6.2 among right controls, 72 to 81 % of them above 2."""
    for workload, (n, of, _) in found(artifact_flags, "gold_format").items():
        assert 0.71 <= n / of <= 0.82, workload


def test_no_method_of_the_artifact_is_another(artifact_flags):
    assert not found(artifact_flags, "twin_cells")


def test_planted_twins_are_found(tmp_path):
    """PyramidKV's fate: two methods with the same outputs and likelihoods everywhere."""
    rows = made_up_rows(6, all_right=True)
    rows["runs"] = [r for r in rows["runs"] if r["status"] == "available"]
    write_made_up(tmp_path / "ledger", rows)
    twins = [e["subject"] for e in flags(tmp_path / "ledger") if e["flag"] == "twin_cells"]
    assert any("knorm" in s and "snapkv" in s for s in twins)
    for run in rows["runs"]:
        run["output"] = f"{run['cell_id']} says {run['output']}"
    write_made_up(tmp_path / "other", rows)
    assert not [e for e in flags(tmp_path / "other") if e["flag"] == "twin_cells"]


def test_planted_zero_first_token_is_found(tmp_path):
    rows = made_up_rows(3)
    for run in rows["runs"]:
        if run["delta_nll"] is not None:
            run["delta_nll"] = 0.0 if run["source_id"].endswith("0001") else 0.25
    write_made_up(tmp_path / "ledger", rows)
    (entry,) = [e for e in flags(tmp_path / "ledger") if e["flag"] == "first_token_uncompressed"]
    assert entry["n_found"] == 1
