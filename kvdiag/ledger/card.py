"""The data set's card: README.md with the configurations that `load_dataset` reads."""

import hashlib
from typing import Any

import jinja2
import yaml

from kvdiag.records.schema import TABLES
from kvdiag.resources import folder

DEFAULT = "c2w"


def config_version(manifest: dict[str, Any]) -> str:
    """X.Y.Z that changes with the files: `datasets` caches by it and would else serve stale rows."""
    digests = "".join(f["sha256"] for f in manifest["files"])
    patch = int(hashlib.sha256(digests.encode()).hexdigest()[:7], 16)
    major, minor, _ = manifest["schema_versions"]["runs"].split(".")
    return f"{major}.{minor}.{patch}"


def configs(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """One configuration a table that has rows; c2w is the default, or runs where nothing failed."""
    version = config_version(manifest)
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


def render(manifest: dict[str, Any]) -> str:
    """The card's text. Rendering twice gives the same text; an unknown field is an error."""
    front = {
        "pretty_name": "kvdiag C2W",
        "license": "apache-2.0",
        "language": ["en"],
        "task_categories": ["text-generation"],
        "tags": ["kv-cache", "benchmark", "evaluation", "tabular", "long-context"],
        "configs": configs(manifest),
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("cards")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    return environment.get_template("c2w.md.j2").render(front=head, manifest=manifest)
