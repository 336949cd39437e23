"""`kvdiag audit`."""

import json
from collections.abc import Sequence
from typing import Any

import click

from kvdiag.cli import options
from kvdiag.errors import UsageError

_ledgers = click.option(
    "--data",
    multiple=True,
    metavar="LEDGER|ORG/NAME[@REV]",
    help="Ledger folder, or a data set on the Hub; several for several models. Default: the newest ledger.",
)
_RESAMPLES = 50_000
_INTERVALS = ("percentile", "bca")
_BY = ("group", "task")


@click.group()
def audit() -> None:
    """What survives when the question comes after compression, and what threatens the claim."""


@audit.command()
@_ledgers
@click.option("--workload", metavar="NAME", help="One workload, as ruler_8k. Default: all in the ledger.")
@options.as_json
@options.bootstrap_options(_RESAMPLES)
@click.option(
    "--interval",
    metavar="percentile|bca",
    default="percentile",
    show_default=True,
    help="Interval that tables show; --json has both.",
)
@click.option("--by", metavar="group|task", default="group", show_default=True, help="What a cell of the wins is.")
@click.option("--cells", is_flag=True, help="List every cell of the wins.")
@click.option("--allow-incomplete", is_flag=True, help="Compare the common sources where sides have unequal ones.")
@click.option("--with-degenerate", is_flag=True, help="Include rows labelled degenerate, which are no finding.")
def protocol(
    data: tuple[str, ...],
    workload: str | None,
    as_json: bool,
    seed: int,
    resamples: int,
    interval: str,
    by: str,
    cells: bool,
    allow_incomplete: bool,
    with_degenerate: bool,
) -> None:
    """Scores with the question visible to the method (aware) and hidden from it (agnostic).

    Delta is aware less agnostic on the same sources; methods are held against the best of the trivial baselines
    random, knorm and streaming_llm. Every line says whether it rests on a complete matrix (docs/audit.md).

    \b
    Examples:
      kvdiag audit protocol --data ledgers/demo-smollm2
      kvdiag audit protocol --workload ruler_8k --interval bca --json
      kvdiag audit protocol --data ledgers/audit_ruler-a --data ledgers/audit_ruler-b
    """
    from kvdiag.analysis.audit.desk import Options
    from kvdiag.analysis.audit.protocol import audit as run
    from kvdiag.cli.audit_text import protocol_lines
    from kvdiag.ledger.layout import find

    _check("--interval", interval, _INTERVALS)
    _check("--by", by, _BY)
    chosen = Options(workload, resamples, seed, interval, allow_incomplete, with_degenerate, by)
    found = run([find(d) for d in data or [None]], chosen)
    _print(found, as_json, protocol_lines(found, cells))


@audit.command()
@_ledgers
@click.option("--workload", metavar="NAME", help="One workload, as ruler_8k. Default: all in the ledger.")
@options.as_json
def coverage(data: tuple[str, ...], workload: str | None, as_json: bool) -> None:
    """Planned runs against those with a score: every hole by cell, task and reason.

    Planned are all sources in all cells of the manifest, under every model. What cannot run (unsupported,
    not_applicable) is no hole, and is listed apart.

    \b
    Example:
      kvdiag audit coverage --data ledgers/demo-smollm2
    """
    from kvdiag.analysis.audit.coverage import coverage as run
    from kvdiag.cli.audit_text import coverage_lines
    from kvdiag.ledger.layout import find

    found = run([find(d) for d in data or [None]], workload)
    _print(found, as_json, coverage_lines(found))


def _check(flag: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(f"{flag} {value}: must be {' or '.join(known)}")


def _print(found: dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    for line in lines:
        click.echo(line)


@audit.command()
@options.source_options
@click.option("--recipe", metavar="NAME|FILE", help="Recipe to start from; other flags replace its fields.")
@options.model_options
@options.max_new_tokens
@click.option(
    "--backends",
    metavar="A,B",
    default="sdpa,eager",
    show_default=True,
    help="Attention backends; the first is the reference.",
)
@click.option("--margin", type=float, default=0.02, show_default=True, help="Score shift that counts as none.")
@options.as_json
@options.bootstrap_options(10_000, seed="--bootstrap-seed")
def backend(
    recipe: str | None,
    backends: str,
    margin: float,
    as_json: bool,
    bootstrap_seed: int,
    resamples: int,
    **flags: Any,
) -> int:
    """Answer the same sources without compression under several attention backends, and compare.

    Exit code 1 when a backend's scores differ: methods that run under different ones may then not be compared.

    \b
    Example:
      kvdiag audit backend --workload ruler_1k --limit 22 --model smollm2
    """
    from kvdiag import recipes
    from kvdiag.cli.hazards_text import backend_lines
    from kvdiag.engine.backend import compare

    names = [b.strip() for b in backends.split(",") if b.strip()]
    if len(set(names)) < 2:
        raise UsageError(f"--backends {backends}: name two at least, as sdpa,eager")
    chosen = recipes.load(recipe, **flags)
    tell = (lambda name, n, done: None) if as_json else _tell
    found = compare(chosen, names, margin, resamples, bootstrap_seed, tell)
    _print(found, as_json, backend_lines(found))
    return 1 if any(b["verdict"] == "differs" for b in found["backends"]) else 0


def _tell(name: str, n: int, done: int) -> None:
    if done in (0, n) or done % 10 == 0:
        click.echo(f"{name}: {done} of {n} sources", err=True)


@audit.command()
@options.data
@options.source_options
@click.option(
    "--model",
    "models",
    multiple=True,
    required=True,
    metavar="ID[@REV]|PATH|smollm2",
    help="Whose tokenizer counts; may be given more than once. No weights are loaded.",
)
@click.option(
    "--counted-by", metavar="MODEL", help="Whose tokens a generated length is made of. Default: the first."
)
@options.as_json
def length(data: str | None, models: tuple[str, ...], counted_by: str | None, as_json: bool, **flags: Any) -> None:
    """A workload's nominal length against the tokens that each model really sees, and what is past its positions.

    Sources come from --workload (generated lengths are counted in the tokens of --counted-by) or from a ledger.

    \b
    Examples:
      kvdiag audit length --workload ruler_8k --limit 13 --model smollm2 --model Qwen/Qwen3-8B
      kvdiag audit length --data ledgers/demo-smollm2 --model org/other-model
    """
    from kvdiag.cli.hazards_text import length_lines
    from kvdiag.engine.lengths import of_ledger, of_workload

    if data and flags.get("workload"):
        raise UsageError("--data and --workload: give one of them")
    found = of_workload(models, counted_by, **flags) if flags.get("workload") else of_ledger(data, models)
    _print(found, as_json, length_lines(found))
