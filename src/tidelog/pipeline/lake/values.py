"""What a record's value becomes: bytes, text, or columns from JSON or CSV.

A decoder takes a whole batch and gives back its columns and the rows that do not decode, each
with a reason.  Whole batches go through Arrow's own parsers; only where one of these stumbles,
the rows around are looked at one by one in Python.  No value may stop a load, whatever is in it:
what Arrow's parsers would not survive is kept from them.

A null value (a tombstone) is no error: its columns are null.  Fields whose names the record has
already (``offset``, ``timestamp``, or a folder of ``--by``) become ``value_offset`` and so on.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json

from tidelog.pipeline.lake.schemas import (
    Conflict,
    count_fields,
    fit,
    merge_fields,
    settled_fields,
    type_of,
)
from tidelog.pipeline.ranges import COLUMNS, HEADERS

_MOST_FIELDS = 2_000
_DEEPEST = 100  # Arrow's parser of JSON ends the process at some thousand levels
# So few rows are quicker in Python than in several tries with Arrow: to see whether each is
# JSON, and to fit each to the schema, which is slow.
_SOME, _FEW = 1024, 32

csv.field_size_limit(2**31 - 1)  # as Arrow's parser, which has none

Bad = tuple[int, str]  # a row of a batch, and the reason


class Decoded(NamedTuple):
    """The good rows with their columns, which rows those are (None: all), and the bad ones."""

    batch: pa.RecordBatch
    good: pa.Array | None
    bad: list[Bad]


@dataclass(slots=True)
class Decoder:
    """Decodes batch after batch; ``fields`` grow with what it meets, unless ``fixed``."""

    kind: str = "bytes"
    fields: list[pa.Field] = field(default_factory=list)
    fixed: bool = False
    taken: frozenset[str] = frozenset()  # names of folders, in small letters
    separator: str = ","

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        if self.kind == "bytes":
            return Decoded(batch, None, [])
        index = batch.schema.get_field_index("value")
        texts, bad = _texts(batch.column(index))
        if self.kind == "text":
            if bad:
                good = _all_but(batch.num_rows, bad)
                batch, texts = batch.take(good), texts.take(good)
            batch = batch.set_column(index, "value", texts)
            return Decoded(batch, good if bad else None, bad)
        columns, good, bad = self._columns(texts, bad)
        if good is not None:
            batch = batch.take(good)
        batch = batch.drop_columns("value")
        names = [self.column_name(row.name) for row in columns.type]
        arrays = [*columns.flatten(), *batch.columns]
        schema = pa.schema(
            [
                *[pa.field(n, row.type) for n, row in zip(names, columns.type, strict=True)],
                *batch.schema,
            ]
        )
        return Decoded(pa.RecordBatch.from_arrays(arrays, schema=schema), good, bad)

    def column_name(self, name: str) -> str:
        """What a field of the value is called as a column."""
        return f"value_{name}" if _is_taken(name, self.taken) else name

    def known(self, columns: Iterable[pa.Field]) -> None:
        """Take up the columns that a destination has, to go on with them."""
        own = {row.lower() for row in (*COLUMNS, HEADERS)}
        self.fields = [
            pa.field(
                row.name.removeprefix("value_") if _is_taken(row.name, self.taken) else row.name,
                row.type,
            )
            for row in columns
            if row.name.lower() not in own
        ]

    # -- columns ----------------------------------------------------------------

    def _columns(
        self, texts: pa.Array, bad: list[Bad]
    ) -> tuple[pa.StructArray, pa.Array | None, list[Bad]]:
        """A struct for each row that decodes."""
        count = len(texts)
        left = texts
        rows = None
        missing = texts.null_count
        if bad or missing:
            known_bad = {row for row, _ in bad}
            mask = [text.is_valid and i not in known_bad for i, text in enumerate(texts)]
            rows = pa.array([i for i, take in enumerate(mask) if take], pa.int64())
            left = texts.take(rows)
        pieces, more = self._parse(left)
        more = [(rows[row].as_py() if rows is not None else row, why) for row, why in more]
        bad = sorted([*bad, *more])
        kind = pa.struct(self.fields)
        # A whole number beyond 2**53 is rounded, as Arrow's parser does it once the column is a
        # double: what becomes of a record must not depend on the batch that it is in.
        parsed = pa.concat_arrays([conform(piece, kind, exact=False) for piece in pieces])
        if missing:  # tombstones come back in their places
            known_bad = {row for row, _ in bad}
            following = iter(range(len(parsed)))
            take = [
                None if not text.is_valid else next(following)
                for i, text in enumerate(texts)
                if i not in known_bad
            ]
            parsed = parsed.take(pa.array(take, pa.int64()))
        return parsed, _all_but(count, bad) if bad else None, bad

    def _parse(self, texts: pa.Array, checked: bool = False) -> tuple[list[pa.Array], list[Bad]]:
        """Pieces of the good rows in order, and the bad rows."""
        if not len(texts):
            return [pa.array([], pa.struct(self.fields))], []
        try:
            return [self._parse_all(texts)], []
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, Conflict):
            pass
        if self.kind == "json" and not checked and len(texts) <= _SOME:
            # Most often a few values are no JSON at all.  Without them the rest is quick.
            bad = _not_objects(texts)
            rows = _all_but(len(texts), bad)
            pieces, more = self._parse(texts.take(rows), checked=True)
            return pieces, [*bad, *((rows[row].as_py(), why) for row, why in more)]
        if len(texts) <= _FEW:
            return self._parse_each(texts)
        pieces, bad = [], []
        step = max(_FEW, len(texts) // 8 + 1)
        for start in range(0, len(texts), step):
            found, wrong = self._parse(texts.slice(start, step), checked)
            pieces += found
            bad += [(start + row, why) for row, why in wrong]
        return pieces, bad

    def _parse_all(self, texts: pa.Array) -> pa.StructArray:
        trimmed = pc.utf8_trim_whitespace(texts)
        if pc.any(pc.equal(pc.binary_length(trimmed), 0)).as_py():
            raise pa.ArrowInvalid("an empty value")
        table = self._parse_csv(texts) if self.kind == "csv" else self._parse_json(trimmed)
        if table.num_rows != len(texts):
            raise pa.ArrowInvalid("a value that is not one record")
        if not table.num_columns:  # from_arrays would not know how many rows there are
            return pa.array([{}] * len(texts), pa.struct([]))
        batch = table.combine_chunks()
        columns = [column.combine_chunks() for column in batch.columns]
        return pa.StructArray.from_arrays(columns, fields=list(table.schema))

    def _parse_json(self, texts: pa.Array) -> pa.Table:
        # Where each begins and ends as an object does, no object can reach into the next line:
        # after what ends with } there, only a comma or a bracket could go on.
        whole = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
        if not pc.all(whole).as_py() or _any_too_deep(texts):
            raise pa.ArrowInvalid("a value that is no object, or no usual one")
        if pc.any(pc.match_substring(texts, "\n")).as_py():
            # Only between tokens: a line's end within a string must be escaped.
            texts = pc.replace_substring(texts, "\n", " ")
        data = _lines(texts)
        table = _read_json(data, self.fields, "ignore" if self.fixed else "infer")
        if not self.fixed:
            found = self._with(settled_fields(table.schema))
            if found != self.fields or found != list(table.schema):
                # Only the types that Arrow has inferred are used: its columns may be broken,
                # as of {"a": [null, 1]} with pyarrow 26.
                table = _read_json(data, found, "ignore")
            self.fields = found
        return table

    def _with(self, fields: Iterable[pa.Field]) -> list[pa.Field]:
        """What the fields are together with these."""
        found = merge_fields(self.fields, fields)
        if count_fields(found) > _MOST_FIELDS:
            raise Conflict(f"with its fields there would be more than {_MOST_FIELDS}")
        return found

    def _parse_csv(self, texts: pa.Array) -> pa.Table:
        # Without line ends within, a value gives one row at most: no two can be mixed up.
        texts = pc.utf8_rtrim(texts, "\r\n")
        if pc.any(pc.match_substring_regex(texts, "[\r\n]")).as_py():
            raise pa.ArrowInvalid("a value of several lines")
        if not self.fields:
            try:
                count = len(self._csv_fields(texts[0].as_py()))
            except ValueError as error:
                raise pa.ArrowInvalid(str(error)) from None
            self.fields = [pa.field(f"_c{i}", pa.string()) for i in range(count)]
        return arrow_csv.read_csv(
            io.BytesIO(_lines(texts)),
            arrow_csv.ReadOptions(
                column_names=[row.name for row in self.fields], use_threads=False
            ),
            arrow_csv.ParseOptions(delimiter=self.separator),
            arrow_csv.ConvertOptions(
                column_types={row.name: row.type for row in self.fields},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )

    # -- row by row -----------------------------------------------------------------

    def _parse_each(self, texts: pa.Array) -> tuple[list[pa.Array], list[Bad]]:
        good, bad = [], []
        for i, text in enumerate(texts.to_pylist()):
            try:
                good.append(self._csv_row(text) if self.kind == "csv" else self._json_row(text))
            except ValueError as error:
                bad.append((i, str(error)))
        kind = pa.struct(self.fields)
        if self.kind == "json" and not self.fixed:
            good = [fit(row, kind) for row in good]  # a later row may have widened a field
        return [pa.array(good, kind)], bad

    def _json_row(self, text: str) -> Any:
        value = _read_object(text)
        if not self.fixed:
            self.fields = settled_fields(self._with(list(type_of(value))))
        return fit(value, pa.struct(self.fields))

    def _csv_row(self, text: str) -> dict[str, Any]:
        found = self._csv_fields(text)
        if len(found) != len(self.fields) and self.fields:
            raise ValueError(f"it has {len(found)} columns, not {len(self.fields)}")
        fields = self.fields or [pa.field(f"_c{i}", pa.string()) for i in range(len(found))]
        self.fields = fields
        return {row.name: _csv_value(text, row) for row, text in zip(fields, found, strict=True)}

    def _csv_fields(self, text: str) -> list[str]:
        try:
            rows = list(csv.reader(io.StringIO(text), delimiter=self.separator, strict=True))
        except csv.Error as error:
            raise ValueError(f"it is not CSV: {error}") from None
        if len(rows) != 1 or not rows[0]:
            raise ValueError("it is not one line of CSV")
        return rows[0]


def _is_taken(name: str, folders: Collection[str]) -> bool:
    """Also ``value_offset`` is, so that no two fields end up in one column."""
    low = name.lower()
    while low.startswith("value_"):
        low = low.removeprefix("value_")
    return low == HEADERS or low in folders or low in {row.lower() for row in COLUMNS}


def conform(array: pa.StructArray, kind: pa.StructType, *, exact: bool = True) -> pa.StructArray:
    """The same rows with all fields of a larger type: what is missing is null.

    ``ArrowInvalid`` if a number would be rounded, and ``exact``.
    """
    if array.type == kind:
        return array
    children = []
    for row in kind:
        index = array.type.get_field_index(row.name)
        if index < 0:
            children.append(pa.nulls(len(array), row.type))
            continue
        # flatten() lets the struct's own nulls and offset reach its children.
        children.append(conform_any(array.flatten()[index], row.type, exact=exact))
    valid = None if not array.null_count else array.is_null()
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=valid)


def conform_any(array: pa.Array, kind: pa.DataType, *, exact: bool = True) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        return conform(array, kind, exact=exact)
    if pa.types.is_list(kind):
        mask = array.is_null() if array.null_count else None
        values = conform_any(array.flatten(), kind.value_type, exact=exact)
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = pa.concat_arrays(
            [pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())]
        )
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)
    return pc.cast(array, kind, safe=exact)


def _texts(values: pa.Array) -> tuple[pa.Array, list[Bad]]:
    """Binary as text; rows that are not UTF-8 become empty and are told."""
    try:
        return values.cast(pa.string()), []
    except pa.ArrowInvalid:
        pass
    texts: list[str | None] = []
    bad = []
    for i, value in enumerate(values.to_pylist()):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            texts.append("")
            bad.append((i, f"it is not UTF-8: byte {error.start} is 0x{value[error.start]:02x}"))
    return pa.array(texts, pa.string()), bad


def _all_but(count: int, bad: Sequence[Bad]) -> pa.Array:
    gone = {row for row, _ in bad}
    return pa.array([i for i in range(count) if i not in gone], pa.int64())


def _lines(texts: pa.Array) -> bytes:
    rows = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    found: bytes = pc.binary_join(rows, "\n").cast(pa.binary())[0].as_py()
    return found


def _read_json(data: bytes, fields: Iterable[pa.Field], others: str) -> pa.Table:
    fields = list(fields)
    dates = [row.name for row in fields if pa.types.is_date(row.type)]
    explicit = [pa.field(row.name, pa.string()) if row.name in dates else row for row in fields]
    table = arrow_json.read_json(
        io.BytesIO(data),
        arrow_json.ReadOptions(use_threads=False, block_size=max(len(data) + 1, 1024)),
        arrow_json.ParseOptions(
            explicit_schema=pa.schema(explicit), unexpected_field_behavior=others
        ),
    )
    for name in dates:  # Arrow's parser takes them only as numbers of days
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, pc.cast(table.column(index), pa.date32()))
    return table


def _read_object(text: str) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is not JSON that can be read: it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"it is JSON, but not an object: {text[:40]}")
    if text.count("{") + text.count("[") > _DEEPEST and _depth(value) > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it has half a character: a surrogate without the other") from None
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [row for row in level if isinstance(row, dict | list) and row]:
        depth += 1
        level = [x for row in level for x in (row.values() if isinstance(row, dict) else row)]
    return depth


_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")], _STEPS[list(b"}]")] = 1, -1


def _any_too_deep(texts: pa.Array) -> bool:
    """Whether one may be: brackets within its strings count, too.  None of them is empty."""
    if pc.max(pc.binary_length(texts)).as_py() <= 2 * _DEEPEST:
        return False
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    steps = _STEPS[np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]]
    depths = np.cumsum(steps, dtype=np.int32)
    starts = ends[:-1] - ends[0]
    above = np.maximum.reduceat(depths, starts) - depths[starts] + steps[starts]
    return bool(above.max() > _DEEPEST)


def _not_objects(texts: pa.Array) -> list[Bad]:
    bad = []
    for i, text in enumerate(texts.to_pylist()):
        try:
            _read_object(text)
        except ValueError as error:
            bad.append((i, str(error)))
    return bad


def _csv_value(text: str, row: pa.Field) -> Any:
    if pa.types.is_string(row.type):
        return text or None
    if text == "":
        return None
    try:
        return pc.cast(pa.scalar(text), row.type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Conflict(f"{row.name}: {text[:40]!r} is not {row.type}") from None
