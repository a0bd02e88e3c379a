"""A record as a JSON object: what ``consume --json`` writes and ``produce --json`` reads.

    {"topic": "hello", "partition": 0, "offset": 7, "timestamp": 1767225600000,
     "key": "k", "value": "v", "headers": [["name", "content"]]}

Text is a string.  Bytes that are no UTF-8 are ``{"base64": "..."}`` (or ``{"hex": "..."}``),
null is null, and nothing is lost on the way there and back.  A reader may leave out
everything but the value, and write headers as an object.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, NamedTuple

Content = bytes | None


class Outgoing(NamedTuple):
    """A record to be written; None leaves partition and timestamp to the producer."""

    key: Content
    value: Content
    headers: list[tuple[str, Content]]
    partition: int | None = None
    timestamp: int | None = None


def text_or_base64(content: Content) -> Any:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return as_base64(content)


def as_base64(content: Content) -> Any:
    return None if content is None else {"base64": base64.b64encode(content).decode()}


def as_hex(content: Content) -> Any:
    return None if content is None else {"hex": content.hex()}


ENCODERS: dict[str, Callable[[Content], Any]] = {
    "utf-8": text_or_base64,
    "raw": text_or_base64,
    "base64": as_base64,
    "hex": as_hex,
}


def parse_record(line: bytes) -> Outgoing:
    """One line of JSON; ValueError if it is no record."""
    if not line.strip():
        raise ValueError(
            'it is empty; with --json every line is an object, for example {"value": "v"}: '
            "remove empty lines (`grep .` does), or leave --json out to send an empty value"
        )
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError('it must be a JSON object, for example {"key": "k", "value": "v"}')
    known = {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}
    unknown = sorted(set(found) - known)
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no part of a record; use {', '.join(sorted(known))}")
    return Outgoing(
        _content(found.get("key"), "key"),
        _content(found.get("value"), "value"),
        _headers(found.get("headers")),
        _number(found.get("partition"), "partition", 2**31 - 1),
        _number(found.get("timestamp"), "timestamp", 2**63 - 1),
    )


def _content(value: Any, name: str) -> Content:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the {name} holds half a surrogate pair") from None
    if isinstance(value, dict) and len(value) == 1:
        ((encoding, text),) = value.items()
        try:
            if encoding == "base64":
                return base64.b64decode(text, validate=True)
            if encoding == "hex":
                return bytes.fromhex(text)
        except (ValueError, TypeError, binascii.Error):
            raise ValueError(f"the {name} is not {encoding}") from None
    raise ValueError(
        f'the {name} must be a string, null, {{"base64": "..."}} or {{"hex": "..."}}; '
        "put other JSON into a string"
    )


def _headers(value: Any) -> list[tuple[str, Content]]:
    if value is None:
        return []
    rows = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise ValueError("headers must be an object, or a list of [name, value] pairs")
    result = []
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != 2 or not isinstance(row[0], str):
            raise ValueError("headers must be an object, or a list of [name, value] pairs")
        result.append((row[0], _content(row[1], f"header {row[0]!r}")))
    return result


def _number(value: Any, name: str, largest: int) -> int | None:
    if value is None or (name == "timestamp" and value == -1):
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise ValueError(f"the {name} must be a whole number from 0 on")
    return value
