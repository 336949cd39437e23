"""What a build shows: the plan, a progress bar, and what it found."""

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from kvdiag.analysis import show, show_text, summary
from kvdiag.engine.build import Plan, Watcher
from kvdiag.engine.source import TRIES, Failure
from kvdiag.engine.watch import memory
from kvdiag.workloads.base import Source
from kvdiag.workloads.registry import shortage


class BuildProgress(Watcher):
    """Plan and progress on stderr. As a context manager it says how to go on when a build is stopped."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task: Any = None
        self._cells = 0
        self._done = self._total = self._before = 0
        self._started = time.monotonic()
        self._shown: set[str] = set()  # errors whose traceback was printed
        self._console.print("loading the model …") if self._console.is_terminal else None

    def __enter__(self) -> "BuildProgress":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if kind is not None and issubclass(kind, KeyboardInterrupt) and self._total:
            self._console.print(
                f"stopped with {self._done} of {self._total} sources done; to go on, run again: {self._command}",
                soft_wrap=True,
                markup=False,
            )

    def planned(self, plan: Plan, done: int) -> None:
        """Print the plan and start the bar."""
        environment = plan.environment
        self._cells = len(plan.cells)
        lines = [
            ("sources", _sources(plan)),
            (
                "cells",
                f"{len(plan.recipe.methods)} methods at their settings ({', '.join(plan.recipe.settings)}) x "
                f"{len(plan.recipe.protocols)} protocols = {self._cells}",
            ),
            ("runs", f"{len(plan.sources)} sources x {self._cells} cells = {plan.n_runs}, and the controls"),
            ("model", f"{environment['model']}, {environment['dtype']} on {environment['device']}"),
            ("attention", environment["attention"]),
            ("writes", str(plan.out)),
        ]
        for method, gap in plan.cannot.items():
            lines.append(("cannot run", f"{method}: {gap.reason} ({gap.detail})"))
        for name, text in lines:
            self._console.print(f"[bold]{name:<11}[/bold]{text}", soft_wrap=True)
        if done:
            self._console.print(f"{done} of {len(plan.sources)} sources were done before")
        self._done, self._total, self._started = done, len(plan.sources), time.monotonic()
        self._before = done
        if done < self._total:
            self._start_bar()

    def _start_bar(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            TextColumn("{task.fields[memory]}"),
            console=self._console,
        )
        self._task = self._bar.add_task(
            "sources", total=self._total, completed=self._done, rate=f"x {self._cells} cells", memory=""
        )
        if self._console.is_terminal:
            self._bar.start()

    def source_started(self, source: Source, worker: str | None = None) -> None:
        """Show which source is in hand."""
        if self._bar is not None:
            self._bar.update(self._task, description=source.source_id.split("/", 1)[-1][-28:])

    def failed(self, failure: Failure) -> None:
        """A line for each failed try; the traceback of an error once."""
        if failure.error not in self._shown:
            self._shown.add(failure.error)
            self._console.print(failure.traceback.rstrip(), markup=False)
        left = "tried again" if failure.attempt < TRIES else "becomes rows `failed: exception`"
        self._console.print(
            f"{failure.source_id}: try {failure.attempt} ended in {failure.error}; {left}", markup=False
        )

    def warned(self, text: str) -> None:
        """A line."""
        self._console.print(f"warning: {text}", markup=False, soft_wrap=True)

    def source_done(self, source: Source, seconds: dict[str, float]) -> None:
        """Advance the bar; without a terminal, a line a source."""
        self._done += 1
        assert self._bar is not None
        spent = sum(seconds.values())
        passed = time.monotonic() - self._started
        here = self._done - self._before
        held = _memory()
        rate = f"x {self._cells} cells, {spent:.1f} s each, {here / passed * 3600:,.0f} sources/h"
        self._bar.update(self._task, advance=1, rate=rate, memory=held)
        if not self._console.is_terminal:
            left = passed * (self._total - self._done) / here
            self._console.print(
                f"source {self._done}/{self._total}  {source.task}  {self._cells} cells in {spent:.1f} s"
                f"  {here / passed * 3600:,.0f} sources/h  about {left:.0f} s left  {held}",
                soft_wrap=True,
            )


def _memory() -> str:
    held = memory()
    gpu = f", GPU {held['gpu_peak_bytes'] / 2**30:.1f} GiB at most" if "gpu_peak_bytes" in held else ""
    return f"{held['rss_bytes'] / 2**30:.1f} GiB{gpu}"


def _sources(plan: Plan) -> str:
    recipe, n = plan.recipe, len(plan.sources)
    fewer = ""
    short = shortage(recipe.tasks, recipe.limit, (s.task for s in plan.sources))
    if short:
        told = ", ".join(f"{found} of {asked} {task}" for task, (asked, found) in short.items())
        fewer = f" (asked for {recipe.limit}; the data has no more: {told})"
    return f"{n} of {recipe.workload} ({', '.join(recipe.tasks)}){fewer}"


def summarise(ledger: Path, manifest: dict[str, Any]) -> None:
    """The failure table, one failure explained, and what to type next; on stdout."""
    console = Console(highlight=False)
    console.width = max(console.width, 100)  # the table needs it; a narrow terminal wraps lines
    controls = summary.controls(ledger)
    click.echo()
    unjudged = controls["n_answered"] - controls["n_judged"]
    apart = f"; {unjudged} answers have no right or wrong" if unjudged else ""
    click.echo(
        f"Full cache: {controls['n_correct']} of {controls['n_judged']} answers right "
        f"({controls['n']} sources{apart}). Compressed, of those right answers:"
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("method", "setting", "protocol"):
        table.add_column(column)
    for column in ("turned wrong", "share", "95 % interval", "runs"):
        table.add_column(column, justify="right")
    for row in summary.failure_table(ledger):
        share = row["c2w_rate"]
        table.add_row(
            row["method"],
            row["setting"],
            row["protocol"].removeprefix("query_"),
            f"{row['n_c2w']}/{row['n_eligible']}",
            "-" if share is None else f"{share:.0%}",
            "-" if share is None else f"{row['c2w_low']:.0%} to {row['c2w_high']:.0%}",
            f"{row['n_answered']}/{row['n_runs']}",
        )
    console.print(table)
    click.echo("turned wrong: C->W runs / runs whose control is right; runs: answered / planned")
    found = summary.example(ledger)
    if found is None:
        click.echo("\nNo right answer turned wrong.")
    else:
        click.echo("\nOne failure, explained:")
        for line in show_text.brief(show.gather(ledger, found["run_id"])):
            click.echo(f"  {line}")
    seconds = manifest["build"].get("seconds_by_stage") or {}
    if exceptions := manifest["build"].get("exceptions"):
        source, error = next(iter(exceptions.items()))
        click.echo(f"\n{len(exceptions)} sources ended in an exception and have no answers, as {source}: {error}")
    if too_much := manifest["build"].get("out_of_memory"):
        click.echo(
            f"\nMemory did not do for {sum(too_much.values())} runs of {len(too_much)} sources (failed: oom)"
        )
    if seconds:
        stages = ", ".join(f"{k} {v:.0f}" for k, v in seconds.items())
        click.echo(f"\nSeconds by stage: {stages}")
    rows = ", ".join(f"{n} {t}" for t, n in manifest["rows"].items())
    click.echo(f"\nWritten to {ledger}: {rows}. Next:")
    if found is not None:
        click.echo(f"  kvdiag show worst --data {ledger}")
    click.echo(
        f'  kvdiag query --data {ledger} "SELECT method, setting, count(*) FROM c2w GROUP BY ALL ORDER BY ALL"\n'
        f'  python -c "from datasets import load_dataset; print(load_dataset({str(ledger)!r}))"\n'
        "  kvdiag build --workload ruler_2k --limit 6 --model YOUR_MODEL"
    )
