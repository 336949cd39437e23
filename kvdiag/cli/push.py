"""`kvdiag push`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from kvdiag.cli import options
from kvdiag.errors import KvdiagError, UsageError


@click.command()
@click.argument("ledger", metavar="LEDGER")
@click.argument("repo", metavar="REPO")
@click.option(
    "--version", metavar="X.Y.Z", help="Version of the release. Default: the newest one's last part + 1."
)
@click.option("--private", is_flag=True, help="Make a new repository private.")
@click.option("--own-texts", is_flag=True, help="Publish texts of your own files too: you may hand them on.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop.")
@options.as_json
def push(
    ledger: str, repo: str, version: str | None, private: bool, own_texts: bool, dry_run: bool, as_json: bool
) -> None:
    """Publish a ledger on the Hugging Face Hub: one commit, then a tag vX.Y.Z.

    An invalid ledger is refused; unchanged content makes no commit. Log in with hf auth login or HF_TOKEN.

    \b
    Examples:
      kvdiag push ledgers/demo-smollm2 org/c2w --dry-run
      kvdiag push ledgers/demo-smollm2 org/c2w --version 1.1.0
    """
    if not Path(ledger).is_dir():
        raise UsageError(f"LEDGER {ledger}: no such folder")

    from kvdiag.ledger.layout import find
    from kvdiag.publish import push as publishing

    def show(plan: Any) -> None:
        for line in _plan_lines(plan):
            click.echo(line, err=as_json)

    with named_as("LEDGER"):
        folder = find(ledger)
    done = publishing.push(folder, repo, version, private, dry_run, own_texts, report=show)
    if as_json:
        click.echo(json.dumps(done.as_dict(), ensure_ascii=False))
        return
    for line in _outcome_lines(done, dry_run):
        click.echo(line)


@contextmanager
def named_as(argument: str) -> Iterator[None]:
    """Errors inside that name --data name this argument: the command has no --data."""
    try:
        yield
    except KvdiagError as error:
        text = str(error)
        if not text.startswith("--data "):
            raise
        raise type(error)(f"{argument} {text.removeprefix('--data ')}") from error


def _plan_lines(plan: Any) -> list[str]:
    lines = [f"{plan.repo} {plan.version}{'' if plan.base else ' (a new repository)'}"]
    lines += [f"  {c.kind:<9} {c.bytes:>12,} {c.path}" for c in plan.changes if c.kind != "unchanged"]
    unchanged = len(plan.paths("unchanged"))
    lines.append(
        f"  {len(plan.paths('new', 'changed'))} files to send ({plan.bytes_to_send:,} bytes), "
        f"{unchanged} unchanged, {len(plan.paths('deleted'))} to delete"
    )
    return lines


def _outcome_lines(done: Any, dry_run: bool) -> list[str]:
    withheld = [w for w, published in done.texts.items() if not published]
    lines = [f"texts not published: {', '.join(withheld)} (licence, or not in the ledger)"] if withheld else []
    tag = f"v{done.plan.version}"
    if dry_run:
        return [*lines, "nothing was done (--dry-run)"]
    if done.committed:
        lines.append(f"published as {done.plan.repo} {tag}, commit {done.commit}")
    elif done.tagged:
        lines.append(f"{done.plan.repo} held it already, commit {done.commit}; tagged {tag}")
    else:
        lines.append(f"nothing to do: {done.plan.repo} {tag} holds it already, commit {done.commit}")
    return lines
