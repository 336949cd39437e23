"""docs/metrics.md: its worked example holds, and every metric of the contract is in it."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from kvdiag.analysis.rules import READINGS
from kvdiag.diagnostics import decoding, likelihood
from kvdiag.diagnostics.retention import slot_ecov, slot_err
from kvdiag.diagnostics.signatures import FROZEN, signature, signature_flags
from kvdiag.records.schema import json_schema, metric_names

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
EXAMPLE = json.loads(re.search(r"```json worked-example\n(.*?)```", PAGE, re.DOTALL).group(1))
TERM = re.compile(r"`([^`]+)` = (\d+(?:\.\d+)?)")
ROW = re.compile(r"(?m)^\| `(\w+)` \|(.*)\|(.*)\|$")
SIDES = ("control", "run")


def stated():
    """{(side, metric): (arithmetic, number)} of the example's table."""
    table = PAGE[PAGE.index("## A worked example") :]
    found = {}
    for name, *cells in ROW.findall(table):
        for side, cell in zip(SIDES, cells, strict=True):
            if cell.strip():
                found[side, name] = TERM.fullmatch(cell.strip()).groups()
    return found


STATED = stated()


def mask(positions):
    kept = np.zeros((1, len(positions[0]), EXAMPLE["n_positions"]), dtype=bool)
    for head, seen in enumerate(positions[0]):
        kept[0, head, seen] = True
    return kept


def likelihood_of(side):
    logits = torch.tensor(EXAMPLE[side]["p"], dtype=torch.float64).log()
    return likelihood.measure(logits, torch.tensor(EXAMPLE["gold"]))


def own(side):
    """Metrics of one side, through the functions."""
    rows, found = EXAMPLE[side], likelihood_of(side)
    # A column a token of the answer, the answer's own in the first: what token_nll picks from.
    p = torch.tensor(rows["p_answer"])
    answer = likelihood.token_nll(torch.stack([p, 1 - p], -1).log(), torch.zeros(len(p), dtype=torch.int64))
    return {
        "nll": np.mean(found.nll),
        "nll_first": found.nll[0],
        "nll_control_answer": np.mean(answer),
        "gold_rank": found.rank,
        "repetition": decoding.repetition(rows["answer"]),
        "eam": np.mean(rows["attention"]),
    }


def paired():
    """Metrics of the run against its control."""
    control, run = own("control"), own("run")
    kept, spans = mask(EXAMPLE["kept"]), EXAMPLE["evidence"]
    answers = EXAMPLE["control"]["answer"], EXAMPLE["run"]["answer"]
    a, b = likelihood_of("control"), likelihood_of("run")
    delta = run["nll"] - control["nll"]
    return {
        "err": slot_err(kept, spans).mean(),
        "ecov": slot_ecov(kept, spans).mean(),
        "distractor_retention": slot_err(kept, EXAMPLE["distractors"]).mean(),
        "delta_nll": delta,
        "delta_nll_first": run["nll_first"] - control["nll_first"],
        "delta_nll_control": run["nll_control_answer"] - control["nll_control_answer"],
        "gpr": math.exp(-delta),
        "kl": likelihood.kl_divergence(a.log_probs, b.log_probs),
        "top50_overlap": likelihood.top_overlap(a.top, b.top),
        "gold_rank_shift": run["gold_rank"] - control["gold_rank"],
        "ear": run["eam"] / control["eam"],
        "prefix_agreement": decoding.prefix_agreement(*answers),
        "first_divergence": decoding.first_divergence(*answers),
        "length_ratio": len(answers[1]) / len(answers[0]),
    }


def computed():
    found = {(side, name): value for side in SIDES for name, value in own(side).items()}
    return found | {("run", name): value for name, value in paired().items()}


@pytest.mark.parametrize("key", STATED)
def test_the_arithmetic_gives_the_number(key):
    arithmetic, number = STATED[key]
    # The page is ours; what it may use is spelt out.
    assert re.fullmatch(r"[\d\s.+\-*/()]*", arithmetic.replace("ln", "").replace("exp", ""))
    assert eval(arithmetic, {"__builtins__": {}, "ln": math.log, "exp": math.exp}) == pytest.approx(
        float(number), abs=5e-5
    )


@pytest.mark.parametrize("key", STATED)
def test_the_functions_give_the_number(key):
    assert computed()[key] == pytest.approx(float(STATED[key][1]), abs=6e-5)


def test_the_example_has_every_metric():
    """All but the score, which is the workload's."""
    wanted = {("control", m) for m in metric_names("controls")} | {("run", m) for m in metric_names("runs")}
    assert STATED.keys() == wanted - {("control", "score"), ("run", "score")}


def test_distributions_sum_to_one():
    for side in SIDES:
        assert np.sum(EXAMPLE[side]["p"], axis=-1) == pytest.approx(1)


def test_the_text_below_the_table_holds():
    tail = PAGE[PAGE.index("were it the likeliest 2") :]
    tops = [likelihood_of(side).log_probs.topk(2).indices for side in SIDES]
    assert likelihood.top_overlap(*tops) == float(TERM.search(tail).group(2)) == eval(TERM.search(tail).group(1))
    found = paired()
    flags = signature_flags(
        "measured_token", **{n: found[n] for n in ("ecov", "delta_nll", "ear", "top50_overlap")}
    )
    assert f"is `{signature(flags)}`" in tail
    assert found["delta_nll"] >= FROZEN.drift_nll and found["ear"] < FROZEN.low_ear


@pytest.mark.parametrize(
    ("table", "metric"), [(t, m) for t in ("controls", "runs", "c2w") for m in metric_names(t) if m != "signature"]
)
def test_every_metric_is_defined_as_its_schema_says(table, metric):
    definitions = PAGE[: PAGE.index("## What was kept")]
    (cells,) = re.findall(rf"(?m)^\| `{metric}` \|(.*)\|$", definitions)
    formula, unit, better, valid, source = (c.strip() for c in re.split(r"(?<!\\)\|", cells))
    prop = json_schema(table)["properties"][metric]
    assert unit == prop.get("x-unit")
    assert better == {"none": "neither"}.get(prop["x-direction"], prop["x-direction"])
    assert formula and valid and source


@pytest.mark.parametrize("name", READINGS)
def test_every_signature_is_on_the_page(name):
    assert f"| `{name}` |" in PAGE
