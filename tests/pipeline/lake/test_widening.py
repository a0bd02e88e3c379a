"""Columns that get a wider type: all files have it afterwards, and every plain reader can read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from cli import run as run_command
from filling import fill, make_topic
from pipeline.lake.conftest import plain
from pipeline.lake.test_kills import DeadlyFiles, load_here

import tidelog.pipeline
from tidelog.pipeline.lake.files import LocalFiles
from tidelog.pipeline.lake.options import Widening
from tidelog.pipeline.lake.schemas import differences
from tidelog.pipeline.lake.verify import history, verify
from tidelog.testing import LocalBroker

Loads = Callable[..., Any]
Filled = Callable[..., str]


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def struct(*fields: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def test_what_differs() -> None:
    before = struct(field("n", "long"), field("who", struct(field("age", "long"))))
    after = struct(
        field("n", "double"),
        field("who", struct(field("age", "long"), field("name", "string"))),
        field("tags", {"type": "array", "elementType": "string", "containsNull": True}),
    )
    assert differences(before, after) == (["who.name", "tags"], [("n", "bigint", "double")])
    assert differences(before, before) == ([], [])
    lists = [
        struct(field("x", {"type": "array", "elementType": struct(field("y", kind))}))
        for kind in ("long", "double")
    ]
    assert differences(*lists) == ([], [("x[].y", "bigint", "double")])


def in_pyarrow(lake: Path, spark: Any) -> list[float]:
    return ds.dataset(lake, partitioning="hive").to_table()["ms"].to_pylist()


def in_pandas(lake: Path, spark: Any) -> list[float]:
    import pandas

    return list(pandas.read_parquet(lake)["ms"])


def in_duckdb(lake: Path, spark: Any) -> list[float]:
    import duckdb

    found = duckdb.sql(f"select ms from read_parquet('{lake}/*/*.parquet', union_by_name = true)")
    return [row[0] for row in found.fetchall()]


def in_spark(lake: Path, spark: Any) -> list[float]:
    return [row.ms for row in spark.read.parquet(str(lake)).select("ms").collect()]


READERS = {"pyarrow": in_pyarrow, "pandas": in_pandas, "duckdb": in_duckdb, "pyspark": in_spark}


def test_every_reader_sees_one_type(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled([{"ms": i, "who": {"n": i}} for i in range(30)], partitions=3)
    loads(topic, value="json", by="partition")
    old = {path.name for path in lake.rglob("*.parquet")}
    more = [{"ms": 0.5, "who": {"n": 1, "zip": "x"}, "later": 1}] * 10
    fill(broker.bootstrap, topic, more, partitions=3, make=False)
    told = run_command("load", "--to", str(lake), bootstrap=broker.bootstrap)
    assert told.code == 0, told.err
    assert told.lines[0].startswith(f"10 records to {lake} in 3 files, ")
    assert told.lines[1:] == [
        "  new columns: who.zip, later",
        "  ms: bigint → double (3 files rewritten)",
    ]
    assert not old & {path.name for path in lake.rglob("*.parquet")}
    expected = sorted([*map(float, range(30)), *[0.5] * 10])
    for name, reader in READERS.items():
        if find_spec(name):  # pandas and DuckDB are not among our requirements
            assert sorted(reader(lake, spark)) == expected, name
    frame = tidelog.pipeline.read_lake(spark, lake)
    assert frame.where("later = 1 and who.zip = 'x'").count() == 10
    assert verify(lake).ok
    assert [len(row.removed) for row in history(lake)] == [0, 3]
    assert loads(topic).number is None


def test_files_of_one_load(
    filled: Filled, loads: Loads, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task meets whole numbers only, another one also others."""
    monkeypatch.setattr("tidelog.pipeline.lake.plan._LEAST_TASK_BYTES", 1)
    values = [{"x": [{"y": i}]} if i % 2 == 0 else {"x": [{"y": i + 0.5}]} for i in range(100)]
    report = loads(filled(values, partitions=2), value="json")
    assert (report.rows, report.dead, report.widened) == (100, 0, ())
    assert len({str(pq.read_schema(path).field("x").type) for path in lake.glob("*.parquet")}) == 1
    found = sorted(row["x"][0]["y"] for row in plain(lake))
    assert found == [i if i % 2 == 0 else i + 0.5 for i in range(100)]
    assert verify(lake).ok


def test_numbers_are_never_rounded(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled([{"id": 2**60 + 1}])
    loads(topic, value="json")
    fill(broker.bootstrap, topic, [{"id": 7}] * 10, make=False)
    loads(topic)
    fill(broker.bootstrap, topic, [{"id": 0.5}], make=False)
    report = loads(topic)
    assert report.widened == (Widening("id", "bigint", "double", rewritten=1, kept=1),)
    merged = 0
    while not merged:  # when there are enough: without the one that was left
        fill(broker.bootstrap, topic, [{"id": 1.5}], make=False)
        merged = loads(topic).compacted
    types = [str(pq.read_schema(path).field("id").type) for path in lake.glob("*.parquet")]
    assert types.count("int64") == 1
    assert tidelog.pipeline.read_lake(spark, lake).where("id = 0.5").count() == 1
    assert verify(lake).ok


def test_the_driver_dies_while_it_widens(broker: LocalBroker, topic: str, lake: Path) -> None:
    """At every step of the load; each has a column of its own to widen."""
    make_topic(broker.bootstrap, topic, 2)
    sent = 0

    def send(column: str, number: float) -> None:
        nonlocal sent
        values = [json.dumps({column: number})] * 6
        fill(broker.bootstrap, topic, values, partitions=2, make=False)
        sent += len(values)

    step, survived, deaths = 0, False, 0
    while not survived:
        step += 1
        for number in (1, 1.5):
            send(f"n{step}", number)
            files = DeadlyFiles(lake, step) if number == 1.5 else LocalFiles(lake)
            child = os.fork() if number == 1.5 else None
            if child is None:
                load_here(broker.bootstrap, topic, lake, files, value="json", compact=False)
            elif child == 0:
                code = 1
                try:
                    load_here(broker.bootstrap, topic, lake, files, value="json", compact=False)
                    code = 0
                finally:
                    os._exit(code)
            else:
                _, status = os.waitpid(child, 0)
                survived = not os.WIFSIGNALED(status)
                assert not survived or os.WEXITSTATUS(status) == 0
                deaths += not survived
    load_here(broker.bootstrap, topic, lake, LocalFiles(lake), compact=False)
    rows = plain_with_all_columns(lake)
    assert len(rows) == sent == len({(row["partition"], row["offset"]) for row in rows})
    for number in range(1, step + 1):
        found = sorted(row[f"n{number}"] for row in rows if row[f"n{number}"] is not None)
        assert found == [1.0] * 6 + [1.5] * 6
    for path in lake.glob("*.parquet"):
        kinds = {str(row.type) for row in pq.read_schema(path) if row.name.startswith("n")}
        assert kinds <= {"double"}
    assert deaths > 10
    assert verify(lake).ok


def plain_with_all_columns(lake: Path) -> list[dict[str, Any]]:
    schema = tidelog.pipeline.lake_schema(lake)
    rows: list[dict[str, Any]] = ds.dataset(lake, schema=schema).to_table().to_pylist()
    return rows
