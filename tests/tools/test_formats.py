"""Lines to records and records to lines, without a broker."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.text import plural
from tidelog.tools.formats import NAMED, FormatError, formatter
from tidelog.tools.lines import LineFormat
from tidelog.tools.options import unescape
from tidelog.tools.output import size_text
from tidelog.tools.record_json import Outgoing, parse_record
from tidelog.topic_partition import TopicPartition
from tidelog.views.times import time_text
from tidelog.wire.records import Record

ROW = TopicPartition("t", 3)
RECORD = Record(7, 1_700_000_000_123, b"k", "wärts".encode(), (("a", b"1"), ("b", None)))
BINARY = Record(8, -1, None, b"\xff\x00", ())

contents = st.none() | st.binary(max_size=20)
records = st.builds(
    Record,
    st.integers(0, 2**62),
    st.integers(-1, 2**62),
    contents,
    contents,
    st.lists(st.tuples(st.text(max_size=5), contents), max_size=3).map(tuple),
)


def show(template: str, record: Record = RECORD, encoding: str = "utf-8", separator="\t") -> bytes:
    return formatter(template, separator, encoding, "null")(ROW, record)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("value", "wärts"),
        ("key", "k"),
        ("kv", "k\twärts"),
        ("headers", "a=1,b=null\tk\twärts"),
        ("offset", "t-3@7\twärts"),
        ("timestamp", "2023-11-14T22:13:20.123Z\twärts"),
        ("{topic}-{partition}@{offset} {timestamp}", "t-3@7 1700000000123"),
        (r"{key}\t{value}\n", "k\twärts\n"),
        ("{{{value}}}", "{wärts}"),
        ("{offset:>4}|{partition:03}|{key:^5}|", "   7|003|  k  |"),
        ("{time:.10}", "2023-11-14"),
        ("{headers}", "a=1,b=null"),
    ],
)
def test_formats(template: str, expected: str) -> None:
    assert show(template).decode() == expected


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{key:hex}", "how bytes are shown is --encoding: utf-8, raw, hex, base64"),
        ("{offset:x8}", "{offset:x8}: behind the colon can be a width and where the text stands"),
        ("{value:", "is not a template"),
    ],
)
def test_what_is_no_template(template: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        show(template)


def test_a_separator_may_look_like_a_template() -> None:
    assert show("kv", separator="{}") == b"k{}" + RECORD.value


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [("hex", b"ff00"), ("base64", b"/wA="), ("raw", b"\xff\x00")],
)
def test_bytes_that_are_no_text(encoding: str, expected: bytes) -> None:
    assert show("value", BINARY, encoding) == expected
    assert show("kv", BINARY, encoding) == b"null\t" + expected
    with pytest.raises(FormatError, match="the value is not UTF-8 text: use --encoding"):
        show("value", BINARY)


@pytest.mark.parametrize(
    "template",
    ["", "values", "%k", "{", "{}", "{0}", "{nope}", "{value", "{value!r}", "{key.upper}",
     "{offset:q}", "{value:d}"],
)  # fmt: skip
def test_bad_templates_are_refused_before_anything_is_read(template: str) -> None:
    with pytest.raises(ValueError):
        show(template)


@given(records, st.sampled_from(["utf-8", "hex", "base64"]))
def test_json_out_is_json_in(record: Record, encoding: str) -> None:
    line = show("json", record, encoding)
    assert b"\n" not in line
    timestamp = None if record.timestamp < 0 else record.timestamp
    assert parse_record(line) == Outgoing(
        record.key, record.value, list(record.headers), ROW.partition, timestamp
    )


def test_json_is_readable() -> None:
    assert json.loads(show("json")) == {
        "topic": "t",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_700_000_000_123,
        "key": "k",
        "value": "wärts",
        "headers": [["a", "1"], ["b", None]],
    }
    assert "wärts".encode() in show("json")


@pytest.mark.parametrize("template", [*NAMED, "json"])
def test_a_null_record_has_a_line_in_every_format(template: str) -> None:
    assert isinstance(show(template, Record(0, -1, None, None, ())), bytes)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{}", Outgoing(None, None, [])),
        ('{"value": "v"}', Outgoing(None, b"v", [])),
        ('{"headers": {"a": "1", "b": null}}', Outgoing(None, None, [("a", b"1"), ("b", None)])),
        ('{"headers": [["a", {"hex": "00"}]]}', Outgoing(None, None, [("a", b"\0")])),
        ('{"partition": 2, "timestamp": 5}', Outgoing(None, None, [], 2, 5)),
    ],
)
def test_json_lines(line: str, expected: Outgoing) -> None:
    assert parse_record(line.encode()) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "it is empty; with --json every line"),
        ("nope", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "must be a JSON object"),
        ('{"vlaue": 1}', "'vlaue' is no part of a record"),
        ('{"value": 1}', "the value must be a string"),
        ('{"value": {"a": 1}}', "the value must be a string"),
        ('{"value": {"base64": "?"}}', "the value is not base64"),
        ('{"value": {"base64": 7}}', "the value is not base64"),
        ('{"key": {"hex": "xyz"}}', "the key is not hex"),
        ('{"key": "\\ud800"}', "surrogate"),
        ('{"headers": 5}', "headers must be"),
        ('{"headers": [["a"]]}', "headers must be"),
        ('{"partition": -1}', "the partition must be a whole number"),
        ('{"partition": true}', "the partition must be a whole number"),
        ('{"timestamp": 1.5}', "the timestamp must be a whole number"),
    ],
)
def test_bad_json_lines(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_record(line.encode())


@pytest.mark.parametrize(
    ("options", "line", "expected"),
    [
        ({}, b"a:b", Outgoing(None, b"a:b", [])),
        ({}, b"", Outgoing(None, b"", [])),
        ({"key": b"k"}, b"v", Outgoing(b"k", b"v", [])),
        ({"key_separator": b":"}, b"k:v:w", Outgoing(b"k", b"v:w", [])),
        ({"key_separator": b":"}, b":v", Outgoing(b"", b"v", [])),
        ({"key_separator": b"::", "null": b"N"}, b"N::N", Outgoing(None, None, [])),
        ({"null": b""}, b"", Outgoing(None, None, [])),
        ({"headers": (("x", b"1"),)}, b"v", Outgoing(None, b"v", [("x", b"1")])),
        (
            {"headers_separator": b"\t", "key_separator": b"\t", "null": b"N"},
            b"a=1,b=N,c=x=y\tk\tv",
            Outgoing(b"k", b"v", [("a", b"1"), ("b", None), ("c", b"x=y")]),
        ),
        ({"headers_separator": b"|"}, b"|v", Outgoing(None, b"v", [])),
        ({"json": True, "key": b"K"}, b'{"value": "v"}', Outgoing(b"K", b"v", [])),
    ],
)
def test_lines(options: dict, line: bytes, expected: Outgoing) -> None:
    assert LineFormat(**options).read(line) == expected


@pytest.mark.parametrize(
    ("options", "line", "message"),
    [
        ({"key_separator": b":"}, b"v", "there is no ':' after the key"),
        ({"headers_separator": b"|"}, b"v", r"there is no '\|' after the headers"),
        ({"headers_separator": b"|"}, b"a|v", "header 'a' is not name=value"),
        ({"headers_separator": b"|"}, b"\xff=1|v", "is not UTF-8"),
        ({"json": True}, b"v", "not JSON"),
    ],
)
def test_bad_lines(options: dict, line: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LineFormat(**options).read(line)


def test_words_for_people() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 1536, 150 * 1024, 2**31)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "150 KiB", "2.0 GiB",
    ]  # fmt: skip
    assert (plural(1, "record"), plural(2000, "record")) == ("1 record", "2,000 records")
    assert (plural(1, "batch"), plural(0, "batch")) == ("1 batch", "0 batches")
    assert (time_text(-1), time_text(0)) == ("-", "1970-01-01T00:00:00.000Z")
    assert time_text(2**62) == str(2**62)
    assert unescape(r"\t\\t\n\x\0") == "\t\\t\n\\x\0"
    assert unescape("\\") == "\\"
