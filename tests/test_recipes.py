"""Recipes: a checked file, replaced by flags; each mistake names its place."""

import dataclasses
import re

import pytest
import yaml

from kvdiag import recipes
from kvdiag.errors import UsageError
from kvdiag.methods import catalogue
from kvdiag.resources import folder

GOOD = """\
name: mine
workload: ruler_1k
seed: 1
limit: 4
model: smollm2
prompt: chat
methods: [snapkv, knorm]
settings: [keep=0.5]
protocols: [query_agnostic]
"""


@pytest.fixture
def write(tmp_path):
    def write(text=GOOD, **lines):
        """lines: field -> its new line's value, or None to leave it out."""
        for field, value in lines.items():
            line = "" if value is None else f"{field}: {value}\n"
            changed = re.sub(rf"(?m)^{field}:.*\n", line, text)
            text = changed if changed != text or value is None else text + line
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return str(path)

    return write


def error(recipe=None, **flags):
    with pytest.raises(UsageError) as raised:
        recipes.load(recipe, **flags)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_a_good_recipe(write):
    recipe = recipes.load(write())
    assert recipe.workload == "ruler_1k"
    assert recipe.methods == ("snapkv", "knorm")
    assert len(recipe.cells()) == 2
    assert recipe.as_dict()["settings"] == ["keep=0.5"]


@pytest.mark.parametrize("name", recipes.available())
def test_shipped_recipes_load(name):
    needs_workload = "workload" not in yaml.safe_load((folder("builders") / f"{name}.yaml").read_text())
    for recipe in recipes.load_all(name, workload="ruler_1k" if needs_workload else None):
        assert recipe.name == name
        assert recipe.cells()
        assert recipe.planned_records() > recipe.limit


@pytest.mark.parametrize(
    ("workload", "length", "name", "limit"),
    [
        ("qasper", None, "qasper", 200),
        ("hotpotqa", None, "hotpotqa", 200),
        ("longbench", None, "longbench", 800),
        ("ruler_8k", None, "ruler_8k", 1100),
        ("ruler", 16384, "ruler_16k", 1100),
        ("ruler_4k", None, "default", 30),
    ],
)
def test_a_workload_has_the_recipe_of_its_name(workload, length, name, limit):
    recipe = recipes.load(workload=workload, length=length)
    assert (recipe.name, recipe.limit) == (name, limit)
    if name != "default":  # the paper's run: 8 methods x 3 strengths, under one protocol
        assert recipe.model == "Qwen/Qwen3-8B@b968826d9c46dd6066d109eabc6255188de91218"
        assert len(recipe.cells()) == 24
        assert (recipe.haystack == "prose") is name.startswith("ruler")
        assert len(recipe.tasks) == (11 if name.startswith("ruler") else len(recipe.tasks))
    other = recipes.load(recipe="default", workload=workload, length=length)
    assert other.name == "default"


def test_the_audit_plans_what_its_paper_counts():
    audit = recipes.load_all("audit_ruler")
    assert len({r.model for r in audit}) == 3
    assert {(r.workload, len(r.tasks), r.limit, len(r.cells())) for r in audit} == {("ruler_8k", 13, 650, 72)}
    assert sum(r.planned_records() for r in audit) == 144_300
    four = recipes.load_all("audit_longbench", methods="keydiff,random,knorm,streaming_llm", protocols="agnostic")
    assert sum(r.planned_records() for r in four) == 40_800
    (small,) = recipes.load_all("audit_ruler", model="smollm2", length=1024, limit=52)
    assert (small.workload, small.planned_records()) == ("ruler_1k", 52 * 74)


def test_a_recipe_of_several_models_and_a_stated_count(write):
    path = write(model="[a/b, c/d]", planned_records="24")
    assert [r.model for r in recipes.load_all(path)] == ["a/b", "c/d"]
    assert "names 2 models; choose one with --model" in error(path)
    assert recipes.load(path, model="e/f").model == "e/f"
    wrong = write(model="[a/b, c/d]", planned_records="25")
    with pytest.raises(UsageError, match="planned_records says 25, the recipe plans 24"):
        recipes.load_all(wrong)
    assert "--model 5: must be text" in error(write(model="[5]"))


def test_flags_replace_fields(write):
    recipe = recipes.load(
        write(),
        workload="ruler",
        length=2048,
        tasks="vt",
        limit=9,
        seed=0,
        model="org/model@abc",
        methods="knorm, snapkv,knorm",
        settings="keep=0.25,keep=0.50,keep=0.5",
        protocols="both",
        max_new_tokens=8,
        dtype=None,
    )
    assert (recipe.workload, recipe.tasks, recipe.limit, recipe.seed) == ("ruler_2k", ("vt",), 9, 0)
    assert recipe.methods == ("knorm", "snapkv")  # each once, as the user ordered them
    assert recipe.settings == ("keep=0.25", "keep=0.5")
    assert recipe.protocols == ("query_agnostic", "query_aware")
    assert (recipe.max_new_tokens, recipe.dtype, recipe.model) == (8, "auto", "org/model@abc")


@pytest.mark.parametrize(
    ("flag", "protocols"),
    [
        ("agnostic", ("query_agnostic",)),
        ("aware", ("query_aware",)),
        ("aware,agnostic", ("query_agnostic", "query_aware")),
        ("both", ("query_agnostic", "query_aware")),
    ],
)
def test_protocol_flags(write, flag, protocols):
    assert recipes.load(write(), protocols=flag).protocols == protocols


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("methodz", "[snapkv]", "unknown field 'methodz'; did you mean methods"),
        ("methods", "[snapvk]", "--methods snapvk: no such method; did you mean snapkv"),
        ("methods", "[zzz]", "--methods zzz: no such method; known: " + ", ".join(catalogue.methods())),
        ("methods", "[1]", "--methods: must be names"),
        ("methods", "[]", "--methods: must be names"),
        ("methods", "", "field 'methods' is missing"),
        ("settings", "[keep=half]", "--settings keep=half: must look like keep=0.5"),
        ("settings", "[bits=4]", "--settings: snapkv needs a setting like keep=0.5"),
        ("settings", "[bits=5]", "--settings bits=5: bits must be 1, 2, 3, 4 or 8"),
        ("settings", "[keep=0.5, bits=4]", "--settings bits=4: no chosen method has such a setting"),
        ("settings", "[0.5]", "--settings: must be names"),
        ("settings", "[keep=0]", "keep must lie between 0 and 1"),
        ("settings", "[keep=1]", "keep must lie between 0 and 1"),
        ("settings", "[keep=-0.5]", "must look like keep=0.5"),
        ("settings", "[keep=0.5.5]", "0.5.5 is not a number"),
        ("settings", "[keep=nan]", "must look like keep=0.5"),
        ("protocols", "[all]", "--protocol all: must be agnostic, aware or both"),
        ("tasks", "[vtt]", "--tasks vtt: no such task; did you mean vt"),
        ("workload", "rular_1k", "--workload rular_1k: no such workload; did you mean ruler_1k"),
        ("workload", "5", "--workload 5: must be text"),
        ("workload", "", "which workload?"),
        ("length", "4096", "--length 4096 contradicts --workload ruler_1k"),
        ("length", "long", "--length long: must be a whole number"),
        ("limit", "0", "--limit 0: must be a whole number of at least 1"),
        ("limit", "-3", "--limit -3: must be a whole number of at least 1"),
        ("limit", "2.5", "--limit 2.5: must be a whole number"),
        ("limit", "true", "--limit True: must be a whole number"),
        ("limit", "", "field 'limit' is missing"),
        ("seed", "-1", "--seed -1: must be a whole number of at least 0"),
        ("seed", "", "field 'seed' is missing"),
        ("max_new_tokens", "0", "--max-new-tokens 0: must be a whole number of at least 1"),
        ("model", "5", "--model 5: must be text"),
        ("device", "0", "--device 0: must be text"),
        ("thresholds", "{low_era: 0.4}", "thresholds: unknown name 'low_era'; did you mean low_ear"),
        ("thresholds", "{low_ear: little}", "thresholds: low_ear is 'little'; it must be a number"),
        ("thresholds", "3", "thresholds: must be a mapping"),
        ("trust_remote_code", "maybe", "--trust-remote-code maybe: must be true or false"),
    ],
)
def test_a_mistake_names_its_field(write, field, value, message):
    assert message in error(write(**{field: value}))


@pytest.mark.parametrize("field", ["name", "seed", "limit", "model", "prompt", "methods", "settings", "protocols"])
def test_a_field_that_is_needed(write, field):
    path = write(**{field: None})
    assert error(path) == f"{path}: field {field!r} is missing"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"methods": ""}, "--methods: must be names"),
        ({"methods": ","}, "--methods: must be names"),
        ({"settings": "keep=2"}, "--settings keep=2: keep must lie between 0 and 1"),
        ({"protocols": ""}, "--protocol: must be names"),
        ({"tasks": "vt,qa"}, "--tasks qa: no such task"),
        ({"limit": 0}, "--limit 0: must be a whole number"),
        ({"length": -5}, "--length -5: must be a whole number of at least 1"),
        ({"workload": ""}, "which workload?"),
    ],
)
def test_flags_are_checked_as_fields_are(write, flags, message):
    assert message in error(write(), **flags)


@pytest.mark.parametrize(
    ("text", "line"),
    [("name: [a\nseed: 1\n", 2), ("name: a\n  seed: 1\n", 2), ("name: a\nseed: 'x\n", 3), ("\t\n", 1)],
)
def test_broken_yaml_names_the_line(write, text, line):
    path = write(text)
    assert error(path) == f"{path} line {line}: not valid YAML"


@pytest.mark.parametrize("text", ["", "- a\n", "just text\n", "5\n"])
def test_a_recipe_is_a_mapping(write, text):
    assert "a recipe is a mapping of fields" in error(write(text))


def test_a_recipe_is_a_name_or_a_file(tmp_path):
    assert "--recipe dem: no such recipe; did you mean demo?" in error("dem")
    assert "no such file" in error(str(tmp_path / "none.yaml"))
    assert "no such recipe; known: " in error("zzzzzz")
    assert "no such recipe" in error(".")


def test_the_name_decides_nothing(write):
    one = recipes.load(write())
    other = dataclasses.replace(one, name="other")
    assert recipes.differences(one.as_dict(), other.as_dict()) == ["name: mine -> other"]
    changed = recipes.load(write(), limit=5)
    assert recipes.differences(one.as_dict(), changed.as_dict()) == ["limit: 4 -> 5"]


def test_another_kind_of_workload_leaves_the_recipes_tasks_behind():
    assert recipes.load("demo", workload="hotpotqa").tasks == ("hotpotqa",)
    assert recipes.load("demo", workload="ruler_2k").tasks == ("niah_single_1", "niah_multikey_1", "vt")
