"""The planned matrix of a ledger as arrays: a row a source, a column a cell under a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvdiag.analysis.audit.groups import task_group
from kvdiag.analysis.bootstrap import Bools, Floats, Ints
from kvdiag.errors import DataError, RefusedError, UsageError, near_matches
from kvdiag.ledger.layout import read_manifest
from kvdiag.methods.catalogue import methods as catalogue
from kvdiag.methods.settings import parse_setting
from kvdiag.query.connection import connect, rows
from kvdiag.query.run import fetch
from kvdiag.records.keys import PROTOCOLS
from kvdiag.records.missing import AVAILABLE

# The backend that a model's name does not say.
DEFAULT_BACKEND = "sdpa"
# A planned run without a row. Its own word: a row that says why is something else.
ABSENT = "absent"
# A source of another ledger, whose model is another: neither a run that is missing nor one that cannot run.
NOT_PLANNED = "not_planned"
# What leaves a hole. The other statuses say that there is nothing to measure: unsupported, not_applicable.
HOLES = ("failed", "not_measured", ABSENT)


@dataclass(frozen=True)
class Column:
    """A planned cell under one model."""

    model: str
    method: str
    setting: str
    protocol: str

    @property
    def removed(self) -> float | None:
        """Share of the cache removed; None where the setting is no share."""
        try:
            keep = parse_setting(self.setting).keep
        except UsageError:  # a foreign ledger's own word
            return None
        return None if keep is None else round(1 - keep, 10)


@dataclass(frozen=True)
class Source:
    """A planned source."""

    source_id: str
    workload: str
    task: str

    @property
    def group(self) -> str:
        """Workload and group of the task: what the bootstrap draws within."""
        return f"{self.workload}/{task_group(self.task)}"


@dataclass(frozen=True)
class Matrix:
    """Scores and what is missing, (sources, columns). A status code is a place in `kinds`; 0 is available.

    scores: NaN where there is none. degenerate: answered, and labelled as no finding.
    controls: (sources, models) scores of the full cache; control_codes likewise.
    visibility: how much of a question each method sees, as the ledger says or else the catalogue.
    """

    sources: list[Source]
    columns: list[Column]
    models: list[str]
    kinds: list[tuple[str, str | None]]
    codes: Ints
    scores: Floats
    degenerate: Bools
    control_codes: Ints
    controls: Floats
    visibility: dict[str, str]

    @property
    def available(self) -> Bools:
        """Where there is a score."""
        return self.codes == 0

    @property
    def planned(self) -> Bools:
        """Where a run was planned: everywhere, but across ledgers that were read together."""
        return ~self._of_kind(self.codes, (NOT_PLANNED,))

    @property
    def control_planned(self) -> Bools:
        """The same of the controls."""
        return ~self._of_kind(self.control_codes, (NOT_PLANNED,))

    @property
    def holes(self) -> Bools:
        """Where a score was planned and is missing for no good reason."""
        return self._of_kind(self.codes, HOLES)

    @property
    def control_holes(self) -> Bools:
        """The same of the controls."""
        return self._of_kind(self.control_codes, HOLES)

    def _of_kind(self, codes: Ints, statuses: Sequence[str]) -> Bools:
        return np.array([status in statuses for status, _ in self.kinds])[codes]

    @property
    def strata(self) -> Ints:
        """Number of each source's stratum: its group, and the models that it was planned for."""
        groups = zip(self.sources, self.control_planned.tolist(), strict=True)
        own = [(source.group, *models) for source, models in groups]
        names = {name: i for i, name in enumerate(sorted(set(own)))}
        return np.array([names[name] for name in own], dtype=np.int64)


def read(ledgers: Path | Sequence[Path], workload: str | None = None) -> Matrix:
    """The planned matrix: a manifest's cells x the ledger's sources x its models, and what is there of it.

    Several ledgers (a model each, say) stand side by side: each plans its own sources for its own models.

    Raises UsageError for a workload that a ledger does not have, DataError where it plans nothing, RefusedError
    for ledgers of several attention backends, or of the same runs.
    """
    if isinstance(ledgers, Path):
        return _read(ledgers, workload)
    found = [_read(ledger, workload) for ledger in ledgers]
    _refuse_backends(", ".join(map(str, ledgers)), [m for matrix in found for m in matrix.models])
    return found[0] if len(found) == 1 else _join(found)


def _join(parts: Sequence[Matrix]) -> Matrix:
    """Matrices as one: a row a source, a column a cell, NOT_PLANNED where they are of different ledgers."""
    sources = list(dict.fromkeys(s for part in parts for s in part.sources))
    columns = list(dict.fromkeys(c for part in parts for c in part.columns))
    columns.sort(key=lambda c: (c.model, c.method, c.removed or 0.0, c.setting, c.protocol))
    models = sorted({m for part in parts for m in part.models})
    kinds: dict[tuple[str, str | None], int] = {(AVAILABLE, None): 0, (ABSENT, None): 1, (NOT_PLANNED, None): 2}
    codes = np.full((len(sources), len(columns)), 2, dtype=np.int64)
    scores, degenerate = np.full(codes.shape, np.nan), np.zeros(codes.shape, dtype=bool)
    control_codes = np.full((len(sources), len(models)), 2, dtype=np.int64)
    controls = np.full(control_codes.shape, np.nan)
    row_of = {s: i for i, s in enumerate(sources)}
    for part in parts:
        own = np.array([kinds.setdefault(kind, len(kinds)) for kind in part.kinds])
        rows = np.array([row_of[s] for s in part.sources])
        place = np.ix_(rows, np.array([columns.index(c) for c in part.columns]))
        control_place = np.ix_(rows, np.array([models.index(m) for m in part.models]))
        if (control_codes[control_place] != 2).any():
            raise RefusedError(
                "two of the ledgers hold runs of the same sources under the same model; name one of them"
            )
        codes[place], scores[place], degenerate[place] = own[part.codes], part.scores, part.degenerate
        control_codes[control_place], controls[control_place] = own[part.control_codes], part.controls
    visibility = {method: seen for part in parts for method, seen in part.visibility.items()}
    return Matrix(
        sources, columns, models, list(kinds), codes, scores, degenerate, control_codes, controls, visibility
    )


def _read(ledger: Path, workload: str | None) -> Matrix:
    manifest = read_manifest(ledger)
    connection = connect(ledger)
    try:
        sources = _sources(connection, workload)
        tables = {table: fetch(connection, sql).to_pydict() for table, sql in _TABLES.items()}
        seen = {i: m.query_visibility for i, m in catalogue().items()}
        seen |= {r["method"]: r["query_visibility"] for r in rows(connection, "FROM methods")}
    finally:
        connection.close()
    models = _models(manifest, [*tables["controls"]["model"], *tables["runs"]["model"]])
    _refuse_backends(str(ledger), models)
    columns = _columns(manifest, tables["runs"], models)
    if not columns or not sources:
        raise DataError(f"{ledger}: plans no runs, so there is nothing to audit")
    return _fill(sources, columns, models, tables, seen)


_STATE = (
    "CASE WHEN status <> 'available' THEN status ELSE score__status END AS state, "
    "CASE WHEN status <> 'available' THEN reason ELSE score__reason END AS why, score"
)
_TABLES = {
    "runs": f"SELECT source_id, model, method, setting, protocol, degenerate, {_STATE} FROM runs",
    "controls": f"SELECT source_id, model, {_STATE} FROM controls",
}


def _sources(connection: Any, workload: str | None) -> list[Source]:
    sql = (
        "SELECT source_id, any_value(workload) AS workload, any_value(task) AS task FROM "
        "(SELECT source_id, workload, task FROM sources UNION SELECT source_id, workload, task FROM runs) "
        "GROUP BY source_id ORDER BY source_id"
    )
    found = [Source(**row) for row in rows(connection, sql)]
    known = sorted({s.workload for s in found})
    if workload is not None and workload not in known:
        raise UsageError(f"--workload {workload}: not in this ledger; {near_matches(workload, known)}")
    return [s for s in found if workload in (None, s.workload)]


def _models(manifest: dict[str, Any], seen: list[str]) -> list[str]:
    """Models with rows, and those that the recipe lists and no row has.

    Rows name a model with commit and backend (`org/name@commit[eager]`), a recipe may not. A recipe of one model
    may also be a path: its rows are the model's, whatever their name.
    """
    planned = manifest["recipe"].get("model")
    if not isinstance(planned, list):
        return sorted(set(seen)) or ([planned] if planned else [])
    there = {_bare(m) for m in seen}
    return sorted({*seen, *(m for m in planned if _bare(m) not in there)})


def _refuse_backends(ledger: str, models: Sequence[str]) -> None:
    """Rows of two attention backends are never put into one mean (docs/audit.md, hazard 1)."""
    backends = sorted({m.partition("[")[2].rstrip("]") or DEFAULT_BACKEND for m in models})
    if len(backends) > 1:
        raise RefusedError(
            f"{ledger}: holds rows of several attention backends ({', '.join(backends)}), which may not be "
            "compared; audit a ledger of one"
        )


def _bare(model: str) -> str:
    return model.split("[")[0].split("@")[0]


def _columns(manifest: dict[str, Any], runs: dict[str, list[Any]], models: list[str]) -> list[Column]:
    """Planned cells under every model, and cells with rows though not planned; the mildest setting first."""
    planned = {Column(m, *_parts(cell)) for cell in manifest.get("cells", []) for m in models}
    names = ("model", "method", "setting", "protocol")
    found = planned | {Column(*key) for key in zip(*(runs[n] for n in names), strict=True)}
    return sorted(found, key=lambda c: (c.model, c.method, c.removed or 0.0, c.setting, c.protocol))


def _parts(cell: str) -> tuple[str, str, str]:
    """Method, setting and protocol of a cell's key. Raises DataError for what is no key."""
    parts = cell.rsplit("/", 2)
    protocol = f"query_{parts[-1]}"
    if len(parts) != 3 or protocol not in PROTOCOLS:
        raise DataError(f"manifest.json: plans the cell {cell}; a cell is method/setting/agnostic or …/aware")
    return parts[0], parts[1], protocol


def _fill(
    sources: list[Source],
    columns: list[Column],
    models: list[str],
    tables: dict[str, dict[str, list[Any]]],
    visibility: dict[str, str],
) -> Matrix:
    kinds: dict[tuple[str, str | None], int] = {(AVAILABLE, None): 0, (ABSENT, None): 1}
    row_of = {s.source_id: i for i, s in enumerate(sources)}
    column_of = {c: i for i, c in enumerate(columns)}
    model_of = {m: i for i, m in enumerate(models)}
    codes = np.ones((len(sources), len(columns)), dtype=np.int64)
    scores, degenerate = np.full(codes.shape, np.nan), np.zeros(codes.shape, dtype=bool)
    runs = tables["runs"]
    names = ("source_id", "model", "method", "setting", "protocol", "state", "why", "score", "degenerate")
    for source, model, method, setting, protocol, *told in zip(*(runs[n] for n in names), strict=True):
        if source not in row_of:
            continue
        at = row_of[source], column_of[Column(model, method, setting, protocol)]
        codes[at] = kinds.setdefault((told[0], told[1]), len(kinds))
        scores[at] = np.nan if told[2] is None else told[2]
        degenerate[at] = told[3] is not None and told[0] == AVAILABLE
    control_codes = np.ones((len(sources), len(models)), dtype=np.int64)
    controls = np.full(control_codes.shape, np.nan)
    full = tables["controls"]
    for source, model, state, why, score in zip(
        *(full[n] for n in ("source_id", "model", "state", "why", "score")), strict=True
    ):
        if source in row_of:
            at = row_of[source], model_of[model]
            control_codes[at] = kinds.setdefault((state, why), len(kinds))
            controls[at] = np.nan if score is None else score
    listed = list(kinds)
    return Matrix(sources, columns, models, listed, codes, scores, degenerate, control_codes, controls, visibility)
