"""`kvdiag validate`."""

import json
from pathlib import Path

import click


@click.command()
@click.argument("path", metavar="PATH")
@click.option("--table", metavar="TABLE", help="Table of a single file, where its columns do not tell.")
@click.option(
    "--format", "fmt", type=click.Choice(["rich", "json", "github"]), default="rich", help="How to print findings."
)
def validate(path: str, table: str | None, fmt: str) -> int:
    """Check a ledger folder, a Parquet file or JSON lines of records against the contract.

    Exit code 0: valid; 1: not valid; 2: nothing to check there.

    \b
    Examples:
      kvdiag validate ledgers/demo-smollm2
      kvdiag validate runs.jsonl --table runs --format github
    """
    from kvdiag.validation.validate import validate as check

    findings = check(Path(path), table)
    if fmt == "json":
        result = {"path": path, "valid": not findings, "findings": [f.as_dict() for f in findings]}
        click.echo(json.dumps(result, ensure_ascii=False))
    elif fmt == "github":
        for finding in findings:
            click.echo(finding.github())
    else:
        for finding in findings:
            click.echo(finding.line())
        click.echo(f"{path}: {f'{len(findings)} finding(s)' if findings else 'valid'}")
    return 1 if findings else 0
