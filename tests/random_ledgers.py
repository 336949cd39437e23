"""Ledgers with random outcomes and diagnostics, for the statistics."""

import numpy as np

from tests import rows as made

METRICS = (
    *("err", "ecov", "delta_nll", "gpr", "top50_overlap", "kl"),
    *("gold_rank_shift", "eam", "ear", "prefix_agreement"),
)
SNAPKV, KNORM = ("snapkv", "keep=0.5", "query_agnostic"), ("knorm", "keep=0.5", "query_agnostic")
BITS = ("quantized_hqq", "bits=4", "query_agnostic")
GAPS = (("not_measured", "lost"), ("not_applicable", "no_sense"))
CELLS = [("snapkv", "keep=0.5"), ("snapkv", "keep=0.25"), ("knorm", "keep=0.5"), ("tova", "keep=0.5")]


def gap(metric, status="not_measured", reason="lost"):
    """Columns of a metric without a value."""
    return {metric: None, f"{metric}__status": status, f"{metric}__reason": reason}


def separable(seed=0, n=40):
    """Random outcomes and diagnostics of n sources in CELLS; ruler_1k and ruler_2k; some values missing."""
    rng = np.random.default_rng(seed)
    sources = [made.source_row(i, ("ruler_1k", "ruler_2k")[i % 2]) for i in range(n)]
    controls = [made.control_row(s, right=bool(rng.random() < 0.8)) | {"eam": rng.random()} for s in sources]
    runs = []
    for source, control in zip(sources, controls, strict=True):
        for method, setting in CELLS:
            run = made.run_row(source, control, bool(rng.random() < 0.6), method, setting)
            run |= {m: float(np.round(rng.random() - 0.3 * (not run["correct"]), 2)) for m in METRICS}
            for metric in METRICS:
                if rng.random() < 0.15:
                    run |= gap(metric, *GAPS[rng.integers(2)])
            runs.append(run)
    for control in controls[:5]:
        control |= gap("eam", "failed", "oom")
    found = made.made_up_rows(1)
    return found | {"sources": sources, "controls": controls, "runs": runs, "retention": []}


def run_row(source, control, right, cell, rng):
    """A run with random diagnostics; the tests' own rows cannot spell bits."""
    method, setting, protocol = cell
    run = made.run_row(source, control, right, method, "keep=0.5", protocol)
    run |= {
        "setting": setting,
        "cell_id": run["cell_id"].replace("keep=0.5", setting),
        "run_id": run["run_id"].replace("keep=0.5", setting),
        "keep": float(setting[5:]) if setting.startswith("keep=") else None,
    }
    run |= {metric: float(rng.random()) for metric in METRICS}
    return run | {"score": float(rng.random() < 0.3) if not right else 1.0}


def paired_runs(folder, cells=(SNAPKV, KNORM), n=40, seed=0, change=None):
    """Write random outcomes of n sources of two workloads and two tasks in some cells; returns the rows.

    change: what makes another run, or none, of a run.
    """
    rng = np.random.default_rng(seed)
    sources = [
        made.source_row(i, ("ruler_1k", "ruler_2k")[i % 2]) | {"task": ("vt", "cwe")[i % 3 == 0]} for i in range(n)
    ]
    controls = [made.control_row(s, right=bool(rng.random() < 0.8)) for s in sources]
    runs = [
        run_row(s, c, bool(rng.random() < 0.6), cell, rng)
        for s, c in zip(sources, controls, strict=True)
        for cell in cells
    ]
    runs = [r for r in map(change or (lambda run: run), runs) if r is not None]
    found = made.made_up_rows(1) | {"sources": sources, "controls": controls, "runs": runs, "retention": []}
    made.write_made_up(folder, found)
    return found


def number(run):
    """Which source a run is of."""
    return int(run["source_id"][-4:])


def with_gaps(run):
    """knorm ran out of memory on sources 0 to 3, snapkv cannot run on 3 to 5 and has no row for 6."""
    if run["method"] == "knorm" and number(run) <= 3:
        return made.without_answer(run, "failed", "oom")
    if run["method"] == "snapkv" and 3 <= number(run) <= 5:
        return made.without_answer(run, "unsupported", "too_short")
    return None if run["method"] == "snapkv" and number(run) == 6 else run


def knorm_degenerate(run):
    """All runs of knorm labelled as no finding."""
    return run | ({"degenerate": "kept_within_window"} if run["method"] == "knorm" else {})
