"""ZooKeeper dies: records go on, nothing else is decided, and everybody hears why."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from support.cli import run, spawn
from support.cluster import (
    Load,
    controller,
    create_topic,
    everybody_knows,
    in_sync,
    topic_state,
)
from support.raw_client import RawClient
from support.waiting import until

from tidelog.client.admin import create_request
from tidelog.errors import ErrorCode
from tidelog.keeper.registry import PRODUCER_ID_BLOCK
from tidelog.keeper.zookeeper_server import ZooKeeperServer, ensemble
from tidelog.new_topic import NewTopic
from tidelog.testing import LocalCluster
from tidelog.testing.ports import free_port
from tidelog.wire.messages.create_topics import CreateTopicsResponse
from tidelog.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from tidelog.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from tidelog.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

PARTITIONS = 3
PATIENT = {"zookeeper.session.timeout.ms": 30_000}
LOST, FOUND = "no connection to ZooKeeper", "connected to ZooKeeper again"


def all_have(cluster: LocalCluster, last: str, *, not_since: str) -> None:
    """Wait until the brokers have said one thing after the other, the last time."""
    for broker in cluster.brokers.values():
        until(
            lambda b=broker: b.log.rfind(last) > b.log.rfind(not_since),
            f"broker {broker.broker_id} says {last!r}",
        )


def make_later(cluster: LocalCluster) -> None:
    """With three replicas: who has lost its session may have to join again first."""
    options = ["--partitions", "3", "--if-not-exists"]
    until(
        lambda: run("topics", "create", "later", *options, bootstrap=cluster.bootstrap).code == 0,
        "topics can be made",
    )


def test_away_and_back(new_cluster: Any, tmp_path: Path) -> None:
    """Without ZooKeeper records go on; with it again, so does everything else."""
    server = ZooKeeperServer(tmp_path / "zookeeper", free_port())
    with server, new_cluster(zookeeper=server.connect) as cluster:
        for name in ("load", "other"):
            create_topic(cluster.brokers[1], name, PARTITIONS)
            everybody_knows(cluster, name)
        with Load(cluster.bootstrap, "load", PARTITIONS) as load:
            load.more()
            server.kill()
            load.more(500)
            all_have(cluster, LOST, not_since=FOUND)
            with Load(cluster.bootstrap, "other", PARTITIONS) as newcomer:
                newcomer.more()  # its producer id was set aside before
            producer_ids_run_out(cluster.brokers[2].port)
            nothing_is_decided(cluster, server, tmp_path)
            waiting = spawn("produce", "new", bootstrap=cluster.bootstrap)
            assert waiting.stderr is not None
            told = waiting.stderr.readline()
            assert told.startswith(f"topic 'new' cannot be created: ZooKeeper at {server.connect}")
            waiting.kill()
            waiting.communicate()
            server.start()
            server.wait_ready()
            load.more(500)
            all_have(cluster, FOUND, not_since=LOST)
            make_later(cluster)
            until(lambda: in_sync(cluster.brokers[1], "load", 3), "all are in sync")
        load.check(cluster.bootstrap)
        everybody_knows(cluster, "later")
        for name in ("refused-1", "refused-2", "refused-3"):  # nor was any of it kept for later
            found = topic_state(cluster.brokers[2], name)
            assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        described = run("topics", "describe", "load", "--json", bootstrap=cluster.bootstrap).json
        assert "retention.ms" not in described[0]["config"]
        governor = controller(cluster)
        server.kill()
        all_have(cluster, LOST, not_since=FOUND)
        for broker in (governor, *cluster.brokers.values()):
            assert broker.stop(timeout=100) == 0
        for broker in cluster.brokers.values():
            assert f"without moving leaders away: ZooKeeper at {server.connect}" in broker.log
            for noise in ("BrokerConnection dropped", "never awaited", "Traceback"):
                assert noise not in broker.log.partition(LOST)[2], broker.log


def test_who_dies_meanwhile_is_noticed_when_it_is_back(new_cluster: Any, tmp_path: Path) -> None:
    """Nobody waits for the end of a session that ZooKeeper still remembers."""
    server = ZooKeeperServer(tmp_path / "zookeeper", free_port())
    with server, new_cluster(settings=PATIENT, zookeeper=server.connect) as cluster:
        answers_in_time(cluster, server)
        governor = controller(cluster)
        server.kill()
        all_have(cluster, LOST, not_since=FOUND)
        governor.kill()
        for _ in range(2):  # for longer than those who noticed wait for ZooKeeper
            refused = run("topics", "create", "x", bootstrap=cluster.bootstrap)
            assert refused.code == 1, refused.err
        server.start()
        server.wait_ready()
        died = f"broker {governor.broker_id} has died: its port refuses connections"
        until(lambda: any(died in b.log for b in cluster.running()), "somebody says it")
        until(lambda: controller(cluster) is not governor, "another takes office")


def answers_in_time(cluster: LocalCluster, server: ZooKeeperServer) -> None:
    """ZooKeeper hangs: nobody is told for the rest of a session, but by the request's own time."""
    assert server.process is not None
    port = controller(cluster).port
    server.process.send_signal(signal.SIGSTOP)
    try:
        create = create_request([NewTopic("hangs")])
        delete = DeleteTopicsRequest(topic_names=["none"], timeout_ms=500)
        elect = ElectLeadersRequest(topic_partitions=None, timeout_ms=500)
        create.timeout_ms = 500
        with RawClient(port) as client:
            made = client.call(create, CreateTopicsResponse, 7).topics[0]
            assert made.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert "within timeout_ms" in made.error_message or "ZooKeeper" in made.error_message
            (gone,) = client.call(delete, DeleteTopicsResponse, 5).responses
            assert gone.error_code == ErrorCode.REQUEST_TIMED_OUT
            answer = client.call(elect, ElectLeadersResponse, 2)
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    finally:
        server.process.send_signal(signal.SIGCONT)
    make_later(cluster)


def producer_ids_run_out(port: int) -> None:
    """What was set aside is given out; then producers are told to ask again, as Kafka does."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    with RawClient(port) as client:
        ids = set()
        while (answer := client.call(request, InitProducerIdResponse, 4)).error_code == 0:
            ids.add(answer.producer_id)
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
        assert PRODUCER_ID_BLOCK // 2 < len(ids) <= PRODUCER_ID_BLOCK


def nothing_is_decided(cluster: LocalCluster, server: ZooKeeperServer, tmp_path: Path) -> None:
    plan = tmp_path / "moves.json"
    row = {"topic": "load", "partition": 0, "replicas": [1, 2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
    commands = [
        *(["topics", "create", f"refused-{number}"] for number in cluster.brokers),
        ["topics", "delete", "load", "--yes"],
        ["topics", "alter", "load", "--partitions", "9"],
        ["configs", "alter", "--topic", "load", "--set", "retention.ms=1000"],
        ["topics", "reassign", "--run", str(plan)],
        ["produce", "refused-3", "--property", "message.timeout.ms=1"],
    ]
    asked = []
    for args in commands:
        number = int(args[2][-1]) if args[1] == "create" else 1
        asked.append(spawn(*args, bootstrap=cluster.brokers[number].bootstrap))
    for process in asked:
        out, err = process.communicate()
        assert process.returncode == 1, (process.args, out)
        assert f"ZooKeeper at {server.connect} cannot be reached: start it" in err, process.args


def test_the_leader_of_an_ensemble_dies(new_cluster: Any, tmp_path: Path) -> None:
    """The two others elect another, and brokers go over to them."""
    servers = ensemble(tmp_path / "zookeeper", free_port(30))
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready()
        connect = ",".join(server.connect for server in servers)
        with new_cluster(zookeeper=connect) as cluster:
            create_topic(cluster.brokers[1], "load", PARTITIONS)
            everybody_knows(cluster, "load")
            with Load(cluster.bootstrap, "load", PARTITIONS) as load:
                load.more()
                leader = next(s for s in servers if "Mode: leader" in s.ask("srvr"))
                leader.kill()  # every session goes through it: all connections end
                load.more(500)
                all_have(cluster, FOUND, not_since=LOST)
                make_later(cluster)
                cluster.brokers[1].kill()
                load.more(500)
                cluster.brokers[1].start()
                until(lambda: in_sync(cluster.brokers[1], "load", 3), "all are in sync")
            load.check(cluster.bootstrap)
    finally:
        for server in servers:
            server.kill()
