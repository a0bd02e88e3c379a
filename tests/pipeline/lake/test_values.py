"""Values become columns, or a reason why not; schemas that grow."""

from __future__ import annotations

import json
import math
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.pipeline.lake.schemas import Conflict, from_spark_json, merge, to_spark_json
from tidelog.pipeline.lake.values import ValueDecoder, conform

SCALARS = st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.text() | st.floats(-1, 1)
OBJECTS = st.dictionaries(
    st.text("abC", min_size=1, max_size=2),
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text("xy", min_size=1, max_size=1), inner, max_size=2)
        ),
        max_leaves=6,
    ),
    max_size=4,
)


def batch(*values: bytes | str | None) -> pa.RecordBatch:
    rows = [value.encode() if isinstance(value, str) else value for value in values]
    return pa.RecordBatch.from_pydict(
        {"value": pa.array(rows, pa.binary()), "offset": pa.array(range(len(rows)), pa.int64())}
    )


def rows_of(decoder: ValueDecoder, *values: bytes | str | None) -> list[dict[str, Any]]:
    found = decoder.decode(batch(*values))
    assert not found.bad, found.bad
    return found.batch.to_pylist()


def test_columns_are_added() -> None:
    decoder = ValueDecoder("json")
    assert rows_of(decoder, '{"a": 1}') == [{"a": 1, "offset": 0}]
    assert rows_of(decoder, '{"b": "x"}') == [{"a": None, "b": "x", "offset": 0}]
    assert rows_of(decoder, '{"c": {"d": [1]}}', '{"c": {"e": true}}') == [
        {"a": None, "b": None, "c": {"d": [1], "e": None}, "offset": 0},
        {"a": None, "b": None, "c": {"d": None, "e": True}, "offset": 1},
    ]


def test_whole_numbers_widen_and_text_takes_all() -> None:
    decoder = ValueDecoder("json")
    rows_of(decoder, '{"n": 1, "t": "x"}')
    assert rows_of(decoder, '{"n": 2.5}', '{"n": 3}') == [
        {"n": 2.5, "t": None, "offset": 0},
        {"n": 3.0, "t": None, "offset": 1},
    ]
    assert rows_of(decoder, '{"t": 7}', '{"t": {"a": 1}}') == [
        {"n": None, "t": "7", "offset": 0},
        {"n": None, "t": '{"a": 1}', "offset": 1},
    ]


def test_what_looks_like_a_time_stays_text() -> None:
    decoder = ValueDecoder("json")
    assert rows_of(decoder, '{"t": "2026-01-01"}', '{"t": "2026-01-01T00:00:00Z"}')[0]["t"] == (
        "2026-01-01"
    )
    assert rows_of(decoder, '{"t": "soon"}')[0]["t"] == "soon"


def test_bad_rows_have_reasons_and_the_others_stay() -> None:
    values = ['{"n": 1}', "{", "[1]", "", "  ", '{"n": "x"}', b"\xff", '{"n": 1} {"n": 2}', "7",
              None, '{"n": NaN}', '{"n":\n5}', "[" * 5000]  # fmt: skip
    decoder = ValueDecoder("json")
    found = decoder.decode(batch(*values))
    assert [row for row, _ in found.bad] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
    assert found.batch.to_pylist() == [
        {"n": 1, "offset": 0},
        {"n": None, "offset": 9},
        {"n": 5, "offset": 11},
    ]
    reasons = dict(found.bad)
    assert reasons[5] == "n: text, where a whole number is expected"
    assert reasons[6] == "it is not UTF-8: byte 0 is 0xff"
    assert "not an object" in reasons[2]


# Each of these once ended a task, or worse: a record must never stop a load.
HOSTILE_JSON = [
    ('{"a": "\\ud800"}', "half a character"),
    ('{"\\ud800": 1}', "half a character"),
    ('{"a":' * 20_000 + "1" + "}" * 20_000, "nested"),  # ended the process
    ('{"a": ' + "[" * 500 + "]" * 500 + "}", "nested"),
    ('{"a": {"x": 1, "X": 2}}', "a.X: the name differs from x only by case"),
    ('{"": 1}', "a field without a name"),
    (json.dumps({f"f{i}": {"x": i} for i in range(1500)}), "more than 2000"),
]


@pytest.mark.parametrize(("value", "reason"), HOSTILE_JSON, ids=[row for _, row in HOSTILE_JSON])
def test_no_json_stops_a_load(value: str, reason: str) -> None:
    for decoder in (ValueDecoder("json"), ValueDecoder("json", [pa.field("n", pa.int64())])):
        found = decoder.decode(batch('{"n": 1}', value, '{"n": 2}'))
        assert [row for row, _ in found.bad] == [1]
        assert reason in found.bad[0][1]
        assert found.batch.column("n").to_pylist() == [1, 2]


def test_records_are_not_mixed_up() -> None:
    """As many rows as values, and yet not one of each."""
    found = ValueDecoder("json").decode(batch('{"a":1', ',"b":2}', '{"c":3}{"d":4}'))
    assert [row for row, _ in found.bad] == [0, 1, 2]
    found = ValueDecoder("csv").decode(batch("1,2", '3,"x', 'y"', "5,6\n7,8"))
    assert [row for row, _ in found.bad] == [1, 2, 3]
    assert rows_of(ValueDecoder("csv"), " 1,2 \r\n", "3,4") == [
        {"_c0": " 1", "_c1": "2 ", "offset": 0},
        {"_c0": "3", "_c1": "4", "offset": 1},
    ]


def test_lists_that_begin_with_null() -> None:
    """Arrow infers their type, and gives columns that are broken."""
    for value in ({"a": [None, 1]}, {"a": [None, [1]]}, {"a": [None, {"b": 2}]}):
        assert rows_of(ValueDecoder("json"), json.dumps(value)) == [{**value, "offset": 0}]


def test_objects_without_fields() -> None:
    assert rows_of(ValueDecoder("json"), None, "{}") == [{"offset": 0}, {"offset": 1}]
    values = ["{}"] * 40 + ["bad"] + ['{"a": 1}'] * 40
    found = ValueDecoder("json").decode(batch(None, *values))
    assert [row for row, _ in found.bad] == [41]
    assert found.batch.column("a").to_pylist() == [None] * 41 + [1] * 40


def test_no_csv_stops_a_load() -> None:
    values = ["a,b", 'a,"b"c', "a\rb,c", '"a,b', "x", "a," + "x" * 200_000]
    found = ValueDecoder("csv").decode(batch(*values))
    assert [row for row, _ in found.bad] == [1, 2, 3, 4]
    assert found.batch.num_rows == 2
    found = ValueDecoder("csv").decode(batch(*reversed(values)))  # the first says how many columns
    assert [row for row, _ in found.bad] == [1, 2, 3, 4]


def test_whole_numbers_that_a_double_rounds() -> None:
    """Some rows are read before the fraction is met, and some after it."""
    large = 2**53 + 1
    values = [f'{{"n": {large}}}'] * 40 + ["bad", '{"n": 0.5}'] + [f'{{"n": {large}}}'] * 40
    found = ValueDecoder("json").decode(batch(*values))
    assert [row for row, _ in found.bad] == [40, 41]  # the first number was whole
    assert found.batch.column("n").to_pylist() == [large] * 80
    assert found.bad[1][1] == (
        "n: a double, where a whole number is expected: the column has whole numbers beyond 2^53, "
        "which a double would round"
    )
    found = ValueDecoder("json").decode(batch(*reversed(values[40:])))
    assert found.batch.column("n").to_pylist() == [large] * 40
    found = ValueDecoder("json").decode(
        batch('{"n": [0.5]}', f'{{"n": [1, {large}]}}', '{"n": [7]}')
    )
    assert found.bad == [
        (1, "n[]: 9007199254740993, where a double is expected, which cannot hold it exactly")
    ]
    assert found.batch.column("n").to_pylist() == [[0.5], [7.0]]


NUMBERS = ["0", "1", "-7", "1.0", "1e3", "0.5", "1.5e300", "1e18", "1e400", "-1e400",
           str(2**53 - 1), str(2**53), str(2**53 + 1), str(-(2**53) - 1), str(2**60),
           f"{2**53 + 1}.0", str(2**63 - 1), str(2**63), str(2**64 + 1), "9" * 400,
           "NaN", "Infinity", "-Infinity", "Inf", '"NaN"', '": NaN"', "true"]  # fmt: skip
SHAPES = ['{{"n": {}}}', '{{"o": {{"n": {}}}}}', '{{"l": [{}]}}', '{{"l": [1, {}]}}',
          '{{"m": [{{"n": {}}}]}}', ' {{"x": "y",\n "n": {}}}\u00a0']  # fmt: skip


def decoded(values: list[str], step: int, **options: Any) -> tuple[list[Any], list[int], Any]:
    """All rows as texts, since 1 == 1.0, the bad ones, and the types."""
    decoder = ValueDecoder("json", **options)
    rows, bad = [], []
    for start in range(0, len(values), step):
        found = decoder.decode(batch(*values[start : start + step]))
        bad += [start + row for row, _ in found.bad]
        rows.append(found.batch)
    kind = pa.schema([*decoder.fields, pa.field("offset", pa.int64())])
    full = [conform(row.to_struct_array(), pa.struct(kind)).to_pylist() for row in rows]
    return [repr(row) for part in full for row in part], bad, (decoder.fields, decoder.whole)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(str.format, st.sampled_from(SHAPES), st.sampled_from(NUMBERS)),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([1, 5]),
)
def test_neighbours_do_not_matter(values: list[str], times: int) -> None:
    """One by one, or many at once: the same rows, dead letters and columns."""
    values = [value for value in values for _ in range(times)]
    one, *others = (
        (rows_without_offsets(rows), bad, kinds)
        for rows, bad, kinds in (decoded(values, step) for step in (1, 3, 40))
    )
    for other in others:
        assert other == one


def rows_without_offsets(rows: list[str]) -> list[str]:
    return [row.rpartition("'offset'")[0] for row in rows]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.int64(), pa.decimal128(38, 2)])
@pytest.mark.parametrize("value", NUMBERS)
def test_a_number_is_exact_or_a_dead_letter(value: str, kind: pa.DataType) -> None:
    """Also in a schema of the user's, and whatever is beside it."""
    results = set()
    for other in ('{"n": 1}', "no JSON", '{"z": [1, 2.5]}'):
        decoder = ValueDecoder("json", [pa.field("n", kind)], fixed=True)
        found = decoder.decode(batch(other, f'{{"n": {value}}}'))
        bad = [why for row, why in found.bad if row == 1]
        results.add(bad[0] if bad else found.batch.column("n")[-1].as_py())
    (result,) = results
    if isinstance(result, str):
        assert value[:40] in result or "not JSON" in result
    else:
        assert Decimal(result) == Decimal(value) or not value.isdecimal()
        assert math.isfinite(result)


def test_numbers_in_a_column_of_text_are_as_they_were_written() -> None:
    decoder = ValueDecoder("json", [pa.field("t", pa.string())])
    values = ["1e400", "0.12345678901234567890123", "1.10", str(2**70), '[1.0, {"a": 1e3}]']
    rows = rows_of(decoder, *[f'{{"t": {value}}}' for value in values])
    assert [row["t"] for row in rows] == values


def test_whole_numbers_stay_whole() -> None:
    decoder = ValueDecoder("json")
    rows_of(decoder, '{"n": 1}')
    found = rows_of(decoder, *['{"n": 2.0}', '{"n": 1e3}', f'{{"n": {2**53 + 1}.0}}'] * 50)
    assert [row["n"] for row in found] == [2, 1000, 2**53 + 1] * 50
    assert decoder.fields == [pa.field("n", pa.int64())] and decoder.whole == {"n"}
    small = ValueDecoder("json")
    rows_of(small, '{"n": 1}', '{"n": 2.0}')
    assert rows_of(small, '{"n": 2.5}')[0]["n"] == 2.5  # and become doubles when one is none


def test_a_whole_number_beyond_bigint() -> None:
    """The reason names what does not fit, not another type."""
    beyond = "n: 9223372036854775809, which is beyond bigint, the column's type"
    for first in (1, 2**53 + 1):
        found = ValueDecoder("json").decode(batch(f'{{"n": {first}}}', f'{{"n": {2**63 + 1}}}'))
        assert found.bad == [(1, beyond)]
    whole = ValueDecoder("json").decode(batch(f'{{"n": {2**53 + 1}}}', f'{{"n": {2**63}}}'))
    assert whole.bad == [(1, "n: 9223372036854775808, which is beyond bigint, the column's type")]
    huge = ValueDecoder("json").decode(batch('{"n": 1}', f'{{"n": {10**400}}}', '{"n": 2}'))
    ((row, why),) = huge.bad  # no double holds it either
    assert row == 1 and why.endswith("..., which is beyond bigint, the column's type")
    small = ValueDecoder("json", [pa.field("n", pa.int32())], fixed=True)
    assert small.decode(batch('{"n": 2147483648}')).bad == [
        (0, "n: 2147483648, where int32 is expected: it is beyond 32 bits")
    ]


def test_a_dead_letter_makes_no_columns() -> None:
    decoder = ValueDecoder("json")
    found = decoder.decode(batch('{"n": 1}', '{"n": 0.5, "new": 1, "m": 1e400}', '{"n": 2}'))
    assert found.bad == [(1, "m: 1e400, where a double is expected, which cannot hold it exactly")]
    assert decoder.fields == [pa.field("n", pa.int64())]


def test_names_that_the_record_has_already() -> None:
    decoder = ValueDecoder("json", taken=frozenset({"date"}))
    (row,) = rows_of(decoder, '{"offset": 7, "Date": "x", "value_offset": 8, "value_x": 9}')
    assert row == {"value_offset": 7, "value_Date": "x", "value_value_offset": 8, "value_x": 9,
                   "offset": 0}  # fmt: skip
    again = ValueDecoder("json", taken=frozenset({"date"}))
    again.known(decoder.decode(batch("{}")).batch.schema)
    assert again.fields == decoder.fields


def test_a_schema_of_the_users() -> None:
    fields = [
        pa.field("n", pa.int32()),
        pa.field("d", pa.date32()),
        pa.field("t", pa.timestamp("us", "UTC")),
        pa.field("s", pa.string()),
        pa.field("m", pa.decimal128(6, 2)),
    ]
    decoder = ValueDecoder("json", fields, fixed=True)
    good = '{"n": 1, "d": "2026-01-01", "t": "2026-01-01T00:00:00Z", "s": "x", "m": 1.25, "z": 0}'
    (row,) = rows_of(decoder, good)
    assert row["d"] == date(2026, 1, 1) and row["t"].year == 2026 and str(row["m"]) == "1.25"
    found = decoder.decode(batch(good, '{"n": 99999999999}', '{"d": "soon"}', '{"s": 7}'))
    assert [row for row, _ in found.bad] == [1, 2]
    assert found.batch.to_pylist()[1]["s"] == "7"
    assert "n: 99999999999" in found.bad[0][1]


def test_csv() -> None:
    fields = [pa.field("x", pa.int64()), pa.field("y", pa.string())]
    decoder = ValueDecoder("csv", fields, fixed=True)
    found = decoder.decode(batch('1,"a,b"', "2", "x,y", ",", None, "3,\n4,c"))
    assert found.batch.to_pylist() == [
        {"x": 1, "y": "a,b", "offset": 0},
        {"x": None, "y": None, "offset": 3},
        {"x": None, "y": None, "offset": 4},
    ]
    assert [row for row, _ in found.bad] == [1, 2, 5]
    assert rows_of(ValueDecoder("csv", separator=";"), "1;2")[0]["_c1"] == "2"


def test_text() -> None:
    found = ValueDecoder("text").decode(batch("grün", None, b"\xff"))
    assert found.batch.column("value").to_pylist() == ["grün", None]
    assert [row for row, _ in found.bad] == [2]


@settings(max_examples=150, deadline=None)
@given(st.lists(OBJECTS, max_size=20))
def test_any_json_is_a_row_or_a_reason(objects: list[dict[str, Any]]) -> None:
    decoder = ValueDecoder("json")
    for start in range(0, len(objects), 7):
        part = objects[start : start + 7]
        found = decoder.decode(batch(*[json.dumps(row) for row in part]))
        bad = {row for row, _ in found.bad}
        rows = {row["offset"]: row for row in found.batch.to_pylist()}
        assert rows.keys() | bad == set(range(len(part)))
        assert not rows.keys() & bad
        for offset, row in rows.items():
            for name, value in part[offset].items():
                if isinstance(value, str) and isinstance(row.get(name), str):
                    assert row[name] == value
                if isinstance(value, int) and isinstance(row.get(name), int):
                    assert row[name] == value


def test_types() -> None:
    number, text = pa.int64(), pa.string()
    assert merge(number, pa.float64()) == pa.float64()
    assert merge(text, number) == text
    assert merge(pa.null(), number) == number
    with pytest.raises(Conflict, match="a: text, where a whole number is expected"):
        merge(number, text, "a")
    schema = pa.schema(
        [("a", pa.list_(pa.struct([("b", number)]))), ("t", pa.timestamp("us", "UTC"))]
    )
    back = from_spark_json(to_spark_json(schema))
    assert to_spark_json(back) == to_spark_json(schema)
