"""`kvdiag analyze`."""

import json
from typing import Any

import click

from kvdiag.cli import options, text


@click.group()
def analyze() -> None:
    """Statistics over a ledger."""


@analyze.command()
@options.data
@options.as_json
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


@analyze.command()
@options.data
@options.as_json
@options.bootstrap_options(2_000)
@click.option("--with-degenerate", is_flag=True, help="Include rows labelled degenerate, which are no finding.")
def separation(data: str | None, as_json: bool, seed: int, resamples: int, with_degenerate: bool) -> None:
    """Which diagnostics tell right answers that turned wrong (C->W) from those that stayed right (C->C).

    AUROC within workload x method x setting x protocol x model, weighted by comparable pairs: 0.5 tells nothing,
    1 tells all. The interval draws sources (docs/analysis.md).

    \b
    Example:
      kvdiag analyze separation --data ledgers/demo-smollm2
    """
    from kvdiag.analysis.separation import separation as separate
    from kvdiag.ledger.layout import find

    found = separate(find(data), resamples, seed, with_degenerate)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False, allow_nan=False))
        return
    for line in _separation_lines(found):
        click.echo(line)


def _separation_lines(found: dict[str, Any]) -> list[str]:
    return [
        f"{found['n_c2w']} C->W and {found['n_c2c']} C->C rows in {found['n_strata']} strata "
        f"(workload x method x setting x protocol x model); {_degenerate(found)}",
        f"intervals: {found['level']:.0%}, {found['resamples']} draws of sources, seed {found['seed']}",
        "",
        *text.table(_SEPARATION, [_separation_row(d, found["n_strata"]) for d in found["diagnostics"]]),
        "",
        "strata: with both kinds / all; C->W, C->C and sources: in those strata; available: rows with a value / "
        "rows that may have one",
        *[f"{d['diagnostic']}: {note}" for d in found["diagnostics"] for note in _notes(d, found["resamples"])],
    ]


def _degenerate(found: dict[str, Any]) -> str:
    if not found["n_degenerate"]:
        return "no row is labelled degenerate"
    done = "included" if found["degenerate_included"] else "left out (--with-degenerate includes them)"
    return f"{found['n_degenerate']} rows labelled degenerate are {done}"


_SEPARATION = ("diagnostic", "AUROC", "interval", "strata", "pairs", "C->W", "C->C", "sources", "available")


def _separation_row(d: dict[str, Any], n_strata: int) -> tuple[str, ...]:
    return (
        d["diagnostic"],
        text.number(d["auroc"]),
        text.span(d["low"], d["high"]),
        f"{d['n_strata']}/{n_strata}",
        *(f"{d[n]}" for n in ("n_pairs", "n_c2w", "n_c2c", "n_sources")),
        f"{d['n_available']}/{d['n_eligible']}",
    )


def _notes(d: dict[str, Any], resamples: int) -> list[str]:
    """Why a diagnostic has no AUROC or no interval, and what is missing."""
    notes = []
    if d["reason"] == "no_value":
        notes.append("no AUROC: no row has a value")
    elif d["reason"] is not None:
        rows = f"{d['n_available_c2w']} C->W and {d['n_available_c2c']} C->C rows have a value"
        notes.append(f"no AUROC: {rows}, and no stratum has both kinds")
    elif d["low"] is None:
        notes.append("no interval: each kind must come from two sources at least")
    elif d["n_resamples"] < resamples:
        notes.append(f"the interval rests on {d['n_resamples']} draws of {resamples}: the rest drew no pair")
    if d["missing"]:
        notes.append(f"without a value: {text.gaps(d['missing'])}")
    return ["; ".join(notes)] if notes else []


def _line(flag: dict[str, Any]) -> str:
    where = " ".join(str(flag[k]) for k in ("workload", "subject") if flag[k] is not None)
    count = "" if flag["n_found"] is None else f"{flag['n_found']}"
    if flag["n_checked"] is not None:
        count += f" of {flag['n_checked']}"
    touched = f" ({flag['n_c2w']} C->W rows)" if flag["n_c2w"] is not None else ""
    return f"{flag['flag']}: {where}: {count + ' ' if count else ''}{flag['what']}{touched}"
