"""`kvdiag compare`."""

import json
from typing import Any

import click

from kvdiag.cli import options, text
from kvdiag.errors import UsageError

_PROTOCOLS = {
    "agnostic": ("query_agnostic",),
    "aware": ("query_aware",),
    "both": ("query_agnostic", "query_aware"),
}


@click.command()
@click.argument("method_a", metavar="METHOD")
@click.argument("method_b", metavar="METHOD")
@click.option("--setting", metavar="keep=0.5", help="Strength of the methods. Default: each that both have.")
@click.option("--setting-b", metavar="bits=4", help="Strength of the second method. Default: that of the first.")
@click.option(
    "--protocol",
    metavar="agnostic|aware|both",
    default="both",
    show_default=True,
    help="Whether methods saw the context only, or the question too; each by itself.",
)
@click.option("--workload", metavar="NAME", help="One workload, as ruler_4k. Default: all in the ledger.")
@options.data
@options.as_json
@options.bootstrap_options(10_000)
def compare(
    method_a: str,
    method_b: str,
    setting: str | None,
    setting_b: str | None,
    protocol: str,
    workload: str | None,
    data: str | None,
    as_json: bool,
    seed: int,
    resamples: int,
) -> None:
    """Compare two methods on the sources that both answered: who is better, and who fails where alone.

    Differences are first less second, with bootstrap intervals over sources; McNemar's test is exact
    (docs/analysis.md). --json lists the source ids.

    \b
    Examples:
      kvdiag compare snapkv knorm --setting keep=0.5 --protocol agnostic
      kvdiag compare snapkv quantized_hqq --setting keep=0.25 --setting-b bits=4
      kvdiag compare snapkv snapkv --setting keep=0.5 --setting-b keep=0.25
    """
    from kvdiag.analysis.cells import Choice
    from kvdiag.analysis.compare import compare as run
    from kvdiag.ledger.layout import find

    if protocol not in _PROTOCOLS:
        raise UsageError(f"--protocol {protocol}: must be agnostic, aware or both")
    choice = Choice(method_a, method_b, setting, setting_b, _PROTOCOLS[protocol], workload)
    found = run(find(data), choice, resamples, seed)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    for comparison in found:
        for line in _lines(comparison):
            click.echo(line)
        click.echo()
    intervals = f"intervals: {found[0]['level']:.0%}, {resamples} draws of sources, seed {seed}"
    click.echo(f"difference: first less second; {intervals}")


def _lines(c: dict[str, Any]) -> list[str]:
    """A comparison on a screen."""
    head = f"{c['a']['cell_id']} against {c['b']['cell_id']} ({c['model']})"
    if not c["sources"]["common"]:
        return [head, *_source_lines(c), "no source was answered by both"]
    rows = [
        _row("score", c["score"], ".3f"),
        _row("accuracy", c["accuracy"], ".1%"),
        _row("C->W rate", c["c2w_rate"], ".1%"),
    ]
    return [
        head,
        *_source_lines(c),
        *text.table(("", "first", "second", "difference", "interval", "sources"), rows),
        _mcnemar_line(c["mcnemar"]),
        *_failure_lines(c["failures"]),
    ]


def _source_lines(c: dict[str, Any]) -> list[str]:
    counts = c["sources"]
    lines = [f"sources: {counts['common']}/{counts['planned']} answered by both, {counts['left_out']} left out"]
    for side, name in (("a", "first"), ("b", "second")):
        if counts[f"missing_{side}"]:
            lines.append(f"  {name}: {text.gaps(counts[f'missing_{side}'])}")
        if c[side]["degenerate"]:
            labels = ", ".join(f"{label} in {n}" for label, n in c[side]["degenerate"].items())
            lines.append(f"  {name} is labelled degenerate, no finding: {labels} of its runs")
    return lines


def _row(name: str, d: dict[str, Any], form: str) -> tuple[str, ...]:
    signed = "+" + form
    return (
        name,
        text.number(d["a"], form),
        text.number(d["b"], form),
        text.number(d["difference"], signed),
        text.span(d["low"], d["high"], signed),
        str(d["n"]),
    )


def _mcnemar_line(m: dict[str, Any]) -> str:
    return (
        f"right alone: first {m['only_a_right']}, second {m['only_b_right']} of {m['n']}; "
        f"McNemar exact p = {m['p']:.3g}"
    )


def _failure_lines(f: dict[str, Any]) -> list[str]:
    union = f["only_a"] + f["only_b"] + f["both"]
    lines = [
        f"turned wrong, of {f['n_control_right']} whose control is right: first alone {f['only_a']}, "
        f"second alone {f['only_b']}, both {f['both']}; Jaccard {text.number(f['jaccard'])} ({f['both']}/{union})"
    ]
    if not union:
        return lines
    tasks = [t for t in f["by_task"] if t["only_a"] + t["only_b"] + t["both"]]
    header = ("workload", "task", "first alone", "second alone", "both", "control right")
    names = ("only_a", "only_b", "both", "n_control_right")
    rows = [(t["workload"], t["task"], *(str(t[n]) for n in names)) for t in tasks]
    lines += text.table(header, rows, left=2)
    if f["both"]:
        lines += [f"means over the {f['both']} that both turned wrong (values behind each):", *_shared_lines(f)]
    return lines


def _shared_lines(f: dict[str, Any]) -> list[str]:
    rows = [
        (d["diagnostic"], *(f"{text.number(d[side])} ({d[f'n_{side}']})" for side in "ab"))
        for d in f["shared"]
        if d["n_a"] or d["n_b"]
    ]
    none = [d["diagnostic"] for d in f["shared"] if not d["n_a"] and not d["n_b"]]
    lines = text.table(("", "first", "second"), rows) if rows else []
    return [*lines, f"no value on either side: {', '.join(none)}"] if none else lines
