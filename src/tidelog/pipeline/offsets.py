"""How far a stream has read: what Spark keeps in the checkpoint.  No I/O.

    {"version": 1,
     "topics": {"clicks": {"id": "kWgyTz9LRCmpo9J6CC0WkQ", "offsets": {"0": 42, "1": 17}}},
     "began": {"clicks": {"1": 0}},
     "lost": [{"topic": "clicks", "partition": 0, "from": 12, "until": 40, "reason": "..."}]}

``offsets`` are exclusive ends.  The topic's id stands beside them: a topic that was deleted and
made again has another id, and then the old offsets mean nothing.  ``began`` and ``lost`` record
what happened between the offset before and this one: partitions that were found, and where
they began; ranges that could not be read, because no broker has them any more.  With them a batch
that Spark repeats is planned as it was planned at first.  ``gone``, written as ``topics``, are
partitions that could not be found: should they come back, the stream goes on where it was, and
does not read all of them again.

Spark compares offsets as texts, so one state has one text: keys are sorted, partitions by
number, and what is empty is left out.  A checkpoint of Spark's own Kafka connector
(``{"clicks":{"0":42}}``) is read as well; it knows no ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.topic_partition import TopicPartition
from tidelog.wire.schema import ZERO_UUID
from tidelog.wire.uuids import parse_uuid, uuid_text

VERSION = 1
Offsets = Mapping[TopicPartition, int]


class OffsetFormatError(ValueError):
    """The checkpoint holds something else than an offset of this source."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets that could not be read; without an end: everything from ``start`` on."""

    tp: TopicPartition
    start: int
    end: int | None
    reason: str

    def __str__(self) -> str:
        if self.end is None:
            return f"{self.tp}: everything from offset {self.start} on: {self.reason}"
        if self.end == self.start + 1:
            return f"{self.tp}: offset {self.start}: {self.reason}"
        return f"{self.tp}: offsets {self.start} to {self.end - 1}: {self.reason}"


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """See the module."""

    offsets: Offsets
    ids: Mapping[str, bytes]
    began: Offsets = field(default_factory=dict)
    lost: tuple[Lost, ...] = ()
    # The position of a new query.  It differs from the same position as an end, so that Spark
    # writes it down at once: "latest" must not mean something later after a restart.
    initial: bool = False
    gone: Offsets = field(default_factory=dict)  # their topics' ids are in ``ids``

    def same_place(self, other: StreamOffset) -> bool:
        """Nothing lies between the two."""
        mine, theirs = ((row.offsets, row.ids, row.gone) for row in (self, other))
        return [dict(row) for row in mine] == [dict(row) for row in theirs]

    def id_of(self, topic: str) -> bytes:
        return self.ids.get(topic, ZERO_UUID)

    # -- json -------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {"version": VERSION, "topics": self._with_ids(self.offsets)}
        if self.gone:
            result["gone"] = self._with_ids(self.gone)
        if self.began:
            result["began"] = _by_topic(self.began)
        if self.lost:
            result["lost"] = [
                {
                    "topic": row.tp.topic,
                    "partition": row.tp.partition,
                    "from": row.start,
                    "until": row.end,
                    "reason": row.reason,
                }
                for row in sorted(self.lost, key=lambda row: (row.tp, row.start))
            ]
        if self.initial:
            result["initial"] = True
        return result

    def _with_ids(self, offsets: Offsets) -> dict[str, Any]:
        result = {}
        for topic, rows in _by_topic(offsets).items():
            known = self.id_of(topic) != ZERO_UUID
            found = {"id": uuid_text(self.ids[topic])} if known else {}
            result[topic] = {**found, "offsets": rows}
        return result

    @classmethod
    def from_json(cls, value: Any) -> StreamOffset:
        try:
            if value.get("version") == VERSION:
                return cls._read(value)
            if isinstance(value.get("version"), int):
                raise OffsetFormatError(
                    f"the checkpoint holds an offset of version {value['version']}, this "
                    f"tidelog knows version {VERSION}: use a newer one"
                )
            return cls(dict(_flat(value.items())), dict.fromkeys(value, ZERO_UUID))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, OffsetFormatError):
                raise
            raise OffsetFormatError(
                f"the checkpoint holds no offset of this source: {value!r}; give the query a "
                "checkpointLocation of its own"
            ) from error

    @classmethod
    def _read(cls, value: Mapping[str, Any]) -> StreamOffset:
        topics, gone = value["topics"], value.get("gone", {})
        return cls(
            dict(_flat((topic, row["offsets"]) for topic, row in topics.items())),
            {
                topic: parse_uuid(row["id"]) if "id" in row else ZERO_UUID
                for topic, row in [*gone.items(), *topics.items()]
            },
            dict(_flat(value.get("began", {}).items())),
            tuple(
                Lost(
                    TopicPartition(row["topic"], row["partition"]),
                    row["from"],
                    row["until"],
                    row["reason"],
                )
                for row in value.get("lost", ())
            ),
            bool(value.get("initial", False)),
            dict(_flat((topic, row["offsets"]) for topic, row in gone.items())),
        )


def same_topic(one: bytes, other: bytes) -> bool:
    """Ids that are not known (clusters before Kafka 2.8) match any."""
    return one == other or ZERO_UUID in (one, other)


def _by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    result: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        result.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return result


def _flat(rows: Iterable[tuple[str, Mapping[str, int]]]) -> Iterable[tuple[TopicPartition, int]]:
    for topic, offsets in rows:
        for partition, offset in offsets.items():
            yield TopicPartition(topic, int(partition)), int(offset)
