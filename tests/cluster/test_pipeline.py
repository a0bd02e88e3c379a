"""Spark's side of a cluster: streams and tasks read on while leaders die and move."""

from __future__ import annotations

import pytest
from support.cli import run
from support.cluster import Load, create_topic, everybody_knows, in_sync, leaders
from support.raw_client import RawClient, batch_of
from support.stream_query import Query
from support.waiting import until

from tidelog.client import admin
from tidelog.client.admin import Change
from tidelog.client.cluster import Cluster
from tidelog.errors import ApiError, ErrorCode
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
    # In the end one replica is left, and all of it shall be readable there.
    topic_id = create_topic(cluster.brokers[1], "read", PARTITIONS, min_insync_replicas=1)
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
    until(lambda: in_sync(victim, "read", 3), "three replicas in sync")
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

    # What a new leader keeps back because too few replicas have it is no lost data.
    last = leader(cluster, "read")
    with Cluster(last.bootstrap) as admins:
        change = (Change.SET, "min.insync.replicas", "2")
        admin.alter_configs(admins, admin.ConfigResource.TOPIC, "read", [change])
    with RawClient(last.port) as raw:
        few = ErrorCode.NOT_ENOUGH_REPLICAS
        until(
            lambda: raw.produce("read", batch_of(b"x"), acks=-1).error_code == few, "two are needed"
        )
        kept_back = raw.produce("read", batch_of(b"y"), acks=1).base_offset
    last.kill()
    last.start()
    assert leader(cluster, "read") is last
    part = OffsetRange("read", 0, kept_back, kept_back + 1, topic_id)
    with pytest.raises(ApiError, match="keeps back what may not be committed") as raised:
        list(read_range(client, part, patience=0.5))
    assert raised.value.code == ErrorCode.OFFSET_NOT_AVAILABLE
    described = run("topics", "describe", "read", bootstrap=last.bootstrap)
    assert described.code == 0, described.err
    assert "the leader of read-0" in described.err
    assert "cannot say yet what is committed" in described.err
