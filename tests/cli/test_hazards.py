"""`kvdiag audit backend` and `kvdiag audit length` from the flags to what they say."""

import json

import pytest

from kvdiag.errors import UsageError
from kvdiag.query.connection import connect, rows
from tests.command import kvdiag
from tests.folder import MAX_POSITIONS
from tests.rows import write_made_up

SMALL = ("--workload", "ruler_300", "--tasks", "niah_single_1", "--limit", 2)


def test_backends_are_compared_without_compression(model_folder):
    result = kvdiag(
        *("audit", "backend", *SMALL, "--max-new-tokens", 3, "--model", model_folder, "--resamples", 200),
    )
    assert result.code == 0, result.err
    assert "tiny without compression on 2 sources of ruler_300" in result.out
    assert "undecided: no score differs on 2 sources" in result.out
    found = json.loads(
        kvdiag("audit", "backend", *SMALL, "--max-new-tokens", 3, "--model", model_folder, "--json").out
    )
    (eager,) = found["backends"]
    assert (eager["backend"], eager["reference"], eager["n"], eager["n_outputs_differ"]) == ("eager", "sdpa", 2, 0)


def test_the_seed_of_backends_chooses_their_sources(model_folder, monkeypatch):
    """The bootstrap has a flag of its own."""
    seen = []

    def compare(*args):
        seen.append(args)
        raise UsageError("seen enough")

    monkeypatch.setattr("kvdiag.engine.backend.compare", compare)
    seeds = ("--seed", 7, "--bootstrap-seed", 8)
    kvdiag("audit", "backend", *SMALL, "--model", model_folder, *seeds)
    ((recipe, _, _, _, bootstrap, _),) = seen
    assert (recipe.seed, bootstrap) == (7, 8)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("backend", *SMALL, "--backends", "sdpa"), "--backends sdpa: name two at least, as sdpa,eager"),
        (
            ("backend", *SMALL, "--backends", "sdpa,sdpb"),
            "--backends sdpb: transformers has no such one; did you mean sdpa",
        ),
        (("length", *SMALL, "--data", "x"), "--data and --workload: give one of them"),
        (("length",), "--model"),
    ],
)
def test_a_mistake_is_one_line(model_folder, args, said):
    model = () if args == ("length",) else ("--model", model_folder)
    result = kvdiag("audit", *args, *model)
    assert result.is_one_line_error(2), result
    assert said in result.err


def test_a_length_in_the_tokens_of_two_models(model_folder, tmp_path):
    """A tokenizer without merges needs a token a byte: the nominal length is far too short for it."""
    other = tmp_path / "bytes"
    other.mkdir()
    for file in model_folder.iterdir():
        if file.suffix != ".safetensors":
            (other / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    longer = ("--workload", "ruler_500", *SMALL[2:])
    lengths = ("audit", "length", *longer, "--model", model_folder, "--model", other)
    found = json.loads(kvdiag(*lengths, "--json").out)
    own, split = found["models"]
    assert (found["nominal"], found["counted_by"]) == (500, "tiny")
    assert own["tokens"]["max"] <= 500
    assert (own["n_over_length"], own["n_past_nominal"]) == (0, 0)
    assert split["tokens"]["min"] > MAX_POSITIONS
    assert (split["n_over_length"], split["tasks_over_length"]) == (2, {"niah_single_1": 2})
    text = kvdiag(*lengths).out
    assert "2 sources of ruler_500, made to 500 tokens of tiny" in text
    assert "bytes: 2 of 2 sources pass its positions (niah_single_1 2)" in text


def test_a_ledger_is_counted_again(model_folder, tmp_path):
    write_made_up(tmp_path / "ledger")
    found = json.loads(
        kvdiag("audit", "length", "--data", tmp_path / "ledger", "--model", model_folder, "--json").out
    )
    assert (found["workload"], found["nominal"], found["models"][0]["n"]) == ("ruler_1k", 1024, 3)


def test_a_ledger_of_another_backend_has_keys_of_its_own(model_folder, tmp_path):
    """The same build under eager: the same answers, and no key in common, so no comparison can pair them."""
    small = (*SMALL, "--recipe", "default", "--model", model_folder, "--max-new-tokens", 4)
    cells = ("--methods", "snapkv,tova,keydiff,h2o", "--settings", "keep=0.5", "--protocol", "both")
    told = {}
    for backend in ("sdpa", "eager"):
        out = tmp_path / backend
        assert kvdiag("build", *small, *cells, "--attention", backend, "--out", out).code == 0
        assert kvdiag("validate", out).code == 0
        sql = "SELECT run_id, cell_id, source_id, output_tokens, kept_tokens_mean FROM runs ORDER BY run_id"
        told[backend] = rows(connect(out), sql)
    assert not {r["run_id"] for r in told["sdpa"]} & {r["run_id"] for r in told["eager"]}
    assert all(r["run_id"].endswith("::tiny[eager]") for r in told["eager"])
    for one, two in zip(told["sdpa"], told["eager"], strict=True):
        for name in ("cell_id", "source_id", "output_tokens", "kept_tokens_mean"):
            assert one[name] == two[name], (one["run_id"], name)
