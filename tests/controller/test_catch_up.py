"""Logs that know more than the tree: Kafka wrote them, or the journal was lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller.test_controller import Cluster, run

from tidelog.keeper import paths
from tidelog.keeper.registry import PRODUCER_ID_BLOCK


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.create("t", 3)
    return made


def epochs(cluster: Cluster) -> list[int]:
    return [p.leader_epoch for p in cluster.controller.metadata.topics["t"].partitions]


def test_leader_epochs_go_beyond_those_in_the_logs(cluster: Cluster) -> None:
    found = {("t", 0): 0, ("t", 1): 7, ("gone", 0): 99}
    run(cluster.controller.catch_up(found, -1))
    assert epochs(cluster) == [0, 8, 0]
    assert cluster.json(paths.partition_state("t", 1))["leader_epoch"] == 8
    cluster.restart()
    assert epochs(cluster) == [0, 8, 0]
    run(cluster.controller.catch_up({**found, ("t", 1): 8}, -1))
    assert epochs(cluster) == [0, 8, 0]  # nothing to do


def test_producer_ids_go_beyond_those_in_the_logs(cluster: Cluster) -> None:
    run(cluster.controller.catch_up({}, 4711))
    block = run(cluster.controller.allocate_producer_ids(3))
    assert block == range(4712, 4712 + PRODUCER_ID_BLOCK)
    size = (cluster.path / "journal").stat().st_size
    run(cluster.controller.catch_up({}, 4711))  # long given out
    assert (cluster.path / "journal").stat().st_size == size
    cluster.restart()
    assert run(cluster.controller.allocate_producer_ids(3))[0] == 4712 + PRODUCER_ID_BLOCK


def test_a_tree_that_is_ahead_is_left_alone(cluster: Cluster) -> None:
    run(cluster.controller.allocate_producer_ids(3))
    before, size = cluster.controller.metadata, (cluster.path / "journal").stat().st_size
    run(cluster.controller.catch_up({("t", 0): 0, ("t", 2): -1}, 999))
    assert cluster.controller.metadata is before
    assert (cluster.path / "journal").stat().st_size == size
