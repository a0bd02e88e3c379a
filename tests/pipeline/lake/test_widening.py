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
from pipeline.lake.conftest import plain
from pipeline.lake.killing import DeadlyFiles, load_here
from support.cli import run as run_command
from support.filling import fill, make_topic

import tidelog.pipeline
from tidelog.pipeline.lake.files import LocalFiles
from tidelog.pipeline.lake.ledger import open_ledger
from tidelog.pipeline.lake.schemas import differences, whole_of
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
        if find_spec(name):  # DuckDB is not among our requirements
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
    """A column with whole numbers that a double would round stays whole, also in later loads,
    and in a lake of an older tidelog, which has not noted that."""
    large = 2**60 + 1
    topic = filled([{"id": large, "l": [{"n": large}]}])
    loads(topic, value="json")
    more = [{"id": 7.0}, {"id": 0.5}, {"l": [{"n": 0.5}]}]
    for noted in (True, False):
        if not noted:
            forget_whole(lake)
        fill(broker.bootstrap, topic, more, make=False)
        report = loads(topic)
        assert (report.rows, report.dead, report.widened) == (1, 2, ())
    state = open_ledger(lake).state
    assert whole_of(state.schema) == {"id", "l[].n"}
    assert {str(pq.read_schema(path).field("id").type) for path in lake.glob("*.parquet")} == {
        "int64"
    }
    rows = tidelog.pipeline.read_lake(spark, lake).orderBy("offset").select("id", "l.n").collect()
    assert [tuple(row) for row in rows] == [(large, [large]), (7, None), (7, None)]
    (bad, _, _, _) = tidelog.pipeline.read_dead_letters(spark, lake).orderBy("offset").collect()
    assert bad.reason.startswith("id: a double, where a whole number is expected: the column has")
    assert verify(lake).ok


def forget_whole(lake: Path, kind: str = "long") -> None:
    """As an older tidelog has written it, which may have made the column double since."""
    for path in (lake / "_tidelog").glob("0*.json"):
        manifest = json.loads(path.read_bytes())
        manifest["schema"].pop("whole", None)
        manifest["schema"]["fields"][0]["type"] = kind
        path.write_text(json.dumps(manifest))


def test_an_older_file_is_not_rounded_by_a_reader(
    filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled([{"id": 7, "n": 1}, {"id": 2**53 + 1, "n": 2}])
    loads(topic, value="json")
    forget_whole(lake, "double")
    frame = tidelog.pipeline.read_lake(spark, lake)
    assert [row.id for row in frame.where("n = 1").collect()] == [7.0]
    with pytest.raises(Exception, match=r"id: it is double in the lake, .* by themselves: 2.*parq"):
        frame.where("n = 2").collect()
    assert frame.select("n").count() == 2
    (note,) = verify(lake).notes
    assert "id is double, and bigint in " in note


def test_tasks_that_do_not_agree_round_nothing(
    filled: Filled, loads: Loads, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task meets only whole numbers, of which no double holds some, another one also others;
    the first is right."""
    monkeypatch.setattr("tidelog.pipeline.lake.plan._LEAST_TASK_BYTES", 1)
    values = [{"n": 2**60 + i} if i % 2 == 0 else {"n": i + 0.5} for i in range(100)]
    report = loads(filled(values, partitions=2), value="json")
    assert (report.rows, report.dead) == (50, 50)
    numbers = sorted(row["n"] for row in plain(lake))
    assert numbers == [2**60 + i for i in range(0, 100, 2)]


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
