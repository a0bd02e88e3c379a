"""What tests of a cluster ask again and again, with our own client."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from support.raw_client import RawClient
from support.waiting import until

from tidelog.client.connection import BrokerConnection
from tidelog.errors import ErrorCode
from tidelog.keeper.zookeeper import ZooKeeper
from tidelog.testing import LocalCluster
from tidelog.testing.cluster import ClusterBroker
from tidelog.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)


def metadata(broker: ClusterBroker, *topics: str) -> MetadataResponse:
    with RawClient(broker.port) as client:
        rows = [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=False)
        return client.call(request, MetadataResponse, 12)


def create_topic(
    broker: ClusterBroker, name: str, partitions: int = 1, replicas: int = 3, **config: Any
) -> bytes:
    configs = [
        CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
        for key, value in config.items()
    ]
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=configs,
    )
    with RawClient(broker.port) as client:
        request = CreateTopicsRequest(topics=[topic])
        answer = client.call(request, CreateTopicsResponse, 7).topics[0]
    assert answer.error_code == 0, answer.error_message
    return answer.topic_id


def topic_state(broker: ClusterBroker, name: str) -> MetadataResponseTopic:
    return metadata(broker, name).topics[0]


def leaders(broker: ClusterBroker, name: str) -> dict[int, int]:
    return {row.partition_index: row.leader_id for row in topic_state(broker, name).partitions}


def in_sync(broker: ClusterBroker, name: str, count: int) -> bool:
    rows = topic_state(broker, name).partitions
    return bool(rows) and all(len(row.isr_nodes) == count for row in rows)


def without(cluster: LocalCluster, victim: int, topic: str) -> bool:
    """Do the others lead without the victim, wherever they lead?"""
    other = next(b for b in cluster.brokers.values() if b.broker_id != victim)
    rows = topic_state(other, topic).partitions
    led = [row for row in rows if row.leader_id != victim]
    return bool(led) and all(victim not in row.isr_nodes for row in led)


def controller(cluster: LocalCluster) -> ClusterBroker:
    """The broker that is controller, as soon as the others know."""

    def found() -> ClusterBroker | None:
        named = {metadata(broker).controller_id for broker in cluster.running()}
        if len(named) == 1:
            return cluster.brokers.get(named.pop())
        return None

    result: ClusterBroker = until(found, "all know the same controller")
    return result


def ask_controller(cluster: LocalCluster, request: Any, response: Any, version: int) -> Any:
    with RawClient(controller(cluster).port) as client:
        return client.call(request, response, version)


def reassign(cluster: LocalCluster, topic: str, replicas: dict[int, list[int] | None]) -> list[int]:
    """Give partitions other replicas; returns the error codes."""
    rows = [ReassignablePartition(partition_index=i, replicas=r) for i, r in replicas.items()]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=rows)]
    )
    answer = ask_controller(cluster, request, AlterPartitionReassignmentsResponse, 0)
    if answer.error_code:  # of all: there is no controller just now, say
        return [answer.error_code] * len(rows)
    return [row.error_code for row in answer.responses[0].partitions]


def move_leaders(cluster: LocalCluster, topic: str) -> None:
    """Every partition gets the next of its replicas as its leader; none is copied."""
    asked = next(cluster.running())
    before = {r.partition_index: r.replica_nodes for r in topic_state(asked, topic).partitions}
    wanted = {index: [*nodes[1:], nodes[0]] for index, nodes in before.items()}
    until(lambda: not any(reassign(cluster, topic, wanted)), "the controller takes the move")
    row = TopicPartitions(topic=topic, partitions=list(wanted))

    def moved() -> bool:
        ask_controller(
            cluster, ElectLeadersRequest(topic_partitions=[row]), ElectLeadersResponse, 2
        )
        return leaders(asked, topic) == {index: nodes[0] for index, nodes in wanted.items()}

    until(moved, "the leaders have moved")


def kill_at_once(cluster: LocalCluster) -> None:
    """kill -9 of all brokers: none lives to see another die."""
    for broker in cluster.running():
        os.kill(broker.pid, signal.SIGKILL)
    for broker in cluster.brokers.values():
        broker.kill()


def everybody_knows(cluster: LocalCluster, name: str) -> None:
    for broker in cluster.running():
        until(lambda b=broker: topic_state(b, name).error_code == 0, f"{name} is known")


def api_versions(broker: ClusterBroker) -> dict[int, tuple[int, int]]:
    with BrokerConnection("127.0.0.1", broker.port) as connection:
        return connection._versions


class Load:
    """A producer in a thread of its own that remembers what it was told.

    Idempotent and with acks=all, so that whatever it was told is written stays written, once
    and in order.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        # All of them from the start: it is counted while the thread fills it.
        self.acknowledged: dict[int, list[tuple[int, int | None]]] = {
            partition: [] for partition in range(partitions)
        }
        self.failed: list[str] = []
        self.sent = 0
        self._count = threading.Event()
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "delivery.timeout.ms": 600_000,
                "queue.buffering.max.messages": 2000,
                "batch.num.messages": 50,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            partition = self.sent % self.partitions
            try:
                self._producer.produce(
                    self.topic,
                    value=str(self.sent).encode(),
                    partition=partition,
                    on_delivery=self._told,
                )
                self.sent += 1
            except BufferError:
                self._producer.poll(0.05)
                continue
            self._producer.poll(0)
            self._stop.wait(0.0005)

    def _told(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            number = int(message.value())
            # Number and offset.
            self.acknowledged[message.partition()].append((number, message.offset()))

    @property
    def total(self) -> int:
        return sum(len(rows) for rows in self.acknowledged.values())

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def more(self, count: int = 200) -> None:
        """Wait until so many more are acknowledged."""
        goal = self.total + count
        until(lambda: self.total >= goal or self.failed, f"{count} more acknowledged")
        assert not self.failed, self.failed[:3]

    def more_everywhere(self) -> None:
        """Wait until more is acknowledged in every partition.

        To be called before a leader gets back what it had: librdkafka (2.16, its issue 4976)
        asks the one in between for ever, if its thread was too busy to let go meanwhile.
        """
        before = {partition: len(rows) for partition, rows in self.acknowledged.items()}
        until(
            lambda: self.failed or all(len(self.acknowledged[p]) > n for p, n in before.items()),
            "more acknowledged in every partition",
        )
        assert not self.failed, self.failed[:3]

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        left = self._producer.flush(600)
        assert left == 0, f"{left} records were never answered"

    def check(self, bootstrap: str) -> None:
        """Everything acknowledged is there, at its offset, once, and in order."""
        assert not self.failed, self.failed[:3]
        seen = read_all(bootstrap, self.topic, range(self.partitions))
        for partition, told in self.acknowledged.items():
            have = dict(seen[partition])
            written = set(have.values())
            for number, offset in told:
                if offset is None:  # librdkafka heard it from the answer to a later batch
                    assert number in written, f"partition {partition}: {number} is lost"
                    continue
                assert have.get(offset) == number, (
                    f"partition {partition}: record {number} was acknowledged at {offset}, "
                    f"there is {have.get(offset)}"
                )
        for partition, rows in seen.items():
            numbers = [number for _, number in rows]
            assert len(set(numbers)) == len(numbers), f"partition {partition}: duplicates"
            assert numbers == sorted(numbers), f"partition {partition}: out of order"


def read_all(
    bootstrap: str, topic: str, partitions: Iterable[int]
) -> dict[int, list[tuple[int, int]]]:
    """Offset and number of every record that a consumer can see."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    seen: dict[int, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    waiting = set(seen)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in seen])
    try:
        while waiting:
            message = consumer.poll(60)
            assert message is not None, f"nothing more from {waiting}"
            if message.error():
                if message.error().code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.partition())
                continue
            seen[message.partition()].append((message.offset(), int(message.value())))
    finally:
        consumer.close()
    return seen


def back_in_sync(cluster: LocalCluster, topic: str, count: int = 3) -> None:
    """As everybody sees it: who was away may not know yet that others have gone on."""
    until(
        lambda: all(in_sync(broker, topic, count) for broker in cluster.running()),
        f"{count} replicas in sync",
    )


def damage_log(broker: ClusterBroker, name: str, how: str) -> None:
    """While the broker is down: cut the log of a partition, change it, or take it away."""
    path = next((broker.data / name).glob("*.log"))
    data = bytearray(path.read_bytes())
    if how == "gone":
        shutil.rmtree(broker.data / name)
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif data:
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)


def same_logs(cluster: LocalCluster, topic: str, partitions: int) -> None:
    """Every replica has the same bytes, in the end."""

    def contents(broker: ClusterBroker, index: int) -> bytes:
        files = sorted((broker.data / f"{topic}-{index}").glob("*.log"))
        return b"".join(path.read_bytes() for path in files)

    for index in range(partitions):
        until(
            lambda i=index: len({contents(b, i) for b in cluster.brokers.values()}) == 1,
            f"the logs of {topic}-{index} are the same",
        )


def ask_zookeeper(cluster: LocalCluster, work: Callable[[ZooKeeper], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        keeper = await ZooKeeper.connect(cluster.zookeeper, 30_000, 100_000)
        try:
            return await work(keeper)
        finally:
            await keeper.close()

    return asyncio.run(go())


def produce_to_leader(cluster: LocalCluster, topic: str, batch: bytes, partition: int = 0) -> Any:
    """Produce as clients do: look for the leader until it takes the records."""

    def attempt() -> Any:
        known = leaders(cluster.brokers[1], topic)
        broker = cluster.brokers.get(known.get(partition, -1))
        if broker is None:
            return None
        with RawClient(broker.port) as client:
            answer = client.produce(topic, batch, partition=partition, timeout_ms=30_000)
        if answer.error_code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ):
            return None
        return answer

    answer = until(attempt, "the leader takes it")
    assert answer.error_code == 0, ErrorCode(answer.error_code).name
    return answer
