"""`kvdiag workloads`."""

import json
from dataclasses import asdict
from typing import Any

import click

from kvdiag import recipes
from kvdiag.cli import options, text
from kvdiag.workloads.registry import FAMILIES


@click.group(invoke_without_command=True)
@options.as_json
@click.pass_context
def workloads(context: click.Context, as_json: bool) -> None:
    """List workloads: ids, tasks, licence.

    \b
    Examples:
      kvdiag workloads
      kvdiag workloads check qasper --file qasper-dev-v0.3.json
    """
    if context.invoked_subcommand is not None:
        return
    columns = {"name": "workload", "ids": "ids", "tasks": "tasks", "summary": "what", "licence": "licence"}
    text.catalogue([asdict(f) for f in FAMILIES.values()], columns, as_json)


@workloads.command()
@click.argument("name", metavar="NAME")
@options.source_choice
@click.option("--model", metavar="ID[@REV]|PATH|smollm2", help="Whose tokenizer counts. Default: the recipe's.")
@click.option("--prompt", metavar="chat|plain", help="The model's chat template, or plain text.")
@options.as_json
def check(name: str, as_json: bool, limit: int | None, **flags: Any) -> None:
    """Say what a workload's sources are like: evidence, anomalies, duplicates, lengths. Nothing runs.

    All sources of a data set are looked at unless --limit is given.

    \b
    Examples:
      kvdiag workloads check qasper --file qasper-dev-v0.3.json --model smollm2
      kvdiag workloads check ruler_4k --limit 22
    """
    chosen = recipes.load(workload=name, limit=limit, **flags)
    from kvdiag.analysis.survey import survey
    from kvdiag.engine.models import load_tokenizer
    from kvdiag.prompts import PromptBuilder

    model = load_tokenizer(chosen.model, chosen.trust_remote_code)
    prompts = PromptBuilder.create(model.tokenizer, chosen.prompt)
    found = chosen.sources(prompts.count, everything=limit is None)
    result = {"workload": chosen.workload, "model": model.name} | survey(
        found, prompts, model.max_positions, chosen.tasks
    )
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
        return
    for line in _lines(result):
        click.echo(line)


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['workload']}: {found['n_sources']} sources; tokens as {found['model']} counts them", ""]
    header = ("task", "sources", "evidence mapped", "unmapped", "none", "references", "median tokens", "most")
    lines += text.table(header, [_task_cells(row) for row in found["tasks"]])
    lines += ["", "evidence:"] + [f"  {row['n']} {row['value']}" for row in found["evidence"]]
    if found["answer_types"]:
        lines.append("answers of all annotators:")
        lines += [f"  {row['n']} {row['value']}" for row in found["answer_types"]]
    lines.append("flags:" if found["flags"] else "flags: none")
    lines += [f"  {row['n']} {row['flag']} (as {row['example']})" for row in found["flags"]]
    lines.append(f"duplicate prompts: {found['n_duplicate_prompts']}")
    if found["tokens"]:
        spread = ", ".join(f"{name} {n}" for name, n in found["tokens"].items())
        lines.append(f"prompt tokens: {spread}; the model has {found['max_positions']} positions")
    lines.append(
        f"too long with their new tokens: {found['n_over_length']}"
        + (" (rows `unsupported: over_length` in a build)" if found["n_over_length"] else "")
    )
    return lines


def _task_cells(row: dict[str, Any]) -> tuple[str, ...]:
    tokens = row["tokens"] or {"median": "-", "max": "-"}
    counts = (str("-" if row[n] is None else row[n]) for n in ("n", "mapped", "unmapped", "none", "references"))
    return (row["task"], *counts, str(tokens["median"]), str(tokens["max"]))
