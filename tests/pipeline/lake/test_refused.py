"""Loads that cannot be: the reason, before Spark is started, and nothing is left behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.cli import run as run_command
from support.filling import fill

import tidelog.pipeline.spark
from tidelog.java import spark_extra
from tidelog.pipeline.lake.ddl import parse_schema
from tidelog.pipeline.lake.files import LakeError
from tidelog.testing import LocalBroker


def test_schemas_as_spark_reads_them(spark: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    for text in (
        "user string, n bigint",
        "a INT, b Integer, c long, d short, e byte, f float, g double, h real, i boolean",
        "a decimal(10,2), b decimal, c numeric(5), d dec(38,0)",
        "d date, t timestamp, n timestamp_ntz, b binary",
        "a array<int>, s struct<x: string, y struct<z:double>>, aa array<array<string>>",
        "`a name` string, `it``s` int, a: int not null, b string comment 'c, d'",
        "`ключ` string, value_offset bigint",
    ):
        expected = to_arrow_schema(StructType.fromDDL(text), timezone="UTC")
        found = parse_schema(text)
        assert found.names == expected.names, text
        for one, other in zip(found, expected, strict=True):
            assert _same(one.type, other.type), (text, one, other)


def _same(one: pa.DataType, other: pa.DataType) -> bool:
    """But for what may be null, and for what Arrow calls the items of a list."""
    if pa.types.is_list(one):
        return pa.types.is_list(other) and _same(one.value_type, other.value_type)
    if pa.types.is_struct(one):
        pairs = zip(one, other, strict=True)
        return all(a.name == b.name and _same(a.type, b.type) for a, b in pairs)
    return bool(one == other)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("user strng", "there is no type strng (of column user); did you mean string?"),
        ("n number", "there is no type number (of column n); did you mean double?"),
        ("m map<string, int>", "there is no type map (of column m); did you mean struct?"),
        ("a xyzzy", "there is no type xyzzy (of column a); there are boolean, "),
        ("user", "column user has no type"),
        ("", "the name of a column is missing at the end"),
        ("a int,, b int", "the name of a column is missing where ',' is"),
        ("a int, A string", "there are two columns A"),
        ("a int b string", "what is 'b' after 'a int'?"),
        ("a array", "array of what (column a)?"),
        ("a array<int", "array<...> of column a is not closed"),
        ("a struct<b: int", "struct<...> is not closed after"),
        ("a decimal(x)", "decimal is written as decimal(10,2)"),
        ("a decimal(50,2)", "decimal(50,2): at most 38 digits"),
        ("a int not", "after a ... not there must be null"),
    ],
)
def test_schemas_that_cannot_be(text: str, reason: str) -> None:
    with pytest.raises(LakeError) as raised:
        parse_schema(text)
    assert str(raised.value).startswith(f"--schema {text}: {reason}")


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--value", "json", "--schema", "user strng"], "there is no type strng"),
        (["--by", "dat(timestamp)"], "did you mean date(timestamp)?"),
        (["--by", "date(timestmp)"], "there is no column timestmp; did you mean timestamp?"),
        (["--by", "date(x)", "--value", "csv", "--schema", "y date"], "there is no column x; "),
        (["--continuous", "--until", "end"], "--until has no meaning with --continuous"),
        (["--from", "1000"], "--from 1000: "),
        (["--property", "no.such=1"], "there is no such option"),
        (["--on-loss", "maybe"], "is not one of"),
        (["--separator", ";"], "--separator is one character, for --value csv"),
    ],
)
@pytest.mark.parametrize("continuous", [False, True])
def test_told_before_spark_starts_and_nothing_is_left(
    broker: LocalBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    reason: str,
    continuous: bool,
) -> None:
    monkeypatch.setattr(tidelog.pipeline.spark, "session", _no_spark)
    fill(broker.bootstrap, topic, ["x"])
    more = ["--continuous"] if continuous and "--continuous" not in args else []
    to = tmp_path / "new" / "lake"
    done = run_command("load", topic, "--to", str(to), *args, *more, bootstrap=broker.bootstrap)
    assert done.code in (1, 2)
    assert reason in done.err, done.err
    assert not to.parent.exists()


@pytest.mark.parametrize("more", [[], ["--continuous"]])
def test_a_topic_that_is_not_there(
    broker: LocalBroker, topic: str, tmp_path: Path, monkeypatch: Any, more: list[str]
) -> None:
    monkeypatch.setattr(tidelog.pipeline.spark, "session", _no_spark)
    fill(broker.bootstrap, topic, ["x"])
    wrong, to = topic[:-1], tmp_path / "lake"
    done = run_command("load", wrong, "--to", str(to), *more, bootstrap=broker.bootstrap)
    assert (done.code, done.out) == (1, "")
    assert done.err == f"Error: there is no topic {wrong!r}; did you mean {topic!r}?\n"
    assert not to.exists()


def test_no_broker_is_told_as_by_other_commands(tmp_path: Path) -> None:
    nobody = "127.0.0.1:1"
    asked = run_command("consume", "x", "--from", "start", "--exit", bootstrap=nobody)
    for more in ([], ["--continuous"]):
        done = run_command("load", "x", "--to", str(tmp_path / "lake"), *more, bootstrap=nobody)
        assert (done.code, done.err) == (1, asked.err)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "numba", "sqlglot"])
def test_a_package_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.errors", None)
    done = run_command("load", "x", "--to", str(tmp_path / "lake"), "--by", "topic")
    assert (done.code, done.out) == (1, "")
    assert f"tidelog load needs PySpark and sqlglot: {spark_extra()}" in done.err


def test_an_empty_part_of_a_topic(broker: LocalBroker, topic: str, lake: Path, loads: Any) -> None:
    fill(broker.bootstrap, topic, ["x"] * 10)

    def told(*args: str) -> str:
        done = run_command("load", topic, "--to", str(lake), *args, bootstrap=broker.bootstrap)
        assert done.code == 0, done.err
        return done.out

    assert told("--from", "@2020-01-02", "--until", "@2020-01-01") == (
        f"nothing to load into {lake}: --from @2020-01-02T00:00:00Z --until @2020-01-01T00:00:00Z "
        "names no records: that part of the topics is empty\n"
    )
    assert not lake.exists()
    loads(topic)
    assert told("--from", "2", "--until", "5") == (
        f"nothing to load into {lake}: all that --from 2 --until 5 names is there already\n"
    )
    assert told() == f"nothing new for {lake}\n"


def _no_spark(*_: Any, **__: Any) -> Any:
    raise AssertionError("Spark was started")
