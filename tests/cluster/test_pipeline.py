"""Spark's side of a cluster: streams and tasks read on while leaders die and move."""

from __future__ import annotations

import pytest
from cluster_support import Load, create_topic, everybody_knows, in_sync, leaders
from stream_query import Query
from waiting import until

from tidelog.pipeline.options import ClientOptions
from tidelog.pipeline.ranges import Columns, OffsetRange
from tidelog.pipeline.reading import read_range
from tidelog.testing import LocalCluster
from tidelog.testing.cluster import ClusterBroker

PARTITIONS = 2


def leader(cluster: LocalCluster, topic: str, partition: int = 0) -> ClusterBroker:
    """The one that leads, as soon as the others know that the last one is gone."""

    def found() -> ClusterBroker | None:
        named = {leaders(broker, topic)[partition] for broker in cluster.running()}
        broker = cluster.brokers.get(named.pop()) if len(named) == 1 else None
        return broker if broker is not None and broker.process is not None else None

    result: ClusterBroker = until(found, "a leader")
    return result


@pytest.mark.timeout(300)
def test_leaders_die_and_move_while_records_are_read(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    topic_id = create_topic(cluster.brokers[1], "read", PARTITIONS)
    everybody_knows(cluster, "read")
    # A stream at the end of the log, where a new leader may know less than the old one.
    query = Query(cluster, subscribe="read", startingOffsets="earliest")
    values: list[bytes] = []
    with Load(cluster.bootstrap, "read", PARTITIONS) as load:
        while len(values) < 300:
            values += query.values()
        victim = leader(cluster, "read")
        victim.kill()
        goal = load.total + 1000
        while load.total < goal:
            values += query.values()
            assert not load.failed, load.failed
    values += query.values()
    numbers = [int(value) for value in values]
    assert sorted(numbers) == list(range(load.sent))
    for partition in range(PARTITIONS):
        own = [number for number in numbers if number % PARTITIONS == partition]
        assert own == sorted(own)

    # A task in the midst of the log: the next leader dies, and the one after it is shut down.
    victim.start()
    until(lambda: in_sync(victim, "read", 3), "three replicas in sync", 100)
    end = query.offset.offsets
    (place,) = [place for place in end if place.partition == 0]
    part = OffsetRange("read", 0, 0, end[place], topic_id)
    client = ClientOptions(cluster.bootstrap, partition_max_bytes=1000)
    offsets: list[int] = []
    moves = [ClusterBroker.kill, ClusterBroker.stop]
    for batch in read_range(client, part, Columns(("offset",)), target_bytes=1000):
        offsets += batch["offset"].to_pylist()
        if moves and len(offsets) > part.end * (3 - len(moves)) // 4:
            moves.pop(0)(leader(cluster, "read"))
    assert not moves
    assert offsets == list(range(part.end))
