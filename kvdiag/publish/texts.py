"""Prompt texts that must not be published: taken out of the rows, and said so."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

# The texts exist and are not handed on: not_measured, as for an imported artifact that lacks them.
STATUS, REASON = "not_measured", "licence"
# Tables and the columns of theirs that are source texts. Gold answers, ids, hashes and spans stay.
TEXTS = {"sources": ("context", "question", "answer_prefix"), "c2w": ("question",)}


def withhold(table: str, data: pa.Table, workloads: Collection[str]) -> pa.Table:
    """The table without the texts of these workloads: null, with a status and a reason where the table has them.

    Texts that are missing already keep the reason they have.
    """
    barred = pc.is_in(data["workload"], value_set=pa.array(sorted(workloads), pa.string()))
    replaced: dict[str, str | None] = dict.fromkeys(TEXTS.get(table, ()))
    if table == "sources":
        barred = pc.and_(barred, pc.equal(data["text_status"], "available"))
        replaced |= {"text_status": STATUS, "text_reason": REASON}
    for name, value in replaced.items():
        kind = data.schema.field(name)
        new = pc.if_else(barred, pa.scalar(value, kind.type), data[name])
        data = data.set_column(data.schema.get_field_index(name), kind, new)
    return data
