"""The JSON Schemas are the single source of what a row is; Arrow follows them."""

import json

import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator

from kvdiag.records.missing import PRECEDENCE
from kvdiag.records.schema import TABLES, arrow_schema, column_names, json_schema, metric_names, to_table
from kvdiag.resources import folder
from tests import rows

FILES = sorted(folder("schema").glob("*.json"))
WORSE = list(PRECEDENCE[:-1])
METRICS = [(table, metric) for table in TABLES for metric in metric_names(table)]


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def errors(table, row):
    return list(Draft202012Validator(json_schema(table)).iter_errors(row))


def test_every_table_has_a_file():
    assert {p.stem for p in FILES} >= set(TABLES)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_file_is_json_schema_2020_12(path):
    schema = read(path)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    # Manifests of earlier versions, and of releases, lack these.
    optional = {"card", "seal"} if path.stem == "manifest" else set()
    assert set(schema["required"]) == set(schema["properties"]) - optional
    assert all(p.get("description") for p in schema["properties"].values())


@pytest.mark.parametrize("table", TABLES)
def test_keys_and_version_exist(table):
    schema = json_schema(table)
    assert schema["$id"].endswith(f":{table}:{schema['x-version']}")
    for column in (*schema["x-key"], *schema["x-sort"]):
        assert column in schema["properties"]


@pytest.mark.parametrize(("table", "metric"), METRICS)
def test_a_metric_has_status_reason_and_rule(table, metric):
    schema = json_schema(table)
    columns = list(schema["properties"])
    at = columns.index(metric)
    assert columns[at : at + 3] == [metric, f"{metric}__status", f"{metric}__reason"]
    assert schema["properties"][f"{metric}__status"]["enum"] == list(PRECEDENCE)
    assert "null" in schema["properties"][metric]["type"]
    assert schema["properties"][metric]["x-unit"]
    assert schema["properties"][metric]["x-direction"] in ("higher", "lower", "none")
    rules = [r["oneOf"] for r in schema["allOf"] if metric in r["oneOf"][0]["properties"]]
    assert len(rules) == 1


@pytest.mark.parametrize("table", TABLES)
def test_no_status_column_is_orphaned(table):
    metrics = metric_names(table)
    for column in column_names(table):
        name, _, tail = column.partition("__")
        assert not tail or name in metrics


def test_c2w_is_runs_and_more():
    runs, c2w = json_schema("runs")["properties"], json_schema("c2w")["properties"]
    assert list(c2w)[: len(runs)] == list(runs)
    assert {name: c2w[name] for name in runs} == runs
    rules = json_schema("c2w")["allOf"]
    assert all(rule in rules for rule in json_schema("runs")["allOf"])


@pytest.mark.parametrize("table", TABLES)
def test_arrow_types_follow(table):
    arrow = arrow_schema(table)
    assert arrow.names == column_names(table)
    types = {"string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
    for name, prop in json_schema(table)["properties"].items():
        declared = prop["type"] if isinstance(prop["type"], list) else [prop["type"]]
        field = arrow.field(name)
        assert field.nullable == ("null" in declared)
        if "array" in declared:
            assert field.type.value_type == types[prop["items"]["type"]]
        else:
            assert field.type in [types[t] for t in declared if t != "null"]


@pytest.mark.parametrize("table", TABLES)
def test_made_up_rows_follow_the_contract_and_come_back_equal(table):
    row = rows.filled(table)
    assert errors(table, row) == []
    assert to_table(table, [row]).to_pylist() == [row]


@pytest.mark.parametrize("table", TABLES)
def test_a_row_with_other_columns_is_refused(table):
    row = rows.filled(table)
    first = next(iter(row))
    lacking = {k: v for k, v in row.items() if k != first}
    with pytest.raises(ValueError, match=f"missing or unknown columns .*{first}"):
        to_table(table, [row, lacking])
    with pytest.raises(ValueError, match=r"missing or unknown columns .*guess"):
        to_table(table, [row | {"guess": 1}])


@pytest.mark.parametrize("table", TABLES)
def test_a_value_of_another_type_is_refused(table):
    row = rows.filled(table)
    first = next(iter(row))
    with pytest.raises(pa.ArrowException):
        to_table(table, [row | {first: ["not", "text"]}])


@pytest.mark.parametrize(("table", "metric"), METRICS)
def test_a_metric_that_contradicts_its_status_is_rejected(table, metric):
    available = rows.filled(table)
    status, reason = f"{metric}__status", f"{metric}__reason"
    gap = {metric: None, status: "failed", reason: "oom"}
    assert errors(table, available | gap) == []
    for wrong in (
        {status: "failed", reason: "oom"},  # a value, yet failed
        {metric: None},  # no value, yet available
        {reason: "oom"},  # available, with a reason not to be
        gap | {reason: None},  # failed, and nobody knows why
        gap | {status: "lost"},
        gap | {reason: "Out of memory!"},  # free text is for `detail`
        {metric: ["another type"]},
    ):
        assert errors(table, available | wrong), wrong


@pytest.mark.parametrize("table", ["controls", "runs"])
@pytest.mark.parametrize("status", WORSE)
def test_a_run_without_an_answer_says_why(table, status):
    row = rows.filled(table)
    assert errors(table, row | {"status": status, "reason": "oom"}) == []
    assert errors(table, row | {"status": status, "reason": None})
    assert errors(table, row | {"status": "available", "reason": "oom"})
