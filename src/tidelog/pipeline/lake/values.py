"""What a record's value becomes: bytes, text, or columns from JSON or CSV.

A decoder takes a whole batch and gives back its columns and the rows that do not decode, each
with a reason.  Whole batches go through Arrow's own parsers; only where one of these stumbles,
the rows around are looked at one by one in Python.  No value may stop a load, whatever is in it:
what Arrow's parsers would not survive is kept from them.  What becomes of a record must not
depend on the batch that it is in: the quick way gives what each row after the other would give, or
gives up.

A null value (a tombstone) is no error: its columns are null.  Fields whose names the record has
already (``offset``, ``timestamp``, or a folder of ``--by``) become ``value_offset`` and so on.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from tidelog.pipeline.lake.json_rows import (
    Bad,
    all_whole,
    all_within,
    any_too_deep,
    lines_of,
    may_be_no_json,
    not_objects,
    numbers,
    perhaps_rounded,
    read_json,
    read_object,
    trimmed,
)
from tidelog.pipeline.lake.schemas import (
    Conflict,
    count_fields,
    fit,
    grow_fields,
    leaves,
    merge_fields,
    not_whole,
    settled,
)
from tidelog.pipeline.ranges import COLUMNS, HEADERS

_MOST_FIELDS = 2_000
# So few rows are quicker in Python than in several tries with Arrow: to see whether each is
# JSON, and to fit each to the schema, which is slow.
_SOME, _FEW = 1024, 32

csv.field_size_limit(2**31 - 1)  # as Arrow's parser, which has none


class Decoded(NamedTuple):
    """The good rows with their columns, which rows those are (None: all), and the bad ones."""

    batch: pa.RecordBatch
    good: pa.Array | None
    bad: list[Bad]


@dataclass(slots=True)
class ValueDecoder:
    """Decodes batch after batch; ``fields`` grow with what it meets, unless ``fixed``."""

    kind: str = "bytes"
    fields: list[pa.Field] = field(default_factory=list)
    fixed: bool = False
    whole: frozenset[str] = frozenset()  # paths with whole numbers beyond what a double holds
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

    def known(self, columns: Iterable[pa.Field], whole: Iterable[str] = ()) -> None:
        """Take up the columns that a destination has, to go on with them."""
        own = {row.lower() for row in (*COLUMNS, HEADERS)}
        self.fields = [
            pa.field(self._field_name(row.name), row.type)
            for row in columns
            if row.name.lower() not in own
        ]
        self.whole = frozenset(_renamed(path, self._field_name) for path in whole)

    def whole_columns(self) -> list[str]:
        """``whole``, by the names of the columns."""
        return sorted(_renamed(path, self.column_name) for path in self.whole)

    def _field_name(self, column: str) -> str:
        return column.removeprefix("value_") if _is_taken(column, self.taken) else column

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
        parsed = pa.concat_arrays([conform(piece, kind) for piece in pieces])
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
            return [self._parse_all(texts, checked)], []
        except (ValueError, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            pass  # ValueError: Arrow's own, too
        if self.kind == "json" and not checked and len(texts) <= _SOME:
            # Most often a few values are no JSON at all.  Without them the rest is quick.
            bad = not_objects(texts)
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

    def _parse_all(self, texts: pa.Array, checked: bool) -> pa.StructArray:
        text = trimmed(texts)
        if pc.any(pc.equal(pc.binary_length(text), 0)).as_py():
            raise pa.ArrowInvalid("an empty value")
        if self.kind == "json":
            return self._parse_json(text, checked)
        return _rows(self._parse_csv(texts), len(texts))

    def _parse_json(self, texts: pa.Array, checked: bool) -> pa.StructArray:
        # Where each begins and ends as an object does, no object can reach into the next line:
        # after what ends with } there, only a comma or a bracket could go on.
        whole = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
        if not pc.all(whole).as_py() or any_too_deep(texts):
            raise pa.ArrowInvalid("a value that is no object, or no usual one")
        data = lines_of(texts)
        if not checked and may_be_no_json(texts, data):
            raise pa.ArrowInvalid("NaN or Infinity, or a text with that in it")
        if data.count(b"\n") >= len(texts):
            # Only between tokens: a line's end within a string must be escaped.
            data = lines_of(pc.replace_substring(texts, "\n", " "))
        if self.fixed:
            rows = _rows(read_json(data, self.fields, "ignore"), len(texts))
            _check_exact(rows, texts, rows.type)
            return rows
        try:
            table = read_json(data, self.fields, "infer")
        except pa.ArrowInvalid as error:
            if "couldn't parse" not in str(error):
                raise
            # Perhaps 1.0 or 0.5 in a column of whole numbers: which it is will be seen.
            table = read_json(data, leaves(self.fields, not_whole), "infer")
        fields = leaves(table.schema, settled)
        if fields != self.fields or fields != list(table.schema):
            # Only the types that Arrow has inferred are used: its columns may be broken,
            # as of {"a": [null, 1]} with pyarrow 26.
            table = read_json(data, fields, "ignore")
        rows = _rows(table, len(texts))
        fields, beyond = self._with_columns(rows)
        _check_exact(rows, texts, pa.struct(fields))
        rows = conform(rows, pa.struct(fields))
        self.fields, self.whole = fields, beyond
        return rows

    def _with_columns(self, rows: pa.StructArray) -> tuple[list[pa.Field], frozenset[str]]:
        """What ``fields`` and ``whole`` are with these rows; ``Conflict`` where it is not the
        same in whatever order they come."""
        known = dict(numbers(pa.array([], pa.struct(self.fields))))
        beyond, whole = set(self.whole), set()
        for path, column in numbers(rows):
            if pa.types.is_integer(column.type):
                if not all_within(column):
                    beyond.add(path)
            elif path not in known or pa.types.is_integer(known[path].type):
                if not all_within(column) or (path not in known and all_whole(column)):
                    raise Conflict(f"{path}: the first number decides what it is")
                if all_whole(column):
                    whole.add(path)
        new = leaves(rows.type, lambda kind, path: pa.int64() if path in whole else kind)
        return self._counted(merge_fields(self.fields, new, "", beyond)), frozenset(beyond)

    @staticmethod
    def _counted(fields: list[pa.Field]) -> list[pa.Field]:
        if count_fields(fields) > _MOST_FIELDS:
            raise Conflict(f"with its fields there would be more than {_MOST_FIELDS}")
        return fields

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
            io.BytesIO(lines_of(texts)),
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
        value = read_object(text)
        if self.fixed:
            return fit(value, pa.struct(self.fields))
        whole = set(self.whole)
        fields = self._counted(leaves(grow_fields(self.fields, value, whole), settled))
        row = fit(value, pa.struct(fields))
        self.fields, self.whole = fields, frozenset(whole)  # a bad row changes nothing
        return row

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


class Inexact(pa.ArrowInvalid):
    """Numbers that another type would round; the message is the path of their column."""


def conform(array: pa.StructArray, kind: pa.StructType, path: str = "") -> pa.StructArray:
    """The same rows with all fields of a larger type: what is missing is null.

    ``Inexact`` if a number would be rounded.
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
        where = f"{path}.{row.name}" if path else row.name
        children.append(conform_any(array.flatten()[index], row.type, where))
    valid = None if not array.null_count else array.is_null()
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=valid)


def conform_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """:func:`conform` for the columns of a batch."""
    return pa.RecordBatch.from_struct_array(conform(batch.to_struct_array(), pa.struct(schema)))


def conform_any(array: pa.Array, kind: pa.DataType, path: str = "") -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        return conform(array, kind, path)
    if pa.types.is_list(kind):
        mask = array.is_null() if array.null_count else None
        values = conform_any(array.flatten(), kind.value_type, f"{path}[]")
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        offsets = pa.concat_arrays(
            [pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())]
        )
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=mask)
    try:
        return pc.cast(array, kind)
    except pa.ArrowInvalid:
        raise Inexact(path) from None


def _check_exact(rows: pa.StructArray, texts: pa.Array, kind: pa.StructType) -> None:
    """``ValueError`` if a double in these rows is not the number that the text has."""
    suspects = perhaps_rounded(rows)
    if suspects is not None:
        for text in texts.filter(pa.array(suspects)).to_pylist():
            fit(read_object(text), kind)


def _rows(table: pa.Table, count: int) -> pa.StructArray:
    if table.num_rows != count:
        raise pa.ArrowInvalid("a value that is not one record")
    if not table.num_columns:  # from_arrays would not know how many rows there are
        return pa.array([{}] * count, pa.struct([]))
    columns = [column.combine_chunks() for column in table.combine_chunks().columns]
    return pa.StructArray.from_arrays(columns, fields=list(table.schema))


def _renamed(path: str, rename: Callable[[str], str]) -> str:
    """The path of a column whose first part is called otherwise."""
    name = re.split(r"\.|\[\]", path, maxsplit=1)[0]
    return rename(name) + path[len(name) :]


def _texts(values: pa.Array) -> tuple[pa.Array, list[Bad]]:
    """Binary as text; rows that are not UTF-8 become empty and are returned."""
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


def _csv_value(text: str, row: pa.Field) -> Any:
    if pa.types.is_string(row.type):
        return text or None
    if text == "":
        return None
    try:
        return pc.cast(pa.scalar(text), row.type).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Conflict(f"{row.name}: {text[:40]!r} is not {row.type}") from None
