"""The layout of a destination: into which folder ``--by`` puts a record.

    date(timestamp), hour(timestamp)         date=2026-01-01/hour=13
    topic, user                              topic=clicks/user=anna
    upper(country) as land                   land=DE

Folders are Hive's, ``name=value``, as all readers know them.  Names come from ``as name``, or
from the expression if it is a column or a function of time.  Those two are worked out here, in
the task, on Arrow columns; any other expression is handed to Spark (``Part.built_in`` is None),
and then records pass through the JVM once.  Times are UTC.  What is no time, or one that no
calendar has (a producer that writes microseconds as milliseconds), goes where null goes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.lake.files import LakeError
from tidelog.pipeline.ranges import COLUMNS, HEADERS
from tidelog.pipeline.sql_text import tokens

if TYPE_CHECKING:
    from sqlglot import Token

NOTHING = "__HIVE_DEFAULT_PARTITION__"  # Hive's word for null
BY_PREFIX = "__by_"  # columns that Spark has worked out
_MOST_FOLDERS = 5_000  # of one batch
_LONGEST_NAME = 255  # bytes, on every file system that matters
_MOMENT = pa.timestamp("us", "UTC")
_FIRST_YEAR, _AFTER_LAST_YEAR = -62_135_596_800_000_000, 253_402_300_800_000_000

_TIME: dict[str, Callable[[Any], Any]] = {
    "date": lambda column: pc.cast(column, pa.date32()),
    "to_date": lambda column: pc.cast(column, pa.date32()),
    "year": pc.year,
    "month": pc.month,
    "day": pc.day,
    "dayofmonth": pc.day,
    "hour": pc.hour,
    "minute": pc.minute,
}
_NAMES = {"to_date": "date", "dayofmonth": "day"}
# What Hive and Spark escape in the name of a folder.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")


@dataclass(frozen=True, slots=True)
class Part:
    """One level of folders."""

    name: str
    expression: str
    function: str | None = None  # of _TIME
    column: str | None = None

    @property
    def built_in(self) -> bool:
        return self.column is not None

    def __str__(self) -> str:
        return f"{self.expression} as {self.name}"


@dataclass(frozen=True, slots=True)
class Layout:
    """What all loads of a destination share; the ledger holds it."""

    value: str = "bytes"  # or text, json, csv
    by: str | None = None
    schema: str | None = None
    separator: str = ","
    headers: bool = False

    def parts(self) -> tuple[Part, ...]:
        return parse_by(self.by) if self.by else ()

    @property
    def has_fields(self) -> bool:
        """Whether values become columns."""
        return self.value in ("json", "csv")


def parse_by(text: str) -> tuple[Part, ...]:
    """Read ``--by``; ``LakeError`` with the reason if it is not valid."""
    from sqlglot.errors import SqlglotError

    try:
        parts = tuple(_parse_part(text, words) for words in _expressions(text))
    except SqlglotError:
        raise LakeError(f"--by {text}: a bracket or a quote is not closed") from None
    names = [part.name.lower() for part in parts]
    for name in names:
        if names.count(name) > 1:
            raise LakeError(f"--by: two folders have the name {name}: rename one with `as`")
    return parts


def _expressions(text: str) -> list[list[Token]]:
    """The tokens of each expression: cut at commas that are not in brackets."""
    from sqlglot import TokenType

    result: list[list[Token]] = [[]]
    depth = 0
    for token in tokens(text):
        depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET)
        depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET)
        if token.token_type == TokenType.COMMA and depth == 0:
            result.append([])
        else:
            result[-1].append(token)
    if depth:
        raise LakeError(f"--by {text}: a bracket or a quote is not closed")
    return result


def _parse_part(text: str, words: list[Token]) -> Part:
    if not words:
        raise LakeError("--by: an expression is empty; write for example date(timestamp), topic")
    name = None
    if len(words) > 2 and text[words[-2].start : words[-2].end + 1].lower() == "as":
        name, words = words[-1].text, words[:-2]
    raw = [text[word.start : word.end + 1] for word in words]
    text = text[words[0].start : words[-1].end + 1]
    if len(words) == 1 and re.fullmatch(r"\w+", text) and not text.isdigit():
        return Part(name or text, text, None, text)
    call = None
    if raw[1::2] == ["(", ")"] and re.fullmatch(r"\w+", raw[2]):
        call = raw[0], raw[2]
        function = call[0].lower()
        if function in _TIME:
            return Part(name or _NAMES.get(function, function), text, function, call[1])
    if name is None:
        raise _unnamed(text, call)
    return Part(name, text)


def _unnamed(text: str, call: tuple[str, str] | None) -> LakeError:
    """It may be an expression for Spark, or a function of a time that is misspelt."""
    close = difflib.get_close_matches(call[0].lower(), _TIME, n=1) if call else []
    if call and close:
        return LakeError(
            f"--by {text}: there is no function {call[0]} of a time; did you mean "
            f"{close[0]}({call[1]})?"
        )
    functions = ", ".join(name for name in _TIME if name not in _NAMES)
    return LakeError(
        f"--by {text}: a folder needs a name, which only columns and {functions} of a time have "
        f"by themselves; write {text} as NAME"
    )


def needs_spark(parts: Iterable[Part]) -> bool:
    return any(not part.built_in for part in parts)


def stored_columns(parts: Iterable[Part]) -> set[str]:
    """Columns that a folder's name holds and that are therefore not in the files, as in Hive."""
    named = {part.name for part in parts if part.function is None and part.column == part.name}
    return named - {"offset"}  # which files are never without


def renamed_fields(parts: Iterable[Part], columns: Iterable[str]) -> dict[str, str]:
    """Fields of the value whose names a folder has taken, and their columns: user, value_user.

    ``--by user`` means the field, and so does ``upper(user) as user``; but ``topic`` and the
    other columns of the record are these.
    """
    own = {name.lower() for name in (*COLUMNS, HEADERS)}
    names = {f"value_{name}" for part in parts if (name := part.name.lower()) not in own}
    return {column.removeprefix("value_"): column for column in columns if column.lower() in names}


# -- in the task ------------------------------------------------------------------


def divide(
    parts: Sequence[Part], batch: pa.RecordBatch, given: pa.RecordBatch | None = None
) -> list[tuple[str, pa.RecordBatch]]:
    """The rows of a batch by folder; ``given`` holds what Spark has worked out."""
    if not parts or not batch.num_rows:
        return [("", batch)]
    codes, folders = None, [""]
    for i, part in enumerate(parts):
        if part.built_in:
            column = folder_column(part, parts, batch)
        else:
            assert given is not None
            column = given.column(f"{BY_PREFIX}{i}")
        encoded = pc.dictionary_encode(column, null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        values = [f"{part.name}={_escape(value)}" for value in encoded.dictionary.to_pylist()]
        index = encoded.indices.cast(pa.int64())
        if codes is None:
            codes, folders = index, values
        elif len(values) == 1:
            folders = [f"{folder}/{values[0]}" for folder in folders]
        else:
            joined = pc.add(pc.multiply(codes, pa.scalar(len(values))), index)
            pairs = joined.dictionary_encode()
            codes = pairs.indices.cast(pa.int64())
            folders = [
                f"{folders[pair // len(values)]}/{values[pair % len(values)]}"
                for pair in pairs.dictionary.to_pylist()
            ]
    if len(folders) == 1:
        return [(folders[0], batch)]
    if len(folders) > _MOST_FOLDERS:
        raise LakeError(
            f"--by gives {len(folders)} folders for {batch.num_rows} records: that would be a heap "
            "of tiny files; choose something coarser"
        )
    assert codes is not None
    order = pc.sort_indices(codes)  # stable: offsets stay in order
    counts = pc.value_counts(codes.take(order))
    result, position = [], 0
    for row in counts.to_pylist():
        # A copy of its own for each: a slice would hold the memory of the whole batch, and a
        # folder that gets few rows of each would hold all of them.
        rows = batch.take(order.slice(position, row["counts"]))
        result.append((folders[row["values"]], rows))
        position += row["counts"]
    return result


def too_long(folder: str) -> bool:
    """No file system has such a folder."""
    return any(len(name.encode()) > _LONGEST_NAME for name in folder.split("/"))


def folder_column(part: Part, parts: Sequence[Part], batch: pa.RecordBatch) -> Any:
    """What the folders of a built-in part are called, row by row."""
    assert part.column is not None
    renamed = renamed_fields(parts, batch.schema.names)
    names = {name.lower(): column for name, column in renamed.items()}
    names |= {name.lower(): name for name in batch.schema.names}
    name = names.get(part.column.lower())
    if name is None:  # a field that the records of this batch do not have
        return pa.nulls(batch.num_rows, pa.string())
    column = batch.column(name)
    if part.function is None:
        if pa.types.is_nested(column.type):
            return pa.array([_json(row) for row in column.to_pylist()], pa.string())
        return _in_calendar(column) if pa.types.is_timestamp(column.type) else column
    if pa.types.is_string(column.type):
        column = _moments(column)
    elif pa.types.is_timestamp(column.type) and column.type.tz:  # perhaps a session's zone
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    try:
        return _TIME[part.function](_in_calendar(column))
    except pa.ArrowNotImplementedError as error:
        raise LakeError(f"--by {part.expression}: {part.column} is {column.type}") from error


def _in_calendar(column: Any) -> Any:
    """Null where the year is not between 1 and 9999, which Python and Spark cannot write."""
    if not pa.types.is_timestamp(column.type):
        return column
    number = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    known = pc.and_(pc.greater_equal(number, _FIRST_YEAR), pc.less(number, _AFTER_LAST_YEAR))
    return pc.if_else(known, column, pa.scalar(None, column.type))


def _moments(column: Any) -> Any:
    """Text as times; without a zone it is UTC, and null if it is no time."""
    for kind in (_MOMENT, pa.timestamp("us")):
        try:
            return pc.cast(column, kind)
        except pa.ArrowInvalid:  # some have no zone, or some have one, or are no times
            continue
    return pa.array([_moment(text) for text in column.to_pylist()], _MOMENT)


def _moment(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text or "")
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _escape(value: Any) -> str:
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        value = str(value).lower()
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", str(value))
