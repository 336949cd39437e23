"""Views and macros over a ledger, from the SQL files beside this module.

Each object stands behind a comment that says what it is: `-- name: what it is`. Objects may rest on earlier
ones of the same or of an earlier file.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILES = ("macros.sql", "views.sql", "quality.sql")


@dataclass(frozen=True)
class SqlObject:
    """A view or macro."""

    name: str
    kind: str
    summary: str
    sql: str


@cache
def _read() -> tuple[SqlObject, ...]:
    found = []
    for file in _FILES:
        text = (Path(__file__).parent / file).read_text(encoding="utf-8")
        for block in re.split(r"(?m)^(?=-- \w+: )", text)[1:]:
            head, _, body = block.partition("\n")
            match = re.fullmatch(r"-- (\w+): (.*)", head)
            assert match is not None, head
            kind = "macro" if "MACRO" in body else "view"
            found.append(SqlObject(match.group(1), kind, match.group(2), body.strip().rstrip(";")))
    return tuple(found)


def library() -> list[SqlObject]:
    """All objects, each after those it rests on."""
    return list(_read())
