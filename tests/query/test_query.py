"""SQL over a ledger: what is answered, in which form, and what is refused."""

import csv
import io
import json
import shutil

import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest

from kvdiag.errors import DataError, RefusedError
from kvdiag.query.connection import connect
from kvdiag.query.connection import rows as fetch_rows
from kvdiag.query.library import library
from kvdiag.query.run import query
from kvdiag.records.schema import TABLES, arrow_schema
from tests import rows
from tests.command import kvdiag

COUNT = "SELECT method, count(*) AS n FROM runs GROUP BY ALL ORDER BY ALL"
COUNTED = [{"method": "knorm", "n": 6}, {"method": "snapkv", "n": 6}]


def ask(ledger, sql, *flags):
    return kvdiag("query", "--data", ledger, *flags, sql)


@pytest.mark.parametrize(
    "sql",
    [
        COUNT,
        f"-- a comment\n{COUNT};",
        "FROM (SELECT method, run_id FROM runs) SELECT method, count(*) AS n GROUP BY ALL ORDER BY ALL",
        "WITH r AS (FROM runs) SELECT method, count(*) AS n FROM r GROUP BY ALL ORDER BY ALL",
    ],
)
def test_a_select_is_answered(made_up, sql):
    assert query(made_up, sql).to_pylist() == COUNTED


@pytest.mark.parametrize(
    "sql", ["DESCRIBE runs", "SUMMARIZE runs", "SHOW TABLES", "DESCRIBE", "EXPLAIN FROM runs", "VALUES (1)"]
)
def test_other_questions_are_answered(made_up, sql):
    assert query(made_up, sql).num_rows > 0


@pytest.mark.parametrize("table", TABLES)
def test_tables_are_as_on_disk(made_up, table):
    found = query(made_up, f"FROM {table}").to_pylist()
    folder = made_up / "data" / table
    assert found == (pq.read_table(folder).to_pylist() if folder.is_dir() else [])


def test_a_table_shows_and_counts(made_up):
    result = ask(made_up, COUNT)
    assert (result.code, result.err) == (0, "")
    assert [line.split() for line in result.out.splitlines() if line.strip()][-3:-1] == [
        ["knorm", "6"],
        ["snapkv", "6"],
    ]
    assert result.out.endswith("2 rows\n")
    cut = ask(made_up, COUNT, "--rows", "1")
    assert "snapkv" not in cut.out
    assert "showing 1 of 2 rows" in cut.out


def test_csv_json_jsonl_and_markdown(made_up):
    assert list(csv.DictReader(io.StringIO(ask(made_up, COUNT, "--csv").out))) == [
        {"method": "knorm", "n": "6"},
        {"method": "snapkv", "n": "6"},
    ]
    assert json.loads(ask(made_up, COUNT, "--json").out) == COUNTED
    assert [json.loads(line) for line in ask(made_up, COUNT, "--jsonl").out.splitlines()] == COUNTED
    assert ask(made_up, COUNT, "--markdown").out == (
        "| method | n |\n| --- | --- |\n| knorm | 6 |\n| snapkv | 6 |\n"
    )


def test_parquet_and_files(made_up, tmp_path):
    path = tmp_path / "out.parquet"
    assert ask(made_up, COUNT, "--parquet", "-o", path).code == 0
    assert pq.read_table(path).to_pylist() == COUNTED
    path = tmp_path / "out.csv"
    assert ask(made_up, COUNT, "-o", path).code == 0
    assert path.read_bytes() == b"method,n\nknorm,6\nsnapkv,6\n"


def test_nothing_is_cut_for_a_program(made_up):
    sql = "SELECT i FROM range(100) t(i)"
    assert len(json.loads(ask(made_up, sql, "--json").out)) == 100
    assert ask(made_up, sql, "--csv").out.count("\n") == 101


def test_json_has_numbers_for_decimals_and_null_for_what_it_cannot_say(made_up):
    sql = (
        "SELECT sum(n_compressed) AS total, 0.5 AS half, 1/0 AS bad, ['nan'::DOUBLE, 2] AS list, "
        "{'x': 'inf'::DOUBLE} AS struct, DATE '2026-01-02' AS day FROM runs"
    )
    (row,) = json.loads(ask(made_up, sql, "--json").out)
    assert row == {
        "total": 12,
        "half": 0.5,
        "bad": None,
        "list": [None, 2.0],
        "struct": {"x": None},
        "day": "2026-01-02",
    }
    assert isinstance(row["total"], int)


def test_awkward_text_stays_in_its_cell(made_up):
    sql = """SELECT 'a|b' || chr(10) || '"c",d' AS text, NULL AS nothing, [1, NULL] AS list, true AS yes"""
    (row,) = csv.reader(io.StringIO(ask(made_up, sql, "--csv").out.partition("\n")[2]))
    assert row == ['a|b\n"c",d', "", "[1, NULL]", "True"]
    assert ask(made_up, sql, "--markdown").out.splitlines()[2] == '| a\\|b<br>"c",d | NULL | [1, NULL] | True |'
    assert "[bold]" in ask(made_up, "SELECT '[bold]' AS x").out  # no markup of the terminal's


def test_a_join_keeps_columns_of_the_same_name(made_up):
    sql = "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a"
    expected = {"a": 1, "a_2": 2, "a_1": 3, "a_3": 4}
    assert json.loads(ask(made_up, sql, "--json").out) == [expected]
    assert ask(made_up, sql, "--csv").out == "a,a_2,a_1,a_3\n1,2,3,4\n"
    joined = query(made_up, "FROM runs r JOIN controls c USING (control_id)")
    assert len(set(joined.column_names)) == joined.num_columns


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM runs",
        "UPDATE runs SET score = 1",
        "INSERT INTO runs SELECT * FROM runs",
        "DROP VIEW runs",
        "CREATE TABLE t AS SELECT 1",
        "ALTER VIEW runs RENAME TO r",
        "COPY runs TO 'stolen.csv'",
        "EXPORT DATABASE 'copy'",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access=true",
        "RESET lock_configuration",
        "PRAGMA database_list",
        "CALL pragma_version()",
        "BEGIN TRANSACTION",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW runs",
        "  ;  ",
    ],
)
def test_what_writes_or_is_not_one_statement_is_refused(made_up, sql):
    result = ask(made_up, sql)
    assert result.is_one_line_error(3), result


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT colour FROM runs", 'column "colour" not found'),
        ("SELECT * FROM ruins", "ruins does not exist"),
        ("SELECT method FROM runs GROUP BY setting", "GROUP BY"),
        ("SELECT 'a'::INTEGER", "Could not convert"),
        ("SELECT", "SQL: "),
    ],
)
def test_wrong_sql_is_one_line(made_up, sql, message):
    result = ask(made_up, sql)
    assert result.is_one_line_error(1), result
    assert message in result.err
    assert "LINE 1" not in result.err


@pytest.mark.parametrize("flag", [(), ("--file", "missing.sql")])
@pytest.mark.parametrize("sql", ["", "  "])
def test_no_sql_is_a_usage_error(made_up, sql, flag):
    assert ask(made_up, sql, *flag).is_one_line_error(2)


def test_files_outside_the_ledger_are_out_of_reach(made_up, tmp_path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    pq.write_table(arrow_schema("runs").empty_table(), tmp_path / "secret.parquet")
    for sql in (
        f"SELECT * FROM read_csv('{tmp_path}/secret.csv')",
        f"SELECT * FROM read_text('{tmp_path}/secret.csv')",
        f"FROM '{tmp_path}/secret.csv'",
        f"FROM '{tmp_path}/secret.parquet'",
        f"SELECT * FROM glob('{tmp_path}/*')",
        f"SELECT * FROM read_parquet('{made_up}/../*.parquet')",
        "SELECT * FROM read_csv('https://example.org/x.csv')",
        "SELECT getenv('HOME')",
        "FROM secret_variable",
    ):
        secret_variable = arrow_schema("runs").empty_table()
        with pytest.raises(DataError):
            query(made_up, sql)
        del secret_variable


def test_the_lock_cannot_be_opened_from_inside(made_up):
    connection = connect(made_up)
    for setting in ("enable_external_access=true", "lock_configuration=false", "temp_directory='elsewhere'"):
        with pytest.raises(Exception, match="locked"):
            connection.execute(f"SET {setting}")


def test_a_question_without_end_is_stopped(made_up):
    endless = "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT max(i) FROM t"
    result = ask(made_up, endless, "--timeout", "0.3")
    assert result.is_one_line_error(1)
    assert "took longer than 0.3 s" in result.err


def test_tables_without_rows_have_their_columns(tmp_path):
    rows.write_made_up(tmp_path, rows.made_up_rows(all_right=True))
    empty = query(tmp_path, "FROM c2w")
    assert empty.num_rows == 0
    assert empty.column_names == arrow_schema("c2w").names
    full = tmp_path / "full"
    rows.write_made_up(full)
    assert empty.schema.types == query(full, "FROM c2w").schema.types
    assert query(tmp_path, "SELECT count(*) AS n, avg(delta_nll) AS d FROM c2w").to_pylist() == [
        {"n": 0, "d": None}
    ]


@pytest.mark.parametrize("name", ["it's here", "a[1]b", "with space", "star*", "ünï"])
def test_a_ledger_may_have_any_name(tmp_path, name):
    rows.write_made_up(tmp_path / name)
    assert query(tmp_path / name, COUNT).to_pylist() == COUNTED


def test_the_newest_ledger_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert kvdiag("query", COUNT).is_one_line_error(2)
    rows.write_made_up(tmp_path / "ledgers" / "one")
    assert json.loads(kvdiag("query", COUNT, "--json").out) == COUNTED


def test_what_is_no_ledger_is_named(made_up, tmp_path):
    assert "no such folder" in ask(tmp_path / "none", COUNT).err
    assert "not a ledger" in ask(tmp_path, COUNT).err
    (tmp_path / ".work").mkdir()
    unfinished = ask(tmp_path, COUNT)
    assert unfinished.is_one_line_error(1)
    assert "not finished" in unfinished.err
    (tmp_path / "manifest.json").write_text('{"name": "another program"}')
    assert ask(tmp_path, COUNT).is_one_line_error(1)
    (tmp_path / "manifest.json").write_text("{")
    assert ask(tmp_path, COUNT).is_one_line_error(1)


@pytest.mark.parametrize("damage", ["gone", "text", "half", "flipped"])
def test_a_damaged_file_is_one_line(made_up, tmp_path, damage):
    ledger = tmp_path / "ledger"
    shutil.copytree(made_up, ledger)
    (path,) = (ledger / "data" / "runs").iterdir()
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "flipped":
        path.write_bytes(data[:4] + bytes(b ^ 0xFF for b in data[4:2000]) + data[2000:])
    else:
        path.write_bytes(b"not parquet" if damage == "text" else data[: len(data) // 2])
    result = ask(ledger, "FROM runs")
    assert result.is_one_line_error(1), result


def test_usage_errors(made_up, tmp_path):
    assert ask(made_up, COUNT, "--parquet").is_one_line_error(2)
    assert ask(made_up, COUNT, "--file", tmp_path / "x.sql").is_one_line_error(2)
    assert kvdiag("query", "--data", made_up, "--file", tmp_path / "x.sql").is_one_line_error(2)
    for fmt in ("--csv", "--parquet"):
        result = ask(made_up, COUNT, fmt, "-o", tmp_path / "no" / "folder.x")
        assert result.is_one_line_error(2), result
        assert str(tmp_path / "no" / "folder.x") in result.err
    assert ask(made_up, COUNT, "--timeout", "0").is_one_line_error(2)
    assert ask(made_up, COUNT, "--rows", "0").is_one_line_error(2)


def test_sql_from_a_file_and_from_stdin(made_up, tmp_path, monkeypatch):
    path = tmp_path / "count.sql"
    path.write_text(COUNT)
    assert json.loads(kvdiag("query", "--data", made_up, "--json", "-f", path).out) == COUNTED
    monkeypatch.setattr("sys.stdin", io.StringIO(COUNT))
    assert json.loads(ask(made_up, "-", "--json").out) == COUNTED


def test_the_library_lists_itself():
    listed = kvdiag("query", "--list")
    assert listed.code == 0
    for name in (*TABLES, *(item.name for item in library())):
        assert f"\n{name} " in "\n" + listed.out


@pytest.mark.parametrize("item", [i for i in library() if i.kind == "view"], ids=lambda i: i.name)
def test_every_view_answers_with_and_without_failures(made_up, tmp_path, item):
    n_rows = query(made_up, f"FROM {item.name}").num_rows
    assert n_rows > 0 or item.name.startswith("quality_")  # these name defects, and there are none
    rows.write_made_up(tmp_path, rows.made_up_rows(all_right=True))
    query(tmp_path, f"FROM {item.name}")


def test_failure_rates_have_denominators_and_wilson_intervals(made_up):
    rates = query(made_up, "FROM failure_rates ORDER BY method, setting").to_pylist()
    assert [(r["method"], r["setting"], r["n_runs"], r["n_eligible"], r["n_c2w"]) for r in rates] == [
        ("knorm", "keep=0.25", 3, 2, 2),
        ("knorm", "keep=0.5", 3, 2, 1),
        ("snapkv", "keep=0.25", 3, 2, 2),
        ("snapkv", "keep=0.5", 3, 2, 1),
    ]
    for rate in rates:
        interval = binomtest(rate["n_c2w"], rate["n_eligible"]).proportion_ci(method="wilson")
        assert rate["c2w_rate"] == rate["n_c2w"] / rate["n_eligible"]
        assert rate["c2w_low"] == pytest.approx(interval.low, abs=1e-6)
        assert rate["c2w_high"] == pytest.approx(interval.high, abs=1e-6)


def test_the_wilson_interval_is_scipys(made_up):
    sql = (
        "SELECT k, n, wilson_low(k, n) AS low, wilson_high(k, n) AS high"
        " FROM range(1, 40) a(n), range(0, 40) b(k) WHERE k <= n"
    )
    found = fetch_rows(connect(made_up), sql)
    assert len(found) == sum(n + 1 for n in range(1, 40))
    for row in found:
        interval = binomtest(row["k"], row["n"]).proportion_ci(method="wilson")
        assert row["low"] == pytest.approx(interval.low, abs=1e-6)
        assert row["high"] == pytest.approx(interval.high, abs=1e-6)
    nothing = fetch_rows(connect(made_up), "SELECT wilson_low(0, 0) AS low, wilson_high(0, 0) AS high")
    assert nothing == [{"low": None, "high": None}]


def test_refusals_carry_exit_code_3(made_up):
    with pytest.raises(RefusedError) as raised:
        query(made_up, "DROP VIEW runs")
    assert raised.value.exit_code == 3
