"""`kvdiag build`."""

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from kvdiag import recipes
from kvdiag.cli import options
from kvdiag.errors import UsageError


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
@click.option("--plan", "plan_only", is_flag=True, help="Print the plan and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as JSON instead of the summary.")
def build(recipe: str | None, out: str | None, plan_only: bool, as_json: bool, **flags: Any) -> None:
    """Run every source with the full cache and in every cell, from one prefill, and write a ledger.

    Killed builds go on where they stopped: run the same command again.

    \b
    Examples:
      kvdiag build --recipe demo
      kvdiag build --workload ruler_4k --limit 12 --methods snapkv,keydiff --protocol agnostic
      kvdiag build --workload ruler --length 4096 --model Qwen/Qwen3-0.6B
    """
    chosen = recipes.load(recipe, **flags)
    for package in ("torch", "transformers", "kvpress"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"kvdiag build needs {package}; run: pip install 'kvdiag[build]'")
    from kvdiag.cli.progress import BuildProgress, summarise
    from kvdiag.engine import build as engine

    target = Path(out) if out else engine.default_out(chosen)
    progress = BuildProgress(_command_line())
    if plan_only:
        progress.planned(engine.make_plan(chosen, target), done=0)
        return
    with progress:
        manifest = engine.build(chosen, target, progress)
    if as_json:
        click.echo(json.dumps(manifest, ensure_ascii=False))
    else:
        summarise(target, manifest)


def _command_line() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
