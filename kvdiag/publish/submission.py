"""Submissions: an evaluation packed for a data set, reviewed against it, and offered as a pull request."""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.ledger.files import sha256, to_json
from kvdiag.ledger.intact import with_another_card
from kvdiag.ledger.layout import CARD, MANIFEST, read_manifest
from kvdiag.ledger.parquet import write_table
from kvdiag.publish.claims import FACTS, FORM, contact_of, disagreements, evaluation_of, folder_of
from kvdiag.publish.hub import Hub
from kvdiag.publish.licences import public_environment, public_recipe
from kvdiag.publish.release import Content
from kvdiag.publish.texts import TEXTS, withhold
from kvdiag.query.connection import connect, rows
from kvdiag.records.schema import arrow_schema, column_names
from kvdiag.resources import folder
from kvdiag.validation.validate import validate

# What a submission may lack beside the data set: texts, and whether they are there.
_TEXT_COLUMNS = {*TEXTS["sources"], "text_status", "text_reason"}


@dataclass(frozen=True)
class Submission:
    """What goes into a pull request. folder: where in the data set. files: by name in that folder."""

    folder: str
    facts: dict[str, Any]
    files: Mapping[str, Content]

    def write(self, out: Path) -> Path:
        """Put the files into `out`; returns it."""
        for name, content in self.files.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
        return out


def submit(
    evaluation: Path,
    base: Path,
    repo: str,
    contact: str,
    dry_run: bool = False,
    api: Any = None,
    wait: Callable[[float], None] = time.sleep,
) -> tuple[Submission, str | None]:
    """Offer an evaluation to `repo`; returns what was packed and the pull request's address (None in a dry run).

    base: the data set as it is now. It is reviewed first, as a maintainer would. Raises UsageError when it is no
    evaluation, DataError with the first finding of the review, RefusedError when the data set has it already.
    """
    with tempfile.TemporaryDirectory(prefix="kvdiag-submit-") as scratch:
        packed = pack(evaluation, contact, Path(scratch) / "tables")
        refuse(packed.write(Path(scratch) / "whole"), base, evaluation)
        if dry_run:
            return packed, None
        hub = Hub(repo, api, wait)
        head, _ = hub.head()
        if head is None:
            raise UsageError(f"REPO {repo}: no such data set on the Hub, or this login may not see it")
        if any(name.startswith(f"{packed.folder}/") for name in hub.files(head)):
            raise RefusedError(f"{repo} has {packed.folder} already; change the method's name, or its code")
        files = {f"{packed.folder}/{name}": content for name, content in packed.files.items()}
        facts = packed.facts
        return packed, hub.pull_request(
            files,
            f"kvdiag submit: {packed.folder.rpartition('/')[2]}",
            f"{facts['runs']} runs, offered by {facts['contact']}",
        )


def pack(evaluation: Path, contact: str, scratch: Path) -> Submission:
    """The files of a submission. scratch: a folder for tables that lose their texts."""
    manifest = read_manifest(evaluation)
    try:
        facts = _facts(evaluation, manifest, contact_of(contact))
    except ValueError as error:
        raise UsageError(f"--contact: {error}") from None
    files: dict[str, Content] = {}
    for entry in manifest["files"]:
        path = evaluation / entry["path"]
        if entry["table"] in TEXTS:
            data = pq.read_table(path, schema=arrow_schema(entry["table"]))
            stripped = withhold(entry["table"], data, pc.unique(data["workload"]).to_pylist())
            path = scratch / entry["path"]
            write_table(entry["table"], stripped, path)
            entry |= {"bytes": path.stat().st_size, "sha256": sha256(path)}
            files[entry["path"]] = path.read_bytes()  # the scratch folder goes
        else:
            files[entry["path"]] = path
    files[MANIFEST] = to_json(with_another_card(_public(manifest)), indent=1)
    files[FACTS] = to_json(facts, indent=1)
    files[CARD] = _card(evaluation, facts).encode("utf-8")
    return Submission(facts["folder"], facts, files)


def _facts(evaluation: Path, manifest: Mapping[str, Any], contact: str) -> dict[str, Any]:
    about = evaluation_of(evaluation, manifest)
    method = about["method_id"]
    runs = read_table(evaluation, "runs")
    return {
        "form": FORM,
        "folder": folder_of(about),
        "method": method,
        "contact": contact,
        "evaluated": about["method"],
        "code_sha256": about["code_sha256"],
        "conformance": about["conformance"],
        "reference": about["of"],
        "nll_bound": about["nll_bound"],
        "environment": public_environment(manifest["environment"]),
        "environment_differs": manifest["build"].get("environment_differs", []),
        "controls_that_disagree": manifest["build"].get("controls_that_disagree", 0),
        "kvdiag_version": manifest["kvdiag_version"],
        "sources": manifest["rows"]["sources"],
        "runs": runs.num_rows,
        "answered": _answered(runs),
    }


def _public(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest without times, nor folders of the machine that ran it."""
    recipe = public_recipe(manifest["recipe"]) | {"model": manifest["environment"]["model"]}
    return {**manifest, "recipe": recipe, "environment": public_environment(manifest["environment"]), "build": {}}


def _answered(runs: pa.Table) -> int:
    return int(pc.sum(pc.equal(runs["status"], "available")).as_py() or 0)


def _card(evaluation: Path, facts: Mapping[str, Any]) -> str:
    connection = connect(evaluation)
    try:
        (method,) = rows(connection, "FROM methods")
        cells = rows(
            connection,
            "SELECT method || '/' || setting || '/' || replace(protocol, 'query_', '') AS cell_id, "
            "sum(n_c2w)::INT AS n_c2w, sum(n_eligible)::INT AS n_eligible, sum(n_answered)::INT AS n_answered, "
            "sum(n_runs)::INT AS n_runs FROM failure_rates GROUP BY ALL ORDER BY ALL",
        )
    finally:
        connection.close()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder("cards")),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("submission.md.j2").render(facts=facts, method=method, cells=cells)


def refuse(submission: Path, base: Path, named: Path) -> None:
    """Raise DataError with the first finding of a review, RefusedError where rows are there already."""
    found = [f.line() for f in validate(submission)]  # first: what is not valid cannot be read
    if not found:
        taken = _taken(submission, base)
        if taken:
            raise RefusedError(f"{named}: {taken}")
        found = _against(submission, base)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise DataError(f"{named}: {found[0]}{more}")


def _taken(submission: Path, base: Path) -> str | None:
    """What of a submission the data set has already; rows are never overwritten."""
    own, there = (set(read_table(ledger, "methods")["method"].to_pylist()) for ledger in (submission, base))
    if own & there:
        return f"the data set has a method {sorted(own & there)[0]} already; rows are never overwritten"
    keys = pc.is_in(read_table(submission, "runs")["run_id"], value_set=read_table(base, "runs")["run_id"])
    n = pc.sum(keys).as_py() or 0
    return f"the data set has {n} of its runs already; rows are never overwritten" if n else None


def review(submission: Path, base: Path) -> list[str]:
    """What is wrong with a submission to a data set, a line each: its own rows, and how it pairs with the base."""
    return [f.line() for f in validate(submission)] or _against(submission, base)


def _against(submission: Path, base: Path) -> list[str]:
    """What is wrong with a submission whose rows are valid."""
    own, there = read_manifest(submission), read_manifest(base)
    runs = read_table(submission, "runs")
    found = disagreements(
        submission,
        own,
        read_table(submission, "methods").to_pylist(),
        set(runs["method"].to_pylist()),
        {"sources": own["rows"]["sources"], "runs": runs.num_rows, "answered": _answered(runs)},
    )
    if found:
        return found
    if own["schema_versions"] != there["schema_versions"]:
        return ["its tables have other contract versions than the data set's; evaluate with the same kvdiag"]
    for name in ("model", "model_digest", "tokenizer_sha256", "dtype"):
        then, now = there["environment"].get(name), own["environment"].get(name)
        if then != now:
            found.append(f"its {name} is {now}, the data set's is {then}")
    if own["thresholds"] != there["thresholds"]:
        found.append("its signatures have other thresholds than the data set's")
    if not own["complete"]:
        found.append("planned runs have no row")
    columns = [c for c in column_names("sources") if c not in _TEXT_COLUMNS]
    # Gold answers that may not be handed on are compared by their hashes, whichever side has them.
    both = [read_table(p, "sources") for p in (submission, base)]
    sources = [withhold("sources", s, pc.unique(s["workload"]).to_pylist()) for s in both]
    found += _unequal("source", "source_id", *(s.select(columns) for s in sources))
    found += _unequal("control", "control_id", *(read_table(p, "controls") for p in (submission, base)))
    return found


def _unequal(what: str, key: str, own: pa.Table, there: pa.Table) -> list[str]:
    """Rows that are not, or not the same, in the data set."""
    known = {r[key]: r for r in there.to_pylist()}
    found = []
    for row in own.to_pylist():
        other = known.get(row[key])
        if other is None:
            found.append(f"{what} {row[key]} is not in the data set")
        elif row != other:
            column = next(c for c in row if row[c] != other[c])
            found.append(f"{what} {row[key]}: {column} differs from the data set's")
    return found


def read_table(ledger: Path, table: str) -> pa.Table:
    """A whole table of a ledger, with the contract's schema."""
    schema = arrow_schema(table)
    paths = [ledger / f["path"] for f in read_manifest(ledger)["files"] if f["table"] == table]
    return pa.concat_tables([schema.empty_table(), *(pq.read_table(path, schema=schema) for path in paths)])
