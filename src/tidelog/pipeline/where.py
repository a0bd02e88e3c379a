"""Which partitions a query reads, and where it begins and ends, as the user wrote it.  No I/O.

``positions.py`` turns both into partitions and offsets that exist.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidelog.client.offsets import END, START, OffsetError, Position, PositionKind, parse_position
from tidelog.pipeline.option_values import Given, OptionError
from tidelog.topic_partition import TopicPartition


class NoRecord(Enum):
    """What to do if there is no record at or after a time."""

    END = "latest"  # read nothing, or up to the end
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Where:
    """Where to begin or to end, before the logs are known.

    One position for all partitions, or one for each, or what a group has committed.
    """

    option: str  # as the user wrote it, for messages
    position: Position | None = None
    each: Mapping[TopicPartition, Position] | None = None
    group: bool = False
    no_record: NoRecord = NoRecord.END


@dataclass(frozen=True, slots=True)
class Topics:
    """Which partitions are read: one of the three is set."""

    assign: frozenset[TopicPartition] = frozenset()
    subscribe: tuple[str, ...] = ()
    pattern: str = ""

    def wants(self, topic: str) -> bool:
        if self.pattern:
            # As in Spark's connector, the pattern may be found anywhere in the name.
            return re.search(self.pattern, topic) is not None
        return topic in self.subscribe or any(row.topic == topic for row in self.assign)

    @property
    def names(self) -> tuple[str, ...]:
        """The topics, if they are known by name."""
        return self.subscribe or tuple(sorted({row.topic for row in self.assign}))


def parse_topics(found: Given) -> Topics:
    names = ("assign", "subscribe", "subscribePattern")
    given = [name for name in names if found.get(name) is not None]
    if not given:
        raise OptionError(
            "what shall be read? Write one of subscribe (topics with commas between), "
            'subscribePattern (a regular expression) or assign ({"topic":[0,1]})'
        )
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} are both set: leave one")
    (name,) = given
    text = (found.get(name) or "").strip()
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise OptionError("subscribe is empty: write topics with commas between")
        return Topics(subscribe=topics)
    if name == "subscribePattern":
        if not text:
            raise OptionError("subscribePattern is empty: write a regular expression")
        try:
            re.compile(text)
        except re.error as error:
            message = f"subscribePattern={text}: not a regular expression: {error}"
            raise OptionError(message) from None
        return Topics(pattern=text)
    rows = _json(name, text, '{"topicA":[0,1],"topicB":[0]}')
    tps = set()
    for topic, numbers in rows.items():
        if not isinstance(numbers, list) or not all(_is_partition(row) for row in numbers):
            raise _json_error(name, text, '{"topicA":[0,1],"topicB":[0]}')
        tps |= {TopicPartition(topic, number) for number in numbers}
    if not tps:
        raise OptionError('assign is empty: write partitions, for example {"topic":[0,1]}')
    return Topics(assign=frozenset(tps))


def parse_where(found: Given, end: str) -> Where | None:
    """Time for all before time by partition before offsets, as in Spark's connector."""
    no_record = NoRecord.END
    strategy = (found.get("startingOffsetsByTimestampStrategy") or "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy={strategy}: write error or latest")
    if end == "starting" and strategy == "error":
        no_record = NoRecord.ERROR
    name = f"{end}Timestamp"
    text = found.get(name)
    if text is not None:
        return Where(name, _time(name, text.strip()), no_record=no_record)
    name = f"{end}OffsetsByTimestamp"
    text = found.get(name)
    if text is not None:
        example = '{"topicA":{"0":1767225600000,"1":1767225600000}}'
        each = _by_partition(name, text, example, lambda value: _time(name, value))
        return Where(name, each=each, no_record=no_record)
    name = f"{end}Offsets"
    text = (found.get(name) or "").strip()
    if not text:
        return None
    if text.startswith("{"):
        example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
        each = _by_partition(name, text, example, lambda value: _offset(name, value))
        return Where(name, each=each)
    if text.lower() == "group":
        if end == "ending":
            raise OptionError("endingOffsets=group: only startingOffsets may be a group's")
        return Where(name, group=True)
    try:
        return Where(name, parse_position(text.lower() if text.isalpha() else text))
    except OffsetError as error:
        raise OptionError(
            f"{name}: {error}; also earliest, latest, "
            + ("group, " if end == "starting" else "")
            + 'or json: {"topic":{"0":23,"1":-1}}'
        ) from None


def _time(name: str, value: Any) -> Position:
    if isinstance(value, str) and re.fullmatch(r"\d+", value, re.ASCII):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        other = name.replace("Timestamp", "Offsets").replace("OffsetsByOffsets", "Offsets")
        raise OptionError(
            f"{name}={value}: write milliseconds since 1970, for example 1767225600000, or use "
            f"{other}=@2026-01-01T00:00Z"
        )
    return Position(PositionKind.TIME, value)


def _offset(name: str, value: Any) -> Position:
    """A value in the json by partition: Spark's numbers, and the language as a string."""
    if isinstance(value, str):
        try:
            return parse_position(value)
        except OffsetError as error:
            raise OptionError(f"{name}: {error}") from None
    if not isinstance(value, int) or isinstance(value, bool) or not -2 <= value < 2**63:
        raise OptionError(
            f"{name}: {value!r} is not an offset; write a number, -1 for latest, -2 for "
            'earliest, or a string: "-10", "@2026-01-01T00:00Z"'
        )
    return {-2: START, -1: END}.get(value, Position(PositionKind.ABSOLUTE, value))


def _by_partition(
    name: str, text: str, example: str, read: Callable[[Any], Position]
) -> dict[TopicPartition, Position]:
    result = {}
    for topic, rows in _json(name, text, example).items():
        if not isinstance(rows, dict):
            raise _json_error(name, text, example)
        for number, value in rows.items():
            if not re.fullmatch(r"\d{1,9}", number, re.ASCII):
                raise _json_error(name, text, example)
            result[TopicPartition(topic, int(number))] = read(value)
    if not result:
        raise _json_error(name, text, example)
    return dict(sorted(result.items()))


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise _json_error(name, text, example) from None
    if not isinstance(found, dict):
        raise _json_error(name, text, example)
    return found


def _json_error(name: str, text: str, example: str) -> OptionError:
    return OptionError(f"{name}={text}: write json, for example {example}")


def _is_partition(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def check_pairs(starting: Where, ending: Where) -> None:
    """Both by partition: the same partitions, and no end before its start."""
    if starting.each is None or ending.each is None:
        return
    if starting.each.keys() != ending.each.keys():
        odd = ", ".join(map(str, sorted(starting.each.keys() ^ ending.each.keys())))
        raise OptionError(
            f"{starting.option} and {ending.option} must name the same partitions: {odd} is "
            "only in one of them"
        )
    for tp, first in starting.each.items():
        last = ending.each[tp]
        comparable = first.kind is last.kind and first.kind in (
            PositionKind.ABSOLUTE,
            PositionKind.TIME,
        )
        if comparable and first.value > last.value:
            raise OptionError(
                f"{starting.option} is {first.value} for {tp}, after {ending.option} "
                f"{last.value}: write the smaller one first"
            )
