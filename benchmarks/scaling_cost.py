"""What the paper's matrix, ten times as much, and a thousand submissions would cost: figures of docs/scaling.md.

Nothing is run: the same arithmetic as `kvdiag build --plan`, over several recipes. HotpotQA and Qasper are priced
at assumed mean lengths, RULER at its nominal one.
"""

import argparse
import os
from dataclasses import replace
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # the model's published sizes are enough

from common import report

from kvdiag import recipes
from kvdiag.engine.price import CONTEXTS, HARDWARE, PUBLISHED, Load, cost, ledger_bytes, measure, peak_bytes

MODEL = "Qwen/Qwen3-8B"
PAPER = {"ruler_8k": None, "ruler_16k": None, "hotpotqa": 1500, "qasper": 6000}  # tokens, where not nominal
SUBMISSION = {"methods": "snapkv", "settings": "keep=0.75,keep=0.5,keep=0.25", "protocols": "both"}
SUBMISSIONS = 1000


def priced(name: str, loads: list[Load], times: int = 1) -> dict[str, Any]:
    """One line of the table: sums over recipes."""
    result: dict[str, Any] = {
        "what": name,
        "sources": times * sum(load.sources for load in loads),
        "runs": times * sum(load.sources * load.cells for load in loads),
        "million prompt tokens": times * sum(load.sources * load.mean_length for load in loads) / 1e6,
        "ledgers, GB": times * sum(map(ledger_bytes, loads)) / 1e9,
    }
    for hardware in HARDWARE:
        costs = [cost(load, hardware) for load in loads]
        result[f"{hardware.name}, GPU-hours"] = times * sum(c.hours for c in costs)
        result[f"{hardware.name}, cell by cell"] = times * sum(c.cell_by_cell_hours for c in costs)
    return result


def memory(model: str, tokens: int) -> dict[str, Any]:
    """One figure of the table of memory by context length, in bfloat16."""
    shape = PUBLISHED[model]
    matrix = Load(shape, "", 2, 1, (float(tokens),), "", 16, cells=24, keeps=(0.5,) * 24, replaced=3)
    return {
        "what": f"{model}, {tokens} tokens",
        "cache of one sequence, GB": shape.kv_bytes(tokens, 2) / 1e9,
        "the paper's 24 cells, GB": peak_bytes(matrix) / 1e9,
        "a submission's 6 cells, GB": peak_bytes(replace(matrix, cells=6, replaced=0)) / 1e9,
    }


def main() -> None:
    """Price and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    paper = [measure(recipes.load(name, model=MODEL), tokens) for name, tokens in PAPER.items()]
    submission = measure(recipes.load("ruler_8k", model=MODEL, **SUBMISSION))
    report(
        [
            priced("the paper's matrix: " + ", ".join(PAPER), paper),
            priced("ten times as much (ten models, or ten times the sources)", paper, 10),
            priced("one submission: a method, 3 settings x 2 protocols, on ruler_8k", [submission]),
            priced(f"{SUBMISSIONS} submissions", [submission], SUBMISSIONS),
            *(memory(model, tokens) for model in (MODEL, "Qwen/Qwen2.5-7B-Instruct") for tokens in CONTEXTS),
        ],
        chosen.json,
    )


if __name__ == "__main__":
    main()
