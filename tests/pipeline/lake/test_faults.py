"""Loads from topics with something wrong in them: what is left out is told to the offset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pipeline.lake.conftest import plain
from pipeline.planted import Planted, damage, transactions
from support.cli import run as run_command
from support.filling import fill, make_topic, write_batch

import tidelog.pipeline
from tidelog.client.admin import delete_topics
from tidelog.client.cluster import Cluster
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.verify import history, verify
from tidelog.testing import LocalBroker

pytestmark = pytest.mark.timeout(400)  # several Spark jobs in a test, on a machine that may be busy
Loads = Callable[..., Any]
Filled = Callable[..., str]


def offsets(lake: Path) -> list[int]:
    return [row["offset"] for row in plain(lake)]


@pytest.mark.parametrize("by", [None, "n % 2 as odd"])  # in the tasks alone, and through Spark
def test_a_damaged_batch(
    broker: LocalBroker, topic: str, loads: Loads, lake: Path, by: str | None
) -> None:
    make_topic(broker.bootstrap, topic)
    for first in range(100, 150, 10):
        write_batch(broker.bootstrap, topic, [{"n": i} for i in range(first, first + 10)])
    damage(broker, topic, b"105")
    damage(broker, topic, b"130")
    options = {"value": "json", "by": by}
    with pytest.raises(LakeError, match=rf"{topic}-0: offsets 0 to 9: the batch at offset 0 is da"):
        loads(topic, **options)
    assert not list(lake.rglob("*.parquet"))
    report = loads(topic, on_corrupt="skip", **options)
    assert (report.rows, report.lost) == (30, 20)
    assert report.lost_offsets == (f"{topic}-0: offsets 0 to 9, 30 to 39",)
    assert offsets(lake) == [*range(10, 30), *range(40, 50)]
    proof = verify(lake)
    assert proof.ok, proof.problems
    assert (proof.total("rows"), proof.total("lost"), proof.total("holes")) == (30, 20, 0)
    lost = [span for row in history(lake) for part in row.ranges for span in part.lost]
    assert lost == [(0, 10), (30, 40)]
    shown = run_command("load", "verify", "--to", str(lake))
    assert f"{topic}-0: offsets 0 to 9, 30 to 39 are lost" in shown.err
    assert loads(topic, on_corrupt="skip").number is None  # and they are not tried again


def test_aborted_transactions(tmp_path: Path, lake: Path, spark: Any) -> None:
    log = transactions()
    committed = [*range(4, 12), *range(18, 22)]
    planted = Planted(tmp_path, {0: log.data})
    with planted.broker as broker:

        def load(to: Path, **options: Any) -> Any:
            return tidelog.pipeline.load(
                planted.topic, to, bootstrap=broker.bootstrap, spark=spark, **options
            )

        only = {"isolation.level": "read_committed"}
        assert load(lake, until="17", kafka=only).rows == 8
        live = tidelog.pipeline.read_lake(spark, lake, live=True)
        assert sorted(row.offset for row in live.collect()) == committed
        assert load(lake, kafka=only).rows == 4
        assert offsets(lake) == committed
        proof = verify(lake)
        assert proof.ok, proof.problems
        assert (proof.total("rows"), proof.total("holes")) == (12, 16)
        everything = tmp_path / "everything"
        assert load(everything).rows == 24
        assert verify(everything).ok


def test_lake_and_topic_that_was_made_again_are_not_one(
    broker: LocalBroker, filled: Filled, loads: Loads, lake: Path, spark: Any
) -> None:
    topic = filled(["a"] * 10)
    loads(topic)
    with Cluster(broker.bootstrap) as cluster:
        delete_topics(cluster, [topic])
    with pytest.raises(LakeError, match=f"there is no topic '{topic}' any more"):
        tidelog.pipeline.read_lake(spark, lake, live=True)
    fill(broker.bootstrap, topic, ["b"] * 20)  # more than was loaded: offsets 10 to 19 are there
    with pytest.raises(LakeError, match=f"topic '{topic}' was deleted and created again since"):
        tidelog.pipeline.read_lake(spark, lake, live=True)
    assert tidelog.pipeline.read_lake(spark, lake).count() == 10
