"""Submissions: an evaluation packed for a data set, reviewed against it, and offered as a pull request."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import jinja2
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.ledger.files import sha256, to_json
from kvdiag.ledger.layout import CARD, MANIFEST, read_manifest
from kvdiag.ledger.parquet import write_table
from kvdiag.publish.hub import Hub, explain
from kvdiag.publish.release import Content
from kvdiag.publish.texts import TEXTS, withhold
from kvdiag.query.connection import connect, rows
from kvdiag.records.schema import arrow_schema, column_names
from kvdiag.resources import folder
from kvdiag.validation.validate import validate

FACTS = "submission.json"
FORM = 1
_LONGEST_CONTACT = 200
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
    evaluation: Path, base: Path, repo: str, contact: str, dry_run: bool = False, api: Any = None
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
        hub = Hub(repo, api)
        head, _ = hub.head()
        if head is None:
            raise UsageError(f"REPO {repo}: no such data set on the Hub, or this login may not see it")
        if any(name.startswith(f"{packed.folder}/") for name in hub.files(head)):
            raise RefusedError(f"{repo} has {packed.folder} already; change the method's name, or its code")
        return packed, _pull_request(packed, repo, api)


def _pull_request(packed: Submission, repo: str, api: Any) -> str:
    from huggingface_hub import CommitOperationAdd, HfApi

    operations = [
        CommitOperationAdd(path_in_repo=f"{packed.folder}/{name}", path_or_fileobj=content)
        for name, content in packed.files.items()
    ]
    try:
        done = (api or HfApi()).create_commit(
            repo,
            operations,
            commit_message=f"kvdiag submit: {packed.facts['method']}",
            commit_description=f"{packed.facts['runs']} runs, offered by {packed.facts['contact']}",
            repo_type="dataset",
            create_pr=True,
        )
    except Exception as error:
        raise explain(repo, "opening the pull request", error) from error
    return str(done.pr_url)


def pack(evaluation: Path, contact: str, scratch: Path) -> Submission:
    """The files of a submission. scratch: a folder for tables that lose their texts."""
    manifest = read_manifest(evaluation)
    facts = _facts(evaluation, manifest, _contact(contact))
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
    files[MANIFEST] = to_json(_public(manifest), indent=1)
    files[FACTS] = to_json(facts, indent=1)
    files[CARD] = _card(evaluation, facts).encode("utf-8")
    return Submission(facts["folder"], facts, files)


def _contact(contact: str) -> str:
    text = contact.strip()
    if not text or len(text) > _LONGEST_CONTACT or not text.isprintable():
        raise UsageError(
            f"--contact: must be one line of at most {_LONGEST_CONTACT} characters, as a name and e-mail"
        )
    return text


def _facts(evaluation: Path, manifest: Mapping[str, Any], contact: str) -> dict[str, Any]:
    about = evaluation_of(evaluation, manifest)
    (method,) = manifest["recipe"]["methods"]
    runs = read_table(evaluation, "runs")
    return {
        "form": FORM,
        "folder": f"submissions/{method}-{about['code_sha256'][:8]}",
        "method": method,
        "contact": contact,
        "evaluated": about["method"],
        "code_sha256": about["code_sha256"],
        "conformance": about["conformance"],
        "reference": about["of"],
        "nll_bound": about["nll_bound"],
        "environment": manifest["environment"],
        "environment_differs": manifest["build"].get("environment_differs", []),
        "controls_that_disagree": manifest["build"].get("controls_that_disagree", 0),
        "kvdiag_version": manifest["kvdiag_version"],
        "sources": manifest["rows"]["sources"],
        "runs": runs.num_rows,
        "answered": pc.sum(pc.equal(runs["status"], "available")).as_py() or 0,
    }


def evaluation_of(evaluation: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation's manifest says of its method. Raises UsageError when it is no evaluation."""
    about = manifest["recipe"].get("evaluation")
    if about is None:
        raise UsageError(f"{evaluation}: not an evaluation; kvdiag evaluate makes them")
    return dict(about)


def _public(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest without times, nor folders of the machine that ran it."""
    recipe = dict(manifest["recipe"])
    recipe |= {
        "model": manifest["environment"]["model"],
        "haystack": PurePath(recipe.get("haystack") or "noise").name,
    }
    recipe["files"] = [PurePath(f).name for f in recipe.get("files") or []]
    return {**manifest, "recipe": recipe, "build": {}}


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
    taken = _taken(submission, base)
    if taken:
        raise RefusedError(f"{named}: {taken}")
    found = review(submission, base)
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
    found = [f.line() for f in validate(submission)]
    if found:
        return found
    own, there = read_manifest(submission), read_manifest(base)
    evaluation_of(submission, own)
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
    found += _unequal(
        "source", "source_id", *(read_table(p, "sources").select(columns) for p in (submission, base))
    )
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
