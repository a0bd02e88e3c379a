"""Reading a batch: from the starting to the ending offsets, cut into tasks.

A reader travels to the tasks, so what it holds must pickle; connections stay at home.
"""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tidelog.client.offsets import END, START
from tidelog.errors import ApiError, ErrorCode
from tidelog.pipeline.offsets import Lost
from tidelog.pipeline.options import OptionError, SourceOptions
from tidelog.pipeline.planner import DELETED, Logs, cut
from tidelog.pipeline.positions import Positions
from tidelog.pipeline.ranges import OffsetRange
from tidelog.pipeline.schema import RANGES
from tidelog.topic_partition import TopicPartition
from tidelog.wire.uuids import uuid_text

_log = logging.getLogger(__name__)
_SHOWN_LOSSES = 5
BEYOND = "the log does not reach so far"


class SourceReader:
    """What batches and streams have in common: the tasks, and what was lost."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def plan(
        self, positions: Positions, ranges: Sequence[OffsetRange], logs: Logs
    ) -> list[InputPartition]:
        """Cut into tasks."""
        begins = {row.tp: row.start for row in ranges}
        tasks = cut(
            ranges,
            positions.sizes(logs, begins),
            max_bytes=self.options.max_bytes_per_partition,
            max_records=self.options.max_records_per_partition,
            min_parts=self.options.min_partitions,
        )
        return [InputPartition(task) for task in tasks]

    def records(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        part = partition.value
        if part is None:  # Spark's stand-in for an empty plan
            return
        if self.options.ranges:
            row = (part.topic, uuid_text(part.topic_id), part.partition, part.start, part.end)
            yield pa.RecordBatch.from_pylist([dict(zip(RANGES.names, row, strict=True))], RANGES)
            return
        yield from _read_range()(
            self.options.client,
            part,
            self.options.columns,
            on_loss=None if self.options.fail_on_data_loss else _log_loss,
            on_corrupt=None if self.options.fail_on_corrupt_batch else _log_loss,
            patience=self.options.poll_timeout,
        )

    def lose(self, lost: Sequence[Lost]) -> None:
        """Raise, or log exactly what is lost."""
        if not lost:
            return
        if self.options.fail_on_data_loss:
            shown = "; ".join(map(str, lost[:_SHOWN_LOSSES]))
            more = len(lost) - _SHOWN_LOSSES
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"data was lost: {shown}{f'; and {more} more' if more > 0 else ''}. "
                "Set failOnDataLoss to false to go on at the nearest offsets",
            )
        for row in lost:
            _log.warning("data was lost: %s", row)


@functools.cache
def _read_range() -> Callable[..., Iterator[pa.RecordBatch]]:
    """In a task: loads the compiled decoder."""
    from tidelog.pipeline.reading import read_range

    # Spark collects garbage after every task.  Walking over all that numba consists of would
    # take longer than a small task, and none of it is ever garbage.
    gc.freeze()
    return read_range


def _log_loss(problem: Exception) -> None:
    _log.warning("data was lost: %s", problem)


class BatchReader(SourceReader, DataSourceReader):
    """From the starting to the ending offsets, once."""

    def partitions(self) -> Sequence[InputPartition]:
        positions = Positions(self.options)
        try:
            logs = positions.logs()
            starts = positions.resolve(self.options.starting, START, logs)
            ends = positions.resolve(self.options.ending, END, logs)
            return self.plan(positions, self._ranges(logs, starts, ends), logs)
        finally:
            positions.close()

    def _ranges(
        self, logs: Logs, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[OffsetRange]:
        lost: list[Lost] = []
        result = []
        for tp, log in sorted(logs.extents.items()):
            start, end = starts[tp], ends[tp]
            if start > end:
                raise OptionError(
                    f"the batch would begin at offset {start} of {tp} and end at {end}: "
                    "check the starting and ending offsets"
                )
            if start < min(log.start, end):
                lost.append(Lost(tp, start, min(log.start, end), DELETED))
            if end > max(log.end, start):
                lost.append(Lost(tp, max(log.end, start), end, BEYOND))
            start, end = max(start, log.start), min(end, log.end)
            if start < end:
                result.append(OffsetRange(*tp, start, end, logs.ids[tp.topic]))
        self.lose(lost)
        return result

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.records(partition)
