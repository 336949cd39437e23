"""A method of one's own, loaded and put through the suite: what `kvdiag evaluate` and `kvdiag merge` run."""

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path

from kvdiag.conformance import foreign, suite
from kvdiag.conformance.checks import Outcome
from kvdiag.engine.candidate import Candidate, package_digest
from kvdiag.errors import UsageError
from kvdiag.methods import catalogue
from kvdiag.methods.adapters.build import make_adapter


def check(spec: str, tell: Callable[[Outcome], None] = lambda outcome: None) -> Candidate:
    """A catalogued method, `module:Class` or `file.py:Class`, with the suite's verdict.

    tell: hears each outcome as it comes. Raises UsageError when there is no such method.
    """
    if ":" in spec:
        method, make, _ = foreign.load(spec)
        code, label = code_digest(spec), _label(spec)
    else:
        (method,) = catalogue.select([spec])
        make, code, label = make_adapter, package_digest(), spec
    report = suite.verify(spec, tell)
    conformance = {
        "passed": report.passed,
        "digest": report.digest,
        "failed": [o.check for o in report.outcomes if not o.passed],
        "versions": report.as_dict()["versions"],
    }
    return Candidate(label, method, make, code, conformance)


def code_digest(spec: str) -> str:
    """sha256 of the file that the class of `module:Class` or `file.py:Class` is in."""
    where = spec.rpartition(":")[0]
    path = where if where.endswith(".py") else _module_file(spec)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _module_file(spec: str) -> str:
    try:
        return inspect.getfile(foreign.find_class(spec))
    except (TypeError, OSError) as error:
        raise UsageError(f"--method {spec}: its file cannot be found, so its code has no digest") from error


def _label(spec: str) -> str:
    """The same without the folder, which is this machine's own affair."""
    where, _, name = spec.rpartition(":")
    return f"{Path(where).name if where.endswith('.py') else where}:{name}"
