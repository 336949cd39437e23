"""`kvdiag evaluate`."""

import importlib.util
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import click

from kvdiag.cli import options
from kvdiag.errors import UsageError

_PROTOCOLS = {
    "agnostic": ("query_agnostic",),
    "aware": ("query_aware",),
    "both": ("query_agnostic", "query_aware"),
}


@click.command()
@click.option("--method", required=True, metavar="file.py:Class", help="Your press, or a method of kvdiag.")
@click.option(
    "--setting",
    "--settings",
    "settings",
    multiple=True,
    metavar="keep=0.5",
    help="Strength; may be given more than once. Default: the ledger's.",
)
@options.data
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Sources, tasks in turn. Default: all.")
@click.option(
    "--protocol",
    metavar="agnostic|aware|both",
    help="Whether the method sees the context only, or the question too. Default: the ledger's.",
)
@click.option(
    "--model", metavar="PATH", help="Where the ledger's model lies, if elsewhere than when it was built."
)
@click.option("--out", metavar="DIR", help="Folder to write. Default: evaluations/<method>-<hash of its code>.")
@click.option("--despite-failures", is_flag=True, help="Run a method that fails checks; its rows say unverified.")
@options.as_json
def evaluate(
    method: str,
    settings: tuple[str, ...],
    data: str | None,
    limit: int | None,
    protocol: str | None,
    model: str | None,
    out: str | None,
    despite_failures: bool,
    as_json: bool,
) -> int:
    """Test a method of your own on a ledger's sources, against its controls and beside its methods.

    The checks of kvdiag methods verify go first: a method that fails them is not run (exit code 1). Killed
    evaluations go on where they stopped; Ctrl-C stops after the source in hand (exit code 130; SIGTERM 143), a
    second one at once. What went wrong in a source becomes rows that say so.

    \b
    Examples:
      kvdiag evaluate --method my_press.py:MyPress
      kvdiag evaluate --method my_press.py:MyPress --setting keep=0.5 --limit 6 --protocol agnostic
    """
    if protocol is not None and protocol not in _PROTOCOLS:
        raise UsageError(f"--protocol {protocol}: must be agnostic, aware or both")
    for package in ("torch", "transformers", "kvpress"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"kvdiag evaluate needs {package}; run: pip install 'kvdiag[build]'")
    from kvdiag.ledger.layout import find

    started = time.monotonic()
    ledger = find(data)
    from kvdiag.analysis.verdict import verdict
    from kvdiag.analysis.verdict_text import lines
    from kvdiag.cli.progress import BuildProgress
    from kvdiag.conformance.candidate import check
    from kvdiag.engine.evaluate import Choice
    from kvdiag.engine.evaluate import evaluate as run
    from kvdiag.engine.stopping import StopSwitch

    choice = Choice(
        settings=tuple(part for s in settings for part in s.split(",")) or None,
        protocols=_PROTOCOLS[protocol] if protocol else None,
        limit=limit,
        model=model,
    )
    progress = BuildProgress(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))
    try:
        with StopSwitch() as switch, progress:
            click.echo(f"checking {method} on tiny models", err=True)
            candidate = check(method, lambda o: click.echo(_outcome(o), err=True))
            if not candidate.verified and not despite_failures:
                return _failed(method, candidate.conformance, as_json)
            folder, _ = run(ledger, candidate, choice, Path(out) if out else None, progress, switch)
    except KeyboardInterrupt as stop:
        raise SystemExit(getattr(stop, "exit_code", 130)) from None
    found = verdict(ledger, folder)
    if as_json:
        click.echo(json.dumps(found | {"conformance": candidate.conformance}, ensure_ascii=False, allow_nan=False))
    else:
        for line in lines(found):
            click.echo(line)
        click.echo(f"\nWritten to {folder}. Next:\n  kvdiag show worst --data {folder}")
        click.echo(f"  kvdiag submit {folder} ORG/NAME --contact YOU@EXAMPLE.ORG --dry-run")
    click.echo(f"took {time.monotonic() - started:.0f} s", err=True)
    return 0


def _failed(method: str, conformance: Any, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({"conformance": conformance}))
    failed = ", ".join(conformance["failed"])
    click.echo(
        f"kvdiag: {method} fails {failed}, so it was not run; mend it, or run it as unverified with "
        "--despite-failures",
        err=True,
    )
    return 1


def _outcome(outcome: Any) -> str:
    return f"  {'ok  ' if outcome.passed else 'FAIL'} {outcome.check:<18} {outcome.detail}"
