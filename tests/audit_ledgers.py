"""Ledgers with planted effects, for the audit."""

from itertools import product

import numpy as np

from kvdiag.methods import catalogue
from kvdiag.records import keys
from tests import rows as made

PROTOCOLS = ("query_agnostic", "query_aware")
TASKS = ("niah_single_1", "niah_multiquery", "vt", "cwe", "qa_1")
# Chance that a run is right, agnostic and aware: snapkv sees the question, keydiff does not.
CHANCES = {
    "snapkv": (0.3, 0.8),
    "keydiff": (0.75, 0.75),
    "random": (0.3, 0.3),
    "knorm": (0.35, 0.35),
    "streaming_llm": (0.45, 0.45),
}


def answer(source, control, cell, score, model=made.MODEL):
    """A run with that score."""
    method, setting, protocol = cell
    run = made.run_row(source, control, bool(score == 1), method, setting, protocol)
    return run | {
        "model": model,
        "run_id": keys.run_id(source["source_id"], run["cell_id"], model),
        "control_id": keys.control_id(source["source_id"], model),
        "score": float(score),
    }


def audited(
    folder,
    chances=None,
    n=60,
    seed=0,
    settings=("keep=0.5", "keep=0.25"),
    change=None,
    protocols=PROTOCOLS,
    models=(made.MODEL,),
    scores=None,
):
    """Write runs of n sources in all methods x settings x protocols x models; returns the run rows written.

    chances: method -> chance of a right answer, agnostic and aware. scores: (rng, source number, cell) -> score,
    in place of chances. change: what makes another run, or none, of a run.
    """
    rng = np.random.default_rng(seed)
    chances = CHANCES if chances is None else chances
    sources = [made.source_row(i) | {"task": TASKS[i % len(TASKS)]} for i in range(n)]
    cells = list(product(chances, settings, protocols))
    controls, runs = [], []
    for (i, source), model in product(enumerate(sources), models):
        control = made.control_row(source) | {
            "model": model,
            "control_id": keys.control_id(source["source_id"], model),
        }
        controls.append(control)
        luck = rng.random()  # shared by the cells of a source: paired, not independent
        for cell in cells:
            method, _, protocol = cell
            chance = chances[method][PROTOCOLS.index(protocol)]
            score = scores(rng, i, cell) if scores else float((luck + rng.random()) / 2 < chance)
            run = answer(source, control, cell, score, model)
            run = change(run) if change else run
            if run is not None:
                runs.append(run)
    methods = [catalogue.method_row(catalogue.get(m)) for m in chances]
    tables = made.made_up_rows(1) | {
        "sources": sources,
        "controls": controls,
        "runs": runs,
        "retention": [],
        "methods": methods,
        "repairs": [],
    }
    write(folder, tables, [keys.cell_id(*cell) for cell in cells])
    return runs


def write(folder, tables, cells):
    """A ledger that plans these cells."""
    plan = made.plan() | {"cells": cells}
    arrow = {table: made.to_table(table, found) for table, found in tables.items()}
    made.write_ledger(folder, arrow, plan, build={"seconds_by_stage": {}})


def number(run):
    """Which source a run is of."""
    return int(run["source_id"][-4:])
