r"""How ``tidelog consume`` writes a record: a template, or a name that stands for one.

    {topic} {partition} {offset} {timestamp} {time} {key} {value} {headers}

are replaced; ``{offset:>8}`` takes what Python's ``format`` takes; ``\t`` and ``\n`` are a tab
and a new line, ``{{`` is a brace.  ``{timestamp}`` is in milliseconds, ``{time}`` is the same
for people, in UTC.  Headers are ``a=1,b=2``, as ``produce --headers-separator`` reads them.

A formatter returns bytes.  Text that the chosen encoding cannot show is a FormatError.
"""

from __future__ import annotations

import base64
import json
import string
from collections.abc import Callable, Sequence

from tidelog.tools.options import unescape
from tidelog.tools.record_json import ENCODERS, Content
from tidelog.topic_partition import TopicPartition
from tidelog.views.times import time_text
from tidelog.wire.records import Record

Formatter = Callable[[TopicPartition, Record], bytes]

ENCODINGS = ("utf-8", "raw", "hex", "base64")
ENCODING_ALIASES = {"utf8": "utf-8", "text": "utf-8"}
FIELDS = ("topic", "partition", "offset", "timestamp", "time", "key", "value", "headers")

# What --format may name; SEP is the --key-separator.
NAMED = {
    "value": "{value}",
    "key": "{key}",
    "kv": "{key}SEP{value}",
    "headers": "{headers}SEP{key}SEP{value}",
    "offset": "{topic}-{partition}@{offset}SEP{value}",
    "timestamp": "{time}SEP{value}",
}


class FormatError(ValueError):
    """A record that cannot be shown as asked."""


def formatter(template: str, separator: str, encoding: str, null: str) -> Formatter:
    """The function for a template or a name; ValueError if it is neither."""
    if template == "json":
        return _json_formatter(encoding)
    if template in NAMED:
        escaped = separator.replace("{", "{{").replace("}", "}}")
        template = NAMED[template].replace("SEP", escaped)
    elif "{" not in template:
        names = ", ".join([*NAMED, "json"])
        raise ValueError(f"{template!r} is not a format; use {names}, or a template with {{value}}")
    fields = _Fields(encoding, null)
    if template == "{value}":
        return fields.value  # the usual case, and the fastest
    parts: list[bytes | Formatter] = []
    try:
        pieces = list(string.Formatter().parse(unescape(template)))
    except ValueError as error:
        raise ValueError(f"{template!r} is not a template: {error}") from None
    for literal, name, spec, conversion in pieces:
        if literal:
            parts.append(literal.encode())
        if name is None:
            continue
        if name not in FIELDS or conversion:
            raise ValueError(f"{{{name}}} is no part of a record; use {', '.join(FIELDS)}")
        getter: Formatter = getattr(fields, name)
        parts.append(_with_spec(getter, name, spec) if spec else getter)
    return _joined(parts)


def _joined(parts: Sequence[bytes | Formatter]) -> Formatter:
    def write(row: TopicPartition, record: Record) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(row, record) for part in parts])

    return write


def _with_spec(getter: Formatter, name: str, spec: str) -> Formatter:
    number = name in ("partition", "offset", "timestamp")

    def write(row: TopicPartition, record: Record) -> bytes:
        text = getter(row, record).decode("utf-8", "replace")
        return format(int(text) if number else text, spec).encode()

    try:
        format(0 if number else "", spec)
    except ValueError:
        more = "a width and where the text stands in it, as >20 or <8"
        if name in ("key", "value", "headers"):
            more += f"; how bytes are shown is --encoding: {', '.join(ENCODINGS)}"
        raise ValueError(f"{{{name}:{spec}}}: behind the colon can be {more}") from None
    return write


class _Fields:
    """One method for each field of a template."""

    def __init__(self, encoding: str, null: str) -> None:
        self._encoding = encoding
        self._null = null.encode()
        self._topics: dict[str, bytes] = {}

    def _content(self, content: Content, what: str) -> bytes:
        if content is None:
            return self._null
        if self._encoding == "utf-8":
            try:
                content.decode()
            except UnicodeDecodeError:
                raise FormatError(
                    f"the {what} is not UTF-8 text: use --encoding hex, base64 or raw, or --json"
                ) from None
            return content
        if self._encoding == "raw":
            return content
        return content.hex().encode() if self._encoding == "hex" else base64.b64encode(content)

    def topic(self, row: TopicPartition, record: Record) -> bytes:  # noqa: ARG002
        return row.topic.encode()

    def partition(self, row: TopicPartition, record: Record) -> bytes:  # noqa: ARG002
        return b"%d" % row.partition

    def offset(self, row: TopicPartition, record: Record) -> bytes:  # noqa: ARG002
        return b"%d" % record.offset

    def timestamp(self, row: TopicPartition, record: Record) -> bytes:  # noqa: ARG002
        return b"%d" % record.timestamp

    def time(self, row: TopicPartition, record: Record) -> bytes:  # noqa: ARG002
        return time_text(record.timestamp).encode()

    def key(self, row: TopicPartition, record: Record) -> bytes:  # noqa: ARG002
        return self._content(record.key, "key")

    def value(self, row: TopicPartition, record: Record) -> bytes:  # noqa: ARG002
        return self._content(record.value, "value")

    def headers(self, row: TopicPartition, record: Record) -> bytes:  # noqa: ARG002
        return b",".join(
            name.encode() + b"=" + self._content(content, f"header {name!r}")
            for name, content in record.headers
        )


def _json_formatter(encoding: str) -> Formatter:
    content, encode = ENCODERS[encoding], json.JSONEncoder(ensure_ascii=False).encode

    def write(row: TopicPartition, record: Record) -> bytes:
        return encode(
            {
                "topic": row.topic,
                "partition": row.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": content(record.key),
                "value": content(record.value),
                "headers": [[name, content(value)] for name, value in record.headers],
            }
        ).encode()

    return write
