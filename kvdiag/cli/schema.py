"""`kvdiag schema`."""

import json

import click

from kvdiag.errors import UsageError, near_matches


@click.command()
@click.argument("table", required=False)
@click.option("--json", "as_json", is_flag=True, help="The JSON Schema of the table's records.")
@click.option("--markdown", is_flag=True, help="The whole column dictionary (docs/data-format.md).")
def schema(table: str | None, as_json: bool, markdown: bool) -> None:
    """Show the columns of a table: type, unit, meaning, statuses.

    \b
    Examples:
      kvdiag schema runs
      kvdiag schema c2w --json
    """
    from kvdiag.records import dictionary
    from kvdiag.records.schema import TABLES, json_schema

    known = [*TABLES, "manifest"]
    if table is not None and table not in known:
        raise UsageError(f"no table {table!r}; {near_matches(table, known)}")
    if markdown:
        click.echo(dictionary.markdown(), nl=False)
    elif as_json:
        chosen = json_schema(table) if table else {t: json_schema(t) for t in known}
        click.echo(json.dumps(chosen, ensure_ascii=False))
    elif table is None:
        for name in known:
            click.echo(f"{name:<10} {json_schema(name)['description']}")
    elif table == "manifest":
        for name, prop in json_schema(table)["properties"].items():
            click.echo(f"{name:<18} {prop['description']}")
    else:
        entries = dictionary.columns(table)
        width = max(len(e["column"]) for e in entries)
        for entry in entries:
            unit = f" [{entry['unit']}]" if entry["unit"] else ""
            click.echo(f"{entry['column']:<{width}}  {entry['type']:<17}  {entry['meaning']}{unit}")
