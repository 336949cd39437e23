"""The column dictionary: each table's columns in words, from the JSON Schemas."""

from typing import Any

from kvdiag.records.schema import TABLES, json_schema, schema_version

_HEAD = """# Data format

Generated from `schema/*.json` by `kvdiag schema --markdown`; a test fails when they differ.

## Missing values

A metric `m` has three columns: `m`, `m__status`, `m__reason`. `m` is null exactly where the status is not
`available`, the reason is null exactly where it is, and an available number is finite.

| status, worst first | meaning |
| --- | --- |
| `failed` | tried, no valid value: `oom`, `timeout`, `nonfinite`, `exception` |
| `unsupported` | this method cannot run here: `context_too_short`, `channels_exhausted` … |
| `not_measured` | possible, but not collected: `not_in_artifact`, `unmapped:float_selected` … |
| `not_applicable` | undefined here: `no_evidence`, `structural_position`, `same_answer` … |
| `available` | there is a value; a wrong answer is available with score 0 |

A value of a pair takes the worse side's status, its reason prefixed `control:`, `run:` or `both:`. Where both
sides have the same status for two reasons, the control's is named. Nothing is imputed, and every planned
(source, cell) has a row.

## Versions

Each table's contract has a version X.Y.Z (`x-version`). Z changes with words, Y when a column is added, X when a
meaning or type changes or a column goes. A ledger says in `manifest.json` which versions it was written with.
Rule for a change of Y: readers of the new version accept ledgers of the old one only after migration, which adds
the column with status `not_measured` and reason `older_schema` (null for a plain nullable column) and writes a
new ledger; for a change of X the migration is written by hand and described here, with the release that brings
it. `kvdiag validate` names a version it does not read. There is one version of each table so far, 1.0.0; the
manifest is at 1.1.0, which added `card` and `seal`.

## Files

`data/<table>/<split>-<shard>.parquet`; splits are named after workloads. zstd, page index, page checksums,
content-defined chunking, rows sorted by key, one explicit Arrow schema a table. `README.md` carries the
configurations `load_dataset` reads, `manifest.json` recipe, environment, counts and hashes. The environment names
what numbers may depend on, and kvdiag's commit (`kvdiag_commit`) where it came from a repository. `seal` is a
sha256 of the manifest without its `build` part, `card` that of `README.md` (a published data set has none,
since its card may change).
"""


def markdown() -> str:
    """`docs/data-format.md`."""
    return _HEAD + "".join(table_markdown(t) for t in TABLES)


def table_markdown(table: str) -> str:
    """A section with a row for each column; the three columns of a metric share one."""
    schema = json_schema(table)
    lines = [
        f"\n## `{table}` (version {schema_version(table)})",
        "",
        schema["description"],
        f"Key: {', '.join(f'`{k}`' for k in schema['x-key'])}.",
        "",
        "| column | type | unit | better | meaning | statuses |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for entry in columns(table):
        cells = (f"`{entry['column']}`", *(entry[k] for k in ("type", "unit", "direction", "meaning", "statuses")))
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return "\n".join(lines) + "\n"


def columns(table: str) -> list[dict[str, str]]:
    """Column, type, unit, direction, meaning and allowed statuses; metrics without their two companions."""
    properties = json_schema(table)["properties"]
    metrics = {n for n, p in properties.items() if p.get("x-metric")}
    found = []
    for name, prop in properties.items():
        if name.rsplit("__", 1)[0] in metrics and name not in metrics:
            continue
        statuses = properties[f"{name}__status"]["enum"] if name in metrics else []
        found.append(
            {
                "column": name,
                "type": _type(prop),
                "unit": _word(prop, "x-unit"),
                "direction": _word(prop, "x-direction"),
                "meaning": prop["description"],
                "statuses": ", ".join(statuses),
            }
        )
    return found


def _word(prop: dict[str, Any], key: str) -> str:
    word = prop.get(key, "")
    return "" if word == "none" else word


def _type(prop: dict[str, Any]) -> str:
    types = prop["type"] if isinstance(prop["type"], list) else [prop["type"]]
    (kind,) = [t for t in types if t != "null"]
    name = f"list of {prop['items']['type']}" if kind == "array" else kind
    return name + (" or null" if "null" in types else "")
