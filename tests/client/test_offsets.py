"""The offset language: what it says, what it refuses, and where it ends up."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.offsets import (
    END,
    START,
    Extent,
    OffsetError,
    Position,
    PositionKind,
    Range,
    parse,
    parse_position,
    resolve,
)

NEW_YEAR = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)

numbers = st.integers(0, 2**62)
# Positions with a text that reads back as the same position.
positions = st.one_of(
    st.builds(
        Position,
        st.sampled_from([PositionKind.START, PositionKind.END, PositionKind.ABSOLUTE]),
        numbers,
    ),
    st.builds(Position, st.just(PositionKind.TIME), st.integers(10**11, 2**62)),
    st.builds(lambda seconds: Position(PositionKind.AGO, seconds * 1000), st.integers(0, 10**9)),
)
logs = st.tuples(numbers, st.integers(0, 10**6)).map(lambda t: Extent(t[0], t[0] + t[1]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", START),
        ("earliest", START),
        ("beginning", START),
        ("end", END),
        ("latest", END),
        ("0", Position(PositionKind.ABSOLUTE, 0)),
        ("1742", Position(PositionKind.ABSOLUTE, 1742)),
        ("+10", Position(PositionKind.START, 10)),
        ("-10", Position(PositionKind.END, 10)),
        (" -10 ", Position(PositionKind.END, 10)),
        ("@2026-01-01", Position(PositionKind.TIME, NEW_YEAR)),
        ("@2026-01-01T00:00", Position(PositionKind.TIME, NEW_YEAR)),
        ("@2026-01-01 00:00", Position(PositionKind.TIME, NEW_YEAR)),
        ("@2026-01-01T00:00Z", Position(PositionKind.TIME, NEW_YEAR)),
        ("@2026-01-01T02:00+02:00", Position(PositionKind.TIME, NEW_YEAR)),
        ("@2025-12-31T19:00-0500", Position(PositionKind.TIME, NEW_YEAR)),
        ("@2026-01-01T00:00:30", Position(PositionKind.TIME, NEW_YEAR + 30_000)),
        ("@2026-01-01T00:00:30.25Z", Position(PositionKind.TIME, NEW_YEAR + 30_250)),
        ("@1767225600000", Position(PositionKind.TIME, NEW_YEAR)),
        ("@-90s", Position(PositionKind.AGO, 90_000)),
        ("@-5m", Position(PositionKind.AGO, 300_000)),
        ("@-48h", Position(PositionKind.AGO, 48 * 3_600_000)),
        ("@-2d", Position(PositionKind.AGO, 48 * 3_600_000)),
        ("-10m", Position(PositionKind.AGO, 600_000)),
        ("-10", Position(PositionKind.END, 10)),
    ],
)
def test_one_position(text: str, expected: Position) -> None:
    assert parse_position(text) == expected
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        (":", "start", "end"),
        ("5:", "5", "end"),
        (":end", "start", "end"),
        (":5", "start", "5"),
        ("start:+10", "start", "+10"),
        ("-10:end", "-10", "end"),
        ("+5:-5", "+5", "-5"),
        ("100:200", "100", "200"),
        ("@2026-01-01:@2026-01-02", "@2026-01-01", "@2026-01-02"),
        # A time takes as much as it can: seconds and zones hold colons, too.
        ("@2026-01-01T00:00Z:@2026-01-02T00:00Z", "@2026-01-01T00:00Z", "@2026-01-02T00:00Z"),
        ("@2026-01-01T00:00:@2026-01-02T00:00", "@2026-01-01T00:00", "@2026-01-02T00:00"),
        ("@2026-01-01T00:00:30:40", "@2026-01-01T00:00:30", "40"),
        ("@2026-01-01T00:00Z:30", "@2026-01-01T00:00Z", "30"),
        ("@2026-01-01T00:00:+10", "@2026-01-01T00:00", "+10"),
        ("@2026-01-01T00:00:1000", "@2026-01-01T00:00", "1000"),
        ("@2026-01-01T02:00+02:00:5", "@2026-01-01T02:00+02:00", "5"),
        ("@2026-01-01T02:00+02:00:@-1h", "@2026-01-01T02:00+02:00", "@-1h"),
        ("@-48h:@-24h", "@-48h", "@-24h"),
        ("-48h:-24", "@-48h", "-24"),
        (":@2026-01-01T00:00", "start", "@2026-01-01T00:00"),
    ],
)
def test_ranges(text: str, first: str, last: str) -> None:
    assert parse(text) == Range(parse_position(first), parse_position(last))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "x", "begin", "START", "1.5", "1e3", "--1", "+-1", "+", "-", "-1w", "+1h",
        "1h", "@", "@-", "@-48", "@-48w", "@48h", "@+48h", "@tomorrow", "@2026",
        "@1767225600", "@2026-01", "@2026-13-01", "@2026-02-30",
        "@2026-01-01T", "@2026-01-01T24:30", "@2026-01-01T10", "@2026-01-01T10:61",
        "@2026-01-01T00:00X", "@2026-01-01T00:00+99:99", "@1969-12-31", "1:2:3", "::", "1::2",
        "1:x", "x:1", "1 2", "٣", "@٢٠٢٦-01-01", "9" * 30, "@" + "9" * 30, "@-" + "9" * 30 + "d",
    ],
)  # fmt: skip
def test_what_is_no_offset_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(OffsetError) as error:
        parse(text)
    assert repr(text) in str(error.value)


def test_a_range_is_not_a_position() -> None:
    with pytest.raises(OffsetError, match="not one offset"):
        parse_position("1:2")


@given(positions)
def test_a_position_reads_back(position: Position) -> None:
    assert parse_position(str(position)) == position


@given(positions, positions)
def test_a_range_reads_back(first: Position, last: Position) -> None:
    assert parse(f"{first}:{last}") == Range(first, last)


@given(
    st.datetimes(datetime(1970, 1, 3), datetime(2100, 1, 1)),
    st.sampled_from(["minutes", "seconds", "milliseconds"]),
    st.integers(-23 * 60, 23 * 60),
    positions,
)
def test_any_time_in_any_zone_reads_as_python_reads_it(
    naive: datetime, precision: str, minutes: int, last: Position
) -> None:
    moment = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    text = moment.isoformat(timespec=precision)
    exact = datetime.fromisoformat(text)
    expected = (exact - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse(f"@{text}") == Position(PositionKind.TIME, expected)
    assert parse(f"@{text}:{last}") == Range(Position(PositionKind.TIME, expected), last)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(OffsetError):
        parse(text)


@given(positions, logs, st.none() | numbers)
def test_everything_but_a_plain_number_falls_into_the_log(
    position: Position, log: Extent, by_time: int | None
) -> None:
    offset = resolve(position, log, by_time)
    if position.kind is PositionKind.ABSOLUTE:
        assert offset == position.value
    else:
        assert log.start <= offset <= log.end


@given(logs, st.integers(0, 10**6))
def test_relative_offsets_count_from_their_end(log: Extent, distance: int) -> None:
    size = log.end - log.start
    assert resolve(Position(PositionKind.START, distance), log, None) - log.start == min(
        distance, size
    )
    assert log.end - resolve(Position(PositionKind.END, distance), log, None) == min(distance, size)


def test_a_time_is_where_the_look_up_says_or_the_end() -> None:
    log = Extent(10, 20)
    assert resolve(Position(PositionKind.TIME, 5), log, 15) == 15
    assert resolve(Position(PositionKind.TIME, 5), log, None) == 20
    assert resolve(Position(PositionKind.AGO, 5), log, 3) == 10


def test_a_time_span_is_counted_back_from_now() -> None:
    assert Position(PositionKind.AGO, 1000).time_ms(5000) == 4000
    assert Position(PositionKind.AGO, 9000).time_ms(5000) == 0
    assert Position(PositionKind.TIME, 77).time_ms(5000) == 77
    assert START.time_ms(5000) is None
