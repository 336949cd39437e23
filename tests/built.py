"""A small recipe, and a real ledger of a tiny model whose controls are declared right: none would be by chance."""

import pyarrow.parquet as pq

from kvdiag import recipes
from kvdiag.engine.build import build
from kvdiag.ledger.derive import transition
from kvdiag.ledger.finish import write_ledger
from kvdiag.records.schema import to_table

TABLES = ("sources", "controls", "runs", "retention", "methods")


def small_recipe(model, **changes):
    """A recipe that a tiny model builds in a second or two; changes replace its fields."""
    small = {
        "workload": "ruler_480",
        "tasks": "niah_single_1",
        "methods": "knorm,streaming_llm",
        "settings": "keep=0.5",
        "protocols": "agnostic",
        "max_new_tokens": 3,
    }
    return recipes.load(model=str(model), **(small | changes))


def build_right(model_folder, folder):
    """3 sources in 8 cells, with C->W rows; returns the ledger."""
    recipe = recipes.load(
        workload="ruler_512",
        tasks="niah_single_1,niah_multikey_1,vt",
        limit=3,
        model=str(model_folder),
        methods="snapkv,knorm",
        settings="keep=0.5,keep=0.25",
        protocols="both",
        max_new_tokens=6,
    )
    manifest = build(recipe, folder / "built")
    rows = {
        table: [
            row
            for f in manifest["files"]
            if f["table"] == table
            for row in pq.read_table(folder / "built" / f["path"]).to_pylist()
        ]
        for table in TABLES
    }
    for control in rows["controls"]:
        control |= {"correct": True, "score": 1.0}
    for run in rows["runs"]:
        run["transition"] = transition(True, run["correct"])
    plan = {name: manifest[name] for name in ("recipe", "environment", "cells")}
    write_ledger(folder / "right", {t: to_table(t, found) for t, found in rows.items()}, plan, build={})
    return folder / "right"
