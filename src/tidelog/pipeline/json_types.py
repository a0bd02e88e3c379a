"""The columns of JSON values, from a sample of them, in Spark's words.  Pure.

Fields that are in any of the values become columns.  A field that has different types in
different values gets the one that holds both: whole numbers and fractions are ``double``,
anything else is ``string``, in which Spark puts the JSON text as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# What is known of a type: None (only nulls so far), a name, ("array", element type), or a
# dict of fields.
_Type = Any

_LARGEST = 2**63 - 1
_DECIMAL_DIGITS = 38


def fields_of(values: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The types of the fields, in the order in which they are first seen."""
    known: dict[str, _Type] = {}
    for value in values:
        known = _merge(known, _type_of(value)) or {}
    return {name: _text(kind) for name, kind in known.items()}


def schema_text(fields: dict[str, str]) -> str:
    """What ``from_json`` takes."""
    return ", ".join(f"{quote(name)} {kind}" for name, kind in fields.items())


def quote(name: str) -> str:
    """A name in SQL, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def _type_of(value: Any) -> _Type:
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if -_LARGEST <= value <= _LARGEST:
            return "bigint"
        return "decimal(38,0)" if len(str(abs(value))) <= _DECIMAL_DIGITS else "double"
    if isinstance(value, float):
        return "double"
    if isinstance(value, list):
        element: _Type = None
        for item in value:
            element = _merge(element, _type_of(item))
        return ("array", element)
    if isinstance(value, dict):
        return {name: _type_of(item) for name, item in value.items()}
    return "string"


_NUMBERS = ("bigint", "decimal(38,0)", "double")


def _merge(first: _Type, second: _Type) -> _Type:
    if first is None or first == second:
        return second
    if second is None:
        return first
    if isinstance(first, dict) and isinstance(second, dict):
        return {
            name: _merge(first.get(name), second.get(name))
            for name in dict.fromkeys([*first, *second])
        }
    if isinstance(first, tuple) and isinstance(second, tuple):
        return ("array", _merge(first[1], second[1]))
    if first in _NUMBERS and second in _NUMBERS:
        return max(first, second, key=_NUMBERS.index)
    return "string"


def _text(kind: _Type) -> str:
    if kind is None or kind == {}:  # never seen; an object without fields is kept as text
        return "string"
    if isinstance(kind, tuple):
        return f"array<{_text(kind[1])}>"
    if isinstance(kind, dict):
        inner = ", ".join(f"{quote(name)}: {_text(field)}" for name, field in kind.items())
        return f"struct<{inner}>"
    return str(kind)


def type_text(kind: Any) -> str:
    """One of Spark's own types; it writes names in it without quotes."""
    if kind.typeName() == "struct":
        inner = ", ".join(f"{quote(row.name)}: {type_text(row.dataType)}" for row in kind)
        return f"struct<{inner}>"
    if kind.typeName() == "array":
        return f"array<{type_text(kind.elementType)}>"
    if kind.typeName() == "map":
        return f"map<{type_text(kind.keyType)}, {type_text(kind.valueType)}>"
    return str(kind.simpleString())
