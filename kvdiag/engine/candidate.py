"""A method under test, and its row of `methods`."""

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvdiag.engine.tap import AdapterFactory
from kvdiag.methods import catalogue
from kvdiag.methods.catalogue import Method


@dataclass(frozen=True)
class Candidate:
    """The method under test. code: sha256 of the file its class is in. conformance: what the suite found."""

    spec: str
    method: Method
    make: AdapterFactory
    code: str
    conformance: Mapping[str, Any]

    @property
    def verified(self) -> bool:
        """Whether it passed every check."""
        return bool(self.conformance["passed"])


def method_row(candidate: Candidate) -> dict[str, Any]:
    """The method's row of `methods`: verified by this run of the suite, or unverified with the failed checks."""
    row = catalogue.method_row(candidate.method)
    checks = ", ".join(candidate.conformance["failed"])
    own = {} if ":" not in candidate.spec else {"implementation": f"{candidate.spec} (sha256 {candidate.code})"}
    return (
        row
        | own
        | {
            "state": "verified" if candidate.verified else "available",
            "state_reason": None if candidate.verified else f"unverified: fails {checks}",
            "verification": candidate.conformance["digest"] if candidate.verified else None,
        }
    )


def package_digest() -> str:
    """Stands for the code of a method that kvdiag has itself."""
    versions = [importlib.metadata.version(p) for p in ("kvdiag", "kvpress", "transformers")]
    return hashlib.sha256(" ".join(versions).encode()).hexdigest()
