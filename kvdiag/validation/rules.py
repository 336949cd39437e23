"""Rules over several columns or tables, from rules.sql: each query gives the keys of the rows that break it."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvdiag.records.schema import TABLES, column_names
from kvdiag.validation.findings import Finding
from kvdiag.validation.tables import SHOWN


@dataclass(frozen=True)
class Rule:
    """`sql` selects the keys of broken rows of `table`; it reads `reads`."""

    name: str
    table: str
    column: str
    message: str
    sql: str

    @property
    def reads(self) -> set[str]:
        """Tables the query names."""
        return {t for t in TABLES if re.search(rf"\b{t}\b", self.sql)}


@cache
def _read() -> tuple[Rule, ...]:
    text = (Path(__file__).parent / "rules.sql").read_text(encoding="utf-8")
    rules = []
    for block in re.split(r"(?m)^(?=-- \w+ \| )", text)[1:]:
        head, _, body = block.partition("\n")
        name, table, column, message = head.removeprefix("-- ").split(" | ")
        rules.append(Rule(name, table, column, message, body.strip().rstrip(";")))
    return tuple(rules)


def all_rules() -> list[Rule]:
    """Rules of the file, and that each column c2w shares with runs is the same there."""
    rules = list(_read())
    for column in column_names("runs"):
        differs = f'c2w."{column}" IS DISTINCT FROM runs."{column}"'
        sql = f"SELECT c2w.run_id FROM c2w JOIN runs USING (run_id) WHERE {differs}"
        if column != "run_id":
            rules.append(Rule("c2w_equals_runs", "c2w", column, "differs from the same run in runs", sql))
    return rules


def check(connection: Any, tables: set[str], files: dict[str, str]) -> list[Finding]:
    """Findings of all rules that the present tables allow. files: a name for each table in findings."""
    found = []
    for rule in all_rules():
        if not rule.reads <= tables:
            continue
        count, *_ = connection.execute(f"SELECT count(*) FROM ({rule.sql}) broken").fetchone()
        if count:
            rows = connection.execute(f"SELECT * FROM ({rule.sql}) broken LIMIT {SHOWN}").fetchall()
            keys = tuple(str(r[0]) for r in rows)
            found.append(Finding(rule.name, rule.message, files[rule.table], rule.table, rule.column, keys, count))
    return found
