"""The data set's card: README.md with the configurations that `load_dataset` reads.

One template serves a ledger's own README and that of a release on the Hub. Every number comes from the manifest
or the files; what is not known where a card is written has no place in it.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jinja2
import pyarrow as pa
import yaml

from kvdiag.records.dictionary import columns
from kvdiag.records.schema import TABLES, arrow_schema, json_schema
from kvdiag.resources import folder

DEFAULT = "c2w"
_NOTES = re.compile(r"(?s)<!-- notes: .*? -->\n(.*?)<!-- end of notes -->")


@dataclass(frozen=True)
class PromptSource:
    """Where a workload's texts come from. hub: its data set id there. published: whether the texts are here."""

    workload: str
    name: str
    link: str
    licence: str
    hub: str | None
    published: bool


@dataclass(frozen=True)
class Release:
    """What a card on the Hub knows beside the manifest. notes: text written by hand, kept from push to push."""

    repo: str
    version: str
    coverage: Sequence[dict[str, Any]]
    sources: Sequence[PromptSource]
    notes: str = ""


def licences(manifest: dict[str, Any], release: Release | None) -> list[str]:
    """The Hub's ids of all licences that hold in a data set: of the rows, and of the texts in them."""
    origin = manifest["origin"]
    own = origin["licence"].lower() if origin else "apache-2.0"
    texts = [s.licence for s in release.sources if s.published] if release else []
    return list(dict.fromkeys([own, *texts]))


def notes(text: str) -> str:
    """What was written by hand between the marks of a card; empty where there are none."""
    found = _NOTES.search(text)
    return found[1] if found else ""


def size_category(rows: int) -> str:
    """The Hub's word for a number of rows."""
    bounds = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
    return next((word for bound, word in bounds if rows < bound), "1M<n<10M")


def config_version(manifest: dict[str, Any]) -> str:
    """X.Y.Z that changes with the files: `datasets` caches by it and would else serve stale rows."""
    digests = "".join(f["sha256"] for f in manifest["files"])
    patch = int(hashlib.sha256(digests.encode()).hexdigest()[:7], 16)
    major, minor, _ = manifest["schema_versions"]["runs"].split(".")
    return f"{major}.{minor}.{patch}"


def configs(manifest: dict[str, Any], version: str | None = None) -> list[dict[str, Any]]:
    """One configuration a table that has rows; c2w is the default, or runs where nothing failed."""
    version = version or config_version(manifest)
    present = [t for t in TABLES if manifest["rows"][t]]
    default = DEFAULT if DEFAULT in present else "runs"
    ordered = [default, *(t for t in present if t != default)]
    entries = []
    for table in ordered:
        files = [f for f in manifest["files"] if f["table"] == table]
        entry: dict[str, Any] = {"config_name": table, "version": version}
        if table == default:
            entry["default"] = True
        entry["data_files"] = [
            {"split": split, "path": [f["path"] for f in files if f["split"] == split]}
            for split in dict.fromkeys(f["split"] for f in files)
        ]
        entries.append(entry)
    return entries


def dataset_info(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Features and split sizes of each configuration, from the contract and the files."""
    entries = []
    for table in (t for t in TABLES if manifest["rows"][t]):
        files = [f for f in manifest["files"] if f["table"] == table]
        splits = [
            {
                "name": split,
                "num_bytes": sum(f["bytes"] for f in files if f["split"] == split),
                "num_examples": sum(f["rows"] for f in files if f["split"] == split),
            }
            for split in dict.fromkeys(f["split"] for f in files)
        ]
        entries.append({"config_name": table, "features": features(table), "splits": splits})
    return entries


def features(table: str) -> list[dict[str, Any]]:
    """A table's columns as a data set card names them."""
    return [_feature(entry.name, entry.type) for entry in arrow_schema(table)]


def _feature(name: str, kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_list(kind):
        return {"name": name, "list": _DTYPES[kind.value_type]}
    return {"name": name, "dtype": _DTYPES[kind]}


_DTYPES = {pa.string(): "string", pa.int64(): "int64", pa.float64(): "float64", pa.bool_(): "bool"}


def render(manifest: dict[str, Any], release: Release | None = None) -> str:
    """The card's text. Rendering twice gives the same text; an unknown field is an error."""
    licence = licences(manifest, release)
    sources = ["original", *(s.hub for s in release.sources if s.hub)] if release else ["original"]
    front = {
        "pretty_name": "kvdiag C2W",
        "license": licence[0] if len(licence) == 1 else licence,
        "language": ["en"],
        "annotations_creators": ["machine-generated"],
        "source_datasets": list(dict.fromkeys(sources)),
        "task_categories": ["text-generation"],
        "tags": ["kv-cache", "benchmark", "evaluation", "tabular", "long-context"],
        "size_categories": [size_category(sum(manifest["rows"].values()))],
        "configs": configs(manifest, release.version if release else None),
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("cards")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters["cell"] = _cell
    present = [t for t in TABLES if manifest["rows"][t]]
    return environment.get_template("c2w.md.j2").render(
        front=_yaml(json.dumps(front)) + _yaml(json.dumps({"dataset_info": dataset_info(manifest)})),
        manifest=manifest,
        release=release,
        default=DEFAULT if DEFAULT in present else "runs",
        runs_file=next((f["path"] for f in manifest["files"] if f["table"] == "runs"), "data/runs"),
        dictionary={t: (json_schema(t)["description"], columns(t)) for t in present},
        code=_code(manifest),
        totals=_totals(release.coverage) if release else None,
    )


def _code(manifest: dict[str, Any]) -> str:
    """The code that ran, and the one that wrote the files where that is another; its commit where it is known."""
    used = manifest["environment"]
    ran, wrote = used.get("kvdiag"), manifest["kvdiag_version"]
    commit = f", commit {used['kvdiag_commit']}" if used.get("kvdiag_commit") else ""
    written = f"; files written by {wrote}" if ran and ran != wrote else ""
    return f"kvdiag {ran or wrote}{commit}{written}"


@lru_cache(maxsize=16)
def _yaml(text: str) -> str:
    """JSON as YAML. The part with all columns is long, and the same at every version."""
    return yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True)


def _cell(value: Any) -> str:
    """Text in a cell of a Markdown table."""
    return str(value).replace("|", "\\|").replace("\n", " ")


def _totals(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    names = ("total", "eligible", "supported", "attempted", "available")
    return {name: sum(row[name] for row in rows) for name in names}
