"""Hostile and clumsy SQL against a ledger: refused (exit 3) or stopped (exit 1) with one line, nothing changed.

The sandbox guards against accidents on the user's own machine. It is no boundary against an attacker.
"""

import json
import subprocess
import sys

import duckdb
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvdiag.errors import DataError, RefusedError, UsageError
from kvdiag.query import limits
from kvdiag.query.connection import connect, rows
from kvdiag.query.run import check, query
from tests import rows as made
from tests.command import ENVIRONMENT, kvdiag

IN_MODULE = pandas.DataFrame({"a": [1]})  # a name that SQL could take for a table

# {file}: a file of the ledger; {out}: a file outside it; {here}: the working folder; {ledger}: the ledger.
REFUSED = [
    # writing and reading files
    "COPY runs TO 'stolen.csv'",
    "COPY (SELECT 1) TO '{file}'",
    "COPY (SELECT 1 AS a) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
    "COPY (SELECT 1) TO '/dev/stdout'",
    "COPY (SELECT 1) TO 'folder' (FORMAT parquet, PARTITION_BY (a))",
    "COPY FROM DATABASE memory TO other",
    "copy runs to 'lower.csv'",
    "EXPORT DATABASE 'copy'",
    "EXPORT DATABASE '{here}/copy' (FORMAT parquet)",
    "ATTACH 'other.db'",
    "ATTACH '{out}' AS o (READ_ONLY)",
    "DETACH memory",
    "USE memory",
    # extensions, settings, secrets
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL spatial FROM community",
    "UPDATE EXTENSIONS",
    "SET enable_external_access=true",
    "SET GLOBAL lock_configuration=false",
    "SET memory_limit='100GB'",
    "SET VARIABLE x = 1",
    "RESET memory_limit",
    "RESET lock_configuration",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "PRAGMA version",
    "PRAGMA show_tables",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "CREATE PERSISTENT SECRET s (TYPE s3)",
    "DROP SECRET s",
    # tables, views and rows
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP TABLE t AS SELECT 1",
    "CREATE TABLE t AS PIVOT runs ON method USING count(*)",
    "CREATE OR REPLACE VIEW runs AS SELECT 1",
    "CREATE MACRO f(x) AS x",
    "CREATE TYPE t AS ENUM ('a')",
    "CREATE SEQUENCE s",
    "CREATE SCHEMA s",
    "INSERT INTO runs SELECT * FROM runs",
    "UPDATE runs SET score = 1",
    "DELETE FROM runs",
    "TRUNCATE runs",
    "MERGE INTO runs USING c2w ON (true) WHEN MATCHED THEN DELETE",
    "DROP VIEW runs",
    "DROP TABLE IF EXISTS runs",
    "DROP MACRO wilson_low",
    "ALTER VIEW runs RENAME TO r",
    "COMMENT ON VIEW runs IS 'mine'",
    # sessions
    "BEGIN TRANSACTION",
    "COMMIT",
    "ROLLBACK",
    "VACUUM",
    "ANALYZE",
    "CHECKPOINT",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    # more than one statement, or none
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW runs",
    "SELECT 1;\n;-- and\nCOPY runs TO 'x.csv'",
    "SELECT 1 /* ; */; DELETE FROM runs",
    "SELECT 1 -- ;\n; DELETE FROM runs",
    "SELECT ';' ; ATTACH 'x.db'",
    "CREATE TEMP TABLE t AS SELECT 1; SELECT 2",
    "/* SELECT 1 */ DELETE FROM runs",
    "/* /* */ SELECT 1 -- */ DELETE FROM runs",
    "-- SELECT 1\nDELETE FROM runs",
    ";;; DROP VIEW runs",
    ";",
    " ;\n; ",
    "-- nothing",
    "/* nothing */",
    "/* nothing /* in */ here */ ;",
    # what EXPLAIN would run
    "EXPLAIN ANALYZE COPY runs TO 'stolen.csv'",
    "EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
    "EXPLAIN (ANALYZE) COPY runs TO 'stolen.csv'",
    "EXPLAIN (ANALYZE, FORMAT json) CREATE TABLE t AS SELECT 1",
    "EXPLAIN ANALYZE CREATE TEMP TABLE t AS SELECT 1",
    "EXPLAIN CREATE TABLE t (i INT)",
    "EXPLAIN ANALYZE DELETE FROM runs",
    "EXPLAIN ANALYZE SET threads = 1",
    "EXPLAIN ANALYZE VACUUM",
    "EXPLAIN /* /* */ SELECT 1 -- */ ANALYZE COPY runs TO 'stolen.csv'",
    "EXPLAIN PIVOT runs ON method USING count(*)",
    "EXPLAIN",
]

STOPPED = [
    # files other than the ledger's
    "SELECT * FROM read_csv('{out}')",
    "SELECT * FROM read_csv_auto('{out}')",
    "SELECT * FROM read_text('{out}')",
    "SELECT * FROM read_blob('{out}')",
    "SELECT * FROM read_json('{out}')",
    "SELECT * FROM sniff_csv('{out}')",
    "SELECT * FROM read_parquet('{out}.parquet')",
    "SELECT * FROM parquet_scan(['{out}.parquet'])",
    "SELECT * FROM parquet_metadata('{out}.parquet')",
    "SELECT * FROM parquet_schema('{out}.parquet')",
    "FROM '{out}'",
    "FROM '{out}.parquet'",
    "FROM 'no such file.csv'",
    "FROM '/etc/passwd'",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_text('file:///etc/passwd')",
    "SELECT * FROM glob('{here}/*')",
    "SELECT * FROM glob('ledger://*')",
    "SELECT * FROM read_parquet('{ledger}/../*.parquet')",
    "SELECT * FROM read_parquet('{file}/../../../../{out}.parquet')",
    "SELECT * FROM read_parquet('{file}')",
    "SELECT * FROM read_text('{ledger}/manifest.json')",
    "SELECT * FROM read_text('ledger://manifest.json')",
    "SELECT * FROM read_text('ledger://../{out}')",
    "SELECT * FROM read_csv('https://example.org/x.csv')",
    "FROM 'http://127.0.0.1:9/x.parquet'",
    "FROM 'hf://datasets/a/b/c.parquet'",
    "FROM 's3://bucket/x.parquet'",
    "SELECT * FROM read_csv('{file}', store_rejects = true)",
    # writing by way of a SELECT
    "WITH d AS (COPY (SELECT 1 AS a) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)) SELECT * FROM d",
    "WITH d AS (COPY (SELECT 1 AS a) TO '{name}' (FORMAT parquet, USE_TMP_FILE false)) SELECT * FROM d",
    "WITH d AS (COPY (SELECT 1 AS a) TO '{name}' (FORMAT parquet)) SELECT * FROM d",
    "WITH d AS (COPY (SELECT 1 AS a) TO 'ledger://new.csv' (USE_TMP_FILE false)) SELECT * FROM d",
    "WITH d AS (COPY runs TO 'stolen.csv') SELECT * FROM d",
    "EXPLAIN ANALYZE WITH d AS (COPY (SELECT 1 AS a) TO '{name}' (USE_TMP_FILE false)) SELECT * FROM d",
    "FROM query('WITH d AS (COPY (SELECT 1 AS a) TO ''{name}'' (USE_TMP_FILE false)) FROM d')",
    "WITH d AS (INSERT INTO runs SELECT * FROM runs RETURNING *) SELECT * FROM d",
    "WITH d AS (DELETE FROM runs RETURNING *) SELECT * FROM d",
    "WITH d AS (UPDATE runs SET score = 1 RETURNING *) SELECT * FROM d",
    "FROM query('COPY runs TO ''stolen.csv''')",
    "FROM query('DROP VIEW runs')",
    "FROM query('CO' || 'PY runs TO ''stolen.csv''')",
    "SELECT 1 INTO stolen",
    "SELECT * INTO stolen FROM runs",
    # the world outside
    "SELECT getenv('HOME')",
    "FROM IN_MODULE",
    "FROM arrow_scan(1, 2, 3)",
    "FROM pandas_scan(1)",
    "SELECT nextval('s')",
    "SELECT error('out')",
    "SELECT ?",
    "SELECT $x",
    # clumsy
    "SELECT 'unbalanced",
    'SELECT "unbalanced',
    "SELECT $$unbalanced",
    "SELECT /* unbalanced",
    "SELECT (1",
    "SELECT 1)",
    "SELECT",
    "SELEC 1",
    "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "SELECT 1" + " + 1" * 20_000,
    "SELECT * FROM no_such_table",
    "SELECT no_such_column FROM runs",
    "SELECT repeat('x', 3e9)",
    "EXPLAIN SELECT * FROM no_such_table",
    "SELECT 1 \0; DROP VIEW runs",
]

# Each would take more time, or more memory, than there is.
ENDLESS = [
    "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT max(i) FROM t",
    "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i FROM t) SELECT count(*) FROM t",
    "SELECT count(*) FROM range(10000000) a(i), range(10000000) b(j) WHERE i * j = 7",
    "SELECT max(hash(i)) FROM range(1000000000000) t(i)",
    "SELECT max(md5(i::VARCHAR)) FROM range(1000000000000) t(i)",
    "SELECT sleep_ms(600000)",
]
HUGE = [
    "SELECT repeat('x', 3000000000)",
    "SELECT length(repeat('x', 3000000000))",
    "SELECT repeat('x', 2000000000) || repeat('y', 2000000000)",
    "SELECT string_agg(repeat('x', 1000000), '') FROM range(100000)",
    "SELECT list(i) FROM range(10000000000) t(i)",
    "SELECT range(1000000000)",
    "FROM range(10000000000)",
    "FROM range(10000000000) t(i) ORDER BY hash(i)",
    "SELECT count(DISTINCT i) FROM range(10000000000) t(i)",
    "SELECT histogram(i) FROM range(10000000000) t(i)",
]


def contents(folder):
    """All files below a folder with their bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A ledger, a working folder and a file that is none of SQL's business."""
    root = tmp_path_factory.mktemp("sandbox")
    made.write_made_up(root / "ledger")
    (root / "here").mkdir()
    (root / "secret.csv").write_text("a\n1\n")
    pq.write_table(pa.table({"a": [1]}), root / "secret.csv.parquet")
    return root


@pytest.fixture
def hold(place, monkeypatch):
    """Runs in the working folder, and sees that the whole place stays as it was."""
    monkeypatch.chdir(place / "here")
    before = contents(place)
    yield place
    assert contents(place) == before


def spelled(sql, place):
    """SQL with the place's paths in it."""
    (file,) = (place / "ledger" / "data" / "runs").iterdir()
    names = {
        "{file}": str(file),
        "{name}": f"ledger://data/runs/{file.name}",
        "{out}": str(place / "secret.csv"),
        "{here}": str(place / "here"),
        "{ledger}": str(place / "ledger"),
    }
    for name, text in names.items():
        sql = sql.replace(name, text)
    return sql


def ask(place, sql, *flags):
    return kvdiag("query", "--data", place / "ledger", *flags, "--", spelled(sql, place))


def named(statements):
    return [pytest.param(sql, id=f"{i}-{sql[:40]}") for i, sql in enumerate(statements)]


def test_there_are_enough_of_them():
    assert len({*REFUSED, *STOPPED, *ENDLESS, *HUGE}) >= 150


@pytest.mark.parametrize("sql", named(REFUSED))
def test_refused(hold, sql):
    result = ask(hold, sql)
    assert result.is_one_line_error(3), result


@pytest.mark.parametrize("sql", named(STOPPED))
def test_stopped(hold, sql):
    result = ask(hold, sql)
    assert result.is_one_line_error(1), result
    assert "Traceback" not in result.err
    assert "root:" not in result.err  # no line of what it must not read


@pytest.mark.parametrize("sql", named(ENDLESS))
def test_out_of_time(hold, sql):
    result = ask(hold, sql, "--timeout", "0.2")
    assert result.is_one_line_error(1), result
    if "sleep_ms" not in sql or duckdb.__version__ >= "2":  # 1.5 has no such function
        assert "took longer than 0.2 s" in result.err


@pytest.mark.skipif(limits._virtual_size() is None, reason="this system does not bound a process' address space")
@pytest.mark.parametrize("sql", named(HUGE))
def test_out_of_memory(hold, sql):
    result = ask(hold, sql, "--memory", "100MB")
    assert result.is_one_line_error(1), result
    assert "needs more than 100MB of memory" in result.err


@pytest.mark.parametrize(
    "sql",
    [
        "FROM enable_logging(storage = 'file', storage_path = '{here}/logs')",
        "FROM enable_profiling(format = 'json', save_location = '{here}/profile.json')",
        "FROM enable_profiling(format = 'json', save_location = '{file}')",
        "FROM checkpoint()",
        "FROM truncate_duckdb_logs()",
        "SELECT write_log('x')",
        "SELECT setseed(0.5)",
    ],
)
def test_switches_of_duckdb_itself_leave_no_file(hold, sql):
    """DuckDB 2 refuses the first three; 1.5 turns them on for a connection that ends right after."""
    result = ask(hold, sql)
    assert result.code == 0 or result.is_one_line_error(1), result


def test_variables_of_python_are_not_tables(hold):
    in_function = pa.table({"a": [1]})
    frame = pandas.DataFrame({"a": [1]})
    for name in ("in_function", "frame", "IN_MODULE"):
        for sql in (f"FROM {name}", f"SELECT * FROM query_table('{name}')", f"FROM query('FROM {name}')"):
            with pytest.raises(DataError, match=f"{name} does not exist"):
                query(hold / "ledger", sql)
    del in_function, frame


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT name, value FROM duckdb_settings() WHERE name = 'threads'",
        "FROM query('SELECT 1 AS a')",
        "SELECT * FROM query_table('runs')",
        "SHOW ALL TABLES",
        "/* a /* nested */ comment */ SELECT 1;",
        "-- a comment\n; SELECT 1;;",
        "SELECT ';' AS \"a;b\"",
        "SELECT 'COPY runs TO x' AS text",
        "(SELECT 1)",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE SELECT count(*) FROM runs",
        "EXPLAIN (FORMAT json) SELECT 1",
        "explain (analyze, format json) from runs",
        "EXPLAIN (SELECT 1)",
        "EXPLAIN -- why\nSELECT 1",
        "TABLE runs",
        "VALUES (1), (2)",
        "UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b INTO NAME n VALUE v",
        "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t WHERE i < 10) SELECT max(i) FROM t",
    ],
)
def test_what_only_reads_is_answered(hold, sql):
    assert query(hold / "ledger", sql).num_rows > 0


@pytest.mark.parametrize(
    "sql",
    [
        "PIVOT runs ON method USING count(*) GROUP BY setting ORDER BY setting",
        "FROM (PIVOT runs ON method USING count(*) GROUP BY setting) ORDER BY setting",
        "PIVOT runs ON method IN ('knorm', 'snapkv') USING count(*) GROUP BY setting ORDER BY setting",
        "WITH r AS (FROM runs) PIVOT r ON method USING count(*) GROUP BY setting ORDER BY setting",
        "/* what */ PIVOT runs ON method USING count(*) GROUP BY setting ORDER BY setting",
    ],
)
def test_a_pivot_is_answered(hold, sql):
    assert query(hold / "ledger", sql).to_pylist() == [
        {"setting": "keep=0.25", "knorm": 3, "snapkv": 3},
        {"setting": "keep=0.5", "knorm": 3, "snapkv": 3},
    ]


def test_settings_are_locked(hold):
    connection = connect(hold / "ledger")
    for setting in ("enable_external_access=true", "lock_configuration=false", "allowed_paths=['/etc/passwd']"):
        with pytest.raises(duckdb.Error, match=r"locked|Cannot"):
            connection.execute(f"SET {setting}")
    (row,) = rows(connection, "SELECT value FROM duckdb_settings() WHERE name = 'enable_external_access'")
    assert row["value"] == "false"


def test_even_without_the_gate_the_files_cannot_be_written(hold):
    """What the gate might overlook, the files' object still refuses."""
    connection = connect(hold / "ledger")
    for sql in (
        "COPY (SELECT 1 AS a) TO '{name}' (FORMAT parquet, USE_TMP_FILE false)",
        "COPY (SELECT 1 AS a) TO '{name}' (FORMAT parquet)",
        "COPY (SELECT 1 AS a) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
        "COPY (SELECT 1 AS a) TO 'ledger://new.parquet' (FORMAT parquet)",
        "COPY (SELECT 1 AS a) TO 'here.csv'",
        "EXPORT DATABASE 'here'",
        "ATTACH 'here.db'",
    ):
        with pytest.raises(duckdb.Error):
            connection.execute(spelled(sql, hold))
    connection.close()


def test_what_was_looked_at_is_what_is_run(hold):
    connection = connect(hold / "ledger")
    assert check(connection, "  /* a */ -- b\n ; SELECT 1") == "SELECT 1"
    assert check(connection, "explain analyze select 1") == "explain analyze select 1"
    with pytest.raises(RefusedError, match="DELETE is refused"):
        check(connection, "/* SELECT */ delete from runs")
    with pytest.raises(RefusedError, match="this is 2"):
        check(connection, "SELECT 1; SELECT 2")


# In a process of its own: what a user sees in full.


def alone(place, *args, prelude=""):
    script = f"{prelude}\nfrom kvdiag.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", script, "query", "--data", str(place / "ledger"), *args],
        env=ENVIRONMENT,
        capture_output=True,
        cwd=place / "here",
        check=False,
    )


@pytest.mark.parametrize(
    ("sql", "code", "words"),
    [
        ("SELECT count(*) AS n FROM runs", 0, b""),
        ("DELETE FROM runs", 3, b"DELETE is refused"),
        ("SELECT length(repeat('x', 3000000000))", 1, b"needs more than 2GB of memory"),
        ("SELECT no_such_column FROM runs", 1, b'"no_such_column" not found'),
        (b"SELECT '\xff'", 1, b"not valid UTF-8"),
    ],
)
def test_a_process_says_one_line(hold, sql, code, words):
    result = alone(hold, sql)
    assert result.returncode == code
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == (1 if code else 0)
    assert bool(result.stdout) == (not code)


def test_a_query_that_listens_to_nothing_ends_the_process(hold):
    """This function compares two long texts in one go and never looks whether it was interrupted."""
    texts = "repeat('x', 100000), repeat('y', 100000 + i::INT)"
    sql = f"SELECT max(jaro_winkler_similarity({texts})) FROM range(2000) t(i)"
    result = alone(hold, "--timeout", "0.3", sql, prelude="from kvdiag.query import run\nrun._GRACE = 0.3")
    assert result.returncode == 1
    assert result.stderr == b"kvdiag: the query took longer than 0.3 s and was stopped; see --timeout\n"
    assert result.stdout == b""


def test_sql_that_is_no_text_is_a_usage_error(hold, tmp_path):
    (tmp_path / "bad.sql").write_bytes(b"SELECT '\xff'")
    result = alone(hold, "-f", str(tmp_path / "bad.sql"))
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)


def test_a_file_that_begins_with_a_mark_is_read(hold, tmp_path):
    (tmp_path / "marked.sql").write_bytes(b"\xef\xbb\xbfSELECT 1 AS a")
    assert kvdiag("query", "--data", hold / "ledger", "-f", tmp_path / "marked.sql", "--csv").out == "a\n1\n"


# What is written with -o.


@pytest.mark.parametrize("name", ["manifest.json", "README.md", "data/runs/ruler_1k-00000.parquet"])
def test_an_answer_does_not_replace_the_ledger(hold, name):
    assert (hold / "ledger" / name).is_file()
    result = ask(hold, "SELECT 1", "-o", hold / "ledger" / name)
    assert result.is_one_line_error(3), result
    assert "a file of the ledger" in result.err


@pytest.mark.parametrize("fmt", ["--csv", "--json", "--jsonl", "--markdown"])
def test_half_an_answer_leaves_no_file(hold, tmp_path, fmt):
    """The value that cannot be shown is in the last row, long after the first ones were written."""
    sql = "SELECT DATE '2020-01-01' + CASE i WHEN 29999 THEN 4000000 ELSE 0 END::INT AS day FROM range(30000) t(i)"
    result = ask(hold, sql, fmt, "-o", tmp_path / "out")
    assert result.is_one_line_error(1), result
    assert "cast its column to VARCHAR" in result.err
    assert not (tmp_path / "out").exists()


def test_a_value_that_cannot_be_shown_is_one_line(hold):
    for sql in ("SELECT 'infinity'::DATE AS d", "FROM test_all_types()"):
        for fmt in ((), ("--csv",), ("--json",), ("--markdown",)):
            result = ask(hold, sql, *fmt)
            assert result.is_one_line_error(1), result
    assert "294247" in ask(hold, "SELECT TIMESTAMP '294247-01-10 04:00:54'::VARCHAR AS t", "--csv").out


def test_all_rows_are_written_in_every_format(hold, tmp_path):
    """More than one batch."""
    sql = "SELECT i FROM range(25001) t(i) ORDER BY i"
    for fmt, lines in (("--csv", 25002), ("--jsonl", 25001), ("--markdown", 25003)):
        assert ask(hold, sql, fmt).out.count("\n") == lines
    assert [r["i"] for r in json.loads(ask(hold, sql, "--json").out)] == list(range(25001))
    assert ask(hold, sql, "--parquet", "-o", tmp_path / "out").code == 0
    assert pq.read_table(tmp_path / "out").num_rows == 25001
    assert ask(hold, "SELECT 1 AS a WHERE false", "--json").out == "[]\n"


# Limits.


def test_the_limit_of_memory_is_put_back(hold):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert ask(hold, "SELECT 1").code == 0
    assert ask(hold, "SELECT no_such_column FROM runs").code == 1
    with limits.address_space(10**9):
        assert resource.getrlimit(resource.RLIMIT_AS) != before
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GB", 2 * 10**9), ("512mb", 512 * 10**6), ("1.5 GiB", 3 * 2**29), (" 100000KB ", 10**8), ("10MB", 10**7)],
)
def test_sizes(hold, text, size):
    assert limits.parse_size(text) == size
    assert ask(hold, "SELECT 1 AS a", "--memory", text).code == 0


@pytest.mark.parametrize("text", ["", "2", "GB", "2 G B", "-2GB", "1e3MB", "0GB", "9MB", "2PB", "2GB;", "nanGB"])
def test_sizes_that_are_none(hold, text):
    with pytest.raises(UsageError, match="--memory"):
        limits.parse_size(text)
    assert ask(hold, "SELECT 1", "--memory", text).is_one_line_error(2)
