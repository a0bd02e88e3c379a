"""The disk of one broker is full; the others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.test_failover import back_in_sync, same_logs
from cluster_support import Load, create_topic, everybody_knows, leaders, without
from mounting import fill
from raw_client import RawClient, batch_of
from waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalCluster

PARTITIONS = 3


def test_a_full_disk(new_cluster: Any, mounted: Callable[..., Path], tmp_path: Path) -> None:
    """It is out of sync, and back as soon as there is room; what it leads takes no records."""
    disk = mounted("-t", "tmpfs", "-o", "size=32m", "tidelog-test")
    cluster: LocalCluster = new_cluster()
    victim = cluster.brokers[2]
    (disk / "data").mkdir()
    victim.data = tmp_path / "data"  # what it says goes elsewhere
    victim.data.symlink_to(disk / "data")
    with cluster:
        create_topic(cluster.brokers[1], "load", PARTITIONS, segment_bytes=1 << 20)
        everybody_knows(cluster, "load")
        (index,) = (i for i, leader in leaders(victim, "load").items() if leader == 2)
        with Load(cluster.bootstrap, "load", PARTITIONS) as load:
            load.more()
            fill(disk / "filler")
            until(lambda: without(cluster, 2, "load"), "the others go on without it", 200)
            with RawClient(victim.port, timeout=200) as client:
                answer = client.produce("load", batch_of(bytes(1 << 18)), partition=index)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            (disk / "filler").unlink()
            back_in_sync(cluster, "load")
            load.more()
        load.check(cluster.bootstrap)
        same_logs(cluster, "load", PARTITIONS)
    assert "cannot write: " in victim.log  # the system has its own words, and we have ours
