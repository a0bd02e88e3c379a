"""Transaction markers: the control batch that ends a transaction in a partition.

A control batch holds one record, never compressed, and takes one offset.  Its key says
what it is, its value who wrote it:

    key    int16 version, int16 type (0 abort, 1 commit; others are not of transactions)
    value  int16 version, int32 epoch of the transaction coordinator

Clients skip control batches; with ``read_committed`` they go by them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidelog.wire.batch import CONTROL, TRANSACTIONAL
from tidelog.wire.primitives import Buffer, ProtocolError
from tidelog.wire.records import decode_batch, encode_batch

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """How a transaction ended."""

    committed: bool
    coordinator_epoch: int


def encode_marker(
    marker: Marker, producer_id: int, producer_epoch: int, timestamp: int, leader_epoch: int = 0
) -> bytes:
    """The control batch for a marker."""
    key = _KEY.pack(0, _COMMIT if marker.committed else _ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    return encode_batch(
        [(timestamp, key, value, ())],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


def read_marker(batch: Buffer) -> Marker | None:
    """What a control batch says; None if it is not the end of a transaction.

    Compaction may leave a control batch without its record.
    """
    try:
        record = next(decode_batch(batch), None)
    except ProtocolError:
        return None
    if record is None or record.key is None or record.value is None:
        return None
    if len(record.key) < _KEY.size or len(record.value) < _VALUE.size:
        return None
    kind = _KEY.unpack_from(record.key)[1]
    if kind not in (_ABORT, _COMMIT):
        return None
    return Marker(kind == _COMMIT, _VALUE.unpack_from(record.value)[1])
