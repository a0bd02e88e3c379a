"""JSON and CSV loads, schemas that grow, dead letters, and folders by any expression."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pipeline.lake.conftest import plain
from support.filling import fill

import tidelog.pipeline
from tidelog.pipeline.lake.dead_letters import letters_of, send_unsent
from tidelog.pipeline.lake.files import LakeError, LocalFiles
from tidelog.pipeline.lake.ledger import LOAD, FileEntry, Ledger, Manifest
from tidelog.pipeline.lake.verify import history, verify
from tidelog.pipeline.lake.writing import LETTER_SCHEMA
from tidelog.pipeline.options import ClientOptions
from tidelog.testing import LocalBroker

Loads = Callable[..., Any]
Filled = Callable[..., str]


def test_columns_that_come_later(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled([{"n": i} for i in range(20)], partitions=2)
    assert loads(topic, value="json").rows == 20
    more = [{"n": i + 0.5, "who": f"u{i}", "offset": i, "odd `name`": i} for i in range(20)]
    fill(broker.bootstrap, topic, more, partitions=2, make=False)
    assert loads(topic).rows == 20  # the destination knows that values are JSON
    frame = tidelog.pipeline.read_lake(spark, lake)
    assert frame.count() == 40
    assert dict(frame.dtypes)["n"] == "double"  # whole numbers are widened
    assert frame.where("who is null").count() == 20
    assert frame.where("n = 3.5 and who = 'u3' and value_offset = 3").count() == 1
    assert frame.where("`odd ``name``` = 3").count() == 1
    # Readers that look into the first file only are told the columns.
    table = ds.dataset(lake, schema=tidelog.pipeline.lake_schema(lake)).to_table()
    assert sum(who is not None for who in table["who"].to_pylist()) == 20
    assert verify(lake).ok


def test_tasks_that_meet_a_field_in_two_types(
    filled: Filled, loads: Loads, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.pipeline.lake.plan._LEAST_TASK_BYTES", 1)
    values = [{"n": i} if i % 2 == 0 else {"n": f"text {i}"} for i in range(100)]
    topic = filled(values, partitions=2)
    report = loads(topic, value="json")
    assert (report.rows, report.dead) == (50, 50)  # partition 0 came first: n is a number
    assert sorted(row["n"] for row in plain(lake)) == list(range(0, 100, 2))
    assert verify(lake).ok


def test_dead_letters_in_the_destination(
    filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled(
        [
            {"value": '{"a": 1}'},
            {"value": "no json", "key": b"k", "headers": [("h", b"1")], "timestamp": 1000},
            {"value": None},
            {"value": b"\xff"},
        ]
    )
    report = loads(topic, value="json")
    assert (report.rows, report.dead) == (2, 2)
    assert [row["a"] for row in plain(lake)] == [1, None]
    letters = tidelog.pipeline.read_dead_letters(spark, lake).orderBy("offset").collect()
    assert [bytes(row.value) for row in letters] == [b"no json", b"\xff"]
    assert bytes(letters[0].key) == b"k" and letters[0].headers[0].key == "h"
    assert letters[0].topic == topic and letters[0].offset == 1
    assert letters[0].reason.startswith("it is not JSON")
    assert spark.read.parquet(str(lake)).count() == 2  # plain readers do not see them
    assert verify(lake).ok
    proof = verify(lake)
    assert (proof.total("rows"), proof.total("dead")) == (2, 2)


def test_dead_letters_to_a_topic(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, read: Callable[..., Any]
) -> None:
    topic = filled([{"value": f"bad {i}", "key": b"k", "headers": [("h", b"1")]} for i in range(5)])
    loads(topic, value="json", dead_letters=f"{topic}.dead-letters")
    found = read(f"{topic}.dead-letters", includeHeaders="true").orderBy("offset").collect()
    assert [bytes(row.value) for row in found] == [b"bad %d" % i for i in range(5)]
    headers = {row.key: bytes(row.value) for row in found[3].headers}
    assert headers["h"] == b"1"
    assert headers["tidelog.origin"] == f"{topic}-0@3".encode()
    assert headers["tidelog.reason"].startswith(b"it is not JSON")
    assert [row.kind for row in history(lake)] == ["load", "letters"]
    # One who died after sending, and before the ledger knew, sends nothing twice.
    (lake / "_tidelog" / f"{2:020d}.json").unlink()
    client = ClientOptions.parse({"kafka.bootstrap.servers": broker.bootstrap})
    ledger = Ledger(LocalFiles(lake))
    ledger.refresh()
    assert send_unsent(ledger, client, lake, again=True) == 0
    assert read(f"{topic}.dead-letters").count() == 5
    assert ledger.state.unsent == ()


def test_a_letter_of_the_year_57970(tmp_path: Path) -> None:
    """A producer that wrote microseconds; Python has no such date."""
    columns = {field.name: pa.nulls(1, field.type) for field in LETTER_SCHEMA}
    columns["timestamp"] = pa.array(
        [1_767_225_600_000_000_000], LETTER_SCHEMA.field("timestamp").type
    )
    pq.write_table(pa.table(columns, LETTER_SCHEMA), tmp_path / "x.letters")
    (row,) = letters_of(Manifest(LOAD, letters=(FileEntry("x.letters", 1, 1),)), tmp_path)
    assert row["timestamp"] == 1_767_225_600_000_000_000


def test_errors_are_skipped_or_end_the_load(filled: Filled, loads: Loads, lake: Path) -> None:
    topic = filled(['{"a": 1}', "bad", "worse"])
    with pytest.raises(LakeError, match=rf"{topic}-0@1: it is not JSON.*--errors dead-letter"):
        loads(topic, value="json", errors="fail")
    with pytest.raises(LakeError, match="2 records do not decode, and --max-errors is 1"):
        loads(topic, value="json", max_errors=1)
    assert not list(lake.rglob("*.parquet*"))
    report = loads(topic, value="json", errors="skip")
    assert (report.rows, report.skipped, report.dead) == (1, 2, 0)
    proof = verify(lake)
    assert proof.ok and proof.total("skipped") == 2


def test_errors_are_counted_over_all_tasks(
    filled: Filled, loads: Loads, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of the tasks has seen too many; together they have."""
    monkeypatch.setattr("tidelog.pipeline.lake.plan._LEAST_TASK_BYTES", 1)
    topic = filled(["bad"] * 3, partitions=3)
    with pytest.raises(LakeError, match="3 records do not decode, and --max-errors is 2"):
        loads(topic, value="json", max_errors=2, target_bytes=1)
    assert not list(lake.rglob("*.parquet*"))
    report = loads(topic, value="json", max_errors=3, target_bytes=1)
    assert (report.rows, report.dead) == (0, 3)


def test_a_schema_by_the_user(filled: Filled, loads: Loads, lake: Path, tmp_path: Path) -> None:
    topic = filled([{"a": 1, "b": "x", "c": 2}, {"a": "no"}])
    report = loads(topic, value="json", schema="a int, b string")
    assert (report.rows, report.dead) == (1, 1)
    (row,) = plain(lake)
    assert row["a"] == 1 and row["b"] == "x" and "c" not in row
    with pytest.raises(LakeError, match="--schema a nonsense: there is no type nonsense"):
        loads(topic, tmp_path / "x", value="json", schema="a nonsense")
    with pytest.raises(LakeError, match="--schema is for --value json or csv"):
        loads(topic, tmp_path / "x", schema="a int")


def test_csv(filled: Filled, loads: Loads, lake: Path) -> None:
    topic = filled(["1;x", "2;y", "three"])
    report = loads(topic, value="csv", separator=";", schema="n bigint, name string")
    assert (report.rows, report.dead) == (2, 1)
    assert [(row["n"], row["name"]) for row in plain(lake)] == [(1, "x"), (2, "y")]


def test_text_and_headers(filled: Filled, loads: Loads, lake: Path) -> None:
    topic = filled([{"value": "grün", "headers": [("h", b"1")]}])
    loads(topic, value="text", headers=True)
    (row,) = plain(lake)
    assert row["value"] == "grün"
    assert row["headers"] == [{"key": "h", "value": b"1"}]


def test_folders_by_any_expression(
    filled: Filled, loads: Loads, lake: Path, tmp_path: Path, spark: Any
) -> None:
    values = [json.dumps({"country": "de" if i % 3 else "fr", "n": i}) for i in range(90)]
    topic = filled([*values, "bad"], partitions=3)
    by = "upper(country) as country, n % 2 as odd, topic, hour(timestamp) + 0 as h"
    zone = "spark.sql.session.timeZone"
    spark.conf.set(zone, "Asia/Tokyo")
    try:
        report = loads(topic, value="json", by=by)
    finally:
        spark.conf.set(zone, "UTC")
    assert (report.rows, report.dead) == (90, 1)
    assert spark.read.parquet(str(lake)).where("h != hour(timestamp)").count() == 0
    assert sorted(path.name for path in lake.glob("country=*")) == ["country=DE", "country=FR"]
    assert spark.read.parquet(str(lake)).where("country = 'FR' and odd = 0").count() == 15
    assert verify(lake).ok
    assert tidelog.pipeline.read_lake(spark, lake).where("value_country = 'de'").count() == 60
    with pytest.raises(LakeError, match=r"--by nonsense\(n\): "):
        loads(topic, tmp_path / "x", value="json", by="nonsense(n) as x")
    with pytest.raises(LakeError, match="no record has a field timestam; did you mean timestamp"):
        loads(topic, tmp_path / "x", value="json", by="date(timestam)")
