"""What a submission says of itself, in JSON that anyone may have written: its form, and that its rows agree."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema

from kvdiag.errors import DataError, UsageError
from kvdiag.ledger.layout import MANIFEST, read_json
from kvdiag.records.schema import json_schema

FACTS = "submission.json"
FORM = 1
LONGEST_CONTACT = 200
_LONGEST_TEXT = 2000
_TEXT, _COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
_TEXTS = {"type": "array", "items": _TEXT}
_SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_CONFORMANCE = {
    "type": "object",
    "properties": {
        "passed": {"type": "boolean"},
        "digest": _TEXT,
        "failed": _TEXTS,
        "versions": {"type": "object"},
    },
    "required": ["passed", "digest", "failed"],
}
_NUMBER = {"type": "number", "exclusiveMinimum": 0}
_ABOUT = {
    "method": _TEXT,
    "code_sha256": _SHA256,
    "conformance": _CONFORMANCE,
    "of": _SHA256,
    "nll_bound": _NUMBER,
}
_RECIPE = {
    "type": "object",
    "properties": {
        # The name becomes a folder's.
        "methods": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^\w+$"},
            "minItems": 1,
            "maxItems": 1,
        },
        "evaluation": {"type": "object", "properties": _ABOUT, "required": list(_ABOUT)},
    },
    "required": ["methods", "evaluation"],
}
_FACTS = {
    "form": {"const": FORM},
    **dict.fromkeys(("folder", "method", "contact", "evaluated", "kvdiag_version"), _TEXT),
    "code_sha256": _SHA256,
    "conformance": _CONFORMANCE,
    "reference": _SHA256,
    "nll_bound": _NUMBER,
    "environment": {"type": "object"},
    "environment_differs": _TEXTS,
    **dict.fromkeys(("controls_that_disagree", "sources", "runs", "answered"), _COUNT),
}
_SUBMISSION = {"type": "object", "properties": _FACTS, "required": list(_FACTS), "additionalProperties": False}


def evaluation_of(evaluation: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation's manifest says of its method, and `method_id`: the id of that method.

    Raises UsageError when it is no evaluation, DataError when the manifest has another form than kvdiag writes.
    """
    where = str(evaluation / MANIFEST)
    _check_form(where, manifest, json_schema("manifest"))
    recipe = manifest["recipe"]
    if recipe.get("evaluation") is None:
        raise UsageError(f"{evaluation}: not an evaluation; kvdiag evaluate makes them")
    _check_form(f"{where}: recipe", recipe, _RECIPE)
    _check_lines(f"{where}: recipe", recipe["evaluation"])
    return dict(recipe["evaluation"]) | {"method_id": recipe["methods"][0]}


def contact_of(text: str) -> str:
    """A contact as it is kept. Raises ValueError with what it must be."""
    text = text.strip()
    if not text or len(text) > LONGEST_CONTACT or not text.isprintable():
        raise ValueError(f"must be one line of at most {LONGEST_CONTACT} characters, as a name and e-mail")
    return text


def read_facts(submission: Path) -> dict[str, Any] | None:
    """What `submission.json` says; None where there is none. Raises DataError for one of another form."""
    path = submission / FACTS
    if not path.is_file():
        return None
    facts = read_json(path)
    _check_form(str(path), facts, _SUBMISSION)
    _check_lines(str(path), facts)
    try:
        contact_of(facts["contact"])
    except ValueError as error:
        raise DataError(f"{path}: contact: {error}") from None
    return facts


def folder_of(about: Mapping[str, Any]) -> str:
    """Where in a data set a submission goes."""
    return f"submissions/{about['method_id']}-{about['code_sha256'][:8]}"


def disagreements(
    submission: Path,
    manifest: Mapping[str, Any],
    methods: list[dict[str, Any]],
    run_methods: set[str],
    counts: Mapping[str, int],
) -> list[str]:
    """Where its JSON and its rows differ, a line each.

    methods: its rows of `methods`. run_methods: ids of methods in its runs. counts: `sources`, `runs`, `answered`.
    """
    about = evaluation_of(submission, manifest)
    method, conformance = about["method_id"], about["conformance"]
    found = []
    ids = {row["method"] for row in methods}
    for where, named in (("methods", ids), ("runs", run_methods)):
        if named != {method}:
            found.append(
                f"its {where} are of {', '.join(sorted(named)) or 'no method'}, its recipe names {method}"
            )
    passed = bool(conformance["passed"])
    if passed == bool(conformance["failed"]):
        found.append("its conformance report says that it passed, or names failed checks: exactly one must hold")
    for row in methods:
        told = (row["state"], row["verification"])
        if told != (("verified", conformance["digest"]) if passed else ("available", None)):
            found.append(f"method {row['method']}: state is {told[0]}, verification {told[1]}: not its report's")
    facts = read_facts(submission)
    if facts is not None:
        own = {
            "folder": folder_of(about),
            "method": method,
            "evaluated": about["method"],
            "code_sha256": about["code_sha256"],
            "conformance": conformance,
            "reference": about["of"],
            "nll_bound": about["nll_bound"],
            "environment": manifest["environment"],
            "kvdiag_version": manifest["kvdiag_version"],
            **counts,
        }
        found += [f"{FACTS}: {k} is not what its manifest and rows say" for k, v in own.items() if facts[k] != v]
    return found


def _check_form(where: str, data: Any, schema: Mapping[str, Any]) -> None:
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(data))
    if errors:
        first = min(errors, key=lambda e: list(map(str, e.absolute_path)))
        path = "/".join(map(str, first.absolute_path)) or "(top)"
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        said = " ".join(first.message.split())
        raise DataError(f"{where}: {path}: {said:.200}{more}; leave it as kvdiag wrote it")


def _check_lines(where: str, data: Any) -> None:
    """Raise DataError unless every text is one printable line: cards and reports show them."""
    for text in _texts(data):
        if len(text) > _LONGEST_TEXT or not text.isprintable():
            raise DataError(
                f"{where}: {json.dumps(text[:60])}: must be one line of at most {_LONGEST_TEXT} characters"
            )


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield str(key)
            yield from _texts(value)
    elif isinstance(data, list):
        for value in data:
            yield from _texts(value)
