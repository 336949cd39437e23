"""Runs of a candidate against a ledger's stored controls, source by source; and submitted rows run again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvdiag import recipes
from kvdiag.engine import stored
from kvdiag.engine.candidate import Candidate
from kvdiag.engine.guard import guarded
from kvdiag.engine.models import LoadedModel, load_model
from kvdiag.engine.plan import Plan
from kvdiag.engine.probe import probe
from kvdiag.engine.rows import Gap, Subject, records
from kvdiag.engine.source import described, run_source
from kvdiag.engine.stored import Stored
from kvdiag.engine.views import Cell
from kvdiag.errors import DataError
from kvdiag.methods.settings import parse_setting
from kvdiag.prompts import Prompt, PromptBuilder
from kvdiag.records.keys import PROTOCOLS
from kvdiag.workloads.base import Source
from kvdiag.workloads.stored import from_row

REASON = "control_disagrees"
# The probe's context has 152 positions; a method that needs more cannot be told by it.
_PROBED = 152


def load_same_model(found: Stored, path: str | None = None) -> LoadedModel:
    """The model a ledger was built with. path: where it lies here. Raises DataError when it is another one."""
    recipe, then = found.manifest["recipe"], found.manifest["environment"]
    name = path or recipe["model"]
    model = load_model(
        name, then["dtype"], recipe["device"], recipe["trust_remote_code"], recipe.get("attention", "sdpa")
    )
    for what, here, there in (
        ("weights", model.digest, then["model_digest"]),
        ("tokenizer", model.tokenizer_digest, then["tokenizer_sha256"]),
    ):
        if here != there:
            raise DataError(
                f"--data {found.ledger}: was built with other {what} of {then['model']} than {name} has here; "
                "name the same model with --model"
            )
    return replace(model, name=found.model)


def cannot_run(model: LoadedModel, candidate: Candidate) -> dict[str, Gap]:
    """Whether this model or machine cannot run the method at all, as the probe of a build tells."""
    if candidate.method.min_positions > _PROBED:
        return {}
    return probe(model, [candidate.method], guarded(candidate.make))


def run_one(
    plan: Plan, prompts: PromptBuilder, source: Source, row: dict[str, Any], control: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Rows of one source: the stored source and control, and runs paired with it; `disagreement` says why not."""
    gap: Gap | None = None
    disagreement = None
    done: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    if row["text_status"] != "available":
        gap = Gap("unsupported", "no_text", f"the ledger lacks this source's texts ({row['text_reason']})")
    elif control["status"] != "available":
        gap = Gap(control["status"], control["reason"], control["detail"])
    else:
        try:
            done, seconds = run_source(plan, prompts, source)
        except Exception as error:  # past the guard: these rows fail, the evaluation goes on
            gap = Gap("failed", "exception", described(error))
        else:
            disagreement = _disagreement(plan, row, control, done)
            gap = Gap("failed", REASON, disagreement) if disagreement else None
    if gap is not None:
        subject = Subject(source, _no_prompt(row), plan.model.name, plan.model.tokenizer)
        done = records(subject, plan.cells, gap, {})
    runs = [stored.paired(run, control) for run in done["runs"]]
    return done | {"source": row, "control": control, "runs": runs, "disagreement": disagreement}, seconds


def _disagreement(plan: Plan, row: dict[str, Any], control: dict[str, Any], done: dict[str, Any]) -> str | None:
    if row["prompt_hash"] != done["source"]["prompt_hash"]:
        return "the prompt is another one here (its hash differs)"
    if done["control"]["status"] != "available":
        return None  # out of memory, say: the rows tell
    return stored.disagreement(control, done["control"], plan.model.dtype)


def _no_prompt(row: dict[str, Any]) -> Prompt:
    """A prompt for rows that have no answer: they ask it for nothing."""
    return Prompt("", (), 0, 0, (), (), row["evidence_status"], row["evidence_reason"])


def rerun(
    base: Stored,
    candidate: Candidate,
    wanted: Sequence[Mapping[str, Any]],
    among: Sequence[Mapping[str, Any]] = (),
    model: str | None = None,
) -> list[str]:
    """Run rows of a submission again; returns what differs, a line a row: nothing where all is equal.

    base: the ledger with the texts. wanted: rows of `runs`. among: all rows of the submission; those of the same
    sources run along, since the settings of a method share an object and a batch, and so their fate.

    Raises DataError when rows are another method's, and for what is the base's or this machine's fault.
    """
    others = {r["method"] for r in (*wanted, *among)} - {candidate.method.id}
    if others:
        raise DataError(
            f"--method {candidate.spec}: is {candidate.method.id}; the rows are of {sorted(others)[0]}"
        )
    sources = {s["source_id"]: s for s in base.sources}
    _check_texts(base, [sources[r["source_id"]] for r in wanted])
    loaded = load_same_model(base, model)
    prompts = PromptBuilder.create(loaded.tokenizer, base.manifest["recipe"]["prompt"])
    make, cannot, found = guarded(candidate.make), cannot_run(loaded, candidate), []
    for source_id in dict.fromkeys(r["source_id"] for r in wanted):
        own = {r["cell_id"]: r for r in wanted if r["source_id"] == source_id}
        cells = _cells(candidate, [r for r in (*wanted, *among) if r["source_id"] == source_id])
        row = sources[source_id]
        recipe = recipes.Recipe("rerun", row["workload"], (), 1, 0, loaded.name, "chat", (), (), ())
        plan = Plan(recipe, Path(), loaded, [], cells, cannot, {}, make)
        done, _ = run_one(plan, prompts, from_row(row, textless=True), row, base.controls[source_id])
        if done["disagreement"]:
            raise DataError(
                f"source {source_id} cannot be run again on this machine, which says nothing of the submission: "
                f"{done['disagreement']}"
            )
        again = [run for run in done["runs"] if run["cell_id"] in own]
        _check_memory(again, own)
        found += [line for run in again if (line := _differs(own[run["cell_id"]], run, loaded.dtype))]
    return found


def _cells(candidate: Candidate, runs: Sequence[Mapping[str, Any]]) -> list[Cell]:
    """The cells of these rows, in an evaluation's order."""
    found = {r["cell_id"]: Cell(candidate.method, parse_setting(r["setting"]), r["protocol"]) for r in runs}
    by_protocol = sorted(found.values(), key=lambda cell: PROTOCOLS.index(cell.protocol))
    return sorted(by_protocol, key=lambda cell: cell.setting, reverse=True)


def _check_texts(base: Stored, wanted: Sequence[Mapping[str, Any]]) -> None:
    bare = [s for s in wanted if s["text_status"] != "available"]
    if bare:
        raise DataError(
            f"--data {base.ledger}: lacks the texts of {len({s['source_id'] for s in bare})} of the drawn sources "
            f"({bare[0]['text_reason']}), so they cannot be run again; merge from the ledger that has them"
        )


def _check_memory(again: Sequence[Mapping[str, Any]], own: Mapping[str, Mapping[str, Any]]) -> None:
    for run in again:
        if run["reason"] == "oom" and own[run["cell_id"]]["reason"] != "oom":
            raise DataError(
                f"{run['run_id']}: memory ran out on this machine, which says nothing of the submission; "
                "run the sample on a larger one"
            )


def _differs(then: Mapping[str, Any], now: Mapping[str, Any], dtype: str) -> str | None:
    for name in ("status", "reason", "output_tokens", "kept_tokens_min", "kept_tokens_max", "kv_bytes", "correct"):
        if then[name] != now[name]:
            return f"{then['run_id']}: {name} is {str(now[name])[:80]}, submitted as {str(then[name])[:80]}"
    wrong = stored.disagreement(then, now, dtype)
    return f"{then['run_id']}: {wrong}" if wrong else None
