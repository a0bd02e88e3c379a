"""Topic ids and cluster ids: sixteen bytes on the wire, 22 characters for people.

The text form is Kafka's: URL-safe base64 without padding.
"""

from __future__ import annotations

import base64


def uuid_text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def parse_uuid(text: str) -> bytes:
    raw = base64.urlsafe_b64decode(text + "==")
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a 22-character id")
    return raw
