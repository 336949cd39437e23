"""`kvdiag analyze`."""

import json
from typing import Any

import click

from kvdiag.cli import options


@click.group()
def analyze() -> None:
    """Statistics over a ledger."""


@analyze.command()
@options.data
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def quality(data: str | None, as_json: bool) -> None:
    """Flag what makes numbers of a ledger doubtful: each flag by a rule, with counts.

    \b
    Example:
      kvdiag analyze quality --data ledgers/kvdiagnosis
    The views behind it: kvdiag query "FROM quality_degenerate" and its kin (kvdiag query --list).
    """
    from kvdiag.analysis.quality import flags
    from kvdiag.ledger.layout import find

    found = flags(find(data))
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    for flag in found:
        click.echo(_line(flag))
    click.echo(f"{len(found)} flag(s)" if found else "no flags")


def _line(flag: dict[str, Any]) -> str:
    where = " ".join(str(flag[k]) for k in ("workload", "subject") if flag[k] is not None)
    count = "" if flag["n_found"] is None else f"{flag['n_found']}"
    if flag["n_checked"] is not None:
        count += f" of {flag['n_checked']}"
    touched = f" ({flag['n_c2w']} C->W rows)" if flag["n_c2w"] is not None else ""
    return f"{flag['flag']}: {where}: {count + ' ' if count else ''}{flag['what']}{touched}"
