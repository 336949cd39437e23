"""What a question costs: whole processes of `kvdiag query` over the imported KVDiagnosis artifact.

    python benchmarks/query_cost.py --artifact DIR [--json]

DIR is the public artifact; it is imported into a temporary ledger first. Each time is the median of whole
processes, from their start to their end, and stands beside that of `kvdiag --version`, which reads nothing:
absolute seconds depend on the machine.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import report

QUESTIONS = {
    "aggregate over all runs": (
        "SELECT method, setting, count(*) AS n, avg(score) AS score, avg(delta_nll) AS delta_nll, "
        "count(*) FILTER (WHERE transition = 'C->W') AS n_c2w FROM runs GROUP BY ALL ORDER BY ALL"
    ),
    "view outcomes": "FROM outcomes",
    "view failure_overlap": "FROM failure_overlap",
}
COUNT = "SELECT count(*) AS n FROM runs"


def kvdiag(*args: str) -> tuple[str, float]:
    """Output and wall seconds of a whole process. Raises CalledProcessError when it fails."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "kvdiag", *args], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout, time.perf_counter() - start


def seconds(repeats: int, *args: str) -> list[float]:
    """Wall seconds of each of some processes, after one that is not counted."""
    kvdiag(*args)
    return [kvdiag(*args)[1] for _ in range(repeats)]


def measure(artifact: Path, repeats: int) -> list[dict[str, Any]]:
    """Import once, then ask."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = str(Path(folder) / "ledger")
        _, imported = kvdiag("import", "kvdiagnosis", str(artifact), "--out", ledger)
        rows = int(kvdiag("query", "--data", ledger, "--csv", COUNT)[0].splitlines()[1])
        empty = statistics.median(seconds(repeats, "--version"))
        results = []
        for name, sql in QUESTIONS.items():
            times = seconds(repeats, "query", "--data", ledger, "--csv", sql)
            results.append(
                {
                    "question": name,
                    "rows in runs": rows,
                    "seconds, whole process": statistics.median(times),
                    "  range": f"{min(times):.3f} to {max(times):.3f} in {repeats} processes",
                    "empty process, seconds": empty,
                    "question / empty process": statistics.median(times) / empty,
                    "import of the artifact, seconds": imported,
                }
            )
    return results


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", type=Path, required=True, metavar="DIR")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report(measure(args.artifact, args.repeats), args.json)


if __name__ == "__main__":
    main()
