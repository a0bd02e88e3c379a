"""JSON as text and its numbers: what Arrow's parser and Python's make of it.

Arrow's is quick and takes a whole batch; Python's says what is wrong with a single value.  Where
they would differ, Python's is right, and what Arrow's would take too lightly is kept from it:
JSON has neither NaN nor Infinity.

Each number is stored as it was written, or not at all.  Whole numbers are exact in a column of
whole numbers, and in one of doubles up to 2**53; beyond that only some are.  A number that is
written with a fraction or an exponent is the nearest double, as in every language; what is larger
than any double has none.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

Bad = tuple[int, str]  # a row of a batch, and the reason

_DEEPEST = 100  # Arrow's parser of JSON ends the process at some thousand levels
_SPACE = " \t\r\n"  # what JSON takes for that
_NO_NUMBER = r"[:,\[][ \t\r\n]*-?(NaN|Inf)"  # or a text with this in it


def trimmed(texts: pa.Array) -> pa.Array:
    return pc.utf8_trim(texts, _SPACE)


def may_be_no_json(texts: pa.Array, data: bytes) -> bool:
    """Whether Arrow's parser might take NaN or Infinity for a number in one of these lines."""
    if b"NaN" not in data and b"Inf" not in data:  # ten times as quick, and nearly always so
        return False
    return bool(pc.any(pc.match_substring_regex(texts, _NO_NUMBER)).as_py())


def lines_of(texts: pa.Array) -> bytes:
    rows = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    found: bytes = pc.binary_join(rows, "\n").cast(pa.binary())[0].as_py()
    return found


def read_json(data: bytes, fields: Iterable[pa.Field], others: str) -> pa.Table:
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


def read_object(text: str) -> dict[str, Any]:
    """One value, or ValueError with what is wrong with it."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse, parse_float=Fractional)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except ValueError as error:  # Python's own limit
        many = "integer string conversion" in str(error)
        raise ValueError("it has a number of too many digits" if many else error) from None
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


def any_too_deep(texts: pa.Array) -> bool:
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


def not_objects(texts: pa.Array) -> list[Bad]:
    bad = []
    for i, text in enumerate(texts.to_pylist()):
        try:
            read_object(text)
        except ValueError as error:
            bad.append((i, str(error)))
    return bad


# -- numbers ----------------------------------------------------------------------------

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
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond every double
        return None
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


# -- columns of numbers ------------------------------------------------------------------------


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
