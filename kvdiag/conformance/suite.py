"""Running the suite, and its report."""

import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from kvdiag.conformance import foreign
from kvdiag.conformance.checks import CHECKS, Outcome, Subject
from kvdiag.methods import catalogue

PACKAGES = ("torch", "transformers", "kvpress")


@dataclass(frozen=True)
class Report:
    """Outcomes of all checks of a method."""

    method: str
    outcomes: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(o.passed for o in self.outcomes)

    @property
    def digest(self) -> str:
        """Hash of method, checks, verdicts and cells checked: what is the same on every machine.

        Near-ties and measured floats depend on the processor and stay out.
        """
        told = [(o.check, o.passed, o.counts.get("cells")) for o in self.outcomes]
        text = json.dumps([self.method, told], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        versions = {p: metadata.version(p) for p in PACKAGES}
        return {
            "method": self.method,
            "passed": self.passed,
            "digest": self.digest,
            "versions": versions,
            "checks": [asdict(o) for o in self.outcomes],
        }


def verify(name: str, tell: Callable[[Outcome], None] = lambda outcome: None) -> Report:
    """Run every check on a catalogued method or a foreign class.

    tell: hears each outcome as it comes. A check that raises has failed. Raises UsageError for an unknown name.
    """
    with tempfile.TemporaryDirectory() as folder:
        subject = _subject(name, Path(folder))
        outcomes = []
        for check in CHECKS:
            try:
                outcome = check(subject)
            except Exception as error:
                outcome = Outcome(check.__name__, False, f"{type(error).__name__}: {error}")
            tell(outcome)
            outcomes.append(outcome)
    return Report(subject.method.id, tuple(outcomes))


def check_names(names: Sequence[str]) -> None:
    """Raise UsageError for the first name that is no method."""
    for name in names:
        if ":" in name:
            foreign.load(name)
        else:
            catalogue.select([name])


def _subject(name: str, folder: Path) -> Subject:
    if ":" in name:
        method, make, press = foreign.load(name)
        return Subject(method, folder, make, press)
    (method,) = catalogue.select([name])
    return Subject(method, folder)
