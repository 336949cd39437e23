"""Readable keys that are the same on every machine (design, section 8)."""

import hashlib

PROTOCOLS = ("query_agnostic", "query_aware")


def content_hash(*parts: str, length: int = 12) -> str:
    """Hex digest of text parts; parts are separated, so ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:length]


def source_id(workload: str, task: str, *content: str) -> str:
    """`workload/task/<content hash>`."""
    return f"{workload}/{task}/{content_hash(workload, task, *content)}"


def cell_id(method: str, setting: str, protocol: str) -> str:
    """`snapkv/keep=0.5/agnostic`."""
    return f"{method}/{setting}/{protocol.removeprefix('query_')}"


def control_id(source: str, model: str) -> str:
    """Key of the FullCache run of a source."""
    return f"{source}::full::{model}"


def run_id(source: str, cell: str, model: str) -> str:
    """Key of a source in a cell."""
    return f"{source}::{cell}::{model}"
