"""The records of one partition, in a range that is there already."""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.client.cluster import Cluster, error_of
from tidelog.client.connection import BrokerUnreachable
from tidelog.client.fetcher import Fetcher, records_of
from tidelog.client.offsets import Extent
from tidelog.clock import SystemClock
from tidelog.topic_partition import TopicPartition
from tidelog.wire.records import Record


def read_records(
    cluster: Cluster, partition: TopicPartition, offsets: Extent, *, timeout: float = 30.0
) -> Iterator[Record]:
    """The records of one partition in a range that is there already."""
    fetcher = Fetcher(cluster)
    fetcher.assign(partition, offsets.start)
    clock = SystemClock()
    last_answer = clock.monotonic()
    try:
        while fetcher.positions[partition] < offsets.end:
            for part in fetcher.poll(timeout):
                last_answer = clock.monotonic()
                if part.error:
                    raise error_of(part.error, None, f"{partition}@{part.offset}")
                for batch in part.batches:
                    for record in records_of(batch):
                        if part.offset <= record.offset < offsets.end:
                            yield record
            if clock.monotonic() - last_answer > timeout:
                raise BrokerUnreachable(f"{partition}: nothing came in {timeout:g} seconds")
    finally:
        fetcher.close()
