"""Reading a stream.  What it does at each trigger, and why it may be trusted:

* ``latestOffset(start, ...)`` is asked only when the batch that ended at ``start`` is finished
  and in the checkpoint.  That is the moment to commit the group's offsets: it comes sooner than
  Spark's ``commit``, and also after the last batch of a query that ends by itself.
* The answer holds whatever ``partitions`` needs to know later (where new partitions began,
  what was lost): a batch that is repeated after a crash is the same batch.
* If nothing has happened, the answer is ``start`` to the letter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tidelog.client.offsets import END, Extent
from tidelog.clock import SystemClock
from tidelog.pipeline.offsets import Lost, StreamOffset, same_topic
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.planner import Logs, advance, enough, follow, ranges_between
from tidelog.pipeline.positions import Positions
from tidelog.pipeline.readers import BEYOND, SourceReader
from tidelog.topic_partition import TopicPartition

_RECOMMIT_SECONDS = 3600.0  # brokers forget a group that commits nothing for days


class StreamReader(SourceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._clock = SystemClock()
        self._forget()

    def _forget(self) -> None:
        self._positions: Positions | None = None
        self._initial: dict[str, Any] | None = None
        self._logs: Logs | None = None
        self._target: Logs | None = None  # of a query that stops at what there is now
        self._planned: tuple[Any, list[InputPartition]] | None = None
        self._triggered_at: float | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._committed_at = self._clock.monotonic()

    def __reduce__(self) -> tuple[Callable[..., StreamReader], tuple[SourceOptions]]:
        """A task needs to know what to read, and nothing that the driver has found out."""
        return StreamReader, (self.options,)

    @property
    def positions(self) -> Positions:
        if self._positions is None:
            self._positions = Positions(self.options, self._clock)
        return self._positions

    # -- where to begin ---------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Asked again at each trigger until there is a first batch: the answer must stay."""
        if self._initial is None:
            logs = self.positions.logs()
            starts = self.positions.resolve(self.options.starting, END, logs)
            beyond = []
            for tp, log in logs.extents.items():
                if starts[tp] > log.end:
                    beyond.append(Lost(tp, log.end, starts[tp], BEYOND))
                    starts[tp] = log.end
            self.lose(beyond)
            self._initial = StreamOffset(starts, logs.ids, initial=True).to_json()
        return self._initial

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.positions.logs(missing_allowed=True)

    # -- how far ----------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Only a name for it: Spark hands it back, or asks for everything (Trigger.Once)."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        before = StreamOffset.from_json(start)
        self._commit_group(before)
        logs = self._logs = self._look(before)
        if self._target is not None:
            logs = _up_to(logs, self._target)
        topics = self.options.topics
        known = (*before.offsets, *before.gone)
        wanted = {tp.topic: topics.wants(tp.topic) for tp in known}
        found = follow(before, logs, wanted, from_pattern=bool(topics.pattern))
        self.lose(found.lost)
        ends = {tp: max(begin, logs.extents[tp].end) for tp, begin in found.begins.items()}
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(found.begins, ends, logs)
        used = {tp.topic for tp in (*ends, *found.gone)}
        after = StreamOffset(
            ends,
            {topic: logs.ids.get(topic, before.id_of(topic)) for topic in sorted(used)},
            found.began,
            found.lost,
            gone=found.gone,
        )
        happened = found.lost or found.began or before.initial or not after.same_place(before)
        return after.to_json() if happened else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For Spark's progress reports: where the logs end, whatever the limits are."""
        if self._logs is None or not self._logs.extents:
            return None
        return StreamOffset(self._logs.ends(), self._logs.ids).to_json()

    def _look(self, before: StreamOffset) -> Logs:
        """The logs as they are now.  What looks like loss is looked at again: right after an
        election, a broker may not yet know how far its log goes, or that it has the topic."""
        for attempt in range(self.options.num_retries + 1):
            if attempt:
                self.positions.pause()
            logs = self.positions.logs(missing_allowed=True)
            shrunk = {}
            gone = False
            for tp, offset in before.offsets.items():
                log = logs.extents.get(tp)
                if log is None:
                    gone = gone or self.options.topics.wants(tp.topic)
                elif offset > log.end and same_topic(before.id_of(tp.topic), logs.ids[tp.topic]):
                    shrunk[tp] = offset
            if not shrunk and not gone:
                break
        return self.positions.reaching(logs, shrunk)

    def _limited(
        self,
        begins: Mapping[TopicPartition, int],
        ends: dict[TopicPartition, int],
        logs: Logs,
    ) -> dict[TopicPartition, int]:
        options = self.options
        least = options.min_offsets_per_trigger
        # The end of an "available now" query must not wait for more records.
        if least is not None and self._target is None:
            now = self._clock.monotonic()
            waited = self._triggered_at is None or (
                now - self._triggered_at >= options.max_trigger_delay
            )
            if not waited and not enough(begins, ends, least):
                return dict(begins)
            self._triggered_at = now
        max_bytes = options.max_bytes_per_trigger or None
        return advance(
            begins,
            ends,
            self.positions.sizes(logs, begins) if max_bytes else {},
            max_offsets=options.max_offsets_per_trigger,
            max_bytes=max_bytes,
        )

    # -- what -------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Spark may ask several times about one batch."""
        if self._planned is None or self._planned[0] != (start, end):
            first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
            if self._logs is None:  # the batch of a query that was restarted
                self._logs = self.positions.logs(missing_allowed=True)
            tasks = self.plan(self.positions, ranges_between(first, last), self._logs)
            self._planned = (start, end), tasks
        return self._planned[1]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.records(partition)

    # -- the group --------------------------------------------------------------

    def _commit_group(self, finished: StreamOffset) -> None:
        now = self._clock.monotonic()
        if now - self._committed_at > _RECOMMIT_SECONDS:
            self._committed, self._committed_at = {}, now
        changed = {
            tp: offset
            for tp, offset in finished.offsets.items()
            if self._committed.get(tp) != offset
        }
        if changed and self.options.client.group_id is not None:
            self.positions.commit(changed)
            self._committed.update(changed)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: ``latestOffset`` has done it already, see the module."""

    def stop(self) -> None:
        if self._positions is not None:
            self._positions.close()


def _up_to(logs: Logs, target: Logs) -> Logs:
    """The logs as if nothing had been written, made or made again since."""
    extents = {}
    for tp, then in target.extents.items():
        now = logs.extents.get(tp)
        if now is not None and same_topic(logs.ids[tp.topic], target.ids[tp.topic]):
            extents[tp] = Extent(now.start, max(now.start, min(now.end, then.end)))
    ids = {tp.topic: logs.ids[tp.topic] for tp in extents}
    return Logs(ids, extents, logs.leaders)
