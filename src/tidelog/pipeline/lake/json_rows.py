"""JSON as text: what Arrow's parser and Python's make of it.

Arrow's is quick and takes a whole batch; Python's says what is wrong with a single value.  Where
they would differ, Python's is right, and what Arrow's would take too lightly is kept from it:
JSON has neither NaN nor Infinity.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from tidelog.pipeline.lake.numbers import Fractional

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
