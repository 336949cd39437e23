"""`kvdiag build`."""

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvdiag import recipes
from kvdiag.cli import options
from kvdiag.errors import KvdiagError, UsageError

if TYPE_CHECKING:
    from kvdiag.engine.watch import EventLog


@click.command()
@click.option("--recipe", metavar="NAME|FILE", help="Recipe to start from; other flags replace its fields.")
@options.source_options
@options.cell_options
@options.model_options
@click.option(
    "--allow-degenerate", is_flag=True, default=None, help="Build cells that are known to be no finding."
)
@click.option("--max-new-tokens", type=int, metavar="N", help="Most tokens decoded. Default: the workload's.")
@click.option("--out", metavar="DIR", help="Ledger folder to write. Default: ledgers/<recipe>-<model>.")
@click.option("--plan", "plan_only", is_flag=True, help="Print the plan and its price, without the weights; stop.")
@click.option(
    "--assume-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="With --plan: the prompts' mean length, not measured.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest (or the plan) as JSON, no summary.")
@options.run_options
def build(
    recipe: str | None, out: str | None, plan_only: bool, assume_tokens: int | None, as_json: bool, **flags: Any
) -> None:
    """Run every source with the full cache and in every cell, from one prefill, and write a ledger.

    Killed builds go on where they stopped: run the same command again. Ctrl-C stops after the source in hand
    (exit code 130; SIGTERM 143), a second one at once. Exit code 1 when a source ended in an exception.

    \b
    Examples:
      kvdiag build --recipe demo
      kvdiag build --workload ruler_4k --limit 12 --methods snapkv,keydiff --protocol agnostic
      kvdiag build --workload ruler --length 4096 --model Qwen/Qwen3-0.6B
    """
    running = {name: flags.pop(name) for name in ("log_json", "work", *options.POOL)}
    if as_json and running["log_json"] == "-":
        raise UsageError("--log-json -: --json writes to stdout too; give the log a file")
    planned = recipes.load_all(recipe, **flags)
    for package in ("torch", "transformers", "kvpress"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"kvdiag build needs {package}; run: pip install 'kvdiag[build]'")
    if len(planned) > 1:
        records = sum(r.planned_records() for r in planned)
        click.echo(f"{len(planned)} models, a ledger each; {records:,} records (a control a protocol)", err=True)
    from kvdiag.engine.build import default_out

    targets = [(r, default_out(r, Path(out) if out else None, alone=len(planned) == 1)) for r in planned]
    if plan_only:
        for chosen, target in targets:
            _show_plan(chosen, target, assume_tokens, as_json)
        return
    if assume_tokens is not None:
        raise UsageError(f"--assume-tokens {assume_tokens}: needs --plan; a build measures")
    if not _run(targets, as_json, **running):
        raise SystemExit(1)


def _show_plan(recipe: recipes.Recipe, target: Path, tokens: int | None, as_json: bool) -> None:
    from kvdiag.cli.plan_text import lines
    from kvdiag.engine import price

    load = price.measure(recipe, tokens)
    if as_json:
        click.echo(json.dumps(price.as_dict(recipe, load) | {"out": str(target)}, ensure_ascii=False))
        return
    for name, text in lines(recipe, load, target):
        click.echo(f"{name:<11}{text}")


def _run(
    targets: list[tuple[recipes.Recipe, Path]], as_json: bool, log_json: str | None, work: str | None, **pool: Any
) -> bool:
    """Build the ledgers one after the other; whether no source ended in an exception."""
    from kvdiag.cli.progress import BuildProgress, summarise
    from kvdiag.engine.build import build as run
    from kvdiag.engine.stopping import StopSwitch
    from kvdiag.engine.watch import Watchers

    sound = True
    # The switch last: Ray sets a handler of its own for SIGTERM.
    with _log(log_json) as log, _runner(pool) as runner, StopSwitch() as switch:
        for recipe, target in targets:
            progress = BuildProgress(_command_line())
            try:
                with progress:
                    watcher = Watchers([progress, *([log] if log else [])])
                    manifest = run(recipe, target, watcher, runner, switch, work)
            except KeyboardInterrupt as stop:
                _tell(log, str(stop) or "interrupted")
                raise SystemExit(getattr(stop, "exit_code", 130)) from None
            except KvdiagError as error:
                _tell(log, str(error))
                raise
            if as_json:
                click.echo(json.dumps(manifest, ensure_ascii=False))
            elif log_json != "-":
                summarise(target, manifest)
            sound = sound and not manifest["build"].get("exceptions")
    return sound


@contextmanager
def _log(target: str | None) -> Iterator["EventLog | None"]:
    if target is None:
        yield None
        return
    from kvdiag.engine.watch import EventLog

    try:
        log = EventLog(target)
    except OSError as error:
        raise UsageError(f"--log-json {target}: cannot be written ({error.strerror or error})") from error
    try:
        yield log
    finally:
        log.close()


def _tell(log: "EventLog | None", reason: str) -> None:
    if log is not None:
        log.stopped(reason)


@contextmanager
def _runner(pool: dict[str, Any]) -> Iterator[Any]:
    """What runs the sources: None is this process."""
    if pool["engine"] == "local":
        for name, value in pool.items():
            if name != "engine" and value is not None:
                raise UsageError(f"--{name.replace('_', '-')} {value}: needs --engine ray")
        yield None
        return
    from kvdiag.scale.pool import RayRunner
    from kvdiag.scale.room import Pool

    chosen = {name: value for name, value in pool.items() if name != "engine" and value is not None}
    with RayRunner(Pool(**chosen)) as runner:
        yield runner


def _command_line() -> str:
    return shlex.join(["kvdiag", *sys.argv[1:]])
