"""A small artifact: the first records of the real one, to be written whole or spoiled."""

import gzip
import json
from pathlib import Path
from typing import Any

Records = dict[str, list[dict[str, Any]]]
FULL = "full_population/fullcache"
DATASETS = ("ruler8k", "ruler16k", "qasper", "hotpotqa")
CELLS = 24


def runs(dataset: str) -> str:
    """Name of a file of runs, without its ending."""
    return f"full_population/compressed_runs/{dataset}"


def failures(dataset: str) -> str:
    """Name of a file of selected failures, without its ending."""
    return f"selected_failures/{dataset}"


def key(record: dict[str, Any]) -> tuple[Any, ...]:
    """What names a run."""
    return tuple(record[n] for n in ("dataset", "sample_id", "method_name", "retained_budget"))


def first_records(artifact: Path, n_sources: int = 3) -> Records:
    """The first sources of each dataset with all their runs and the failures among them."""
    found: Records = {}
    for dataset in DATASETS:
        found[runs(dataset)] = _head(artifact / f"{runs(dataset)}.jsonl.gz", n_sources * CELLS)
    wanted = {r["fullcache_key"] for rows in found.values() for r in rows}
    controls = _head(artifact / f"{FULL}.jsonl.gz")
    found[FULL] = [c for c in controls if c["fullcache_key"] in wanted]
    for dataset in ("qasper", "hotpotqa"):
        failed = {key(r) for r in found[runs(dataset)] if r["outcome_transition"] == "C->W"}
        rows = _head(artifact / f"{failures(dataset)}.jsonl.gz")
        found[failures(dataset)] = [r for r in rows if key(r) in failed]
    return found


def _head(path: Path, n: int | None = None) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for _, line in zip(range(n or 10**9), lines, strict=False)]


def write(folder: Path, records: Records, ending: str = ".jsonl.gz") -> Path:
    """Files of an artifact; returns the folder."""
    for name, rows in records.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(folder / f"{name}{ending}", text)
    return folder


def write_text(path: Path, text: str) -> None:
    """A file, gzipped where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)
