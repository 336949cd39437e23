"""The documented columns are those of the schemas."""

from pathlib import Path

from kvdiag.records import dictionary
from kvdiag.records.schema import TABLES, column_names

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_the_schemas():
    """Mend with: kvdiag schema --markdown > docs/data-format.md"""
    assert (DOCS / "data-format.md").read_text(encoding="utf-8") == dictionary.markdown()


def test_every_column_is_in_the_dictionary():
    for table in TABLES:
        listed = {e["column"] for e in dictionary.columns(table)}
        metrics = {e["column"] for e in dictionary.columns(table) if e["statuses"]}
        companions = {f"{m}__{part}" for m in metrics for part in ("status", "reason")}
        assert listed | companions == set(column_names(table))
        assert all(e["meaning"].endswith(".") for e in dictionary.columns(table))
