"""Loads without end, on structured streaming.

The source plans each micro-batch and yields one row for each range of offsets; the ranges are
then loaded like any others, and the manifest notes the query and the batch.  The ledger stays
the truth: a query begins where the ledger ends, with a new checkpoint, and what a batch names
that is in the ledger already (a batch that is done again, a load by hand in between) is left
out.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog.clock import SystemClock
from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.jobs import reason_of
from tidelog.pipeline.lake.ledger import FOLDER, RangeEntry
from tidelog.pipeline.lake.load import Loader
from tidelog.pipeline.lake.options import LoadReport
from tidelog.pipeline.lake.plan import Work
from tidelog.pipeline.planner import Logs, Sizes
from tidelog.pipeline.positions import Positions
from tidelog.pipeline.ranges import OffsetRange, subtract
from tidelog.pipeline.spark_failures import explained
from tidelog.topic_partition import TopicPartition
from tidelog.wire.uuids import parse_uuid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHECKPOINTS = f"{FOLDER}/checkpoints"
_LOOK_SECONDS = 0.5
_MOST_DEATHS, _LIVES_SECONDS = 3, 60.0  # so many queries in a row that live no longer
_log = logging.getLogger(__name__)


@explained()
def run_continuous(
    loader: Loader,
    seconds: float,
    report: Callable[[LoadReport], None],
) -> None:
    """Load what comes, about every so many seconds, until ``loader.stop`` is set.

    A batch that is not published by then is dropped; the next load does it.
    """
    if loader.options.until is not None:
        raise LakeError("--until has no meaning with --continuous: it never ends")
    with contextlib.closing(Positions(loader.source())) as positions:
        loader.check_cluster(positions)
        batches = _Batches(loader, positions, report)
        # The rest of the last query of a process that died; the ledger knows what it did.
        loader.ledger.files.remove(CHECKPOINTS)
        clock = SystemClock()
        deaths = 0
        while True:
            began = clock.monotonic()
            problem = _run_query(loader, batches, seconds)
            if problem is None or loader.stop.is_set():
                return
            if isinstance(problem, LakeError):
                raise problem
            deaths = deaths + 1 if clock.monotonic() - began < _LIVES_SECONDS else 1
            # Without an error in Python it was the process that plans which ended (killed, out of
            # memory).  Spark starts tasks again, but not that one; another query is as good.
            if deaths == _MOST_DEATHS or "Traceback" in str(problem):
                raise LakeError(f"the query ended: {reason_of(problem)}")
            _log.warning("the query ended, and another one begins: %s", reason_of(problem))


def _run_query(loader: Loader, batches: _Batches, seconds: float) -> BaseException | None:
    """One query, until it is to stop, or until it ends by itself: then why."""
    checkpoint = f"{CHECKPOINTS}/{uuid.uuid4().hex}"
    options = batches.options()  # what is wrong is reported before Spark is started
    reader = loader.spark.readStream.format("tidelog")
    for name, value in options.items():
        reader = reader.option(name, value)
    query = (
        reader.load()
        .writeStream.foreachBatch(batches.load)
        .option("checkpointLocation", str(loader.options.root / checkpoint))
        .queryName(f"tidelog load {uuid.uuid4().hex[:8]}")
        .trigger(processingTime=f"{round(seconds * 1000)} milliseconds")
        .start()
    )
    try:
        while not loader.stop.wait(_LOOK_SECONDS):
            if not query.isActive:
                break
        return batches.problem or query.exception()
    finally:
        query.stop()
        with batches.at_work:  # Spark does not wait for our part of a batch
            pass
        loader.ledger.files.remove(checkpoint)


class _Batches:
    """What Spark calls for each micro-batch."""

    def __init__(
        self, loader: Loader, positions: Positions, report: Callable[[LoadReport], None]
    ) -> None:
        self.problem: LakeError | None = None
        self.at_work = threading.Lock()
        self._loader = loader
        self._positions = positions
        self._report = report
        self._sizes: Sizes = {}
        self._starts: dict[TopicPartition, int] = {}
        self._begun = Work(())  # what was known before the first batch, for its manifest
        self._clock = SystemClock()

    def options(self) -> dict[str, str]:
        """The source's: from where the ledger ends, or at ``--from``."""
        loader = self._loader
        logs = self._positions.logs()
        loader.check_topics(logs)
        self._begun = loader.find_ranges(self._positions, logs)
        first = {part.tp: part.start for part in reversed(self._begun.ranges)}
        self._sizes = self._positions.sizes(logs, first)
        starts: dict[str, dict[str, int]] = {}
        for tp, log in logs.extents.items():
            end = loader.ledger.state.end(tp)
            known = log.end if end is None else min(max(end, log.start), log.end)
            self._starts[tp] = first.get(tp, known)
            starts.setdefault(tp.topic, {})[str(tp.partition)] = self._starts[tp]
        return {
            **{f"kafka.{name}": value for name, value in loader.options.kafka.items()},
            "subscribe": ",".join(loader.source().topics.names),
            "startingOffsets": json.dumps(starts),
            "failOnDataLoss": str(loader.options.on_loss == "fail").lower(),
            "maxBytesPerPartition": "1t",  # one row for each partition: tasks are cut by us
            "ranges": "true",
        }

    def load(self, frame: DataFrame, batch: int) -> None:
        try:
            with self.at_work:
                self._loader.check_stop()
                self._load(frame, batch)
        except LakeError as error:
            self.problem = error
            raise

    def _load(self, frame: DataFrame, batch: int) -> None:
        began = self._clock.monotonic()
        loader = self._loader
        state = loader.ledger.refresh()
        rows = [
            OffsetRange(row.topic, row.partition, row.start, row.end, parse_uuid(row.topic_id))
            for row in frame.collect()
        ]
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        ids = {row.topic: row.topic_id for row in rows}
        loader.check_topics(Logs(ids, {}))
        ranges = [
            row.between(start, end)
            for row in sorted(rows, key=lambda row: (row.tp, row.start))
            for start, end in subtract((row.start, row.end), state.covered.get(row.tp, ()))
        ]
        report = loader.load_ranges(
            Work(ranges, [*self._begun.lost, *self._lost(ranges)], self._begun.begins),
            self._sizes,
            ids,
            {"id": query or "", "batch": batch},
        )
        if report.number is None:
            return
        self._begun = Work(())
        compacted = loader.compact()
        seconds = self._clock.monotonic() - began
        self._report(replace(report, compacted=compacted, seconds=seconds))

    def _lost(self, ranges: list[OffsetRange]) -> list[RangeEntry]:
        """Where the source went on beyond the end of the ledger, the records between are gone;
        but what lies before the beginning of the query was left out, or is noted already."""
        first: dict[TopicPartition, int] = {}
        for row in ranges:
            first.setdefault(row.tp, row.start)
        result = []
        for tp, start in first.items():
            end = self._loader.ledger.state.end(tp)
            end = max(end or 0, self._starts.get(tp, 0))
            if end < start and self._loader.options.on_loss == "skip":
                result.append(RangeEntry(*tp, end, start, rows=0, lost=((end, start),)))
        return result
