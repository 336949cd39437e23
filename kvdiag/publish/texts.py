"""Prompt texts that must not be published: taken out of the rows, and said so."""

import hashlib
import re
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from kvdiag.publish.licences import gold_is_fact

# The texts exist and are not handed on: not_measured, as for an imported artifact that lacks them.
STATUS, REASON = "not_measured", "licence"
# Tables and the columns of theirs that are source texts. Ids, hashes and spans stay.
TEXTS = {"sources": ("context", "question", "answer_prefix"), "c2w": ("question",)}
# Columns with gold answers: they are text too where they are no mere facts. The contract wants a text there, so
# each says itself that it is withheld; its hash still tells equal answers.
GOLD = {"sources": ("gold", "references"), "c2w": ("references",)}
_MARK = re.compile(r"withheld \(licence\), sha256 [0-9a-f]{64}")


def withhold(table: str, data: pa.Table, workloads: Collection[str]) -> pa.Table:
    """The table without the texts of these workloads: null, with a status and a reason where the table has them.

    Gold answers that are no mere facts become `withheld (licence), sha256 …`. Texts that are missing already keep
    the reason they have.
    """
    barred = pc.is_in(data["workload"], value_set=pa.array(sorted(workloads), pa.string()))
    data = _without_gold(table, data, barred.to_pylist())
    replaced: dict[str, str | None] = dict.fromkeys(TEXTS.get(table, ()))
    if table == "sources":
        barred = pc.and_(barred, pc.equal(data["text_status"], "available"))
        replaced |= {"text_status": STATUS, "text_reason": REASON}
    for name, value in replaced.items():
        kind = data.schema.field(name)
        new = pc.if_else(barred, pa.scalar(value, kind.type), data[name])
        data = data.set_column(data.schema.get_field_index(name), kind, new)
    return data


def _without_gold(table: str, data: pa.Table, barred: list[bool]) -> pa.Table:
    named = zip(data["workload"].to_pylist(), data["task"].to_pylist(), barred, strict=True)
    hidden = [out and not gold_is_fact(workload, task) for workload, task, out in named]
    for name in GOLD.get(table, ()) if any(hidden) else ():
        kind = data.schema.field(name)
        values = [_marked(v) if out else v for v, out in zip(data[name].to_pylist(), hidden, strict=True)]
        data = data.set_column(data.schema.get_field_index(name), kind, pa.array(values, kind.type))
    return data


def _marked(value: str | list[str]) -> str | list[str]:
    if isinstance(value, list):
        return [str(_marked(v)) for v in value]
    if _MARK.fullmatch(value):
        return value
    return f"withheld (licence), sha256 {hashlib.sha256(value.encode()).hexdigest()}"
