"""Options that several commands share, with one spelling."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

data = click.option(
    "--data",
    metavar="LEDGER|ORG/NAME[@REV]",
    help="Ledger folder, or a data set on the Hub. Default: the newest ledger in the working folder.",
)


as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def bootstrap_options(resamples: int, seed: str = "--seed") -> Callable[[Command], Command]:
    """How intervals are made. seed: the flag's name, where `--seed` already chooses sources."""

    def add(command: Command) -> Command:
        for option in reversed(
            [
                click.option(
                    seed, type=click.IntRange(0), default=0, show_default=True, help="Seed of the bootstrap."
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
    """What chooses a workload and its sources."""
    named = click.option(
        "--workload", metavar="NAME", help="Workload, as ruler_4k or qasper (kvdiag workloads lists them)."
    )
    return named(source_choice(command))


def source_choice(command: Command) -> Command:
    """What chooses sources of a workload."""
    for option in reversed(
        [
            click.option("--length", type=int, metavar="TOKENS", help="Length of a workload that has one."),
            click.option(
                "--tasks",
                metavar="A,B|all",
                help="Tasks of the workload. Default: those that need no file of yours.",
            ),
            click.option(
                "--file",
                "files",
                multiple=True,
                callback=lambda context, parameter, value: list(value) or None,
                metavar="[TASK=]PATH",
                help="Your own copy of the data (JSON, JSONL, Parquet, zip); may be given more than once.",
            ),
            click.option(
                "--haystack",
                metavar="noise|prose|FILE",
                help="Text around RULER's needles where it is prose. Default: the recipe's.",
            ),
            click.option("--limit", type=int, metavar="N", help="Sources in all, shared among the tasks."),
            click.option("--seed", type=int, help="Seed of generated or drawn sources."),
        ]
    ):
        command = option(command)
    return command


max_new_tokens = click.option(
    "--max-new-tokens", type=int, metavar="N", help="Most tokens decoded. Default: the workload's."
)


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
            click.option(
                "--attention",
                metavar="sdpa|eager|…",
                help="Attention backend of the prefill. Default: sdpa. Another one is another model to every key.",
            ),
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


# Names of what chooses and shapes the pool of workers.
POOL = ("engine", "address", "workers", "gpus_per_worker", "threads")


def run_options(command: Command) -> Command:
    """How a build runs, which decides nothing about its rows."""
    for option in reversed(
        [
            click.option(
                "--log-json", metavar="FILE|-", help="Add one JSON object for each event to a file (- is stdout)."
            ),
            click.option(
                "--work",
                metavar="DIR|URL",
                help="Where finished sources wait until the ledger is whole. Default: .work in it.",
            ),
            click.option(
                "--engine",
                type=click.Choice(["local", "ray"]),
                default="local",
                show_default=True,
                help="This process, or a pool of workers (pip install 'kvdiag[scale]').",
            ),
            click.option(
                "--address", metavar="auto|HOST:PORT", help="A running Ray cluster. Default: one of its own."
            ),
            click.option("--workers", type=click.IntRange(1), metavar="N", help="Model replicas. Default: 1."),
            click.option(
                "--gpus-per-worker",
                type=click.FloatRange(0),
                metavar="G",
                help="GPUs of a replica. Default: 1 where the cluster has some and --device is not cpu, else 0.",
            ),
            click.option(
                "--threads",
                type=click.IntRange(1),
                metavar="N",
                help="CPU threads of a replica. Default: as this process has.",
            ),
        ]
    ):
        command = option(command)
    return command
