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
    fields = _field_formatters(encoding, null)
    if template == "{value}":
        return fields["value"]  # the usual case, and the fastest
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
        if name not in fields or conversion:
            raise ValueError(f"{{{name}}} is no part of a record; use {', '.join(fields)}")
        getter = fields[name]
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


def _field_formatters(encoding: str, null: str) -> dict[str, Formatter]:
    """What each field of a template becomes."""

    def text(content: Content, what: str) -> bytes:
        if content is None:
            return null_text
        if encoding == "utf-8":
            try:
                content.decode()
            except UnicodeDecodeError:
                raise FormatError(
                    f"the {what} is not UTF-8 text: use --encoding hex, base64 or raw, or --json"
                ) from None
            return content
        if encoding == "raw":
            return content
        return content.hex().encode() if encoding == "hex" else base64.b64encode(content)

    def headers(record: Record) -> bytes:
        return b",".join(
            name.encode() + b"=" + text(content, f"header {name!r}")
            for name, content in record.headers
        )

    null_text = null.encode()
    return {
        "topic": lambda partition, _: partition.topic.encode(),
        "partition": lambda partition, _: b"%d" % partition.partition,
        "offset": lambda _, record: b"%d" % record.offset,
        "timestamp": lambda _, record: b"%d" % record.timestamp,
        "time": lambda _, record: time_text(record.timestamp).encode(),
        "key": lambda _, record: text(record.key, "key"),
        "value": lambda _, record: text(record.value, "value"),
        "headers": lambda _, record: headers(record),
    }


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
