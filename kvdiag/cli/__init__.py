"""The command line: parse, call one function, format. One file a command."""

import importlib
from typing import Any

import click

from kvdiag import __version__
from kvdiag.errors import KvdiagError, near_matches

# Module and object of each command, and its line of help. Commands are imported when they are called, so that
# `kvdiag query` never imports torch and help needs no imports at all.
_COMMANDS = {
    "build": ("build", "build", "Run sources through the whole matrix and write a ledger."),
    "evaluate": ("evaluate", "evaluate", "Test a method of your own on a ledger's sources."),
    "query": ("query", "query", "Ask a ledger with SQL."),
    "show": ("show", "show", "Show one run: what it answered, what it kept, and why it failed."),
    "validate": ("validate", "validate", "Check a ledger, a Parquet file or JSON lines against the contract."),
    "compare": ("compare", "compare", "Compare two methods on the sources that both answered."),
    "audit": ("audit", "audit", "What survives when the question comes after compression, and the hazards."),
    "analyze": ("analyze", "analyze", "Statistics over a ledger."),
    "report": ("report", "report", "Write a ledger's findings as one page of figures and tables."),
    "repair": ("repair", "repair", "Raise attention on retained evidence, and see whether failures mend."),
    "push": ("push", "push", "Publish a ledger on the Hugging Face Hub."),
    "submit": ("submit", "submit", "Offer an evaluation to a data set on the Hub, as a pull request."),
    "merge": ("submit", "merge", "Take a submission into a new version of a ledger."),
    "import": ("importing", "import_", "Turn published results of others into a ledger."),
    "methods": ("catalogue", "methods", "List compression methods."),
    "workloads": ("workloads", "workloads", "List workloads, and check what one is made of."),
    "schema": ("schema", "schema", "Show the columns of a table."),
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[name]
        return getattr(importlib.import_module(f"kvdiag.cli.{module}"), attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in _COMMANDS:
            ctx.fail(f"no such command {args[0]!r}; {near_matches(args[0], list(_COMMANDS))}")
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="kvdiag")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Learn why a compressed KV cache turned a right answer wrong."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> None:
    """Entry point. A user's mistake is one line on stderr and an exit code, never a traceback."""
    try:
        code = cli.main(standalone_mode=False)
    except KvdiagError as error:
        click.echo(f"kvdiag: {error}", err=True)
        raise SystemExit(error.exit_code) from None
    except click.UsageError as error:
        click.echo(f"kvdiag: {error.format_message()}", err=True)
        raise SystemExit(2) from None
    except click.ClickException as error:
        click.echo(f"kvdiag: {error.format_message()}", err=True)
        raise SystemExit(error.exit_code) from None
    except (click.Abort, KeyboardInterrupt):
        click.echo("kvdiag: stopped", err=True)
        raise SystemExit(1) from None
    except BrokenPipeError:  # the reader (head, less) has gone
        raise SystemExit(0) from None
    raise SystemExit(code if isinstance(code, int) else 0)
