"""`kvdiag repair`."""

import json
import re
from dataclasses import asdict
from typing import Any

import click

from kvdiag.errors import UsageError


@click.command()
@click.option("--data", metavar="LEDGER", help="Ledger folder. Default: the newest ledger in the working folder.")
@click.option("--bias", default="1,2,4", show_default=True, help="Biases to sweep, in logits.")
@click.option("--layers", default="all", show_default=True, metavar="all|A-B", help="Layers the bias acts on.")
@click.option("--draws", type=click.IntRange(1), default=2, show_default=True, help="Draws of sham positions.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Most failures tried.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of sham draws and matches.")
@click.option("--ear-below", type=float, default=0.5, show_default=True, help="Attention ratio of a target.")
@click.option("--ecov-at-least", type=float, default=0.9, show_default=True, help="Evidence coverage of a target.")
@click.option("--replace", is_flag=True, help="Make repairs anew where the ledger has some.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON.")
def repair(data: str | None, bias: str, layers: str, replace: bool, as_json: bool, **flags: Any) -> None:
    """Raise attention on retained evidence of failures, and see whether they mend.

    Tries failures that keep their evidence but attend to it little, against a sham (the same bias on as many
    retained positions that are no evidence) and matched successes. Adds the table `repairs` to the ledger.

    \b
    Example:
      kvdiag repair --data ledgers/demo-smollm2 --bias 1,2,4 --ecov-at-least 0.5
    """
    from kvdiag.analysis.repairs import verdicts
    from kvdiag.engine.repair import Trial
    from kvdiag.engine.repair import repair as run
    from kvdiag.ledger.layout import find

    trial = Trial(biases=_biases(bias), layers=_layers(layers), **flags)
    done = run(find(data, local=True), trial, replace, lambda i, n: click.echo(f"run {i + 1} of {n}", err=True))
    counts, found = verdicts(done)
    if as_json:
        told = {"reproducible": {k: asdict(v) for k, v in counts.items()}, "verdicts": [asdict(v) for v in found]}
        click.echo(json.dumps(told))
        return
    click.echo(f"failures that fail again: {counts['target']}; successes that succeed again: {counts['success']}")
    for verdict in found:
        click.echo(
            f"bias {verdict.bias:g}: repaired {verdict.repaired}; sham {verdict.sham}; "
            f"harmed {verdict.harmed}; harmed by sham {verdict.sham_harmed}"
        )


def _biases(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--bias {text}: must be numbers separated by commas") from None
    return found


def _layers(text: str) -> tuple[int, int] | None:
    if text == "all":
        return None
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if not match or int(match[1]) > int(match[2]):
        raise UsageError(f"--layers {text}: must be all, or first-last as 4-12")
    return int(match[1]), int(match[2])
