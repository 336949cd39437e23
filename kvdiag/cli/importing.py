"""`kvdiag import`."""

from pathlib import Path

import click


@click.group(name="import")
def import_() -> None:
    """Turn published results of others into a ledger."""


@import_.command()
@click.argument("folder", metavar="DIR")
@click.option("--out", metavar="DIR", default="ledgers/kvdiagnosis", show_default=True, help="Ledger to write.")
def kvdiagnosis(folder: str, out: str) -> None:
    """Import the public KVDiagnosis artifact: 62,400 runs of Qwen3-8B.

    \b
    Example:
      kvdiag import kvdiagnosis path/to/artifact --out ledgers/kvdiagnosis
    """
    from kvdiag.importers.kvdiagnosis import import_artifact

    manifest = import_artifact(Path(folder), Path(out))
    rows = ", ".join(f"{n:,} {table}" for table, n in manifest["rows"].items())
    click.echo(f"written to {out}: {rows}")
    click.echo(f'next: kvdiag query --data {out} "FROM failure_rates"; kvdiag analyze quality --data {out}')
