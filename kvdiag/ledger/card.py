"""The data set's card: README.md with the configurations that `load_dataset` reads."""

import hashlib
from typing import Any

import jinja2
import pyarrow as pa
import yaml

from kvdiag.records.schema import TABLES, arrow_schema
from kvdiag.resources import folder

DEFAULT = "c2w"


def _licence(manifest: dict[str, Any]) -> str:
    origin = manifest["origin"]
    return origin["licence"].lower() if origin else "apache-2.0"


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


def render(manifest: dict[str, Any]) -> str:
    """The card's text. Rendering twice gives the same text; an unknown field is an error."""
    front = {
        "pretty_name": "kvdiag C2W",
        "license": _licence(manifest),
        "language": ["en"],
        "task_categories": ["text-generation"],
        "tags": ["kv-cache", "benchmark", "evaluation", "tabular", "long-context"],
        "size_categories": [size_category(sum(manifest["rows"].values()))],
        "configs": configs(manifest),
        "dataset_info": dataset_info(manifest),
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("cards")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    return environment.get_template("c2w.md.j2").render(front=head, manifest=manifest)
