"""`kvdiag report`."""

from collections.abc import Mapping
from pathlib import Path

import click

from kvdiag.cli import options
from kvdiag.errors import KvdiagError, UsageError


@click.command()
@click.argument("ledger", metavar="[LEDGER]", required=False)
@options.data
@click.option("-o", "--out", metavar="FILE", default="report.html", show_default=True, help="Page to write.")
@click.option("--figures", metavar="DIR", help="Write each figure as a file too.")
@click.option(
    "--format", "form", metavar="svg|png", help="Format of the files in --figures. Default: svg. The page has SVG."
)
@options.bootstrap_options(500)
def report(
    ledger: str | None,
    data: str | None,
    out: str,
    figures: str | None,
    form: str | None,
    seed: int,
    resamples: int,
) -> None:
    """Write a ledger's findings as one page: figures, the tables behind them, and what is missing.

    The page needs no network and no scripts. Needs matplotlib: pip install 'kvdiag[report]'.

    \b
    Examples:
      kvdiag report -o report.html
      kvdiag report ledgers/demo-smollm2 -o report.html --figures figures --format png
    """
    from kvdiag.analysis.report import canvas, html, tables

    _check_format(form, figures)
    canvas.require_matplotlib()
    folder = _ledger(ledger, data)
    page, drawn_in = Path(out), None if figures is None else Path(figures)
    _check_place(page, folder, "--out")
    gathered = tables.gather(folder, resamples, seed)
    found = html.sections(gathered)
    svg = html.draw(found, "svg")
    if drawn_in is not None:
        drawn = html.draw(found, "png") if form == "png" else svg
        files = {f"{name}.{form or 'svg'}": data for name, data in drawn.items()}
        _write(drawn_in, files, folder, "--figures")
        click.echo(f"{len(files)} figure(s) written to {drawn_in}")
    _write(page.parent, {page.name: html.render(gathered, found, svg).encode("utf-8")}, folder, "--out")
    click.echo(f"report of {gathered.name} written to {page}")


def _check_format(form: str | None, figures: str | None) -> None:
    from kvdiag.analysis.report.canvas import FORMATS
    from kvdiag.errors import near_matches

    if form is not None and form not in FORMATS:
        raise UsageError(f"--format {form}: must be svg or png; {near_matches(form, list(FORMATS))}")
    if form is not None and figures is None:
        raise UsageError("--format is of the files in --figures DIR; name that folder too")


def _ledger(named: str | None, data: str | None) -> Path:
    from kvdiag.ledger.layout import find

    if named is None:
        return find(data)
    if data is not None:
        raise UsageError(f"{named} and --data {data}: name the ledger once")
    try:
        return find(named)
    except KvdiagError as error:
        raise type(error)(str(error).removeprefix("--data ")) from None


def _check_place(out: Path, ledger: Path, flag: str) -> None:
    """Raise before the work is done where its result could not be written."""
    from kvdiag.ledger.layout import refuse_own_file

    if not out.parent.is_dir():
        raise UsageError(f"{flag} {out}: there is no folder {out.parent}; make it first")
    if out.is_dir():
        raise UsageError(f"{flag} {out}: is a folder; name a file in it")
    refuse_own_file(out, ledger, flag)


def _write(folder: Path, files: Mapping[str, bytes], ledger: Path, flag: str) -> None:
    from kvdiag.ledger.files import write_atomic
    from kvdiag.ledger.layout import refuse_own_file

    for name, data in files.items():
        refuse_own_file(folder / name, ledger, flag)
        try:
            write_atomic(folder / name, data)
        except OSError as error:
            raise UsageError(f"{flag} {folder / name}: cannot be written ({error.strerror or error})") from None
