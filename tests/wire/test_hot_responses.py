"""Produce and Fetch responses by hand are the bytes of the compiled messages."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.messages import FETCH, NAMES, PRODUCE, ROUNDS, SEED, generator

from tidelog.wire.frame import encode_response
from tidelog.wire.hot import (
    Fetched,
    Produced,
    encode_fetch_response,
    encode_one_produced,
    encode_produce_response,
)
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)


def random_name(rng: random.Random, version: int) -> str | bytes:
    return rng.randbytes(16) if version >= 13 else rng.choice(NAMES)


def i64(rng: random.Random) -> int:
    return rng.choice((-1, 0, rng.randrange(1 << 63)))


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_responses(version: int) -> None:
    rng = generator("produced", ProduceResponse, version)
    for _ in range(ROUNDS):
        topics = []
        for _ in range(130 if rng.random() < 0.02 else rng.choice((0, 1, 1, 1, 2))):
            rows = [
                Produced(
                    rng.randrange(1 << 31),
                    rng.choice((0, 0, -1, 87)),
                    i64(rng),
                    i64(rng),
                    i64(rng),
                    why := rng.choice((None, None, "", "why", "y" * 200)),
                    [(rng.randrange(1 << 31), why)] * rng.choice((0, 1, 130)) if why else (),
                )
                for _ in range(rng.choice((0, 1, 1, 1, 2)))
            ]
            topics.append((random_name(rng, version), rows))
        correlation = rng.randrange(-(1 << 31), 1 << 31)
        found = bytes(encode_produce_response(version, correlation, topics))
        assert found == compiled_produce(version, correlation, topics), (SEED, topics)
        if version >= 9 and len(topics) == len(topics[0][1] if topics else ()) == 1:
            (name, (row,)) = topics[0]
            assert encode_one_produced(correlation, name, row) == found, (SEED, topics)


def compiled_produce(version: int, correlation: int, topics: list[Any]) -> bytes:
    responses = [
        TopicProduceResponse(
            **({"topic_id": topic} if version >= 13 else {"name": topic}),
            partition_responses=[
                PartitionProduceResponse(
                    index=row.partition,
                    error_code=row.error,
                    base_offset=row.base_offset,
                    log_append_time_ms=row.append_time_ms,
                    log_start_offset=row.log_start_offset,
                    record_errors=[
                        BatchIndexAndErrorMessage(
                            batch_index=number, batch_index_error_message=reason
                        )
                        for number, reason in row.record_errors
                    ],
                    error_message=row.message,
                )
                for row in rows
            ],
        )
        for topic, rows in topics
    ]
    return bytes(encode_response(ProduceResponse(responses=responses), version, correlation))


@pytest.mark.parametrize("version", FETCH)
def test_fetch_responses(version: int) -> None:
    rng = generator("fetched", FetchResponse, version)
    for _ in range(ROUNDS):
        topics = []
        for _ in range(130 if rng.random() < 0.02 else rng.randrange(4)):
            rows = [random_fetched(rng, version) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
            topics.append((random_name(rng, version), rows))
        correlation, session = rng.randrange(1 << 31), rng.randrange(1 << 31)
        error = rng.choice((0, 0, 70, 71)) if version >= 7 else 0
        chunks = encode_fetch_response(version, correlation, error, session, topics)
        found = b"".join(bytes(chunk) for chunk in chunks)  # type: ignore[arg-type]
        assert found == compiled_fetch(version, correlation, error, session, topics), SEED


DIVERGING = EpochEndOffset(epoch=3, end_offset=1742)


def random_fetched(rng: random.Random, version: int) -> Fetched:
    diverging = version >= 12 and rng.random() < 0.2
    return Fetched(
        rng.randrange(1 << 31),
        rng.choice((0, 0, 1, -1)),
        i64(rng),
        i64(rng),
        i64(rng),
        rng.choice((None, rng.randbytes(rng.choice((1, 61, 126, 127, 128, 300))))),
        rng.choice((None, [], [(1, 2)], [(7, 8)] * 130)),
        rng.choice((-1, 5)) if version >= 11 else -1,
        b"\x01\x00\x0d" + encode_diverging() if diverging else b"\0",
    )


def encode_diverging() -> bytes:
    return (3).to_bytes(4, "big") + (1742).to_bytes(8, "big") + b"\0"


def compiled_fetch(version: int, correlation: int, error: int, session: int, topics: Any) -> bytes:
    responses = [
        FetchableTopicResponse(
            **({"topic_id": topic} if version >= 13 else {"topic": topic}),
            partitions=[
                PartitionData(
                    partition_index=row.partition,
                    error_code=row.error,
                    high_watermark=row.high_watermark,
                    last_stable_offset=row.last_stable_offset,
                    log_start_offset=row.log_start_offset,
                    diverging_epoch=None if row.tags == b"\0" else DIVERGING,
                    aborted_transactions=None
                    if row.aborted is None
                    else [
                        AbortedTransaction(producer_id=p, first_offset=o) for p, o in row.aborted
                    ],
                    preferred_read_replica=row.preferred_replica,
                    records=b"" if row.records is None else row.records,
                )
                for row in rows
            ],
        )
        for topic, rows in topics
    ]
    message = FetchResponse(error_code=error, session_id=session, responses=responses)
    return bytes(encode_response(message, version, correlation))
