"""Numbers of JSON in columns: each is stored as it was written, or not at all.

Whole numbers are exact in a column of whole numbers, and in one of doubles up to 2**53; beyond
that only some are.  A number that is written with a fraction or an exponent is the nearest double,
as in every language; what is larger than any double has none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EXACT = 2**53  # up to here a double holds every whole number
_EXACT_FLOAT = 2**24


class Fractional(float):
    """A number of JSON with a fraction or an exponent, and how it was written."""

    text: str

    def __new__(cls, text: str) -> Fractional:
        self = super().__new__(cls, text)
        self.text = text
        return self


def whole_number(value: Any) -> int | None:
    """The whole number that this is, as 1, 1.0 and 1e3 are; None if it is none."""
    if isinstance(value, int):
        return value
    if not isinstance(value, float):
        return None
    if abs(value) < EXACT:
        return int(value) if value.is_integer() else None
    if not abs(value) < 2**64:
        return None  # no column of whole numbers holds it
    exact = Decimal(value.text if isinstance(value, Fractional) else value)
    return int(exact) if exact == exact.to_integral_value() else None


def nearest(value: float, kind: pa.DataType) -> float | None:
    """A number as a float or a double holds it; None if it would be another one."""
    number = float(value)
    if pa.types.is_float32(kind):
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    if math.isinf(number) or (isinstance(value, int) and int(number) != value):
        return None
    return number


def json_text(value: Any) -> str:
    """A JSON value as text, numbers as they were written."""
    if isinstance(value, Fractional):
        return value.text
    if isinstance(value, dict):
        rows = (f"{json_text(name)}: {json_text(row)}" for name, row in value.items())
        return f"{{{', '.join(rows)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(json_text, value))}]"
    return json.dumps(value, ensure_ascii=False)


# -- columns ------------------------------------------------------------------------


def numbers(array: pa.Array, path: str = "") -> Iterator[tuple[str, pa.Array]]:
    """All columns of numbers within a column, with their paths."""
    kind = array.type
    if pa.types.is_struct(kind):
        for field, column in zip(kind, array.flatten(), strict=True):
            yield from numbers(column, f"{path}.{field.name}" if path else field.name)
    elif pa.types.is_list(kind):
        yield from numbers(array.flatten(), f"{path}[]")
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        yield path, array


def all_within(array: pa.Array, limit: int = EXACT) -> bool:
    """Whether no number is beyond what a double holds exactly, or is none at all."""
    if pa.types.is_floating(array.type):
        return bool(pc.all(pc.less(pc.abs(array), limit)).as_py() is not False)
    found = pc.min_max(array).as_py()
    return found["min"] is None or -limit <= found["min"] <= found["max"] <= limit


def all_whole(array: pa.Array) -> bool:
    return bool(pc.all(pc.equal(pc.floor(array), array)).as_py() is not False)


def perhaps_rounded(array: pa.Array) -> np.ndarray | None:
    """Which rows of a column hold a double that may stand for another number; None: none."""
    kind = array.type
    found: np.ndarray | None = None
    if pa.types.is_struct(kind):
        for column in array.flatten():
            more = perhaps_rounded(column)
            if more is not None:
                found = more if found is None else found | more
    elif pa.types.is_list(kind):
        inner = perhaps_rounded(array.flatten())
        if inner is not None:
            found = np.zeros(len(array), bool)
            found[pc.list_parent_indices(array).to_numpy()[inner]] = True
    elif pa.types.is_floating(kind):
        limit = _EXACT_FLOAT if pa.types.is_float32(kind) else EXACT
        if not all_within(array, limit):
            less = pc.fill_null(pc.less(pc.abs(array), limit), True)
            found = ~less.to_numpy(zero_copy_only=False)
    return found
