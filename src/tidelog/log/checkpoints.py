"""Checkpoint files: ``0``, the number of lines, then ``topic partition offset`` lines.

``recovery-point-offset-checkpoint``  up to here the log is on disk for certain
``replication-offset-checkpoint``     high watermarks
``log-start-offset-checkpoint``       only those that are not the first segment's base
``cleaner-offset-checkpoint``         up to here a compacted log is clean

A checkpoint is a shortcut.  One that cannot be read is reported and taken as empty:
the log is then recovered from its start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from tidelog import files
from tidelog.files import write_atomically

RECOVERY_POINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"

PartitionKey = tuple[str, int]  # a plain tuple: logs are looked up by it on every request

log = logging.getLogger(__name__)


def write_checkpoint(directory: str, name: str, offsets: Mapping[PartitionKey, int]) -> None:
    lines = ["0", str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    write_atomically(os.path.join(directory, name), "\n".join(lines).encode() + b"\n")


def read_checkpoint(directory: str, name: str) -> dict[PartitionKey, int]:
    path = os.path.join(directory, name)
    try:
        return parse_checkpoint(files.read_file(path).decode())
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        log.warning("%s cannot be read (%s); the logs are recovered from their start", path, error)
        return {}


def parse_checkpoint(text: str) -> dict[PartitionKey, int]:
    """The offsets in a checkpoint; ValueError if it is not whole.

    Apache Kafka makes its files empty and writes them later: that is no damage.
    """
    if not text:
        return {}
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != "0":
        raise ValueError("it does not start with version 0 and a count")
    offsets = {}
    for line in lines[2:]:
        topic, partition, offset = line.split(" ")
        offsets[topic, int(partition)] = int(offset)
    if len(offsets) != int(lines[1]) or any(offset < 0 for offset in offsets.values()):
        raise ValueError(f"it promises {lines[1]} lines and has {len(offsets)}")
    return offsets
