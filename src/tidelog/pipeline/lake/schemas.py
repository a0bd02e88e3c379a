"""Schemas that grow: what a new record's type makes of the type that is there.  Pure.

Columns are added; whole numbers widen to doubles, and anything becomes text in a column that
is text.  All else is a conflict, and the record that causes it is a dead letter; so is a name
that Spark could not read beside the others (it takes ``id`` and ``ID`` for one).  A field that
was only ever null, ``[]`` or ``{}`` has no type yet, and therefore no column.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

_WHOLE = 2**63


class Conflict(ValueError):
    """Two types that cannot be one; the message names the field."""


# -- types ------------------------------------------------------------------------


def type_of(value: Any) -> pa.DataType:
    """The type of a JSON value."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -_WHOLE <= value < _WHOLE else pa.float64()
    if isinstance(value, float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, dict):
        return pa.struct([(name, type_of(row)) for name, row in value.items()])
    result: pa.DataType = pa.null()
    for row in value:
        result = merge(result, type_of(row), "[]")
    return pa.list_(result)


def merge(known: pa.DataType, new: pa.DataType, path: str = "") -> pa.DataType:
    """The type that holds both; ``Conflict`` if there is none.  What is known wins over text."""
    if known.equals(new) or pa.types.is_null(new):
        return known
    if pa.types.is_null(known):
        return _new(new, path)
    if pa.types.is_string(known):
        return known
    if pa.types.is_int64(known) and pa.types.is_float64(new):
        return new
    if pa.types.is_float64(known) and pa.types.is_int64(new):
        return known
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        return pa.struct(merge_fields(list(known), list(new), path))
    if pa.types.is_list(known) and pa.types.is_list(new):
        return pa.list_(merge(known.value_type, new.value_type, f"{path}[]"))
    raise Conflict(f"{path}: {type_text(new)}, where {type_text(known)} is expected")


def merge_fields(
    known: Iterable[pa.Field], new: Iterable[pa.Field], path: str = ""
) -> list[pa.Field]:
    """All fields, those that are known first."""
    fields = {field.name: field for field in known}
    names = {name.lower(): name for name in fields}
    for field in new:
        there = fields.get(field.name)
        where = f"{path}.{field.name}" if path else field.name
        if there is None:
            other = names.setdefault(field.name.lower(), field.name)
            if other != field.name:
                raise Conflict(f"{where}: the name differs from {other} only by case")
            if not field.name:
                raise Conflict(f"{path or 'it'} has a field without a name")
        kind = _new(field.type, where) if there is None else merge(there.type, field.type, where)
        fields[field.name] = pa.field(field.name, kind)
    return list(fields.values())


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


def settled(kind: pa.DataType, texts: bool = True) -> pa.DataType | None:
    """Without what has no type yet, and without Arrow's guesses: what looks like a time is text.

    None if nothing is left.
    """
    if pa.types.is_null(kind):
        return None
    if texts and pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        inner = settled(kind.value_type, texts)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(kind):
        fields = settled_fields(kind, texts)
        return pa.struct(fields) if fields else None
    return kind


def settled_fields(fields: Iterable[pa.Field], texts: bool = True) -> list[pa.Field]:
    found = [(field.name, settled(field.type, texts)) for field in fields]
    return [pa.field(name, kind) for name, kind in found if kind is not None]


def type_text(kind: pa.DataType) -> str:
    """A type in the words of SQL."""
    names = {"int64": "a whole number", "double": "a number", "string": "text", "bool": "a boolean"}
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
        shown = json.dumps(value, ensure_ascii=False)
        shown = shown if len(shown) <= 40 else shown[:40] + "..."
        raise Conflict(f"{path}: {shown}, where {type_text(kind)} is expected")
    return found


def _fit(value: Any, kind: pa.DataType, path: str) -> Any:
    types = pa.types
    if types.is_string(kind):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
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
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return pa.scalar(int(value), kind).as_py() if whole else None
    if types.is_floating(kind):
        return float(value) if isinstance(value, int | float) else None
    if types.is_decimal(kind):
        return pa.scalar(Decimal(str(value)), kind).as_py()
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


def to_spark_json(schema: pa.Schema) -> Any:
    """What a manifest holds: the schema as Spark writes it in JSON."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema).jsonValue()


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
