"""What the audit's statistics cost: seconds, and against scipy's bootstrap of the same statistic.

    OMP_NUM_THREADS=1 python benchmarks/audit_cost.py [--resamples 50000] [--json]

Scores are made up: 650 sources, nine methods, four settings, two protocols. scipy bootstraps a few of the cells,
one by one as it must (BCa, batches of 1,000), and its time is scaled to all of them.
"""

import argparse
import resource
from typing import Any

import numpy as np
from common import report, timed
from scipy import stats

from kvdiag.analysis.audit.desk import Options
from kvdiag.analysis.audit.matrix import Column, Matrix, Source
from kvdiag.analysis.audit.protocol import of_matrix
from kvdiag.analysis.audit.statistics import bootstrap_means, sign_flip
from kvdiag.methods.catalogue import methods
from kvdiag.records.keys import PROTOCOLS

SOURCES, CELLS, SAMPLE = 650, 72, 3
AUDITED = (
    *("snapkv", "h2o", "tova", "expected_attention", "adakv_snapkv", "keydiff"),
    *("random", "knorm", "streaming_llm"),
)
SETTINGS = ("keep=0.75", "keep=0.5", "keep=0.25", "keep=0.1")
TASKS = (
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2"),
    *("niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
)


def scipys(gaps: np.ndarray, resamples: int) -> list[Any]:
    """BCa intervals of some columns, one at a time."""
    return [
        stats.bootstrap((column,), np.mean, n_resamples=resamples, batch=1000, method="BCa", rng=i)
        for i, column in enumerate(gaps.T)
    ]


def matrix(n_models: int) -> Matrix:
    """A full matrix of made-up scores."""
    rng = np.random.default_rng(0)
    sources = [Source(f"{i:04d}", "ruler_8k", TASKS[i % len(TASKS)]) for i in range(SOURCES)]
    models = [f"model-{i}" for i in range(n_models)]
    columns = [Column(m, a, s, p) for m in models for a in AUDITED for s in SETTINGS for p in PROTOCOLS]
    shape = (SOURCES, len(columns))
    none = np.zeros(shape, dtype=np.int64)
    return Matrix(
        sources,
        columns,
        models,
        [("available", None), ("absent", None)],
        none,
        rng.integers(4, size=shape) / 3,
        none.astype(bool),
        np.zeros((SOURCES, n_models), dtype=np.int64),
        np.ones((SOURCES, n_models)),
        {i: m.query_visibility for i, m in methods().items()},
    )


def measure(resamples: int) -> dict[str, Any]:
    """All figures."""
    gaps = np.random.default_rng(0).choice([-1.0, 0.0, 0.0, 0.5, 1.0], size=(SOURCES, CELLS))
    strata = np.arange(SOURCES) % 4
    ours, own = timed(bootstrap_means, gaps, np.ones_like(gaps), strata, resamples)
    _, flips = timed(sign_flip, gaps, resamples)
    theirs, scipy_seconds = timed(scipys, gaps[:, :SAMPLE], resamples)
    apart = max(
        float(np.abs(np.array(o.bca) - np.array(t.confidence_interval)).max())
        for o, t in zip(ours, theirs, strict=False)
    )
    found, whole = timed(of_matrix, matrix(3), Options(resamples=resamples))
    return {
        "sources x cells x replicates": f"{SOURCES} x {CELLS} x {resamples}",
        "bootstrap, both intervals: seconds": own,
        "sign-flip tests: seconds": flips,
        f"scipy.stats.bootstrap, {SAMPLE} cells: seconds": scipy_seconds,
        "  scipy, scaled to all cells / bootstrap here": scipy_seconds / SAMPLE * CELLS / own,
        "  largest difference of ends (strata here only)": apart,
        "whole audit, 3 models: cells of the wins": len(found["wins"]["cells"]),
        "whole audit, 3 models: seconds": whole,
        "peak memory of the process, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resamples", type=int, default=50_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report([measure(options.resamples)], options.json)


if __name__ == "__main__":
    main()
