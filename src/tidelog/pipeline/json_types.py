"""The columns of JSON values, from a sample of them, as Spark's types.  No I/O.

Fields that are in any of the values become columns.  A field that has different types in
different values gets the one that holds both: whole numbers and fractions are ``double``, or
``decimal(38,18)`` if a double would round one of the whole numbers; anything else is ``string``,
in which Spark puts the JSON text as it stands.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any


class Number(Enum):
    """What a column must hold; a column of numbers is a set of these."""

    WHOLE = "up to 2**53, which a double holds exactly"
    LONG = "up to bigint"
    WIDE = "whole, of up to 38 digits"
    HUGE = "whole, with more digits"
    FRACTION = "exact in decimal(38,18)"
    FLOAT = "with an exponent or a fraction that only a double holds"


# What is known of a type: None (only nulls so far), a name, a set of numbers, ("array", element
# type), or a dict of fields.
_Type = Any

_EXACT = 2**53
_LARGEST = 2**63 - 1
_DECIMAL_DIGITS, _SCALE = 38, 18


def read_value(text: bytes) -> Any:
    """A JSON value with its fractions as ``Decimal``; ``ValueError`` if it is none."""
    return json.loads(text, parse_float=_decimal)


def _decimal(text: str) -> Decimal:
    """A number; not a number, if its exponent is too large for a ``Decimal``."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return Decimal("NaN")


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
    if isinstance(value, int | float | Decimal):
        return frozenset([_number(value)])
    if isinstance(value, list):
        element: _Type = None
        for item in value:
            element = _merge(element, _type_of(item))
        return ("array", element)
    if isinstance(value, dict):
        return {name: _type_of(item) for name, item in value.items()}
    return "string"


def _number(value: float | Decimal) -> Number:
    if isinstance(value, int):
        for limit, kind in ((_EXACT, Number.WHOLE), (_LARGEST, Number.LONG)):
            if abs(value) <= limit:
                return kind
        return Number.WIDE if abs(value) < 10**_DECIMAL_DIGITS else Number.HUGE
    number = Decimal(value)
    if not number.is_finite():  # also NaN and Infinity, which Python reads and JSON does not have
        return Number.FLOAT
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    fits = exponent >= -_SCALE and number.adjusted() < _DECIMAL_DIGITS - _SCALE
    return Number.FRACTION if fits else Number.FLOAT


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
    if isinstance(first, frozenset) and isinstance(second, frozenset):
        return first | second
    return "string"


def _text(kind: _Type) -> str:
    if kind is None or kind == {}:  # never seen; an object without fields is kept as text
        return "string"
    if isinstance(kind, tuple):
        return f"array<{_text(kind[1])}>"
    if isinstance(kind, dict):
        inner = ", ".join(f"{quote(name)}: {_text(field)}" for name, field in kind.items())
        return f"struct<{inner}>"
    return _number_text(kind) if isinstance(kind, frozenset) else str(kind)


def _number_text(kinds: frozenset[Number]) -> str:
    """The smallest type that holds all of them exactly, as far as there is one."""
    fractions = kinds & {Number.FRACTION, Number.FLOAT}
    if not fractions:
        if Number.HUGE in kinds:
            return "double"
        return "decimal(38,0)" if Number.WIDE in kinds else "bigint"
    if kinds <= {Number.WHOLE, *fractions}:
        return "double"
    return "decimal(38,18)" if kinds <= {Number.WHOLE, Number.LONG, Number.FRACTION} else "string"


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
