"""What is in a log file, for ``tidelog log dump``: rows of plain data, one for each thing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tidelog.errors import ApiError
from tidelog.log import checkpoints, leader_epochs
from tidelog.log.checkpoints import parse_checkpoint
from tidelog.log.leader_epochs import parse_epochs
from tidelog.log.producer_state import NO_TRANSACTION, ProducerState
from tidelog.log.transaction_index import TransactionIndex
from tidelog.settings import read_properties
from tidelog.text import plural
from tidelog.tools.log_files import (
    FoundBatch,
    read_offset_index,
    read_time_index,
    segment_name,
    walk_batches,
)
from tidelog.tools.record_json import text_or_base64
from tidelog.views.times import time_text
from tidelog.wire.batch import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from tidelog.wire.compression import codec_of
from tidelog.wire.records import decode_batch

Row = dict[str, Any]

_CHECKPOINTS = (
    checkpoints.RECOVERY_POINT,
    checkpoints.HIGH_WATERMARK,
    checkpoints.LOG_START,
    checkpoints.CLEANER,
)
_PROPERTIES = ("meta.properties", "partition.metadata")


def known_files(directory: str) -> list[str]:
    """The files of a directory that can be dumped."""
    return [
        os.path.join(directory, name)
        for name in sorted(os.listdir(directory))
        if segment_name(name) or name in (*_CHECKPOINTS, *_PROPERTIES, leader_epochs.NAME)
    ]


def dump_file(path: str, *, records: bool = False) -> Iterator[Row]:
    """The content of one file.  ValueError if it is no file of a log, or is damaged."""
    name = os.path.basename(path)
    segment = segment_name(path)
    if segment is not None:
        base, kind = segment
        if kind == "log":
            yield from _dump_log(path, records)
        elif kind == "index":
            for offset, position in read_offset_index(path, base):
                yield {"kind": "index entry", "offset": offset, "position": position}
        elif kind == "timeindex":
            for timestamp, offset in read_time_index(path, base):
                yield {"kind": "time index entry", "timestamp": timestamp, "offset": offset}
        elif kind == "snapshot":
            yield from _dump_snapshot(path)
        else:
            for aborted in TransactionIndex(path, base).entries():
                yield {"kind": "aborted transaction", **aborted._asdict()}
        return
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if name in _CHECKPOINTS:
        for (topic, partition), offset in parse_checkpoint(text).items():
            yield {"kind": "checkpoint", "topic": topic, "partition": partition, "offset": offset}
    elif name == leader_epochs.NAME:
        for epoch, start in parse_epochs(text):
            yield {"kind": "leader epoch", "epoch": epoch, "start_offset": start}
    elif name in _PROPERTIES:
        yield {"kind": "properties", **read_properties(text)}
    else:
        raise ValueError(
            "it is no file of a log: give a .log, .index, .timeindex, .txnindex or .snapshot file, "
            "a checkpoint, or the directory of a partition"
        )


def _dump_log(path: str, records: bool) -> Iterator[Row]:
    for batch in walk_batches(path, 0):
        row = _batch_row(batch)
        if records and batch.header is not None and not batch.fault:
            try:
                row["records"] = list(_record_rows(batch))
            except ApiError as error:
                row["fault"] = f"the records cannot be decoded: {error}"
        yield row


def _batch_row(batch: FoundBatch) -> Row:
    header = batch.header
    if header is None or batch.structural:
        return {"kind": "damage", "position": batch.position, "fault": batch.fault}
    flags = header.attributes
    return {
        "kind": "batch",
        "position": batch.position,
        "bytes": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records_counted": header.record_count,
        "codec": _codec(flags),
        "timestamp_type": "LogAppendTime" if flags & LOG_APPEND_TIME else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "delete_horizon": header.base_timestamp if flags & DELETE_HORIZON else None,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": bool(flags & TRANSACTIONAL),
        "control": bool(flags & CONTROL),
        "crc": header.crc,
        "fault": batch.fault or None,
    }


def _codec(attributes: int) -> str:
    try:
        return codec_of(attributes).name.lower()
    except ApiError:
        return f"unknown ({attributes & 7})"


def _record_rows(batch: FoundBatch) -> Iterator[Row]:
    for record in decode_batch(batch.data):
        yield {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": text_or_base64(record.key),
            "value": text_or_base64(record.value),
            "headers": [[name, text_or_base64(value)] for name, value in record.headers],
        }


def _dump_snapshot(path: str) -> Iterator[Row]:
    with open(path, "rb") as file:
        state = ProducerState.decode(file.read())
    for producer_id, producer in state.producers.items():
        last = producer.batches[-1] if producer.batches else None
        yield {
            "kind": "producer",
            "producer_id": producer_id,
            "producer_epoch": producer.epoch,
            "last_sequence": producer.last_sequence,
            "last_offset": last.last_offset if last else -1,
            "last_timestamp": producer.last_timestamp,
            "transaction_start": state.transactions.get(producer_id, NO_TRANSACTION),
        }


# -- for people -----------------------------------------------------------------


def text_of(row: Row) -> list[str]:
    """A row as lines."""
    kind = row["kind"]
    if kind == "batch":
        return [_batch_text(row), *(_record_text(record) for record in row.get("records", ()))]
    if kind == "damage":
        return [f"position {row['position']}  DAMAGED: {row['fault']}"]
    rest = [
        f"{name.replace('_', ' ')} {time_text(value) if name.endswith('timestamp') else value}"
        for name, value in row.items()
        if name != "kind"
    ]
    return ["  ".join(rest)]


def _times(row: Row) -> str:
    first, last = row["base_timestamp"], row["max_timestamp"]
    if first == last or not row["records_counted"]:
        return time_text(last)
    if row["delete_horizon"] is not None:
        return f"up to {time_text(last)}"  # the first time made room for the horizon
    return f"{time_text(first)} to {time_text(last)}"


def _batch_text(row: Row) -> str:
    parts = [
        f"offsets {row['base_offset']}-{row['last_offset']}",
        f"position {row['position']}",
        f"{row['bytes']} bytes",
        plural(row["records_counted"], "record"),
        f"codec {row['codec']}",
        f"{row['timestamp_type']} {_times(row)}",
        f"epoch {row['leader_epoch']}",
    ]
    if row["producer_id"] >= 0:
        parts.append(
            f"producer {row['producer_id']}/{row['producer_epoch']} from {row['base_sequence']}"
        )
    if row["delete_horizon"] is not None:
        parts.append(f"tombstones may go from {time_text(row['delete_horizon'])} on")
    parts += [flag for flag in ("transactional", "control") if row[flag]]
    if row["fault"]:
        parts.append(f"DAMAGED: {row['fault']}")
    return "  ".join(parts)


def _record_text(record: Row) -> str:
    parts = [f"    {record['offset']}", time_text(record["timestamp"])]
    parts += [f"{name} {_content_text(record[name])}" for name in ("key", "value")]
    if record["headers"]:
        shown = ", ".join(f"{name}={_content_text(value)}" for name, value in record["headers"])
        parts.append(f"headers {shown}")
    return "  ".join(parts)


def _content_text(content: Any) -> str:
    if content is None:
        return "null"
    return f"base64:{content['base64']}" if isinstance(content, dict) else repr(content)
