"""Two Ray workers against one, each with one thread: how much of a second core a build makes use of.

    python benchmarks/workers.py [--model smollm2] [--workload ruler_1k] [--limit 8] [--json]

Counted from the first source that a worker takes in hand to the last that is committed; starting Ray and loading
the model are told apart. Needs `pip install 'kvdiag[scale]'` and two idle cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from common import report


def build(workers: int, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds of a build's start and of its sources."""
    log = folder / f"{workers}.jsonl"
    command = [
        *(sys.executable, "-m", "kvdiag", "build", "--recipe", "demo", "--model", args.model),
        *("--workload", args.workload, "--tasks", args.tasks, "--limit", str(args.limit)),
        *("--engine", "ray", "--workers", str(workers), "--threads", "1", "--log-json", str(log)),
        *("--out", str(folder / f"ledger-{workers}")),
    ]
    subprocess.run(command, check=True, capture_output=True)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    at = {
        event: [datetime.fromisoformat(e["time"]).timestamp() for e in events if e["event"] == event]
        for event in ("planned", "source_started", "source_done")
    }
    return {"sources": max(at["source_done"]) - min(at["source_started"])}


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--workload", default="ruler_1k")
    parser.add_argument("--tasks", default="niah_single_1")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        one, two = (build(n, args, Path(name)) for n in (1, 2))
        same = [(Path(name) / f"ledger-{n}" / "data").rglob("*.parquet") for n in (1, 2)]
        bytes_of = [sorted((p.name, p.read_bytes()) for p in found) for found in same]
    result: dict[str, Any] = {
        "sources": args.limit,
        "one worker / two workers": one["sources"] / two["sources"],
        "same bytes": bytes_of[0] == bytes_of[1],
    }
    report([result], args.json)


if __name__ == "__main__":
    main()
