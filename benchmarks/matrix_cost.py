"""What the whole matrix costs, against one FullCache run and against kvpress cell by cell.

    python benchmarks/matrix_cost.py [--matrix five|paper] [--lengths 2048,4096] [--json]

All figures of a line come from one process and are ratios: absolute seconds depend on the machine. The
FullCache run is the model's own `generate` with the same prompt, limit and stop tokens. kvpress is given the
same cells, generation only: one compressed prefill a cell, then the rest of the prompt and greedy decoding.
"""

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from common import peak_bytes, report, roofline, timed
from peers import MATRICES, full_cache_run, kvpress_run, matrix_cells, separate_passes, time_peer

from kvdiag.engine.matrix import run_matrix
from kvdiag.engine.models import LoadedModel, load_model
from kvdiag.engine.views import Cell
from kvdiag.prompts import PromptBuilder
from kvdiag.records.keys import PROTOCOLS
from kvdiag.workloads import registry


def measure(
    model: LoadedModel,
    length: int,
    cells: list[Cell],
    protocols: list[str],
    max_new_tokens: int,
    repeats: int,
    with_kvpress: str | None,
    kvpress_cells: int,
) -> dict[str, Any]:
    """Ratios at one length."""
    prompts = PromptBuilder.create(model.tokenizer, "chat")
    tasks = ["niah_single_1", "niah_multikey_1"]
    sources = list(registry.get("ruler", length).sources(tasks, 2, 42, prompts.count, max_new_tokens))
    ratios, stages, speedups = [], [], []
    dearest: dict[str, float] = {}
    for source in sources:
        prompt = prompts.build(source)
        for repeat in range(repeats):
            _, control = timed(full_cache_run, model.model, prompt, max_new_tokens, model.stop_ids)
            result, matrix = timed(
                run_matrix, model.model, prompt, cells, model.stop_ids, max_new_tokens, model.tokenizer
            )
            ratios.append(matrix / control)
            stages.append({name: spent / control for name, spent in result.seconds.items()})
            slowest = max(result.seconds_by_method, key=lambda m: result.seconds_by_method[m])
            dearest[slowest] = result.seconds_by_method[slowest] / control
            if with_kvpress and repeat == 0:
                peer = separate_passes if with_kvpress == "diagnostics" else kvpress_run
                rest = max_new_tokens, model.stop_ids
                whole, told = time_peer(peer, model.model, prompt, cells, kvpress_cells, *rest)
                if whole is not None:
                    speedups.append(whole / matrix)
    outcome: dict[str, Any] = {
        "tokens": len(prompt.ids),
        "cells": len(cells),
        "protocols": ",".join(protocols),
        "dtype": model.dtype,
        "max new tokens": max_new_tokens,
        "matrix / one FullCache run": statistics.median(ratios),
        "  range": f"{min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} runs",
    }
    for name in stages[0]:
        outcome[f"  {name} / one FullCache run"] = statistics.median(s[name] for s in stages)
    kept = (1 + sum(c.setting.keep or 1.0 for c in cells)) / (1 + len(cells))
    element = next(model.model.parameters()).element_size()
    outcome |= roofline(model.model.config, prompt, result.seconds, 1 + len(cells), kept, element)
    for method, share in dearest.items():
        outcome[f"  of the tap, {method} / one FullCache run"] = share
    if speedups:
        outcome[f"kvpress cell by cell, {with_kvpress} / matrix"] = statistics.median(speedups)
        outcome["  timed on"] = f"{told}; {len(speedups)} sources"
    return outcome


def memory(model: LoadedModel, length: int, cells: list[Cell], max_new_tokens: int) -> float | None:
    """Peak memory of a matrix beyond the loaded model's, as a multiple of the full cache."""
    prompts = PromptBuilder.create(model.tokenizer, "chat")

    def run(tokens: int) -> int:
        source = next(
            registry.get("ruler", tokens).sources(["niah_single_1"], 1, 42, prompts.count, max_new_tokens)
        )
        prompt = prompts.build(source)
        result = run_matrix(model.model, prompt, cells, model.stop_ids, max_new_tokens, model.tokenizer)
        return result.prefix_bytes

    run(256)  # what the first run loads for good is not the matrix'
    sizes: list[int] = []
    peak = peak_bytes(lambda: sizes.append(run(length)))
    return None if peak is None else peak / sizes[0]


def memory_apart(arguments: list[str], length: str) -> float | None:
    """`memory` in a process of its own: what earlier runs gave back to the allocator would hide a peak."""
    command = [sys.executable, __file__, *arguments, "--lengths", length, "--only-memory", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)[0]["peak memory / full cache"]


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lengths", default="2048,4096")
    parser.add_argument("--matrix", default="five", choices=sorted(MATRICES))
    parser.add_argument("--protocol", default="agnostic", choices=["agnostic", "aware", "both"])
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--no-kvpress", action="store_true", help="leave out the cell by cell comparison")
    parser.add_argument(
        "--same-diagnostics",
        action="store_true",
        help="kvpress with the same diagnostics, each by a pass of its own (as the public artifact does)",
    )
    parser.add_argument(
        "--kvpress-cells", type=int, default=10**6, help="time so many cells, spread evenly, and take them for all"
    )
    parser.add_argument("--only-memory", action="store_true", help="peak memory and nothing else")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = load_model(args.model, args.dtype, args.device)
    protocols = [p for p in PROTOCOLS if args.protocol in ("both", p.removeprefix("query_"))]
    cells = matrix_cells(args.matrix, protocols)
    results: list[dict[str, Any]] = []
    peer = None if args.no_kvpress else "diagnostics" if args.same_diagnostics else "generation only"
    passed_on = [a for a in sys.argv[1:] if a != "--json"]
    for length in args.lengths.split(","):
        if args.only_memory:
            found = memory(model, int(length), cells, args.max_new_tokens)
            results.append({"peak memory / full cache": found})
            continue
        result = measure(
            model, int(length), cells, protocols, args.max_new_tokens, args.repeats, peer, args.kvpress_cells
        )
        result["peak memory / full cache"] = memory_apart(passed_on, length)
        results.append(result)
    report(results, args.json)


if __name__ == "__main__":
    main()
