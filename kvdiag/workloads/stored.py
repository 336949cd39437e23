"""Sources as a ledger keeps them."""

from collections.abc import Mapping
from typing import Any

from kvdiag.errors import DataError
from kvdiag.workloads.base import Source, Span

_PLAIN = ("source_id", "workload", "task", "seed", "gold", "origin_id", "chat", "stop_at_newline")
_TEXTS = ("context", "question", "answer_prefix")
_NUMBERS = ("index", "max_new_tokens")  # not known of imported sources, which have no texts either
_LISTS = ("references", "answer_types", "choices", "flags")


def from_row(row: Mapping[str, Any], textless: bool = False) -> Source:
    """The source of a row of `sources`, ready to run again.

    textless: where the ledger does not hold the texts, give them as empty. Raises DataError otherwise.
    """
    if row["text_status"] != "available" and not textless:
        raise DataError(f"{row['source_id']}: its texts are not in the ledger, so it cannot run again")
    columns: dict[str, Any] = {name: row[name] for name in _PLAIN}
    columns |= {name: row[name] or "" for name in _TEXTS} | {name: row[name] or 0 for name in _NUMBERS}
    columns |= {name: tuple(row[name]) for name in _LISTS}
    return Source(
        **columns,
        evidence=_spans(row, "evidence"),
        distractors=_spans(row, "distractor"),
        evidence_status=row["evidence_status"],
        evidence_reason=row["evidence_reason"],
    )


def _spans(row: Mapping[str, Any], name: str) -> tuple[Span, ...]:
    return tuple(zip(row[f"{name}_starts"], row[f"{name}_ends"], strict=True))
