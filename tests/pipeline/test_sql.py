"""``tidelog sql``: topics as tables."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import signal
from collections.abc import Callable
from typing import Any

import pytest
from support.cli import Result, run, spawn
from support.filling import fill, make_topic

from tidelog.client.offsets import parse_position
from tidelog.pipeline.sql import query
from tidelog.pipeline.sql_text import METADATA
from tidelog.testing import LocalBroker

Sql = Callable[..., Result]


@pytest.fixture
def sql(spark: Any, broker: LocalBroker) -> Sql:
    """The command, in the session of this worker."""

    def call(*args: str, stdin: str = "") -> Result:
        return run("sql", *args, bootstrap=broker.bootstrap, stdin=stdin)

    return call


# -- queries --------------------------------------------------------------------


@pytest.fixture(scope="module")
def searches(broker: LocalBroker) -> str:
    """Ten searches in two partitions."""
    values = [
        {"value": json.dumps({"keyword": f"k{i % 3}", "n": i, "at": {"x": [i]}}), "key": f"u{i}"}
        | {"timestamp": 1_700_000_000_000 + i * 1000, "headers": [("h", b"1")]}
        for i in range(10)
    ]
    return fill(broker.bootstrap, "search-events.v1", values, partitions=2)


def test_a_table_for_people(sql: Sql, searches: str) -> None:
    query = f"select keyword, count(*) as count from {searches} group by keyword order by 2 desc, 1"
    result = sql(query)
    assert result == Result(
        0, "KEYWORD  COUNT\nk0           4\nk1           3\nk2           3\n", "3 rows\n"
    )
    first = sql(query, "-n", "2")
    assert first.lines == ["KEYWORD  COUNT", "k0           4", "k1           3"]
    assert first.err == "the first 2 rows; -n shows more of them, --json and --csv all\n"


def test_json_and_csv(sql: Sql, searches: str) -> None:
    query = f"select *, n as n from {searches} where n = 7"
    result = sql(query, "--json")
    (row,) = result.json
    raw = row.pop("_value")
    assert json.loads(raw) == {"keyword": "k1", "n": 7, "at": {"x": [7]}}
    assert row == {
        "keyword": "k1",
        "n": 7,
        "at": {"x": [7]},
        "_key": "u7",
        "_partition": 1,
        "_offset": 3,
        "_timestamp": "2023-11-14T22:13:27.000Z",
        "_headers": [{"key": "h", "value": "MQ=="}],
    }
    assert result.err == ""
    assert sql(f"select n from {searches} where n > 100", "--json").json == []
    table = sql(
        f"select n, at, _timestamp, nullif(1, 1), '' from `{searches}` where n = 7", "--csv"
    )
    rows = list(csv.reader(io.StringIO(table.out)))
    assert rows[1] == ["7", '{"x":[7]}', "2023-11-14T22:13:27.000Z", "", ""]
    assert table.out.endswith(',,""\n')  # null and empty are not the same
    all_rows = sql(f"select n from {searches} order by n", "--json").json
    assert [row["n"] for row in all_rows] == list(range(10))


def test_large_whole_numbers_beside_fractions(sql: Sql, broker: LocalBroker, topic: str) -> None:
    numbers = ["9007199254740993", "0.5", "-9223372036854775807", "7"]
    fill(broker.bootstrap, topic, [f'{{"x": {number}}}' for number in numbers])
    query = f"select x from {topic} where x > 0 order by x desc"
    rows = list(csv.reader(io.StringIO(sql(query, "--csv").out)))[1:]
    assert [row[0].rstrip("0").rstrip(".") for row in rows] == ["9007199254740993", "7", "0.5"]


def test_from_and_until(sql: Sql, searches: str) -> None:
    def numbers(*options: str) -> list[int]:
        result = sql(f"select n from {searches} order by n", "--json", *options)
        assert result.code == 0, result.err
        return [row["n"] for row in result.json]

    assert numbers("--from", "-1") == [8, 9]
    assert numbers("--from", "1:3") == [2, 3, 4, 5]
    assert numbers("--from", "@2023-11-14T22:13:25", "--until", "-1") == [5, 6, 7]


def test_a_query_from_python(spark: Any, broker: LocalBroker, searches: str) -> None:
    text = f"select sum(n) from {searches}"
    assert query(spark, text, broker.bootstrap).first()[0] == 45
    some = query(spark, text, broker.bootstrap, start=parse_position("+4"))
    assert some.first()[0] == 17


def test_several_topics_subqueries_and_standard_input(
    sql: Sql, broker: LocalBroker, searches: str, topic: str
) -> None:
    fill(broker.bootstrap, topic, [{"key_word": "k0", "word": "zero"}, {"key_word": "k1"}])
    text = f"""
        with named as (select key_word, word from {topic})
        select word, count(*) c from {searches} join named on keyword = key_word
        where exists (select 1 from `{topic}` where word is not null)
        group by word order by c desc
    """
    assert sql("-", "--json", stdin=text).json == [{"word": "zero", "c": 4}, {"word": None, "c": 3}]


def test_values_that_are_no_json(sql: Sql, filled: Any) -> None:
    topic = filled(["hello", "wörld", None, b"\xff\x00"])
    rows = sql(f"select _value, _key, hex(cast(_value as binary)) h from {topic}", "--json").json
    assert [row["_value"] for row in rows][:3] == ["hello", "wörld", None]
    assert rows[3]["h"] == "FF00"
    names = [line.split()[0] for line in sql(f"describe {topic}").lines[1:]]
    assert names == list(METADATA)


def test_some_values_that_are_no_json(sql: Sql, filled: Any) -> None:
    odd = {"_key": 1, "a": 2, "A": 3, "it's `odd`\\": 4}
    topic = filled(["no json", {"a": 1}, json.dumps(odd), "[1]", {"a": "x"}])
    result = sql(
        f"select a, `it's ``odd``\\` as odd, _value from {topic} order by _offset", "--json"
    )
    assert [(row["a"], row["odd"]) for row in result.json] == [
        (None, None),
        ("1", None),
        ("2", 4),
        (None, None),
        ("x", None),
    ]
    assert result.err.splitlines() == [
        f"{topic}: 2 of 5 sampled records are no JSON objects; their fields are null, _value has "
        "the text",
        f"{topic}: the field _key of the values is in _value only",
        f"{topic}: the field A differs from another by case only; it is in _value only",
    ]


def test_columns_that_the_sample_does_not_have(sql: Sql, filled: Any) -> None:
    values: list[Any] = [{"quux": i} for i in range(40)]
    values[20] = {"quux": 20, "rare": "yes", "Odd name": [1]}
    topic = filled(values)
    rare = f"select rare from {topic} where rare is not null"
    some = sql(f"select max(quux) as most from {topic}", "--sample", "10", "--json")
    assert some.json == [{"most": 39}]
    seen = f"{topic}: the columns are those of 10 records of about 40"
    assert some.err == f"{seen} (--sample, --schema)\n"
    assert sql(f"select count(*) from {topic}", "--sample", "10", "--json").err == ""
    missing = sql(rare, "--sample", "10")
    assert (missing.code, missing.out) == (1, "")
    assert "name `rare` cannot be resolved" in missing.err
    assert missing.err.endswith(
        f"\n{seen}; --sample all looks at all of them, --schema '{topic}=name type, ...' names "
        "them\n"
    )
    whole = sql(rare, "--sample", "all", "--json")
    assert (whole.json, whole.err) == ([{"rare": "yes"}], "")
    schema = "rare string, `Odd name` array<int>, d struct<`a b`: map<string, int>>"
    for option in (schema, f"{topic}={schema}"):
        found = sql(f"select *, quux from (select * from {topic})", "--schema", option)
        assert "name `quux` cannot be resolved" in found.err and "--sample" not in found.err
        found = sql(f"select * from {topic} where _offset = 20", "--schema", option, "--json")
        (row,) = found.json
        assert (row["rare"], row["Odd name"], row["d"], row["_offset"]) == ("yes", [1], None, 20)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("n nonsense", "--schema n nonsense: write it as in SQL, 'user string, n bigint'"),
        ("", "--schema : write it as in SQL"),
        ("_key string", "a column _key is there in any case"),
        ("search-event.v1=n int", "did you mean 'search-events.v1'?"),
    ],
)
def test_wrong_schemas(sql: Sql, searches: str, option: str, message: str) -> None:
    result = sql(f"select n from {searches}", "--schema", option)
    assert (result.code, result.out) == (1, "")
    assert message in result.err


def test_an_empty_topic(sql: Sql, broker: LocalBroker, topic: str) -> None:
    make_topic(broker.bootstrap, topic, 2)
    result = sql(f"select count(*) as n from {topic}", "--json")
    assert result.json == [{"n": 0}]
    assert "there are no records" in result.err


def test_topics_that_differ_by_case_only(sql: Sql, broker: LocalBroker, topic: str) -> None:
    for name, count in ((topic, 1), (topic.upper(), 3)):
        fill(broker.bootstrap, name, ["x"] * count)
    text = f"select (select count(*) from {topic}) a, (select count(*) from {topic.upper()}) b"
    assert sql(text, "--json").json == [{"a": 1, "b": 3}]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("select * from search-event.v1", 1, "did you mean 'search-events.v1'?"),
        ("select * from serch", 1, "there is no topic 'serch'; "),
        ("select keywrd from TOPIC", 1, "name `keywrd` cannot be resolved. Did you mean one of the "
         "following? [`keyword`"),
        ("selct 1", 1, "SELCT: topics can only be read here; begin with select, with"),
        ("select (1", 1, "Syntax error at or near end of input"),
        ("drop table TOPIC", 1, "DROP: topics can only be read here"),
        ("select 1/n from TOPIC", 1, "Division by zero. Use `try_divide`"),
        ("select raise_error('oh ' || n) from TOPIC where n = 3", 1, "oh 3"),
        (" -- nothing\n", 1, "the query is empty"),
        ("select 1 from TOPIC, (select * from `search-events`.v1)", 1, "write the topic "
         "search-events.v1 in backquotes: `search-events.v1`"),
    ],
)  # fmt: skip
def test_wrong_queries(sql: Sql, searches: str, text: str, code: int, message: str) -> None:
    result = sql(text.replace("TOPIC", searches))
    assert (result.code, result.out) == (code, "")
    assert message in result.err
    for noise in ("Traceback", "org.apache", "\tat ", "SQLSTATE", "Project"):
        assert noise not in result.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--json", "--csv"], "give --json or --csv, not both"),
        (["--from", "1:2", "--until", "3"], "a range has its own end"),
        (["--conf", "x"], "write it as name=value"),
        (["--from", "soon"], "'soon' is not an offset"),
        (["--sample", "0"], "'0': write how many records, or all"),
    ],
)
def test_wrong_options(args: list[str], message: str) -> None:
    result = run("sql", "select 1", *args, bootstrap="localhost:1")
    assert result.code != 0
    assert message in result.err or "cannot reach a broker" in result.err


def test_what_is_wrong_is_told_before_spark_starts(
    broker: LocalBroker, searches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("tidelog.tools.sql.start_spark", start)
    for text, message in (
        ("select * from search-event.v1", "no topic 'search-event.v1'; did you mean 'search-ev"),
        ("describe nowhere-at-all", "there is no topic 'nowhere-at-all'; "),
        ("insert into x values (1)", "INSERT: topics can only be read here"),
    ):
        result = run("sql", text, bootstrap=broker.bootstrap)
        assert (result.code, result.out) == (1, "")
        assert message in result.err
    none = run("sql", "select 1", bootstrap="localhost:1")
    assert none.code == 1
    assert "cannot reach a broker at localhost:1" in none.err
    assert none.err.endswith("start one with `tidelog up`, or name another with -b\n")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_ends_a_query_with_one_line(broker: LocalBroker, topic: str) -> None:
    """As a terminal does it: everybody gets the signal, also those whom Spark has started."""
    fill(broker.bootstrap, topic, ["x"])
    query = f"select reflect('java.lang.Thread', 'sleep', 3600000L) from {topic}"
    ours, theirs = pty.openpty()
    process = spawn(
        "sql", query, "--conf", "spark.driver.memory=512m", bootstrap=broker.bootstrap,
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    screen = ""
    with open(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # it is closed
        while more := terminal.read(65536).decode():
            waited = "tasks/s" in screen
            screen += more
            if "tasks/s" in screen and not waited:
                os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 130, screen
    assert "starting Spark ..." in screen
    assert screen.rpartition("\r\x1b[K")[2] == "interrupted\r\n"
    assert "Traceback" not in screen
