"""`kvdiag methods`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from kvdiag.cli import text
from kvdiag.methods.catalogue import methods as catalogue
from kvdiag.methods.catalogue import runnable
from kvdiag.methods.page import page


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="The whole catalogue as JSON.")
@click.option("--markdown", is_flag=True, help="The catalogue as a page (docs/methods.md).")
@click.pass_context
def methods(context: click.Context, as_json: bool, markdown: bool) -> None:
    """List compression methods: family, what they keep, how much of the question they see.

    \b
    Examples:
      kvdiag methods
      kvdiag methods verify my_press.py:MyPress
    """
    if context.invoked_subcommand is not None:
        return
    entries = [asdict(m) | {"diagnostics": m.diagnostics()} for m in catalogue().values()]
    if markdown:
        click.echo(page(), nl=False)
        return
    columns = {
        "id": "method",
        "family": "family",
        "state": "state",
        "query_visibility": "sees",
        "summary": "keeps",
    }
    text.catalogue(entries, columns, as_json)


@methods.command()
@click.argument("names", nargs=-1, metavar="[NAME|module:Class|file.py:Class]...")
@click.option("--json", "as_json", is_flag=True, help="Reports as JSON.")
@click.option("--write", is_flag=True, help="Keep the verdicts in the package (for its developers).")
def verify(names: tuple[str, ...], as_json: bool, write: bool) -> int:
    """Prove that a method is what it says: all checks, on tiny real models. All methods when none is named.

    Exit code 1 when a check fails.

    \b
    Examples:
      kvdiag methods verify snapkv
      kvdiag methods verify my_press.py:MyPress --json
    """
    from kvdiag.conformance import record, suite

    suite.check_names(names)
    reports = []
    for name in names or [m.id for m in runnable()]:
        if not as_json:
            click.echo(name)
        report = suite.verify(name, (lambda o: None) if as_json else (lambda o: click.echo(_outcome(o))))
        reports.append(report)
        if not as_json:
            click.echo(f"  {'verified' if report.passed else 'FAILED'}, report {report.digest}")
    if as_json:
        click.echo(json.dumps({"reports": [r.as_dict() for r in reports]}, ensure_ascii=False))
    if write:
        record.write(reports)
    return 0 if all(r.passed for r in reports) else 1


def _outcome(outcome: Any) -> str:
    return f"  {'ok  ' if outcome.passed else 'FAIL'} {outcome.check:<18} {outcome.detail}"


@methods.command()
@click.argument("name", metavar="NAME")
@click.option("--out", metavar="DIR", default=".", show_default=True, help="Folder to write to.")
def new(name: str, out: str) -> None:
    """Write a method to start from, and a test of it: NAME is the name of the class, as MyPress.

    \b
    Example:
      kvdiag methods new MyPress
    """
    from kvdiag.methods.template import write

    method, test = write(name, Path(out))
    click.echo(f"wrote {method} and {test}. Next:")
    click.echo(f"  kvdiag methods verify {method}:{name}")
    click.echo(f"  kvdiag evaluate --method {method}:{name}")
