"""Continuous loads: a streaming query that writes through the ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pipeline.lake.conftest import plain
from support.filling import fill
from support.waiting import until

from tidelog.pipeline.lake.continuous import run_continuous
from tidelog.pipeline.lake.files import LakeError, lock
from tidelog.pipeline.lake.ledger import LOCK
from tidelog.pipeline.lake.load import Loader
from tidelog.pipeline.lake.options import LoadOptions, LoadReport
from tidelog.pipeline.lake.verify import history, verify
from tidelog.testing import LocalBroker

Filled = Callable[..., str]


class Running:
    """A continuous load in a thread, until the block ends."""

    def __init__(self, spark: Any, broker: LocalBroker, topic: str, lake: Path, **options: Any):
        kafka = {"bootstrap.servers": broker.bootstrap}
        self.options = LoadOptions((topic,), str(lake), kafka, **options)
        self.spark = spark
        self.reports: list[LoadReport] = []
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        try:
            with lock(self.options.root / LOCK):
                loader = Loader(self.options, self.spark, stop=self.stop)
                run_continuous(loader, 0.1, self.reports.append)
        except BaseException as error:
            self.error = error

    @property
    def rows(self) -> int:
        return sum(report.rows for report in self.reports)

    def wait_for(self, rows: int) -> None:
        until(lambda: self.rows >= rows or self.error, f"{rows} rows")
        assert self.error is None, self.error

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop.set()
        self.thread.join()


@pytest.mark.timeout(400)  # two queries start
def test_what_comes_is_loaded(
    broker: LocalBroker, filled: Filled, lake: Path, spark: Any, loads: Callable[..., Any]
) -> None:
    topic = filled([str(i) for i in range(100)], partitions=2)
    with Running(spark, broker, topic, lake) as first:
        first.wait_for(100)
        fill(broker.bootstrap, topic, [str(i) for i in range(100, 150)], partitions=2, make=False)
        first.wait_for(150)
    manifests = history(lake)
    assert {row.query["id"] for row in manifests if row.query} and all(
        row.query for row in manifests if row.kind == "load"
    )
    assert not list((lake / "_tidelog").glob("checkpoints/*"))
    # A load by hand in between, and then another query: both go on where the ledger ends.
    fill(broker.bootstrap, topic, [str(i) for i in range(150, 170)], partitions=2, make=False)
    assert loads(topic).rows == 20
    with Running(spark, broker, topic, lake) as second:
        fill(broker.bootstrap, topic, [str(i) for i in range(170, 200)], partitions=2, make=False)
        second.wait_for(30)
    assert sorted(int(row["value"]) for row in plain(lake)) == list(range(200))
    assert verify(lake).ok


def test_a_batch_that_is_done_again_adds_nothing(
    broker: LocalBroker, filled: Filled, lake: Path, spark: Any
) -> None:
    from tidelog.pipeline.lake.continuous import _Batches
    from tidelog.pipeline.positions import Positions

    topic = filled([str(i) for i in range(100)])
    options = LoadOptions((topic,), str(lake), {"bootstrap.servers": broker.bootstrap})
    loader = Loader(options, spark)
    positions = Positions(loader.source())
    reports: list[LoadReport] = []
    batches = _Batches(loader, positions, reports.append)
    read = spark.read.format("tidelog")
    for name, value in batches.options().items():
        read = read.option(name, value)
    frame = read.load()
    for _ in range(3):
        batches.load(frame, 7)
    assert [report.rows for report in reports] == [100]
    assert len(plain(lake)) == 100
    positions.close()


def test_it_says_why_it_ends(broker: LocalBroker, filled: Filled, lake: Path, spark: Any) -> None:
    topic = filled(["{}", "bad"])
    with Running(spark, broker, topic, lake, value="json", errors="fail") as running:
        until(lambda: running.error, "the end")
    assert isinstance(running.error, LakeError)
    assert "@1: it is not JSON" in str(running.error)
    with pytest.raises(LakeError, match="--until has no meaning"):
        options = LoadOptions((topic,), str(lake), {"bootstrap.servers": broker.bootstrap})
        from dataclasses import replace

        from tidelog.client.offsets import END

        run_continuous(Loader(replace(options, until=END), spark), 1, print)
