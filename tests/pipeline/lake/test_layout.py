"""Folders: what ``--by`` may be, and where rows go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.lake.layout import (
    Layout,
    divide,
    needs_spark,
    parse_by,
    renamed_fields,
    stored_columns,
)
from tidelog.pipeline.lake.load import Loader
from tidelog.pipeline.lake.options import LoadOptions
from tidelog.pipeline.lake.rewriting import rows_of_file
from tidelog.pipeline.lake.schemas import from_spark_json
from tidelog.pipeline.lake.writing import RANGE, TaskResult, WriteJob, write_rows
from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import OffsetRange
from tidelog.pipeline.schema import TYPES


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("date(timestamp), hour(timestamp)", ["date", "hour"]),
        ("topic", ["topic"]),
        ("to_date(timestamp)", ["date"]),
        ("date(timestamp) as day, upper(a, ',') as b", ["day", "b"]),
        ("substring(`x, y`, 1, 2) as z", ["z"]),
        ("concat(a, '(', 'it\\'s') as b, ',' as `c d`, hour( timestamp )", ["b", "c d", "hour"]),
        # Columns with names that begin a command of SQL:
        ("show, topic", ["show", "topic"]),
        ("call as x", ["x"]),
        ("execute, rename as `r, s`, explain", ["execute", "r, s", "explain"]),
    ],
)
def test_names(text: str, names: list[str]) -> None:
    assert [part.name for part in parse_by(text)] == names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("upper(a)", r"--by upper\(a\): a folder needs a name, .*; write upper\(a\) as NAME"),
        ("dat(timestamp)", r"there is no function dat of a time; did you mean date\(timestamp\)\?"),
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


def folders(by: str, **columns: Any) -> list[str]:
    """The folder of each row, in their order."""
    count = len(next(iter(columns.values())))
    batch = pa.RecordBatch.from_pydict({**columns, "offset": list(range(count))})
    found = {
        offset: folder
        for folder, rows in divide(parse_by(by), batch)
        for offset in rows["offset"].to_pylist()
    }
    return [found[offset] for offset in range(count)]


def test_times_that_no_calendar_has() -> None:
    """A producer that writes microseconds, where milliseconds are meant."""
    moments = pa.array([0, 1_767_225_600_000_000_000], pa.timestamp("us", "UTC"))
    for by, first in (("date(timestamp)", "date=1970-01-01"), ("year(timestamp)", "year=1970"),
                      ("timestamp", "timestamp=1970-01-01 00%3A00%3A00+00%3A00")):  # fmt: skip
        name = by.split("(")[0]
        assert folders(by, timestamp=moments) == [first, f"{name}=__HIVE_DEFAULT_PARTITION__"]


def test_times_that_are_text() -> None:
    nothing = "date=__HIVE_DEFAULT_PARTITION__"
    new_year, day = "date=2026-01-01", "date(at)"
    assert folders(day, at=["2026-01-01T10:00:00Z", "2025-12-31T23:00:00-02:00"]) == [new_year] * 2
    assert folders(day, at=["2026-01-01T10:00:00", "2026-01-01", None]) == [
        new_year, new_year, nothing]  # fmt: skip
    assert folders(day, at=["2026-01-01T10:00:00Z", "2026-01-01", "soon", ""]) == [
        new_year, new_year, nothing, nothing]  # fmt: skip


def test_a_field_of_the_value_as_a_folder() -> None:
    """Its column has another name then: the folder has taken it."""
    assert folders("user", value_user=["anna", "ben"]) == ["user=anna", "user=ben"]
    assert folders("date(at) as At", value_at=["2026-01-01"]) == ["At=2026-01-01"]
    assert folders("user", value_other=["x"]) == ["user=__HIVE_DEFAULT_PARTITION__"]
    assert renamed_fields(parse_by("topic, User"), ["topic", "value_topic", "value_user"]) == {
        "user": "value_user"  # the topic is the record's own, whatever its value says
    }


def test_objects_and_lists_as_folders() -> None:
    assert folders("a", a=[{"b": 1}, None]) == [
        "a=%7B%22b%22%3A 1%7D", "a=__HIVE_DEFAULT_PARTITION__"]  # fmt: skip


def test_tasks_may_have_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    loader = Loader(LoadOptions(("t",), "lake", {"bootstrap.servers": "localhost:9092"}))
    job = loader._job()
    monkeypatch.chdir("/")
    assert job.options.root == tmp_path / "lake"


def rows(keys: list[str], start: int = 0, size: int = 1) -> pa.RecordBatch:
    """As they come to a task."""
    count = len(keys)
    columns = {
        "key": [key.encode() for key in keys],
        "value": [b"x" * size] * count,
        "topic": ["t"] * count,
        "partition": [0] * count,
        "offset": list(range(start, start + count)),
        "timestamp": [0] * count,
        "timestampType": [0] * count,
        "headers": [None] * count,
    }
    arrays = [pa.array(column, TYPES[name]) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(
        [*arrays, pa.array([0] * count, pa.int32())], names=[*columns, RANGE]
    )


def job_of(lake: Path, **more: Any) -> WriteJob:
    layout, options = Layout(by="key"), LoadOptions(("t",), str(lake), **more)
    return WriteJob(ClientOptions("localhost:9092"), options, layout, layout.parts(), "load", 0)


def write(lake: Path, batches: Iterable[pa.RecordBatch], **options: Any) -> TaskResult:
    job = job_of(lake, **options)
    job.staging.mkdir(parents=True)
    return write_rows(job, 0, (OffsetRange("t", 0, 0, 10_000),), batches)


def test_a_folder_whose_name_is_too_long(tmp_path: Path) -> None:
    """It would be noticed only when the load is published, and then by every load after it."""
    found = write(tmp_path / "a", [rows(["short", "long" * 100, "short"])])
    assert [file.entry.folder for file in found.files] == ["key=short"]
    (entry,) = found.ranges
    assert (entry.rows, entry.dead) == (2, 1)
    assert [file.parts for file in found.letters] == [(("t", 0, 1, 1, 1),)]
    found = write(tmp_path / "b", [rows(["ä" * 200])], errors="fail")
    assert "t-0@0: the name of its folder would be too long" in (found.error or "")


def test_files_of_large_rows_are_merged_in_small_pieces(tmp_path: Path) -> None:
    """Files that compress well are many times as large in memory."""
    count, size = 300, 200_000
    batches = [rows(["k"] * 100, start=start, size=size) for start in range(0, count, 100)]
    (found,) = write(tmp_path, batches, compression="zstd").files
    assert found.entry.bytes < count * size // 10
    schema = from_spark_json(found.schema)
    pieces = [batch.nbytes for batch in rows_of_file(job_of(tmp_path), found.entry, schema)]
    assert sum(pieces) > count * size and max(pieces) < count * size // 3


def test_a_folder_of_few_rows_does_not_hold_the_memory_of_all(tmp_path: Path) -> None:
    held = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(50):  # of 200 kB each
            held.append(pa.total_allocated_bytes())
            yield rows(["rare", *["often"] * 20], start=21 * number, size=10_000)

    found = write(tmp_path, batches(), target_bytes=400_000)
    assert found.ranges[0].rows == 50 * 21
    assert max(held) - held[0] < 3_000_000
