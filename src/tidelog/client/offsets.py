"""The one language in which a user names an offset.  Pure.

    start               the first record there is         (also earliest, beginning)
    end                 one past the last record          (also latest)
    1742                that offset
    +10                 10 after the start
    -10                 10 before the end
    @2026-01-01T00:00Z  the first record at or after a time
    @2026-01-01         the same; midnight, and UTC where no zone is given
    @1767225600000      the same, in milliseconds since 1970
    @-48h               that long ago: s, m, h or d (also -48h)

A range is ``a:b``: from ``a`` up to but not including ``b``.  Without ``a`` it begins at the
start, without ``b`` it stops at the end as it is now.  Times hold colons themselves: a time
takes as much of the text as it can, so ``@2026-01-01T00:00:30`` is half a minute past
midnight, and ``@2026-01-01T00:00Z:30`` is the range up to offset 30.

Relative offsets and times always fall into the log.  A plain number is taken as it is: the
caller says whether it must be there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

_LARGEST = 2**63 - 1
_SMALLEST_EPOCH = 10**11  # less is a year, or was meant in seconds
_NAMES = {
    "start": "start",
    "earliest": "start",
    "beginning": "start",
    "end": "end",
    "latest": "end",
}
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

_TIME = r"""
    -(?P<ago>\d+)(?P<unit>[smhd])
  | (?P<date>\d{4}-\d\d-\d\d)
    (?: [T ](?P<clock>\d\d:\d\d(?::\d\d(?!\d)(?:\.\d{1,6})?)?)
        (?P<zone>Z|[+-]\d\d:?\d\d)? )?
  | (?P<epoch>\d+)
"""
_POSITION = re.compile(
    rf"""
    (?P<name>[a-z]+)
  | -(?P<span>\d+)(?P<span_unit>[smhd])
  | (?P<sign>[+-]?)(?P<number>\d+)
  | @(?:{_TIME})
    """,
    re.VERBOSE | re.ASCII,
)
# For help texts and errors: the one list of what may be written.
FORMS = (
    "start, end (or earliest, latest), N, +N after the start, -N before the end, @TIME "
    "(@2026-01-01T00:00Z), -48h or @-48h (s, m, h, d ago)"
)
_HELP = f"use {FORMS}"


class Extent(NamedTuple):
    """The offsets that a log has: the first, and one past the last that may be read."""

    start: int
    end: int


class OffsetError(ValueError):
    """A text that names no offset; the message says what would."""


class PositionKind(Enum):
    """What an offset is counted from."""

    START = "start"
    END = "end"
    ABSOLUTE = "absolute"
    TIME = "time"
    AGO = "ago"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a log, before the log is known.

    ``value`` is added to the start, subtracted from the end, the offset itself, a time in
    ms, or a time span in ms.
    """

    kind: PositionKind
    value: int = 0

    def __str__(self) -> str:
        if self.kind is PositionKind.START:
            return f"+{self.value}" if self.value else "start"
        if self.kind is PositionKind.END:
            return f"-{self.value}" if self.value else "end"
        if self.kind is PositionKind.TIME:
            return f"@{self.value}"
        return f"@-{self.value // 1000}s" if self.kind is PositionKind.AGO else str(self.value)

    def time_ms(self, now_ms: int) -> int | None:
        """The time that it names, if it names one."""
        if self.kind is PositionKind.TIME:
            return self.value
        return max(0, now_ms - self.value) if self.kind is PositionKind.AGO else None


START = Position(PositionKind.START)
END = Position(PositionKind.END)


@dataclass(frozen=True, slots=True)
class Range:
    """Two places in a log; the second is exclusive."""

    first: Position
    last: Position

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


# -- reading --------------------------------------------------------------------


def parse_position(text: str) -> Position:
    """One place; an error if the text is a range or nothing."""
    position, rest = _take(text, text.strip())
    if rest:
        raise OffsetError(f"{text!r} is not one offset; {_HELP}")
    return position


def parse(text: str) -> Position | Range:
    """One place, or a range if there is a colon between two."""
    rest = text.strip()
    first = START
    if not rest.startswith(":"):
        first, rest = _take(text, rest)
        if not rest:
            return first
    if not rest.startswith(":"):
        raise OffsetError(f"{text!r} is not an offset; {_HELP}")
    rest = rest[1:]
    if not rest:
        return Range(first, END)
    last, rest = _take(text, rest)
    if rest:
        raise OffsetError(f"{text!r} is not a range of offsets: {rest!r} is too much; {_HELP}")
    return Range(first, last)


def _take(text: str, rest: str) -> tuple[Position, str]:
    """The position at the start of ``rest``, and what follows it."""
    match = _POSITION.match(rest)
    if match is None:
        raise OffsetError(f"{text!r} is not an offset; {_HELP}")
    following = rest[match.end() :]
    if following and not following.startswith(":"):
        raise OffsetError(f"{text!r} is not an offset; {_HELP}")
    return _position(text, match), following


def _position(text: str, match: re.Match[str]) -> Position:
    found = match.groupdict()
    if found["name"]:
        if found["name"] not in _NAMES:
            raise OffsetError(f"{text!r} is not an offset; {_HELP}")
        return START if _NAMES[found["name"]] == "start" else END
    if found["number"]:
        kinds = {"+": PositionKind.START, "-": PositionKind.END, "": PositionKind.ABSOLUTE}
        return Position(kinds[found["sign"]], _limited(text, int(found["number"])))
    ago, unit = found["ago"] or found["span"], found["unit"] or found["span_unit"]
    if ago:
        return Position(PositionKind.AGO, _limited(text, int(ago) * _UNITS[unit]))
    if found["epoch"]:
        milliseconds = _limited(text, int(found["epoch"]))
        if milliseconds < _SMALLEST_EPOCH:
            raise OffsetError(
                f"{text!r} would be in 1970: write a date as 2026-01-01, "
                "and a time since 1970 in milliseconds, not seconds"
            )
        return Position(PositionKind.TIME, milliseconds)
    return Position(PositionKind.TIME, _milliseconds(text, found))


def _limited(text: str, number: int) -> int:
    if number > _LARGEST:
        raise OffsetError(f"{text!r} holds a number that is too large; at most {_LARGEST}")
    return number


def _milliseconds(text: str, found: Mapping[str, str | None]) -> int:
    shown = f"{found['date']}T{found['clock'] or '00:00'}{found['zone'] or 'Z'}"
    try:
        moment = datetime.fromisoformat(shown)
    except ValueError as error:
        raise OffsetError(f"{text!r} is not a time: {error}") from None
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    result = delta.days * 86_400_000 + delta.seconds * 1000 + delta.microseconds // 1000
    if result < 0:
        raise OffsetError(f"{text!r} is a time before 1970")
    return result


# -- resolving ------------------------------------------------------------------


def resolve(position: Position, log: Extent, by_time: int | None) -> int:
    """The offset in one log.

    For a position that names a time, ``by_time`` is the first record at or after it, and
    None if there is none.
    """
    if position.kind is PositionKind.ABSOLUTE:
        return position.value
    if position.kind is PositionKind.START:
        return min(log.start + position.value, log.end)
    if position.kind is PositionKind.END:
        return max(log.end - position.value, log.start)
    return log.end if by_time is None else min(max(by_time, log.start), log.end)
