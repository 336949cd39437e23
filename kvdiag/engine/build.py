"""`kvdiag build`: plan, run every source through the matrix, commit each, compact to a ledger."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from kvdiag.engine.again import is_better, is_short, ran, short, short_of_memory
from kvdiag.engine.plan import Plan, environment, make_plan
from kvdiag.engine.sound import sound
from kvdiag.engine.source import SourceDone, attempt, run_source
from kvdiag.engine.stopping import StopSwitch
from kvdiag.engine.watch import Watcher, memory
from kvdiag.errors import DataError
from kvdiag.ledger.finish import write_ledger
from kvdiag.ledger.intact import damage, refuse_altered, refuse_damaged
from kvdiag.ledger.layout import MANIFEST, WORK, read_manifest
from kvdiag.ledger.work import WorkFolder, check_recipe, refuse_other
from kvdiag.methods import catalogue
from kvdiag.prompts import PromptBuilder
from kvdiag.recipes import Recipe
from kvdiag.records.schema import to_table
from kvdiag.workloads.base import Source

__all__ = [
    "LocalRunner",
    "Plan",
    "Runner",
    "Watcher",
    "build",
    "default_out",
    "environment",
    "make_plan",
    "run_source",
]

# Sources whose rows become Arrow columns together.
BATCH = 64


class Runner(Protocol):
    """What runs the sources of a plan: this process, or a pool of others (kvdiag.scale)."""

    def plan(self, recipe: Recipe, out: Path) -> Plan:
        """The plan, made where the model is."""

    def run(
        self, plan: Plan, todo: Sequence[Source], watcher: Watcher, switch: StopSwitch
    ) -> Generator[SourceDone]:
        """Sources as they are done, in any order. Starts none after the switch was asked to stop."""

    def about(self) -> dict[str, Any]:
        """What the manifest's `build` part says of it."""


class LocalRunner:
    """One source after the other, in this process."""

    def plan(self, recipe: Recipe, out: Path) -> Plan:
        """The plan, with the model loaded."""
        return make_plan(recipe, out)

    def run(
        self, plan: Plan, todo: Sequence[Source], watcher: Watcher, switch: StopSwitch
    ) -> Generator[SourceDone]:
        """Sources in the plan's order."""
        prompts = PromptBuilder.create(plan.model.tokenizer, plan.recipe.prompt)
        for source in todo:
            if switch.asked is not None:
                return
            watcher.source_started(source)
            yield attempt(plan, prompts, source)

    def about(self) -> dict[str, Any]:
        """Nothing to say."""
        return {}


def build(
    recipe: Recipe,
    out: Path,
    watcher: Watcher | None = None,
    runner: Runner | None = None,
    switch: StopSwitch | None = None,
    work_at: str | None = None,
) -> dict[str, Any]:
    """Build a ledger; returns its manifest. Goes on where an interrupted build of the same recipe stopped.

    runner: what runs the sources. switch: asks it to stop. work_at: where committed sources are kept until the
    ledger is whole, `.work` in it or any fsspec address.

    Raises UsageError or RefusedError before anything is written when the recipe cannot be built there, DataError
    when a finished ledger there is damaged, the disk is full or the store does not answer, Stopped when the switch
    was asked.
    """
    watcher, runner, switch = watcher or Watcher(), runner or LocalRunner(), switch or StopSwitch()
    check_recipe(out, recipe.as_dict())
    plan = runner.plan(recipe, out)
    if (out / MANIFEST).is_file() and not (out / WORK).is_dir():
        manifest = _finished(plan)
        refuse_damaged(out, manifest)
        watcher.planned(plan, len(plan.sources))
        return manifest
    work = WorkFolder(out, work_at)
    with work.locked():
        if (out / MANIFEST).is_file():  # finished meanwhile by another process, or killed as it tidied up
            manifest = _finished(plan)
            if not damage(out, manifest):
                watcher.planned(plan, len(plan.sources))
                if left := work.remove():
                    watcher.warned(left)
                return manifest
        with work.writing(_ids(plan)):
            work.adopt(plan.as_dict())
        return _run(plan, work, watcher, runner, switch)


def _finished(plan: Plan) -> dict[str, Any]:
    """The manifest of the ledger that is there, which must be this plan's."""
    manifest = read_manifest(plan.out)
    refuse_altered(plan.out, manifest)
    refuse_other(plan.out, manifest, plan.as_dict())
    return manifest


def _run(plan: Plan, work: WorkFolder, watcher: Watcher, runner: Runner, switch: StopSwitch) -> dict[str, Any]:
    started = time.monotonic()
    todo = [s for s in plan.sources if work.load(s.source_id) is None]
    kept = len(plan.sources) - len(todo)
    watcher.planned(plan, kept)
    for text in work.damaged:
        watcher.warned(text)
    writing, perhaps_short = 0.0, kept > 0  # of sources kept before, that is not known yet
    with switch.deferred(), closing(runner.run(plan, todo, watcher, switch)) as found:
        for done in sound(
            _told(found, watcher), _works, _error, lambda: _again(plan, work, runner, switch), switch
        ):
            start = time.perf_counter()
            with work.writing(_ids(plan)):
                # Stages go into the work file, so that a resumed build can tell those of all its sources.
                work.commit(done.records | {"seconds": done.seconds})
            spent = time.perf_counter() - start
            writing += spent
            watcher.source_done(done.source, done.seconds | {"write": spent})
            perhaps_short = perhaps_short or is_short(done.records)
    switch.check()
    if perhaps_short:
        _run_again(plan, work, watcher, runner, switch)
    with work.writing(_ids(plan)):
        start = time.perf_counter()
        tables, seconds, told = _gather(plan, work)
        seconds["write"] = writing + time.perf_counter() - start
        manifest = write_ledger(
            plan.out,
            tables,
            plan=plan.as_dict(),
            thresholds=plan.recipe.signature_thresholds(),
            build={
                "seconds_by_stage": {k: round(v, 3) for k, v in seconds.items()},
                "seconds": round(time.monotonic() - started, 3),
                "sources_resumed": kept,
                **told,
                **memory(),
                **runner.about(),
            },
        )
    if left := work.remove():
        watcher.warned(left)
    watcher.finished(manifest)
    return manifest


def _ids(plan: Plan) -> list[str]:
    return [source.source_id for source in plan.sources]


def _run_again(plan: Plan, work: WorkFolder, watcher: Watcher, runner: Runner, switch: StopSwitch) -> None:
    """Run what ran out of memory once more, and keep what is better. Nothing is lost where this is interrupted."""
    committed = (records for source in plan.sources if (records := work.load(source.source_id)) is not None)
    chosen = set(short(committed))
    if not chosen:
        return
    watcher.warned(f"{len(chosen)} sources ran out of memory, in all or some cells; they are run once more")
    waiting = [source for source in plan.sources if source.source_id in chosen]
    with switch.deferred(), closing(runner.run(plan, waiting, watcher, switch)) as found:
        for done in _told(found, watcher):
            if is_better(done.records, _committed(work, done.source)):
                with work.writing(_ids(plan)):
                    work.commit(done.records | {"seconds": done.seconds})
    switch.check()
    if _ran_before(plan, work) is None:
        raise DataError(
            f"{len(waiting)} sources ran out of memory, twice each, and none runs here: give a smaller --model or "
            "--length, --dtype bfloat16, or a device with more memory (where something else held it: run the same "
            "command again)"
        )


def _told(found: Iterator[SourceDone], watcher: Watcher) -> Iterator[SourceDone]:
    """The same sources; the watcher hears of tries that failed."""
    for done in found:
        for failure in done.failures:
            watcher.failed(failure)
        yield done


def _works(done: SourceDone) -> bool:
    return ran(done.records)


def _error(done: SourceDone) -> str | None:
    return done.failures[-1].error if done.failed else None


def _again(plan: Plan, work: WorkFolder, runner: Runner, switch: StopSwitch) -> bool:
    """Whether a source that ran well runs well now; its rows are not taken again."""
    source = _ran_before(plan, work)
    if source is None:
        return False
    with closing(runner.run(plan, [source], Watcher(), switch)) as found:
        return any(_works(done) for done in found)


def _ran_before(plan: Plan, work: WorkFolder) -> Source | None:
    """The first committed source that the model ran."""
    for source in plan.sources:
        records = work.load(source.source_id)
        if records is not None and ran(records):
            return source
    return None


def _gather(plan: Plan, work: WorkFolder) -> tuple[dict[str, pa.Table], dict[str, float], dict[str, Any]]:
    """Tables of all committed sources in the plan's order, seconds by stage, and what went wrong on the way."""
    parts: dict[str, list[pa.Table]] = {"sources": [], "controls": [], "runs": [], "retention": []}
    seconds: dict[str, float] = {}
    exceptions: dict[str, str] = {}
    memory_facts: dict[str, dict[str, Any]] = {}
    for first in range(0, len(plan.sources), BATCH):
        rows = [_committed(work, source) for source in plan.sources[first : first + BATCH]]
        parts["sources"].append(to_table("sources", [r["source"] for r in rows]))
        parts["controls"].append(to_table("controls", [r["control"] for r in rows]))
        parts["runs"].append(to_table("runs", [run for r in rows for run in r["runs"]]))
        parts["retention"].append(to_table("retention", [row for r in rows for row in r["retention"]]))
        for fact, of_batch in short_of_memory(rows).items():
            memory_facts.setdefault(fact, {}).update(of_batch)
        for row in rows:
            for stage, spent in row["seconds"].items():
                seconds[stage] = seconds.get(stage, 0.0) + spent
            if (row["control"]["status"], row["control"]["reason"]) == ("failed", "exception"):
                exceptions[row["source"]["source_id"]] = row["control"]["detail"]
    tables = {table: pa.concat_tables(found).combine_chunks() for table, found in parts.items()}
    methods = [catalogue.method_row(m) for m in catalogue.select(plan.recipe.methods)]
    return (
        tables | {"methods": to_table("methods", methods)},
        seconds,
        {"exceptions": exceptions, **memory_facts},
    )


def _committed(work: WorkFolder, source: Source) -> dict[str, Any]:
    rows = work.load(source.source_id)
    if rows is None:
        raise DataError(
            f"{work.folder}: the work file of {source.source_id} went or was damaged while the build ran; "
            "run the same command again"
        )
    return rows


def default_out(recipe: Recipe, out: Path | None = None, alone: bool = True) -> Path:
    """`out`, or `ledgers/<recipe or workload>-<model>`. With other models beside it, a folder of its own there."""
    label = recipe.workload if recipe.name == "default" else recipe.name
    model = Path(recipe.model.split("@")[0]).name.removesuffix(".gguf")
    if out is None:
        return Path("ledgers") / f"{label}-{model}"
    return out if alone else out / f"{label}-{model}"
