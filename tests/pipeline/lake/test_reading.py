"""Reading through the ledger, merging small files, and lake and topic as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pipeline.lake.conftest import plain
from support.filling import fill

import tidelog.pipeline
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.ledger import FileEntry, State
from tidelog.pipeline.lake.rewriting import FANOUT, choose
from tidelog.pipeline.lake.verify import history, verify
from tidelog.testing import LocalBroker

Loads = Callable[..., Any]
Filled = Callable[..., str]


def state_of(*sizes: int, folder: str = "a") -> State:
    files = {f"{folder}/{i}": FileEntry(f"{folder}/{i}", 1, size) for i, size in enumerate(sizes)}
    return State(files=files)


def test_which_files_are_merged() -> None:
    assert choose(state_of(*[1000] * (FANOUT - 1)), 1 << 20) == []
    (group,) = choose(state_of(*[1000] * FANOUT), 1 << 20)
    assert len(group) == FANOUT
    assert choose(state_of(*[900_000] * 20), 1 << 20) == []  # large enough
    assert choose(state_of(*[1000] * 4, *[100_000] * 4), 1 << 20) == []  # of different sizes
    groups = choose(state_of(*[400_000] * 9), 1 << 20)
    assert [len(group) for group in groups] == [2, 2, 2, 2]  # no larger than the target
    spread = {f"{i}/x": FileEntry(f"{i}/x", 1, 10) for i in range(20)}
    assert choose(State(files=spread), 1 << 20) == []  # each in a folder of its own


def test_small_files_are_merged(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled([{"n": 0}], partitions=1)
    for i in range(1, 2 * FANOUT):
        report = loads(topic, value="json")
        assert report.rows == 1
        fill(broker.bootstrap, topic, [{"n": i, f"c{i % 3}": i / 2}], make=False)
    loads(topic)
    merges = [row for row in history(lake) if row.kind == "compaction"]
    assert [len(row.removed) for row in merges] == [FANOUT, FANOUT]
    assert len(list(lake.glob("*.parquet"))) == 2
    rows = plain(lake)
    assert [row["n"] for row in rows] == list(range(2 * FANOUT))
    assert tidelog.pipeline.read_lake(spark, lake).where("c1 = 3.5").count() == 1
    assert verify(lake).ok


def test_lake_and_topic_as_one(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled([{"n": i, "odd": f"{i % 2 == 1}"} for i in range(50)], partitions=3)
    loads(topic, value="json", by="date(timestamp), partition, odd", until="10")
    both = tidelog.pipeline.read_lake(spark, lake, live=True)
    assert sorted(row.n for row in both.select("n").collect()) == list(range(50))
    assert tidelog.pipeline.read_lake(spark, lake).count() == 30
    fill(broker.bootstrap, topic, [{"n": 50.0}, {"n": 51, "new": 1}], partitions=3, make=False)
    both = tidelog.pipeline.read_lake(spark, lake, live=True)
    assert sorted(row.n for row in both.select("n").collect()) == list(range(52))
    assert both.where("partition = 2").count() == 16
    assert both.where("odd = 'True'").count() == 25


def test_live_without_decoding(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled([f"a{i}" for i in range(10)])
    loads(topic, value="text")
    fill(broker.bootstrap, topic, ["b", b"\xff"], make=False)
    both = tidelog.pipeline.read_lake(spark, lake, live=True)
    assert both.where("value = 'b'").count() == 1
    assert both.count() == 11


def test_folders_of_lake_and_topic_are_the_same_in_any_time_zone(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    late = {"at": "2026-03-01T23:30:00Z"}
    topic = filled([late])
    loads(topic, value="json", by="date(at), hour(at)")
    fill(broker.bootstrap, topic, [late, {"at": "no time"}], make=False)
    elsewhere = spark.newSession()
    elsewhere.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    both = tidelog.pipeline.read_lake(elsewhere, lake, live=True)
    folders = both.orderBy("offset").selectExpr("string(date)", "hour").collect()
    assert [tuple(row) for row in folders] == [("2026-03-01", 23)] * 2 + [(None, None)]


def with_pyarrow(lake: Path) -> list[dict[str, Any]]:
    schema = tidelog.pipeline.lake_schema(lake)
    files = ds.dataset(lake, schema=schema, partitioning="hive")
    folders = ds.field("partition").isin(["0", "1"])
    return files.to_table(columns=["n", "late"], filter=folders).to_pylist()


def with_pandas(lake: Path) -> list[dict[str, Any]]:
    import pandas as pd

    schema = tidelog.pipeline.lake_schema(lake)
    frame = pd.read_parquet(lake, columns=["n", "late"], schema=schema, dtype_backend="pyarrow")
    rows: list[dict[str, Any]] = frame.astype(object).to_dict("records")
    return [{name: None if pd.isna(cell) else cell for name, cell in row.items()} for row in rows]


def with_duckdb(lake: Path) -> list[dict[str, Any]]:
    import duckdb

    files = f"read_parquet('{lake}/**/*.parquet', union_by_name = true, hive_partitioning = true)"
    # The folders are columns, too.
    rows = duckdb.sql(f"select n, late from {files} where partition in (0, 1)").fetchall()
    return [{"n": n, "late": late} for n, late in rows]


@pytest.mark.parametrize("reader", [with_pyarrow, with_pandas, with_duckdb])
def test_readers_that_know_nothing_of_the_ledger(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, reader: Any
) -> None:
    pytest.importorskip(reader.__name__.removeprefix("with_"))
    topic = filled([{"n": i} for i in range(10)] + ["bad"], partitions=2)
    loads(topic, value="json", by="date(timestamp), partition")
    fill(broker.bootstrap, topic, [{"n": 10, "late": "x"}], make=False)
    assert loads(topic).rows == 1
    rows = sorted(reader(lake), key=lambda row: row["n"])
    assert rows == [*({"n": i, "late": None} for i in range(10)), {"n": 10, "late": "x"}]


def test_nothing_to_read(filled: Filled, loads: Loads, lake: Path, spark: Any) -> None:
    with pytest.raises(LakeError, match="there is no such directory"):
        tidelog.pipeline.read_lake(spark, lake)
    lake.mkdir()
    with pytest.raises(LakeError, match="it has no ledger"):
        tidelog.pipeline.read_lake(spark, lake)
