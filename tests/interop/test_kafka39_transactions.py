"""Transactions that Kafka 3.9 wrote, read from tidelog: committed ones, and no others.

So are the offsets that were committed inside them.
"""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from interop.building import heavy
from interop.java import tool
from interop.kafka39 import Kafka39, ZooKeeper
from support.group_client import GroupClient
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

pytestmark = heavy("java", "mvn")
TOPIC = "ledger"
GROUPS = ("outer", "inner", "both", "overtaken", "open")
PARTITION = TopicPartition(TOPIC, 0)
FILLER = "." * 1000  # a few transactions to a segment
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"


def write(bootstrap: str) -> list[str]:
    """Transactions of two producers, one inside the other; returns what is committed before
    the one that stays open."""
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 0}
    outer, inner, late = (
        Producer({**settings, "transactional.id": name, "transaction.timeout.ms": 600_000})
        for name in ("outer", "inner", "late")
    )
    plain = Producer(settings)
    for producer in (outer, inner, late):
        producer.init_transactions(60)
    readers = {
        group: Consumer({"bootstrap.servers": bootstrap, "group.id": group}) for group in GROUPS
    }

    def commit(producer: Producer, offset: int, *groups: str) -> None:
        """Offsets of groups, inside the transaction."""
        place = TopicPartition(TOPIC, 0, offset)
        for group in groups:
            member = readers[group].consumer_group_metadata()
            producer.send_offsets_to_transaction([place], member, 60)

    seen: list[str] = []

    def send(producer: Producer, text: str, count: int = 10) -> list[str]:
        values = [f"{text}-{n}{FILLER}" for n in range(count)]
        for value in values:
            producer.produce(TOPIC, value, partition=0)
        assert producer.flush(60) == 0
        return values

    for number in range(12):
        outer.begin_transaction()
        first = send(outer, f"outer-{number}")
        inner.begin_transaction()
        middle = send(inner, f"inner-{number}")
        between = send(plain, f"plain-{number}", 3)
        last = send(outer, f"outer-{number}-more")
        commit(outer, 1000 + number, "outer", "both")
        commit(inner, 2000 + number, "inner", "both", "overtaken")
        if number == 11:
            place = TopicPartition(TOPIC, 0, 7)
            readers["overtaken"].commit(offsets=[place], asynchronous=False)
        if number % 3 == 0:
            inner.abort_transaction(60)
            middle = []
        else:
            inner.commit_transaction(60)
        if number % 2 == 0:
            outer.abort_transaction(60)
            first = last = []
        else:
            outer.commit_transaction(60)
        seen += [*first, *middle, *between, *last]
    late.begin_transaction()
    send(late, "open")
    commit(late, 3000, "open", "both")
    for reader in readers.values():
        reader.close()
    send(plain, "after the open one")
    inner.begin_transaction()
    send(inner, "committed after the open one")
    inner.commit_transaction(60)
    return seen


def read(bootstrap: str, isolation: str, start: int = 0) -> list[tuple[int, str]]:
    """Everything from an offset on that librdkafka shows."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "fetch.message.max.bytes": 30_000,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, start)])
    found: list[tuple[int, str]] = []
    while True:
        message = consumer.poll(100)
        assert message is not None, "nothing more came"
        if message.error():
            assert message.error().name() == "_PARTITION_EOF", message.error()
            consumer.close()
            return found
        found.append((message.offset(), message.value().decode()))


def latest(bootstrap: str, isolation: IsolationLevel) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = admin.list_offsets({PARTITION: OffsetSpec.latest()}, isolation_level=isolation)
    return asked[PARTITION].result(100).offset


def committed_offsets(bootstrap: str) -> dict[tuple[str, bool], tuple[int, int]]:
    """Offset and error of each group, for readers that want stable offsets and for others."""
    found = {}
    with GroupClient(int(bootstrap.rpartition(":")[2])) as client:
        for group in GROUPS:
            for stable in (False, True):
                rows = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
                asked = OffsetFetchRequestGroup(group_id=group, topics=rows)
                request = OffsetFetchRequest(groups=[asked], require_stable=stable)
                answer = client.call(request, OffsetFetchResponse, 9).groups[0]
                assert answer.error_code == 0
                (part,) = answer.topics[0].partitions
                found[group, stable] = part.committed_offset, part.error_code
    return found


class Written(NamedTuple):
    data: Path
    committed: list[tuple[int, str]]  # as Kafka itself shows it
    everything: list[tuple[int, str]]
    stable: int
    offsets: dict[tuple[str, bool], tuple[int, int]]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Written]:
    """What Kafka leaves behind after a clean stop, and after kill -9."""
    folder = tmp_path_factory.mktemp("transactions")
    data, result = folder / "data", {}
    with (
        ZooKeeper(folder / "zookeeper") as keeper,
        Kafka39(folder / "kafka", data, keeper) as kafka,
    ):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(100)
        expected = write(kafka.bootstrap)
        committed = read(kafka.bootstrap, "read_committed")
        assert [value for _, value in committed] == expected
        everything = read(kafka.bootstrap, "read_uncommitted")
        stable = latest(kafka.bootstrap, IsolationLevel.READ_COMMITTED)
        offsets = committed_offsets(kafka.bootstrap)
        for how, end in (("stopped", kafka.stop), ("killed", kafka.kill)):
            end()
            shutil.copytree(data, folder / how)
            result[how] = Written(folder / how, committed, everything, stable, offsets)
            if how == "stopped":
                kafka.start()
    return result


@pytest.mark.parametrize("how", ["stopped", "killed", "index lost", "mark lost", "snapshots lost"])
def test_only_committed_records_are_shown(written, how, tmp_path):
    source = written["killed" if how == "killed" else "stopped"]
    data = tmp_path / "data"
    shutil.copytree(source.data, data)
    partition = data / f"{TOPIC}-0"
    indexes = {path.name: path.read_bytes() for path in partition.glob("*.txnindex")}
    assert len(list(partition.glob("*.log"))) > 3
    assert sum(map(bool, indexes.values())) > 1
    if how.endswith("lost"):
        # Without the mark of a clean stop, nothing but the batches is believed.
        (data / ".kafka_cleanshutdown").unlink()
        (data / "recovery-point-offset-checkpoint").unlink()
    for pattern in {"index lost": ["txnindex"], "snapshots lost": ["txnindex", "snapshot"]}.get(
        how, []
    ):
        for path in partition.glob(f"*.{pattern}"):
            path.unlink()
    with LocalBroker(data=data) as broker:
        assert read(broker.bootstrap, "read_committed") == source.committed
        assert read(broker.bootstrap, "read_uncommitted") == source.everything
        for start in range(0, source.stable, 37):
            rest = [row for row in source.committed if row[0] >= start]
            assert read(broker.bootstrap, "read_committed", start) == rest
        assert latest(broker.bootstrap, IsolationLevel.READ_COMMITTED) == source.stable
        whole = latest(broker.bootstrap, IsolationLevel.READ_UNCOMMITTED)
        assert whole > source.everything[-1][0] >= source.stable
        assert through_java(broker.bootstrap, len(source.committed)) == [
            value for _, value in source.committed
        ]
        broker.restart()
        assert read(broker.bootstrap, "read_committed") == source.committed
    after = {path.name: path.read_bytes() for path in partition.glob("*.txnindex")}
    filled = {name: content for name, content in indexes.items() if content}
    assert {name: content for name, content in after.items() if content} == filled


def test_only_committed_offsets_count(written, tmp_path):
    for how, source in written.items():
        data = tmp_path / how
        shutil.copytree(source.data, data)
        assert source.offsets == {
            ("outer", False): (1011, 0),
            ("outer", True): (1011, 0),
            ("inner", False): (2011, 0),
            ("inner", True): (2011, 0),
            ("both", False): (2011, 0),  # of two transactions, the record that is later
            ("both", True): (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT),
            ("overtaken", False): (7, 0),
            ("overtaken", True): (7, 0),
            ("open", False): (-1, 0),
            ("open", True): (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        }
        with LocalBroker(data=data) as broker:
            assert until_loaded(broker.bootstrap) == source.offsets
            broker.restart()
            assert until_loaded(broker.bootstrap) == source.offsets


def until_loaded(bootstrap: str) -> dict[tuple[str, bool], tuple[int, int]]:
    with GroupClient(int(bootstrap.rpartition(":")[2])) as client:
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        for group in GROUPS:
            until(lambda group=group: client.describe(group).error_code != loading, "the groups")
    return committed_offsets(bootstrap)


def through_java(bootstrap: str, count: int) -> list[str]:
    """What Kafka's console consumer prints."""
    found = tool(
        CONSOLE,
        *("--bootstrap-server", bootstrap, "--topic", TOPIC, "--partition", "0"),
        *("--offset", "earliest", "--isolation-level", "read_committed"),
        *("--max-messages", str(count)),
    )
    return [line for line in found.splitlines() if line.endswith(FILLER)]
