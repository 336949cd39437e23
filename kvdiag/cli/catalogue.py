"""`kvdiag methods` and `kvdiag workloads`."""

import json
from dataclasses import asdict
from typing import Any

import click

from kvdiag.methods.catalogue import methods as catalogue
from kvdiag.workloads.registry import FAMILIES


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The whole catalogue as JSON.")
def methods(as_json: bool) -> None:
    """List compression methods: family, what they keep, how much of the question they see."""
    _print(
        [asdict(m) for m in catalogue().values()],
        {
            "id": "method",
            "family": "family",
            "query_visibility": "sees",
            "summary": "keeps",
            "paper": "paper",
        },
        as_json,
    )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def workloads(as_json: bool) -> None:
    """List workloads: ids, tasks, licence."""
    _print(
        [asdict(f) for f in FAMILIES.values()],
        {"name": "workload", "ids": "ids", "tasks": "tasks", "summary": "what", "licence": "licence"},
        as_json,
    )


def _print(entries: list[dict[str, Any]], columns: dict[str, str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(entries, ensure_ascii=False))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file has no edge to fold at
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in columns.values():
        table.add_column(title, overflow="fold", no_wrap=title in ("method", "family", "sees", "workload"))
    for entry in entries:
        cells = (entry[key] for key in columns)
        table.add_row(*(", ".join(c) if isinstance(c, list | tuple) else str(c) for c in cells))
    console.print(table)
