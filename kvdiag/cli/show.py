"""`kvdiag show`."""

from pathlib import Path

import click

from kvdiag.cli import options
from kvdiag.errors import UsageError


@click.command()
@click.argument("run", metavar="RUN")
@options.data
@click.option("--html", metavar="FILE", help="Write a self-contained page instead.")
def show(run: str, data: str | None, html: str | None) -> None:
    """Show one run: answers, evidence, what was kept where, all metrics, and the rule that fired.

    RUN is a run_id, a part that only one has, `first` (the first right answer turned wrong) or `worst` (the one
    whose gold answer lost most likelihood).

    \b
    Examples:
      kvdiag show worst --data ledgers/demo-smollm2
      kvdiag show worst --html worst.html
    """
    from kvdiag.analysis.show import gather
    from kvdiag.ledger.layout import find

    ledger = find(data)
    shown = gather(ledger, run)
    if html is None:
        from rich.console import Console

        from kvdiag.analysis import show_text

        show_text.write(shown, Console(highlight=False))
        return
    from kvdiag.analysis import show_html

    _write(show_html.render(shown), Path(html), ledger)
    click.echo(f"{shown.run['run_id']} written to {html}")


def _write(page: str, out: Path, ledger: Path) -> None:
    from kvdiag.ledger.files import write_atomic
    from kvdiag.ledger.layout import refuse_own_file

    refuse_own_file(out, ledger, "--html")
    try:
        write_atomic(out, page.encode("utf-8"))
    except OSError as error:
        raise UsageError(f"--html {out}: cannot be written ({error.strerror or error})") from None
