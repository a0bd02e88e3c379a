"""Loads into a lake: real Spark, a real broker, plain readers, and the proof afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline.lake.conftest import plain
from support.cli import run as run_command
from support.filling import fill
from support.record_reader import read_records
from support.waiting import until

import tidelog.pipeline
from tidelog.client.admin import delete_topics
from tidelog.client.cluster import Cluster
from tidelog.client.partitions import delete_records, extents
from tidelog.pipeline.lake.files import LakeError, lock
from tidelog.pipeline.lake.ledger import LOCK, STAGING, Ledger, Manifest
from tidelog.pipeline.lake.verify import history, verify
from tidelog.testing import LocalBroker
from tidelog.topic_partition import TopicPartition

Loads = Callable[..., Any]
Filled = Callable[..., str]


def values(lake: Path) -> list[Any]:
    return [row["value"] for row in plain(lake)]


def test_a_load_goes_on_where_the_last_one_ended(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled([f"a{i}" for i in range(300)], partitions=3)
    first = loads(topic)
    assert (first.number, first.rows, first.files) == (1, 300, 1)
    assert loads(topic).number is None  # nothing new
    fill(broker.bootstrap, topic, [f"b{i}" for i in range(100)], partitions=3, make=False)
    assert loads().rows == 100  # the destination knows its topics
    rows = plain(lake)
    assert {row["value"] for row in rows} == {b"a%d" % i for i in range(300)} | {
        b"b%d" % i for i in range(100)
    }
    assert len(rows) == 400
    assert set(rows[0]) == {
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
    }  # fmt: skip
    assert spark.read.parquet(str(lake)).count() == 400
    report = verify(lake)
    assert report.ok, report.problems
    assert report.total("rows") == report.total("offsets") == 400
    assert [row.rows for row in history(lake)] == [300, 100]


def test_the_command_line(
    broker: LocalBroker, filled: Filled, spark: Any, lake: Path, tmp_path: Path
) -> None:
    topic = filled([f"a{i}" for i in range(30)], partitions=3)

    def tidelog(*args: Any) -> Any:
        return run_command(*map(str, args), bootstrap=broker.bootstrap)

    done = tidelog("load", topic, "--to", lake)
    assert done.code == 0, done.err
    assert done.out.startswith(f"30 records to {lake} in 1 file, ")
    assert tidelog("load", topic, "--to", lake).out == f"nothing new for {lake}\n"
    assert tidelog("load", "--to", lake, "--json").json["number"] is None
    shown = tidelog("load", "verify", "--to", lake)
    assert shown.code == 0
    assert shown.lines[-1] == f"{lake}: all 30 rows are there, each once, in 1 file"
    found = tidelog("load", "verify", "--to", lake, "--json").json
    assert found["ok"] and found["rows"] == 30 and len(found["ranges"]) == 3
    (row,) = tidelog("load", "history", "--to", lake, "--json").json
    assert (row["kind"], row["rows"], row["number"]) == ("load", 30, 1)
    assert "30" in tidelog("load", "history", "--to", lake).lines[1]
    # What is wrong is one sentence.
    missing = tidelog("load", "verify", "--to", tmp_path / "none")
    assert missing.code == 1 and "there is no such directory" in missing.err
    empty = tidelog("load", "history", "--to", tmp_path)
    assert empty.code == 1 and "it has no ledger" in empty.err
    other = tidelog("load", "no-such-topic", "--to", tmp_path / "x")
    assert other.code == 1 and "there is no topic 'no-such-topic'" in other.err
    object_store = tidelog("load", topic, "--to", "s3://bucket/x")
    assert object_store.code == 1 and "only folders can be loaded into" in object_store.err
    named = tidelog("load", "--to", tmp_path / "x", "--", "verify")
    assert named.code == 1 and "there is no topic 'verify'" in named.err


def test_backfill_and_rerun_do_not_double(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, tmp_path: Path
) -> None:
    topic = filled([str(i) for i in range(100)])
    assert loads(topic, start="-30").rows == 30
    assert loads(topic, start="40", until="60").rows == 20
    assert loads(topic, start="50", until="80").rows == 10  # 60 to 69
    assert loads(topic).number is None  # goes on after the end, gaps or not
    assert [int(value) for value in values(lake)] == list(range(40, 100))
    assert verify(lake).ok
    assert loads(topic, start="start").rows == 40
    assert [int(value) for value in values(lake)] == list(range(100))
    elsewhere = tmp_path / "elsewhere"
    assert loads(topic, elsewhere, start="10", until="20").rows == 10
    assert [int(value) for value in values(elsewhere)] == list(range(10, 20))
    with pytest.raises(LakeError, match=r"--from 1000: .* has offsets 0 to 99"):
        loads(topic, tmp_path / "x", start="1000")


def test_folders(filled: Filled, loads: Loads, lake: Path, spark: Any) -> None:
    day = 1_767_225_600_000  # 2026-01-01
    topic = filled(
        [{"value": str(i), "timestamp": day + i * 1_800_000} for i in range(96)], partitions=2
    )
    report = loads(topic, by="date(timestamp), hour(timestamp), partition")
    assert report.files == 48 * 2
    assert (lake / "date=2026-01-02" / "hour=23" / "partition=0").is_dir()
    frame = spark.read.parquet(str(lake))
    assert frame.where("date = date'2026-01-01' and hour < 6").count() == 12
    assert frame.select("value").distinct().count() == 96
    assert verify(lake).ok
    with pytest.raises(LakeError, match=r"earlier loads .* one destination has one layout"):
        loads(topic, by="topic")


def test_files_of_the_right_size(filled: Filled, loads: Loads, lake: Path) -> None:
    topic = filled([bytes(str(i), "ascii") * 300 for i in range(3000)], compression__type="none")
    report = loads(topic, target_bytes=200_000, compression="none")
    sizes = [path.stat().st_size for path in lake.glob("*.parquet")]
    assert report.files == len(sizes) > 5
    assert max(sizes) < 2_500_000
    assert sum(pq.read_metadata(path).num_rows for path in lake.glob("*.parquet")) == 3000


def test_retention_was_faster(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path
) -> None:
    topic = filled([str(i) for i in range(50)])
    loads(topic)
    fill(broker.bootstrap, topic, [str(i) for i in range(50, 100)], make=False)
    with Cluster(broker.bootstrap) as cluster:
        delete_records(cluster, {TopicPartition(topic, 0): 70})
    with pytest.raises(LakeError, match=r"no longer in the topic \(.*: 50 to 69\); --on-loss skip"):
        loads(topic)
    report = loads(topic, on_loss="skip")
    assert (report.rows, report.lost) == (30, 20)
    assert [int(value) for value in values(lake)] == [*range(50), *range(70, 100)]
    proof = verify(lake)
    assert proof.ok and proof.total("lost") == 20


def test_another_topic_under_the_same_name(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path
) -> None:
    topic = filled(["a"] * 10)
    loads(topic)
    with Cluster(broker.bootstrap) as cluster:
        delete_topics(cluster, [topic])
    fill(broker.bootstrap, topic, ["b"] * 20)
    with pytest.raises(LakeError, match="was deleted and created again"):
        loads(topic)
    assert values(lake) == [b"a"] * 10


def test_another_cluster(filled: Filled, loads: Loads, lake: Path, spark: Any) -> None:
    topic = filled(["a"] * 10)
    loads(topic)
    with LocalBroker() as other:
        fill(other.bootstrap, topic, ["b"] * 20)
        with pytest.raises(LakeError, match=r"holds records of cluster .*, and this is cluster"):
            tidelog.pipeline.load(topic, lake, bootstrap=other.bootstrap, spark=spark)


def test_two_at_once(filled: Filled, loads: Loads, lake: Path) -> None:
    topic = filled(["a"] * 10)
    with lock(lake / LOCK), pytest.raises(LakeError, match=r"another load .* is at work"):
        loads(topic)
    assert loads(topic, wait=True).rows == 10


def test_what_a_dead_load_left_is_removed(filled: Filled, loads: Loads, lake: Path) -> None:
    from tidelog.pipeline.lake.files import LocalFiles

    topic = filled(["a"] * 10)
    loads(topic)
    dead = Ledger(LocalFiles(lake))
    dead.recover()
    dead.begin("dead")
    (lake / STAGING / "dead" / "x.parquet.staged").write_bytes(b"half")
    assert loads(topic).number is None
    assert not (lake / STAGING / "dead").exists()
    assert [row.kind for row in history(lake)] == ["load", "cleanup"]
    with pytest.raises(LakeError, match="another load"):
        dead.publish(Manifest("load", "dead"))


def test_holes_of_compaction(topic: str, lake: Path, spark: Any) -> None:
    with LocalBroker({"log.cleaner.backoff.ms": "50"}) as broker:
        configs = {
            "cleanup.policy": "compact",
            "segment.bytes": "2000",
            "min.cleanable.dirty.ratio": "0.01",
        }
        rows = [{"key": b"%d" % (i % 5), "value": b"%d" % i} for i in range(3000)]
        fill(broker.bootstrap, topic, rows, configs=configs, batch__size=500)

        def remaining() -> int:
            with Cluster(broker.bootstrap) as cluster:
                tp = TopicPartition(topic, 0)
                return len(list(read_records(cluster, tp, extents(cluster, [tp])[tp])))

        until(lambda: remaining() < 1000, "compaction")
        report = tidelog.pipeline.load(topic, lake, bootstrap=broker.bootstrap, spark=spark)
        assert report.rows < 1000
        found = verify(lake)
        assert found.ok, found.problems
        assert found.total("offsets") == 3000
        assert found.total("holes") == 3000 - report.rows
        assert found.total("unchecked") == 0
        # A record that is in the topic and not in the files is no hole.
        (path,) = lake.glob("*.parquet")
        kept = path.read_bytes()
        pq.write_table(pq.read_table(path).slice(0, report.rows - 1), path)
        assert any("1 record missing: offsets 2999" in row for row in verify(lake).problems)
        path.write_bytes(kept)
    gone = verify(lake)  # no broker any more: the holes can only be told
    assert gone.ok and gone.total("unchecked") == 3000 - report.rows
    assert "without a row" in gone.notes[0]


def test_a_directory_that_is_not_empty(filled: Filled, loads: Loads, lake: Path) -> None:
    lake.mkdir()
    (lake / "mine.parquet").write_bytes(b"x")
    with pytest.raises(LakeError, match=r"it is not empty \(mine\.parquet\)"):
        loads(filled(["a"]))


def test_bad_settings(filled: Filled, loads: Loads, lake: Path, tmp_path: Path) -> None:
    topic = filled(["a"])
    for options, reason in (
        ({"value": "xml"}, "--value xml: one of bytes, text, json, csv"),
        ({"errors": "ignore"}, "--errors ignore: one of fail, skip, dead-letter"),
        ({"kafka": {"isolation.level": "x"}}, "kafka.isolation.level=x: write read_committed"),
        ({"kafka": {"no.such": "x"}}, "kafka.no.such: there is no such option"),
        ({"start": "nonsense"}, "start: 'nonsense' is not an offset"),
        ({"target_bytes": 0}, "--target-bytes must be at least 1"),
    ):
        with pytest.raises(LakeError, match=reason):
            loads(topic, **options)
    away = run_command("load", topic, "--to", str(tmp_path / "x"), "-b", "127.0.0.1:1")
    assert away.code == 1
    assert "cannot reach a broker" in away.err and "start one with `tidelog up`" in away.err


def test_verify_says_what_is_wrong(filled: Filled, loads: Loads, lake: Path) -> None:
    topic = filled([str(i) for i in range(100)])
    loads(topic, until="40")
    loads(topic)
    small, large = sorted(lake.glob("*.parquet"), key=lambda path: pq.read_metadata(path).num_rows)
    kept = small.read_bytes()
    small.unlink()
    report = verify(lake)
    assert not report.ok
    assert "it is not there" in report.problems[0]
    assert "40 records missing: offsets 0 to 39" in report.problems[1]
    small.write_bytes(kept)
    copy = lake / "copy.parquet"
    copy.write_bytes(kept)
    assert verify(lake).problems == [
        "copy.parquet is not in the ledger: plain readers see it all the same"
    ]
    copy.unlink()
    table = pq.read_table(large)
    pq.write_table(table.slice(5), large)
    report = verify(lake)
    assert "has 55 rows, not 60" in report.problems[0]
    assert "5 records missing: offsets 40 to 44" in report.problems[1]
    small.write_bytes(large.read_bytes())
    assert any("more than once: offsets 45 to 99" in row for row in verify(lake).problems)


def test_verify_finds_rows_that_are_not_those_of_the_load(
    filled: Filled, loads: Loads, lake: Path
) -> None:
    """The file has as many rows as the ledger says, but others."""
    topic = filled([str(i) for i in range(100)])
    loads(topic, until="40")
    (path,) = lake.glob("*.parquet")
    table = pq.read_table(path)

    def problems(*offsets: int) -> list[str]:
        column = pa.array(offsets, pa.int64())
        found = table.set_column(table.schema.get_field_index("offset"), "offset", column)
        pq.write_table(found, path)
        return verify(lake).problems

    where = f"{topic}-0[0:40] of load 1"
    assert problems(*range(40)) == []
    assert problems(*range(10, 50)) == [
        f"{where}: 10 records missing: offsets 0 to 9",
        f"{topic}-0: 10 rows of no load: offsets 40 to 49",
    ]
    assert problems(*range(39), 7) == [
        f"{where}: 1 record missing: offsets 39",
        f"{where}: 1 record more than once: offsets 7",
    ]
    # A load that lost a record and did not notice: ledger and file agree, the topic has more.
    manifest = next((lake / "_tidelog").glob("0*1.json"))
    text = manifest.read_text()
    manifest.write_text(text.replace('"rows": 40', '"rows": 39'))
    pq.write_table(table.slice(0, 39), path)
    assert verify(lake).problems == [f"{where}: 1 record missing: offsets 39"]
    manifest.write_text(text)
    other = pa.array([1] * 40, table.schema.field("partition").type)
    index = table.schema.get_field_index("partition")
    pq.write_table(table.set_column(index, "partition", other), path)
    assert verify(lake).problems == [
        f"{where}: 40 records missing: offsets 0 to 39",
        f"{topic}-1: 40 rows of no load: offsets 0 to 39",
    ]


def test_verify_knows_that_json_has_no_infinity(filled: Filled, loads: Loads, lake: Path) -> None:
    """As tidelog once wrote it for 1e400."""
    loads(filled([{"n": 0.5}, {"n": "1e400"}]), value="json")
    (path,) = lake.glob("*.parquet")
    table = pq.read_table(path)
    index = table.schema.get_field_index("n")
    pq.write_table(table.set_column(index, "n", pa.array([float("-inf")])), path)
    (problem,) = verify(lake).problems
    assert problem.startswith(f"{path.name}: n is infinite in a row")
