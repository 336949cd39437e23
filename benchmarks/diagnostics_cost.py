"""What all diagnostics add to the matrix' time.

    python benchmarks/diagnostics_cost.py [--lengths 1024,2048] [--json]

The same matrix with and without them, in one process and in turns: without, no gold answer is forced beyond its
first token and no evidence is probed, so that prefill, methods and decoding are left.
"""

import argparse
import statistics
from dataclasses import replace
from typing import Any

from common import report, timed
from matrix_cost import MATRICES, matrix_cells

from kvdiag.engine.matrix import run_matrix
from kvdiag.engine.models import LoadedModel, load_model
from kvdiag.prompts import PromptBuilder
from kvdiag.workloads import registry


def measure(model: LoadedModel, length: int, matrix: str, max_new_tokens: int, repeats: int) -> dict[str, Any]:
    """The ratio at one length, median over sources of all tasks and repeats."""
    prompts = PromptBuilder.create(model.tokenizer, "chat")
    workload = registry.get("ruler", length)
    cells = matrix_cells(matrix, ["query_agnostic"])
    ratios = []
    for source in workload.sources(
        ("niah_single_1", "niah_multikey_1", "vt"), 3, 42, prompts.count, max_new_tokens
    ):
        full = prompts.build(source)
        bare = replace(full, gold_ids=full.gold_ids[:1], evidence=())
        for _ in range(repeats):
            seconds = [
                timed(run_matrix, model.model, p, cells, model.stop_ids, max_new_tokens, model.tokenizer)[1]
                for p in (bare, full)
            ]
            ratios.append(seconds[1] / seconds[0])
    return {
        "length": length,
        "cells": len(cells),
        "dtype": model.dtype,
        "with diagnostics / without": statistics.median(ratios),
        "  range": f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} runs",
    }


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--lengths", default="1024,2048")
    parser.add_argument("--matrix", default="five", choices=sorted(MATRICES))
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = load_model(args.model)
    lengths = [int(n) for n in args.lengths.split(",")]
    report([measure(model, n, args.matrix, args.max_new_tokens, args.repeats) for n in lengths], args.json)


if __name__ == "__main__":
    main()
