"""The records of the public KVDiagnosis artifact, each checked as it is read, so that a bad one is named."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvdiag.errors import DataError, UsageError
from kvdiag.importers import jsonl
from kvdiag.ledger.derive import transition

DATASETS = {"ruler8k": "ruler_8k", "ruler16k": "ruler_16k", "qasper": "qasper", "hotpotqa": "hotpotqa"}

# The artifact's method names, and what its three labels (share retained) really set.
KEEP = {0.75: "keep=0.75", 0.5: "keep=0.5", 0.25: "keep=0.25"}
_BITS = {0.75: "bits=8", 0.5: "bits=4", 0.25: "bits=2"}
METHODS = {
    "StreamingLLMPress": ("streaming_llm", KEEP),
    "SnapKVPress": ("snapkv", KEEP),
    "TOVAPress": ("tova", KEEP),
    "KeyDiffPress": ("keydiff", KEEP),
    "ThinKPress": ("think", KEEP),
    "ChunkKVPress_Knorm": ("chunkkv_knorm", KEEP),
    "AdaKVPress": ("adakv_snapkv", KEEP),
    "QuantizedCache": ("quantized_hqq", _BITS),
}

Key = tuple[str, str, str, float]


@dataclass
class Artifact:
    """Parsed records: controls by their key, runs and selected failures by dataset, sample, method and label."""

    controls: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: dict[Key, dict[str, Any]] = field(default_factory=dict)
    failures: dict[Key, dict[str, Any]] = field(default_factory=dict)


def read(folder: Path) -> Artifact:
    """All records. Raises UsageError when `folder` is not the artifact, DataError naming file and line."""
    population, selected = folder / "full_population", folder / "selected_failures"
    full = jsonl.find(population, "fullcache")
    if full is None:
        raise UsageError(f"{folder}: not the KVDiagnosis artifact (no full_population/fullcache.jsonl[.gz])")
    artifact = Artifact()
    for line, record in jsonl.read(full):
        _read_control(artifact, record, full, line)
    for dataset in DATASETS:
        path = jsonl.find(population / "compressed_runs", dataset)
        if path is None:
            raise UsageError(f"{folder}: full_population/compressed_runs/{dataset}.jsonl[.gz] is missing")
        for line, record in jsonl.read(path):
            _read_run(artifact, record, path, line)
        failures = jsonl.find(selected, dataset)  # the two large ones are not in every copy
        if failures is not None:
            for line, record in jsonl.read(failures):
                _read_failure(artifact, record, failures, line)
    return artifact


def _read_control(artifact: Artifact, record: dict[str, Any], path: Path, line: int) -> None:
    key = jsonl.field(record, "fullcache_key", "text", path, line)
    if key in artifact.controls:
        raise DataError(f"{path} line {line}: fullcache_key {key!r} is there twice")
    _known(record, "dataset", DATASETS, path, line)
    for name in ("sample_id", "official_task_name", "prompt_hash", "raw_output_full", *_SAME_MODEL):
        jsonl.field(record, name, "text", path, line)
    jsonl.field(record, "extracted_answer_full", "text", path, line, null=True)
    jsonl.field(record, "reference_answer", "list of text", path, line)
    jsonl.field(record, "full_correct", "flag", path, line)
    jsonl.field(record, "context_length_tokens", "integer", path, line)
    for name in ("full_score", "full_gold_NLL"):
        jsonl.field(record, name, "number", path, line)
    first = next(iter(artifact.controls.values()), record)
    for name in _SAME_MODEL:
        if record[name] != first[name]:
            raise DataError(
                f"{path} line {line}: {name} is {record[name]!r}, on the first line {first[name]!r}; "
                "one ledger holds one model"
            )
    artifact.controls[key] = record


_SAME_MODEL = ("model_id", "model_revision")
_SAME = ("dataset", "sample_id", "prompt_hash", *_SAME_MODEL)


def _read_run(artifact: Artifact, record: dict[str, Any], path: Path, line: int) -> None:
    reference = jsonl.field(record, "fullcache_key", "text", path, line)
    control = artifact.controls.get(reference)
    if control is None:
        raise DataError(f"{path} line {line}: fullcache_key {reference!r} has no full-cache run")
    for name in _SAME:
        if jsonl.field(record, name, "text", path, line) != control[name]:
            raise DataError(
                f"{path} line {line}: field {name!r} is {record[name]!r}; its full-cache run has {control[name]!r}"
            )
    key = _read_key(record, path, line)
    if key in artifact.runs:
        raise DataError(f"{path} line {line}: a run of {_spoken(key)} is there already")
    _read_answer(record, path, line)
    found = transition(control["full_correct"], record["compressed_correct"])
    if found != jsonl.field(record, "outcome_transition", "text", path, line, null=True):
        said = record["outcome_transition"]
        raise DataError(
            f"{path} line {line}: outcome_transition {said!r} disagrees with the scores, which say {found!r}"
        )
    artifact.runs[key] = record


def _read_answer(record: dict[str, Any], path: Path, line: int) -> None:
    status = jsonl.field(record, "support_status", "text", path, line)
    if status == "unsupported":
        jsonl.field(record, "unsupported_reason", "text", path, line)
        if record.setdefault("compressed_correct", None) is not None:
            raise DataError(f"{path} line {line}: support_status is unsupported, yet there is an answer")
    elif status == "supported":
        jsonl.field(record, "raw_output_compressed", "text", path, line)
        jsonl.field(record, "extracted_answer_compressed", "text", path, line, null=True)
        jsonl.field(record, "compressed_correct", "flag", path, line)
        for name in ("compressed_score", "compressed_gold_NLL", "delta_NLL", "GPR"):
            jsonl.field(record, name, "number", path, line)
    else:
        raise DataError(f"{path} line {line}: support_status {status!r} is neither supported nor unsupported")


def _read_failure(artifact: Artifact, record: dict[str, Any], path: Path, line: int) -> None:
    for name in ("dataset", "sample_id"):
        jsonl.field(record, name, "text", path, line)
    key = _read_key(record, path, line)
    if key in artifact.failures:
        raise DataError(f"{path} line {line}: a failure of {_spoken(key)} is there already")
    if artifact.runs.get(key, {}).get("outcome_transition") != "C->W":
        raise DataError(f"{path} line {line}: {_spoken(key)} is no C->W run of the full population")
    for name in ("ERR_slot", "ECov_slot", "EAR", "TopK", "KL", "gold_rank_shift"):
        jsonl.field(record, name, "number", path, line, null=True)
    artifact.failures[key] = record


def _read_key(record: dict[str, Any], path: Path, line: int) -> Key:
    _known(record, "method_name", METHODS, path, line)
    _known(record, "retained_budget", KEEP, path, line)
    return key_of(record)


def key_of(record: dict[str, Any]) -> Key:
    """What names a run."""
    return record["dataset"], record["sample_id"], record["method_name"], record["retained_budget"]


def _spoken(key: Key) -> str:
    dataset, sample, method, budget = key
    return f"{dataset} {sample} under {method} at {budget}"


def _known(record: dict[str, Any], name: str, known: dict[Any, Any], path: Path, line: int) -> None:
    value = record.get(name)
    if isinstance(value, list | dict | bool) or value not in known:
        options = ", ".join(str(k) for k in known)
        raise DataError(f"{path} line {line}: field {name!r} is {value!r:.60}; it must be one of {options}")
