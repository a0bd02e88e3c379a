"""A streaming query without Spark: what its micro-batch execution does with a reader."""

from __future__ import annotations

import json
import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from tidelog.pipeline.offsets import StreamOffset
from tidelog.pipeline.options import SourceOptions
from tidelog.pipeline.streams import StreamReader


class Query:
    """A streaming query, driven as Spark's micro-batch execution drives it."""

    def __init__(self, broker: Any, **options: str) -> None:
        named = {name.replace("__", "."): value for name, value in options.items()}
        named.setdefault("fetchOffset.retryIntervalMs", "10")
        self.options = {"kafka.bootstrap.servers": broker.bootstrap} | named
        self.finished: Any = None  # the end of the last batch, as the checkpoint has it
        self.available_now = False
        self.start()

    def start(self) -> None:
        """Again, in a new process, from the checkpoint."""
        reader = StreamReader(SourceOptions.parse(self.options).for_stream())
        self.reader = pickle.loads(pickle.dumps(reader))
        if self.available_now:
            self.reader.prepareForTriggerAvailableNow()
        self.limit = self.reader.getDefaultReadLimit()

    def trigger(self, limit: ReadLimit | None = None) -> list[Any] | None:
        """The ranges of the next batch; None if there is none."""
        start = self.finished or _json(self.reader.initialOffset())
        end = _json(self.reader.latestOffset(start, limit or self.limit))
        if json.dumps(end) == json.dumps(self.finished):
            return None
        parts = [part.value for part in self.reader.partitions(start, end)]
        again = [part.value for part in self.reader.partitions(start, end)]
        assert parts == again, "a batch that is planned twice is the same batch"
        self.finished = end
        return parts

    def values(self) -> list[bytes]:
        """Whatever there is to read now."""
        result = []
        while (parts := self.trigger()) is not None:
            for part in parts:
                result += values_of(self.reader, part)
        return result

    @property
    def offset(self) -> StreamOffset:
        return StreamOffset.from_json(self.finished)


def values_of(reader: Any, part: Any) -> list[bytes]:
    task = pickle.loads(pickle.dumps(reader))
    partition = type("P", (), {"value": part})()
    return [value for batch in task.read(partition) for value in batch.column("value").to_pylist()]


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, last)]
