"""Schemas that grow: what a new record's type makes of the type that is there.  No I/O.

Columns are added; whole numbers widen to doubles, and anything becomes text in a column that
is text.  All else is a conflict, and the record that causes it is a dead letter; so is a name
that Spark could not read beside the others (it takes ``id`` and ``ID`` for one).  A field that
was only ever null, ``[]`` or ``{}`` has no type yet, and therefore no column.

No number is ever rounded to fit: a column that holds whole numbers beyond 2**53, which a double
may not hold exactly, stays whole.  The paths of such columns (``id``, ``items[].id``) are in a set
``whole`` beside the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tidelog.pipeline.lake.json_rows import EXACT, Fractional, json_text, nearest, whole_number


class Conflict(ValueError):
    """Two types that cannot be one; the message names the field."""


# -- types ------------------------------------------------------------------------


def grow(known: pa.DataType, value: Any, path: str, whole: set[str]) -> pa.DataType:
    """The type that holds a JSON value beside what was there; ``Conflict`` if there is none."""
    if value is None:
        return known
    none = pa.types.is_null(known)
    if isinstance(value, dict) and (none or pa.types.is_struct(known)):
        return pa.struct(grow_fields([] if none else known, value, whole, path))
    if isinstance(value, list) and (none or pa.types.is_list(known)):
        element = pa.null() if none else known.value_type
        for row in value:
            element = grow(element, row, f"{path}[]", whole)
        return pa.list_(element)
    if isinstance(value, Fractional) and pa.types.is_int64(known):
        number = whole_number(value)  # 1.0 and 1e3 are whole
        value = value if number is None else number
    beyond = isinstance(value, int) and pa.types.is_int64(known) and not _is_int64(value)
    # As a double it may still fit, if the column can become one.
    if beyond and (path in whole or nearest(value, pa.float64()) is None):
        raise Conflict(f"{path}: {_shown(value)}, which is beyond bigint, the column's type")
    result = merge(known, _type_of(value), path, whole)
    if pa.types.is_int64(result) and abs(value) > EXACT:
        whole.add(path)
    return result


def _type_of(value: Any) -> pa.DataType:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if _is_int64(value) else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    return pa.struct([]) if isinstance(value, dict) else pa.list_(pa.null())


def _is_int64(value: int) -> bool:
    return -(2**63) <= value < 2**63


def merge(
    known: pa.DataType, new: pa.DataType, path: str = "", whole: Collection[str] = ()
) -> pa.DataType:
    """The type that holds both; ``Conflict`` if there is none.  What is known wins over text."""
    if known.equals(new) or pa.types.is_null(new):
        return known
    if pa.types.is_null(known):
        return _new(new, path)
    if pa.types.is_string(known):
        return known
    if {known, new} == {pa.int64(), pa.float64()}:
        if path in whole:
            raise Conflict(
                f"{path}: {type_text(new)}, where {type_text(known)} is expected: the column has "
                "whole numbers beyond 2^53, which a double would round"
            )
        return pa.float64()
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        return pa.struct(merge_fields(list(known), list(new), path, whole))
    if pa.types.is_list(known) and pa.types.is_list(new):
        return pa.list_(merge(known.value_type, new.value_type, f"{path}[]", whole))
    raise Conflict(f"{path}: {type_text(new)}, where {type_text(known)} is expected")


def merge_fields(
    known: Iterable[pa.Field],
    new: Iterable[pa.Field],
    path: str = "",
    whole: Collection[str] = (),
) -> list[pa.Field]:
    """All fields, those that are known first."""
    pairs = ((field.name, field.type) for field in new)
    return _combine(known, pairs, path, lambda *row: merge(row[0], row[1], row[2], whole))


def grow_fields(
    known: Iterable[pa.Field], value: dict[str, Any], whole: set[str], path: str = ""
) -> list[pa.Field]:
    """All fields, with those of a JSON object."""
    return _combine(known, value.items(), path, lambda *row: grow(row[0], row[1], row[2], whole))


def _combine(
    known: Iterable[pa.Field],
    new: Iterable[tuple[str, Any]],
    path: str,
    combine: Callable[[pa.DataType, Any, str], pa.DataType],
) -> list[pa.Field]:
    kinds = {field.name: field.type for field in known}
    names = {name.lower(): name for name in kinds}
    for name, found in new:
        where = f"{path}.{name}" if path else name
        if name not in kinds:
            other = names.setdefault(name.lower(), name)
            if other != name:
                raise Conflict(f"{where}: the name differs from {other} only by case")
            if not name:
                raise Conflict(f"{path or 'it'} has a field without a name")
        kinds[name] = combine(kinds.get(name, pa.null()), found, where)
    return [pa.field(name, kind) for name, kind in kinds.items()]


def _new(kind: pa.DataType, path: str) -> pa.DataType:
    """A type that was not there before, its names checked."""
    if pa.types.is_struct(kind):
        return pa.struct(merge_fields([], list(kind), path))
    return pa.list_(_new(kind.value_type, f"{path}[]")) if pa.types.is_list(kind) else kind


def count_fields(fields: Iterable[pa.Field]) -> int:
    """How many there are, those within objects and lists included."""
    return sum(1 + count_fields(_inner(field.type)) for field in fields)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    while pa.types.is_list(kind):
        kind = kind.value_type
    return list(kind) if pa.types.is_struct(kind) else []


def settled(kind: pa.DataType, _: str = "") -> pa.DataType | None:
    """Without what has no type yet, and without Arrow's guesses: what looks like a time is text.

    None if nothing is left.
    """
    if pa.types.is_null(kind):
        return None
    return pa.string() if pa.types.is_timestamp(kind) else kind


def not_whole(kind: pa.DataType, _: str = "") -> pa.DataType | None:
    """Without the whole numbers."""
    return None if pa.types.is_int64(kind) else kind


Change = Callable[[pa.DataType, str], pa.DataType | None]


def leaves(fields: Iterable[pa.Field], change: Change, path: str = "") -> list[pa.Field]:
    """The fields with what ``change`` makes of the types in them, with the path of each; None
    takes it away."""
    found = [
        (field.name, _changed(field.type, change, f"{path}.{field.name}" if path else field.name))
        for field in fields
    ]
    return [pa.field(name, kind) for name, kind in found if kind is not None]


def _changed(kind: pa.DataType, change: Change, path: str) -> pa.DataType | None:
    if pa.types.is_list(kind):
        inner = _changed(kind.value_type, change, f"{path}[]")
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(kind):
        fields = leaves(kind, change, path)
        return pa.struct(fields) if fields else None
    return change(kind, path)


def type_text(kind: pa.DataType) -> str:
    """A type in the words of SQL."""
    names = {"int64": "a whole number", "double": "a double", "string": "text", "bool": "a boolean"}
    if pa.types.is_struct(kind):
        return "an object"
    return "a list" if pa.types.is_list(kind) else names.get(str(kind), str(kind))


# -- values -----------------------------------------------------------------------


def fit(value: Any, kind: pa.DataType, path: str = "") -> Any:
    """A JSON value as a type wants it; ``Conflict`` if that cannot be."""
    if value is None:
        return None
    found = _fit(value, kind, path)
    if found is None:
        why = ""
        if isinstance(value, int | float) and not isinstance(value, bool):
            if pa.types.is_floating(kind):
                why = ", which cannot hold it exactly"
            elif pa.types.is_integer(kind) and whole_number(value) is not None:
                why = f": it is beyond {kind.bit_width} bits"
        raise Conflict(f"{path}: {_shown(value)}, where {type_text(kind)} is expected{why}")
    return found


def _shown(value: Any) -> str:
    text = json_text(value)
    return text if len(text) <= 40 else text[:40] + "..."


def _fit(value: Any, kind: pa.DataType, path: str) -> Any:
    types = pa.types
    if types.is_string(kind):
        return value if isinstance(value, str) else json_text(value)
    if types.is_struct(kind):
        if not isinstance(value, dict):
            return None
        return {
            field.name: fit(value.get(field.name), field.type, f"{path}.{field.name}".lstrip("."))
            for field in kind
        }
    if types.is_list(kind):
        if not isinstance(value, list):
            return None
        return [fit(row, kind.value_type, f"{path}[]") for row in value]
    if types.is_boolean(kind):
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None
    try:
        return _fit_scalar(value, kind)
    except (ValueError, ArithmeticError, TypeError, pa.ArrowInvalid):
        return None


def _fit_scalar(value: Any, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_integer(kind):
        number = whole_number(value)
        return None if number is None else pa.scalar(number, kind).as_py()
    if types.is_floating(kind):
        return nearest(value, kind) if isinstance(value, int | float) else None
    if types.is_decimal(kind):
        text = value if isinstance(value, str) else json_text(value)
        return pa.scalar(Decimal(text), kind).as_py()
    if types.is_binary(kind) and isinstance(value, str):
        return value.encode()
    if types.is_date(kind) and isinstance(value, str):
        return date.fromisoformat(value)
    if types.is_timestamp(kind) and isinstance(value, str):
        moment = datetime.fromisoformat(value)
        if kind.tz is None:
            return moment.replace(tzinfo=None)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None


# -- as Spark writes them -----------------------------------------------------------


def to_spark_json(schema: pa.Schema, whole: Collection[str] = ()) -> Any:
    """What a manifest holds: the schema as Spark writes it in JSON, and ``whole`` beside it."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return with_whole(from_arrow_schema(schema).jsonValue(), whole)


def with_whole(schema: Any, whole: Collection[str]) -> Any:
    """A schema with more columns that hold whole numbers beyond 2**53."""
    known = whole_of(schema).union(whole)
    return schema | {"whole": sorted(known)} if known else schema


def whole_of(schema: Any) -> frozenset[str]:
    return frozenset(schema.get("whole", ()) if schema else ())


def from_spark_json(found: Any) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(StructType.fromJson(found), timezone="UTC")


def differences(before: Any, after: Any) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Columns that are only in the second schema, and those that have another type there.

    Both as Spark writes them.  A field of an object is a column here, too: ``address.zip``.
    """
    new: list[str] = []
    changed: list[tuple[str, str, str]] = []
    _compare(before, after, "", new, changed)
    return new, changed


def _compare(
    before: Any, after: Any, path: str, new: list[str], changed: list[tuple[str, str, str]]
) -> None:
    if isinstance(before, dict) and isinstance(after, dict) and before["type"] == after["type"]:
        if after["type"] == "struct":
            known = {row["name"]: row["type"] for row in before["fields"]}
            for row in after["fields"]:
                where = f"{path}.{row['name']}" if path else row["name"]
                if row["name"] in known:
                    _compare(known[row["name"]], row["type"], where, new, changed)
                else:
                    new.append(where)
        elif after["type"] == "array":
            _compare(before["elementType"], after["elementType"], f"{path}[]", new, changed)
    elif before != after:
        changed.append((path, _sql_name(before), _sql_name(after)))


def _sql_name(kind: Any) -> str:
    name = kind if isinstance(kind, str) else kind["type"]
    return {"long": "bigint", "integer": "int"}.get(name, str(name))
