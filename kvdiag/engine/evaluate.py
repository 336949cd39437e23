"""`kvdiag evaluate`: one more method on a ledger's own sources, against the ledger's own controls.

The engine computes the control in the pass that runs the method, so it costs nothing to compare it with the stored
one. Where both agree the stored control stands in the new ledger and all runs are paired with it: a source has one
control, whoever runs it. Where they do not, the source's rows are `failed: control_disagrees`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvdiag import recipes
from kvdiag.diagnostics.signatures import Thresholds
from kvdiag.engine import stored
from kvdiag.engine.again import short_of_memory
from kvdiag.engine.against import cannot_run, load_same_model, run_one
from kvdiag.engine.build import Plan, Watcher, environment
from kvdiag.engine.candidate import Candidate, method_row
from kvdiag.engine.guard import guarded
from kvdiag.engine.sound import sound
from kvdiag.engine.stopping import StopSwitch
from kvdiag.engine.stored import Stored
from kvdiag.engine.views import Cell
from kvdiag.errors import DataError, UsageError
from kvdiag.ledger.finish import write_ledger
from kvdiag.ledger.intact import refuse_damaged
from kvdiag.ledger.layout import MANIFEST, WORK, read_manifest
from kvdiag.ledger.work import WorkFolder, check_recipe, refuse_other
from kvdiag.methods import catalogue
from kvdiag.methods.catalogue import Method
from kvdiag.methods.settings import Setting, parse_setting
from kvdiag.prompts import PromptBuilder
from kvdiag.query.connection import connect, rows
from kvdiag.records.keys import PROTOCOLS
from kvdiag.records.schema import to_table
from kvdiag.workloads.base import Source
from kvdiag.workloads.stored import from_row

# More sources than this share whose control disagrees: another model or machine, and nothing can be compared.
MOST_DISAGREE = 0.2
DEFAULT_SETTINGS = {"keep": ("keep=0.75", "keep=0.5", "keep=0.25"), "bits": ("bits=8", "bits=4", "bits=2")}


@dataclass(frozen=True)
class Choice:
    """What to run; None for all that the ledger has. model: where the ledger's model lies on this machine."""

    settings: tuple[str, ...] | None = None
    protocols: tuple[str, ...] | None = None
    limit: int | None = None
    model: str | None = None


def evaluate(
    ledger: Path,
    candidate: Candidate,
    choice: Choice,
    out: Path | None = None,
    watcher: Watcher | None = None,
    switch: StopSwitch | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Run the method and write a ledger of its rows; returns its folder and manifest.

    Goes on where an interrupted evaluation of the same code stopped. Raises UsageError for a choice that does not
    fit the ledger, DataError when its model is another here, too many controls disagree or the disk is full,
    Stopped when the switch was asked.
    """
    watcher, switch = watcher or Watcher(), switch or StopSwitch()
    found = stored.read(ledger, choice.limit)
    out = out or Path("evaluations") / f"{candidate.method.id}-{candidate.code[:8]}"
    recipe = _recipe(found, candidate, choice)
    check_recipe(out, recipe)
    plan = make_plan(found, candidate, choice, recipe, out)
    whole = plan.as_dict() | {"recipe": recipe}
    if (out / MANIFEST).is_file() and not (out / WORK).is_dir():
        manifest = read_manifest(out)
        refuse_other(out, manifest, whole)
        refuse_damaged(out, manifest)
        watcher.planned(plan, len(plan.sources))
        return out, manifest
    work = WorkFolder(out)
    with work.locked():
        ids = [source.source_id for source in plan.sources]
        with work.writing(ids):
            work.adopt(whole)
        done, seconds = _run_all(plan, found, work, watcher, switch)
        with work.writing(ids):
            manifest = _write(out, plan, found, candidate, whole, done, seconds)
        if left := work.remove():
            watcher.warned(left)
    return out, manifest


def _recipe(found: Stored, candidate: Candidate, choice: Choice) -> dict[str, Any]:
    """The ledger's recipe with this method in place of its own: everything that decides what the rows say."""
    method, manifest = candidate.method, found.manifest
    ran = _ran(found)
    _check_ledger(found)
    _check_name(found.ledger, candidate, {m for m, _, _ in ran})
    settings = _settings(method, choice.settings, [s for _, s, _ in ran])
    protocols = choice.protocols or tuple(p for _, _, p in ran)
    return {k: v for k, v in manifest["recipe"].items() if k != "merged"} | {
        "name": method.id,
        "methods": [method.id],
        "settings": [str(s) for s in settings],
        "protocols": [p for p in PROTOCOLS if p in protocols],
        "limit": len(found.sources),
        "evaluation": {
            "of": reference_digest(found),
            "method": candidate.spec,
            "code_sha256": candidate.code,
            "conformance": dict(candidate.conformance),
            "nll_bound": stored.nll_bound(str(manifest["environment"].get("dtype"))),
        },
    }


def _ran(found: Stored) -> list[tuple[str, str, str]]:
    """Method, setting and protocol of every cell of the ledger's model."""
    connection = connect(found.ledger)
    try:
        sql = "SELECT DISTINCT method, setting, protocol FROM runs WHERE model = ? ORDER BY ALL"
        return [(r["method"], r["setting"], r["protocol"]) for r in rows(connection, sql, [found.model])]
    finally:
        connection.close()


def _check_ledger(found: Stored) -> None:
    """Raise unless a method can run on the ledger's sources."""
    name = f"--data {found.ledger}"
    if "evaluation" in found.manifest["recipe"]:
        raise UsageError(f"{name}: is itself an evaluation; name the ledger that it was made against")
    if not found.sources:
        raise DataError(f"{name}: has no source with a control of {found.model}")
    if all(s["text_status"] != "available" for s in found.sources):
        raise DataError(
            f"{name}: lacks the texts of its sources ({found.sources[0]['text_reason']}), so no method can "
            "run on them; use a ledger that kvdiag build made"
        )


def _check_name(ledger: Path, candidate: Candidate, known: set[str]) -> None:
    """Raise where the method's id is another's, or its rows are there already."""
    method, name = candidate.method.id, f"--method {candidate.spec}"
    if ":" in candidate.spec and method in catalogue.methods():
        raise UsageError(f"{name}: {method} is a method of kvdiag; give your class another name")
    if method in known:
        raise UsageError(
            f"{name}: {ledger} has runs of a method {method} already; give your class another name, "
            "or compare with kvdiag compare"
        )


def _settings(method: Method, asked: Sequence[str] | None, there: Sequence[str]) -> list[Setting]:
    kind = method.setting_kind
    if asked:
        chosen = [parse_setting(s) for s in dict.fromkeys(asked)]
        for setting in chosen:
            if setting.kind != kind:
                raise UsageError(
                    f"--setting {setting}: {method.id} takes settings like {DEFAULT_SETTINGS[kind][1]}"
                )
    else:
        chosen = [s for s in map(_parsed, there) if s is not None and s.kind == kind]
        chosen = chosen or [parse_setting(s) for s in DEFAULT_SETTINGS[kind]]
    return sorted(set(chosen), reverse=True)


def _parsed(text: str) -> Setting | None:
    try:
        return parse_setting(text)
    except UsageError:  # an imported ledger's label
        return None


def reference_digest(found: Stored) -> str:
    """What tells a ledger's controls apart, wherever it lies: sha256 over their keys, answers and NLL."""
    told = [(c["control_id"], c["output_tokens"], c["output"], c["nll"]) for c in found.controls.values()]
    return hashlib.sha256(json.dumps(sorted(told, key=lambda t: t[0])).encode()).hexdigest()


def make_plan(found: Stored, candidate: Candidate, choice: Choice, recipe: dict[str, Any], out: Path) -> Plan:
    """Load the ledger's model and lay out the cells."""
    model = load_same_model(found, choice.model)
    known = {f.name for f in fields(recipes.Recipe)}
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in recipe.items() if k in known}
    cells = [Cell(candidate.method, parse_setting(s), p) for s in recipe["settings"] for p in recipe["protocols"]]
    cannot = cannot_run(model, candidate)
    sources = [from_row(s, textless=True) for s in found.sources]
    used = environment(model, cannot) | {"files": found.manifest["environment"].get("files", {})}
    return Plan(recipes.Recipe(**plain), out, model, sources, cells, cannot, used, guarded(candidate.make))


@dataclass(frozen=True)
class _Ran:
    """A source, its rows and the seconds of each stage; no seconds where the model did not run."""

    source: Source
    records: dict[str, Any]
    seconds: dict[str, float]

    def works(self) -> bool:
        """Whether the model ran it to the end."""
        return bool(self.seconds)

    def error(self) -> str | None:
        """Of an exception that is not the method's own: those become rows and the model runs on."""
        run, control = self.records["runs"][0], self.records["control"]
        if self.seconds or control["status"] != "available" or run["reason"] != "exception":
            return None
        return str(run["detail"])


def _run_all(
    plan: Plan, found: Stored, work: WorkFolder, watcher: Watcher, switch: StopSwitch
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Rows of every source, each committed as it is done, and seconds by stage."""
    prompts = PromptBuilder.create(plan.model.tokenizer, plan.recipe.prompt)
    rows_of = {row["source_id"]: row for row in found.sources}
    ids = [source.source_id for source in plan.sources]
    committed = {s: records for s in ids if (records := work.load(s)) is not None}
    watcher.planned(plan, len(committed))
    for text in work.damaged:
        watcher.warned(text)
    total: dict[str, float] = {}
    shown = [s for s in plan.sources if _shows(committed.get(s.source_id))]

    def run(source: Source) -> _Ran:
        row, control = rows_of[source.source_id], found.controls[source.source_id]
        return _Ran(source, *run_one(plan, prompts, source, row, control))

    def each() -> Iterator[_Ran]:
        for source in plan.sources:
            if source.source_id not in committed:
                if switch.asked is not None:
                    return
                watcher.source_started(source)
                yield run(source)

    with switch.deferred():
        for done in sound(each(), _Ran.works, _Ran.error, lambda: bool(shown) and run(shown[0]).works(), switch):
            with work.writing(ids):
                work.commit(done.records)
            committed[done.source.source_id] = done.records
            if done.works():
                shown.append(done.source)
            for stage, spent in done.seconds.items():
                total[stage] = total.get(stage, 0.0) + spent
            watcher.source_done(done.source, done.seconds)
            _check_controls(list(committed.values()), plan, found)
    switch.check()
    _check_controls(list(committed.values()), plan, found)
    return [committed[s] for s in ids], total


def _shows(records: dict[str, Any] | None) -> bool:
    """Whether a committed source has a row that was run to its end."""
    return records is not None and any(run["status"] == "available" for run in records["runs"])


def _check_controls(done: Sequence[dict[str, Any]], plan: Plan, found: Stored) -> None:
    """Raise DataError once more than the allowed share of all planned sources has another control."""
    wrong = [r for r in done if r["disagreement"]]
    if len(wrong) <= MOST_DISAGREE * len(plan.sources):
        return
    changed = stored.environment_changes(found.manifest["environment"], plan.environment)
    raise DataError(
        f"--data {found.ledger}: stopped, the full cache does not agree with the ledger's on {len(wrong)} of "
        f"{len(plan.sources)} sources (more than {MOST_DISAGREE:.0%}), first {wrong[0]['source']['source_id']}: "
        f"{wrong[0]['disagreement']}; "
        + (f"this machine differs in {'; '.join(changed)}" if changed else "the method may change what others see")
        + ". Build a ledger here with kvdiag build and evaluate against it"
    )


def _write(
    out: Path,
    plan: Plan,
    found: Stored,
    candidate: Candidate,
    whole: dict[str, Any],
    done: Sequence[dict[str, Any]],
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    if not candidate.verified:
        for run in (run for r in done for run in r["runs"]):
            run["detail"] = "unverified" + (f"; {run['detail']}" if run["detail"] else "")
    tables: dict[str, list[dict[str, Any]]] = {
        "sources": [r["source"] for r in done],
        "controls": [r["control"] for r in done],
        "runs": [run for r in done for run in r["runs"]],
        "retention": [row for r in done for row in r["retention"]],
        "methods": [method_row(candidate)],
    }
    return write_ledger(
        out,
        {table: to_table(table, of_table) for table, of_table in tables.items()},
        plan=whole,
        thresholds=Thresholds(**found.manifest["thresholds"]),
        build={
            "seconds_by_stage": {k: round(v, 3) for k, v in seconds.items()},
            "reference": str(found.ledger),
            "environment_differs": stored.environment_changes(found.manifest["environment"], plan.environment),
            "controls_that_disagree": sum(bool(r["disagreement"]) for r in done),
            **short_of_memory(done),
        },
    )
