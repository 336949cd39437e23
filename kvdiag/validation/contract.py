"""A table's JSON Schema as SQL predicates over its rows."""

from dataclasses import dataclass
from typing import Any

from kvdiag.records.schema import json_schema


@dataclass(frozen=True)
class Predicate:
    """A condition that must hold in every row; NULL counts as broken."""

    rule: str
    column: str
    sql: str
    message: str


def literal(value: Any) -> str:
    """A SQL literal."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return "'" + str(value).replace("'", "''") + "'"


def predicates(table: str) -> list[Predicate]:
    """All conditions of a table's schema that concern single rows (types are the file's own affair)."""
    schema = json_schema(table)
    found: list[Predicate] = []
    for column, prop in schema["properties"].items():
        found += _column(column, prop)
    for rule in schema.get("allOf", []):
        found.append(_one_of(rule["oneOf"]))
    return found


def _types(prop: dict[str, Any]) -> list[str]:
    types = prop["type"]
    return types if isinstance(types, list) else [types]


def _column(column: str, prop: dict[str, Any]) -> list[Predicate]:
    types, found = _types(prop), []
    name = f'"{column}"'
    if "null" not in types:
        found.append(Predicate("not_null", column, f"{name} IS NOT NULL", "must not be null"))
    if "enum" in prop:
        words = ", ".join(literal(v) for v in prop["enum"] if v is not None)
        message = f"must be one of {', '.join(str(v) for v in prop['enum'] if v is not None)}"
        found.append(Predicate("vocabulary", column, f"{name} IS NULL OR {name} IN ({words})", message))
    if "pattern" in prop:
        matches = f"regexp_matches({name}, {literal(prop['pattern'])})"
        found.append(Predicate("pattern", column, f"{name} IS NULL OR {matches}", f"must match {prop['pattern']}"))
    if "number" in types:
        found.append(
            Predicate(
                "finite", column, f"{name} IS NULL OR isfinite({name})", "must be finite, never NaN or infinite"
            )
        )
    if "array" in types:
        bad = "x IS NULL OR NOT isfinite(x)" if prop["items"]["type"] == "number" else "x IS NULL"
        clean = f"len(list_filter({name}, lambda x: {bad})) = 0"
        found.append(
            Predicate(
                "elements", column, f"{name} IS NULL OR {clean}", "must hold no null and no infinite element"
            )
        )
    return found


def _one_of(branches: list[dict[str, Any]]) -> Predicate:
    """Exactly one branch must hold. This contract's branches exclude each other, so OR says it."""
    columns = list(branches[0]["properties"])
    value = columns[0]
    sql = " OR ".join(f"({_branch(b['properties'])})" for b in branches)
    return Predicate(
        "missing_value",
        value,
        sql,
        f"{', '.join(columns[:3])} disagree: a value goes with status available and no reason, "
        "a null with another status and a reason",
    )


def _branch(properties: dict[str, Any]) -> str:
    conditions = []
    for column, prop in properties.items():
        name = f'"{column}"'
        if "const" in prop:
            conditions.append(f"{name} = {literal(prop['const'])}")
        elif "enum" in prop:
            conditions.append(f"{name} IN ({', '.join(literal(v) for v in prop['enum'])})")
        else:
            conditions.append(f"{name} IS {'NULL' if _types(prop) == ['null'] else 'NOT NULL'}")
    return " AND ".join(conditions)
