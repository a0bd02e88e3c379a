"""InitProducerId: API key 22."""

from __future__ import annotations

from tidelog.wire.schema import Int16, Int32, Int64, Message, String, field


class InitProducerIdRequest(Message, key=22, versions=(0, 5), flexible=2):
    transactional_id: String | None
    transaction_timeout_ms: Int32
    producer_id: Int64 = field(default=-1, since=3)
    producer_epoch: Int16 = field(default=-1, since=3)


class InitProducerIdResponse(Message, key=22, versions=(0, 5), flexible=2):
    throttle_time_ms: Int32 = 0
    error_code: Int16
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
