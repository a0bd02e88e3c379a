"""Folders: what ``--by`` may be, and where rows go."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.layout import divide, needs_spark, parse_by, stored_columns


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("date(timestamp), hour(timestamp)", ["date", "hour"]),
        ("topic", ["topic"]),
        ("to_date(timestamp)", ["date"]),
        ("date(timestamp) as day, upper(a, ',') as b", ["day", "b"]),
        ("substring(`x, y`, 1, 2) as z", ["z"]),
    ],
)
def test_names(text: str, names: list[str]) -> None:
    assert [part.name for part in parse_by(text)] == names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("upper(a)", r"give the folder a name: upper\(a\) as name"),
        ("a,,b", "an expression is empty"),
        ("", "an expression is empty"),
        ("a, A", "two folders have the name a"),
        ("f(a", "not closed"),
        ("'a", "not closed"),
    ],
)
def test_what_cannot_be(text: str, reason: str) -> None:
    with pytest.raises(LakeError, match=reason):
        parse_by(text)


def test_which_need_spark() -> None:
    assert not needs_spark(parse_by("date(timestamp), topic, user as u"))
    assert needs_spark(parse_by("date(timestamp), user % 10 as bucket"))
    assert stored_columns(parse_by("date(timestamp), topic, user as u")) == {"topic"}


def test_rows_are_divided() -> None:
    moments = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (0, 23, 0, 5)]
    batch = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(moments, pa.timestamp("us", "UTC")),
            "user": ["a/b", None, "a/b", ""],
            "offset": [0, 1, 2, 3],
        }
    )
    found = divide(parse_by("date(timestamp), hour(timestamp), user"), batch)
    assert {folder: rows.column("offset").to_pylist() for folder, rows in found} == {
        "date=2026-01-01/hour=0/user=a%2Fb": [0, 2],
        "date=2026-01-01/hour=23/user=__HIVE_DEFAULT_PARTITION__": [1],
        "date=2026-01-01/hour=5/user=__HIVE_DEFAULT_PARTITION__": [3],
    }
    assert [folder for folder, _ in divide(parse_by("nothing"), batch)] == [
        "nothing=__HIVE_DEFAULT_PARTITION__"
    ]
    assert divide((), batch) == [("", batch)]
