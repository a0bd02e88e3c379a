"""The disk of one broker is full; the others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.cluster import (
    Load,
    ask_controller,
    back_in_sync,
    create_topic,
    everybody_knows,
    leaders,
    same_logs,
    without,
)
from support.mounting import fill
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalCluster
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)

PARTITIONS = 3
MORE_THAN_THE_QUEUE = 2500  # of Load: were one partition stuck, all would soon be


def test_a_full_disk(new_cluster: Any, mounted: Callable[..., Path], tmp_path: Path) -> None:
    """Others lead what they have in sync, until there is room.  What nobody else has takes no
    records, and can be read."""
    disk = mounted("-t", "tmpfs", "-o", "size=64m", "tidelog-test")
    cluster: LocalCluster = new_cluster()
    victim, other = cluster.brokers[2], cluster.brokers[1]
    (disk / "data").mkdir()
    victim.data = tmp_path / "data"  # what it says goes elsewhere
    victim.data.symlink_to(disk / "data")
    with cluster:
        create_topic(other, "load", PARTITIONS, segment_bytes=1 << 20)
        create_topic(other, "alone", 3, replicas=1)
        everybody_knows(cluster, "load")
        everybody_knows(cluster, "alone")
        (index,) = (i for i, leader in leaders(victim, "load").items() if leader == 2)
        (own,) = (i for i, leader in leaders(victim, "alone").items() if leader == 2)
        with Load(cluster.bootstrap, "load", PARTITIONS) as load:
            load.more()
            with RawClient(victim.port) as client:
                assert client.produce("alone", batch_of(b"kept"), partition=own).error_code == 0
                fill(disk / "filler")
                until(lambda: 2 not in leaders(other, "load").values(), "others lead")
                load.more(MORE_THAN_THE_QUEUE)
                until(lambda: without(cluster, 2, "load"), "it is out of sync")
                answer = client.produce("alone", batch_of(bytes(1 << 18)), partition=own)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert client.read_values("alone", partition=own) == [b"kept"]
                refused = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
                until(lambda: prefer(cluster, index) == refused, "it is not preferred")
                (disk / "filler").unlink()
                back_in_sync(cluster, "load")
                assert client.produce("alone", batch_of(b"more"), partition=own).error_code == 0
            until(lambda: prefer(cluster, index) == 0, "it leads again")
            until(lambda: leaders(other, "load")[index] == 2, "everybody knows")
            load.more()
        load.check(cluster.bootstrap)
        same_logs(cluster, "load", PARTITIONS)
    assert "cannot write: " in victim.log  # the system has its own words, and we have ours
    assert "takes writes again" in victim.log


def prefer(cluster: LocalCluster, index: int) -> int:
    """Ask for the preferred leader; returns the error code, -1 if there is none."""
    request = ElectLeadersRequest(
        topic_partitions=[TopicPartitions(topic="load", partitions=[index])]
    )
    answer = ask_controller(cluster, request, ElectLeadersResponse, 2)
    if not answer.replica_election_results:
        return -1  # whoever was asked is not the controller any more
    code = answer.replica_election_results[0].partition_result[0].error_code
    return 0 if code == ErrorCode.ELECTION_NOT_NEEDED else int(code)
