"""``TopicPartition``; which topic names and partition indexes are legal; a partition's directory.

A partition is a directory of its name.  Every path of a partition is made by
:func:`directory_name`, so that no name from the network leads out of ``log.dirs``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidelog.errors import ApiError, ErrorCode

MAX_NAME = 249
_MAX_FILE_NAME = 255
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


class TopicPartition(NamedTuple):
    """One partition of a topic; ``str`` gives ``topic-0``."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def check_name(name: str) -> None:
    """Kafka's rule, because the name is a directory on disk."""
    if not name:
        problem = "is empty"
    elif name in (".", ".."):
        problem = "is '.' or '..'"
    elif len(name) > MAX_NAME:
        problem = f"has {len(name)} characters, at most {MAX_NAME} are allowed"
    elif not _LEGAL.fullmatch(name):
        problem = "holds more than letters, digits, '.', '_' and '-'"
    else:
        return
    shown = name if len(name) <= 60 else name[:57] + "..."
    raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"the topic name {shown!r} {problem}")


def directory_name(topic: str, partition: int) -> str:
    """``topic-0``; ApiError if that is not the name of a partition."""
    check_name(topic)
    if partition < 0:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"partition {partition} of {topic} is negative")
    name = f"{topic}-{partition}"
    if len(name) > _MAX_FILE_NAME:
        message = f"partition {partition} of a topic with a name of {len(topic)} characters"
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{message}: no file system takes such a name")
    return name
