"""Options that several commands share, with one spelling."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

data = click.option(
    "--data",
    metavar="LEDGER",
    help="Ledger folder to read. Default: the newest one in the working folder.",
)


as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def bootstrap_options(resamples: int) -> Callable[[Command], Command]:
    """How intervals are made."""

    def add(command: Command) -> Command:
        for option in reversed(
            [
                click.option(
                    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the bootstrap."
                ),
                click.option(
                    "--resamples",
                    type=click.IntRange(100),
                    default=resamples,
                    show_default=True,
                    help="Bootstrap replicates behind each interval.",
                ),
            ]
        ):
            command = option(command)
        return command

    return add


def source_options(command: Command) -> Command:
    """What chooses sources."""
    for option in reversed(
        [
            click.option(
                "--workload", metavar="NAME", help="Workload, as ruler_4k (kvdiag workloads lists them)."
            ),
            click.option("--length", type=int, metavar="TOKENS", help="Length of a workload that has one."),
            click.option("--tasks", metavar="A,B", help="Tasks of the workload. Default: all."),
            click.option("--limit", type=int, metavar="N", help="Sources in all, shared among the tasks."),
            click.option("--seed", type=int, help="Seed of generated sources."),
        ]
    ):
        command = option(command)
    return command


def cell_options(command: Command) -> Command:
    """What chooses cells."""
    for option in reversed(
        [
            click.option("--methods", metavar="A,B", help="Methods (kvdiag methods lists them)."),
            click.option("--settings", metavar="keep=0.5,…", help="Strengths of the methods."),
            click.option(
                "--protocol",
                "protocols",
                metavar="agnostic|aware|both",
                help="Whether methods see the context only, or the question too.",
            ),
        ]
    ):
        command = option(command)
    return command


def model_options(command: Command) -> Command:
    """What chooses the model and how it runs."""
    for option in reversed(
        [
            click.option(
                "--model",
                metavar="ID[@REV]|PATH|smollm2",
                help="Hub id, model folder, .gguf file, or the embedded smollm2.",
            ),
            click.option("--dtype", metavar="auto|float32|bfloat16|float16", help="Default: auto."),
            click.option("--device", metavar="auto|cpu|cuda", help="Default: auto."),
            click.option("--prompt", metavar="chat|plain", help="The model's chat template, or plain text."),
            click.option(
                "--trust-remote-code",
                is_flag=True,
                default=None,
                help="Run code that the model's repo carries.",
            ),
        ]
    ):
        command = option(command)
    return command
