"""The ratios of matrix_cost.py on one GPU, for a model of 8B shape with random weights: nothing is downloaded.

    python benchmarks/gpu.py [--shape qwen3-8b|small] [--lengths 4096,8192,16384] [--device cuda] [--json]

Random weights do the same arithmetic as trained ones. What they change is how many rows leave the control's
answer, so both ends are shown: `agreeing` rows follow the draft to its end (the control's answer is one token),
`leaving` ones decode all their tokens (their answers are random, and almost every row departs at once). A trained
model lies between. `--shape small --device cpu` checks the script anywhere. Each length is printed when it is
done (--json: a line each); what --minutes or the memory do not allow is left out and named.
"""

import argparse
import time
from collections.abc import Iterator
from typing import Any

import torch
from common import peak_bytes, report, roofline, timed
from peers import MATRICES, full_cache_run, kvpress_run, matrix_cells, separate_passes, time_peer
from transformers import AutoModelForCausalLM, Qwen3Config

from kvdiag.engine.matrix import run_matrix
from kvdiag.engine.memory import is_out_of_memory, let_go
from kvdiag.prompts import Prompt

SHAPES = {
    "qwen3-8b": {  # Qwen3-8B's own numbers
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "small": {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 512,
    },
}
CUE, QUESTION, GOLD = 8, 32, 8
PEERS = 5  # cells that kvpress is timed on


def random_model(shape: str, device: str, dtype: torch.dtype) -> Any:
    """A Qwen3 of this shape, initialised on the device."""
    config = Qwen3Config(**SHAPES[shape], max_position_embeddings=40960, tie_word_embeddings=False)
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    return model.eval()


def random_prompt(vocabulary: int, length: int) -> Prompt:
    """Random tokens: context, question, cue; the evidence is a needle of 24 tokens in the middle."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(10, vocabulary, (length,), generator=generator).tolist()
    gold = tuple(torch.randint(10, vocabulary, (GOLD,), generator=generator).tolist())
    n_context, middle = length - CUE - QUESTION, length // 2
    return Prompt("", tuple(ids), n_context, QUESTION, gold, ((middle, middle + 24),), "available", None)


def measure(model: Any, length: int, matrix: str, max_new_tokens: int, end: float) -> Iterator[dict[str, Any]]:
    """Ratios at one length, part by part; the first run of each kind is thrown away. kvpress only before `end`."""
    prompt, cells = random_prompt(model.config.vocab_size, length), matrix_cells(matrix, ["query_agnostic"])
    nothing: frozenset[int] = frozenset()
    for kind, n in (("agreeing", 1), ("leaving", max_new_tokens)):
        full_cache_run(model, prompt, n, nothing)
        run_matrix(model, prompt, cells, nothing, n)
        _, control = timed(full_cache_run, model, prompt, n, nothing)
        result, spent = timed(run_matrix, model, prompt, cells, nothing, n)
        stages = {f"  {stage}, {kind}": seconds / control for stage, seconds in result.seconds.items()}
        yield {f"matrix / one FullCache run, {kind}": spent / control} | stages
        failed = [c.id for c in cells if result.views[c].error]
        if failed:
            yield {"  cells that failed": ", ".join(failed)}
    kept = (1 + sum(c.setting.keep or 1.0 for c in cells)) / (1 + len(cells))
    yield roofline(model.config, prompt, result.seconds, 1 + len(cells), kept, model.dtype.itemsize)
    yield {"peak memory / full cache": _memory(model, prompt, cells, max_new_tokens)}
    for name, peer, passes in (("generation only", kvpress_run, 1), ("same diagnostics", separate_passes, 5)):
        what = f"kvpress cell by cell, {name}"
        if time.monotonic() + PEERS * passes * control > end:
            yield {what: "left out: no time"}
            continue
        whole, told = time_peer(peer, model, prompt, cells, PEERS, max_new_tokens, nothing)
        yield {f"{what} / matrix": None if whole is None else whole / spent, f"  timed on ({name})": told}


def _memory(model: Any, prompt: Prompt, cells: Any, max_new_tokens: int) -> float | None:
    sizes: list[int] = []

    def run() -> None:
        sizes.append(run_matrix(model, prompt, cells, frozenset(), max_new_tokens).prefix_bytes)

    peak = peak_bytes(run)
    return None if peak is None else peak / sizes[0]


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-8b", choices=sorted(SHAPES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--lengths", default="4096,8192,16384")
    parser.add_argument("--matrix", default="paper", choices=sorted(MATRICES))
    parser.add_argument("--max-new-tokens", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    model = random_model(args.shape, args.device, getattr(torch, args.dtype))
    longest = 0.0
    for length in map(int, args.lengths.split(",")):
        result: dict[str, Any] = {"device": str(model.device), "dtype": args.dtype, "shape": args.shape}
        result |= {"matrix": args.matrix, "tokens": length}
        start = time.monotonic()
        if start + 2.5 * longest > end:  # twice the length takes more than twice the time
            result["left out"] = f"--minutes {args.minutes:g} would not do"
        else:
            try:
                for part in measure(model, length, args.matrix, args.max_new_tokens, end):
                    result |= part
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                result["ended early"] = f"out of memory: {str(error).splitlines()[0]}"
                let_go()
        longest = time.monotonic() - start
        report([result], args.json)  # at once: what is measured is not lost with what comes after


if __name__ == "__main__":
    main()
