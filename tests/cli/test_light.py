"""Commands that only read start at once: they never import torch. Every command explains itself."""

import json
import re
import subprocess
import sys

import click
import pytest

from kvdiag.cli import cli
from tests.command import ENVIRONMENT, kvdiag

RUN = """
import json, sys
from kvdiag.cli import main
sys.argv = ["kvdiag", *sys.argv[1:]]
try:
    main()
except SystemExit as stop:
    code = stop.code or 0
heavy = [m for m in ("torch", "transformers", "kvpress", "datasets", "sklearn") if m in sys.modules]
print(json.dumps({"code": code, "heavy": heavy}), file=sys.stderr)
"""


NAMES = cli.list_commands(click.Context(cli))


def run_alone(*args):
    process = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, args)], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return process.stdout, json.loads(process.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], [], ["methods"], ["workloads"], ["methods", "--json"]]
)
def test_a_light_command(args):
    out, seen = run_alone(*args)
    assert seen == {"code": 0, "heavy": []}
    assert out.strip()


def test_a_query_is_light(made_up):
    out, seen = run_alone("query", "--data", made_up, "--json", "SELECT count(*) AS n FROM c2w")
    assert seen == {"code": 0, "heavy": []}
    assert json.loads(out) == [{"n": 6}]


def test_a_users_mistake_is_found_without_torch(tmp_path):
    """A wrong name must not cost the seconds that torch takes to load."""
    for args in (["build", "--workload", "rular_4k"], ["build", "--methods", "snapvk", "--workload", "ruler_4k"]):
        _, seen = run_alone(*args, "--out", tmp_path / "x")
        assert seen == {"code": 2, "heavy": []}


def test_the_package_is_light():
    script = "import kvdiag, sys; print([m for m in ('torch', 'duckdb', 'pyarrow', 'click') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_help(name):
    result = kvdiag(name, "--help")
    assert (result.code, result.err) == (0, "")
    with click.Context(cli) as ctx:
        command = cli.get_command(ctx, name)
    assert command is not None
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts}"
    takes_input = any(isinstance(p, click.Argument) or p.name == "data" for p in command.params)
    assert "kvdiag " + name in result.out or not takes_input, "needs an example"


def every_command(command, ctx, name=""):
    """All commands, those of groups too, with the words that call them."""
    yield name, command
    if isinstance(command, click.Group):
        for part in command.list_commands(ctx):
            yield from every_command(command.get_command(ctx, part), ctx, f"{name} {part}".strip())


def test_every_flag_has_one_meaning_in_a_command():
    with click.Context(cli) as ctx:
        for name, command in every_command(cli, ctx):
            options = [p for p in command.params if isinstance(p, click.Option)]
            flags = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
            assert len(flags) == len(set(flags)), (name, flags)
            assert all(option.help for option in options), name


def test_help_lists_every_command_with_a_description():
    listed = kvdiag("--help").out
    described = dict(re.findall(r"(?m)^  (\w+) +(\S.+)$", listed.partition("Commands:\n")[2]))
    assert list(described) == NAMES
    assert all(len(text) > 10 for text in described.values())
    assert kvdiag("--help").out == kvdiag("-h").out == kvdiag().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bulid"], "no such command 'bulid'; did you mean build?"),
        (["build", "--limt", "3"], "--limt"),
        (["build", "--limit", "many"], "--limit"),
        (["build", "surplus"], "surplus"),
        (["query", "--rows"], "--rows"),
    ],
)
def test_a_wrong_flag_is_one_line(args, message):
    result = kvdiag(*args)
    assert result.is_one_line_error(2), result
    assert message in result.err


def test_catalogues_as_json_and_as_text():
    methods = json.loads(kvdiag("methods", "--json").out)
    assert "snapkv" in {m["id"] for m in methods}
    assert all(m["family"] and m["paper"].startswith("http") for m in methods)
    (ruler,) = [w for w in json.loads(kvdiag("workloads", "--json").out) if w["name"] == "ruler"]
    assert "vt" in ruler["tasks"]
    assert ruler["licence"] == "Apache-2.0"
    assert "snapkv" in kvdiag("methods").out
    assert "niah_single_1" in kvdiag("workloads").out
