"""Kafka Streams at least once: instances and brokers are killed with -9, and nothing is lost."""

import shutil
from contextlib import ExitStack, contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from interop.building import heavy
from interop.java import NEWEST, streams_command, tool
from interop.processes import Program
from interop.reading import read_topic
from support.waiting import until

from tidelog.testing import LocalCluster

pytestmark = heavy("java", "javac", "mvn")
KEYS, BATCH, PARTITIONS = 40, 2000, 4
OUT = ("seen", "counts")
PATIENCE = 120  # seconds; a session has to end before others take over


class Application:
    """The instances, what was sent to them, and what they made of it."""

    def __init__(self, broker, topic, folder):
        self.broker, self.topic, self.sent = broker, topic, 0
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic(topic, PARTITIONS), *(NewTopic(f"{topic}-{out}", 1) for out in OUT)]
        for done in admin.create_topics(topics).values():
            done.result(PATIENCE)
        command = streams_command()
        self.folders = [folder / name for name in ("one", "two")]
        self.instances = [
            Program(state.name, [*command, broker.bootstrap, topic, topic, state], folder)
            for state in self.folders
        ]

    def send(self):
        """The next numbers, each for one of the keys."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5})
        for number in range(self.sent, self.sent + BATCH):
            value = f"k{number % KEYS} {number // KEYS}"
            producer.produce(self.topic, value, partition=number % PARTITIONS)
        assert producer.flush(PATIENCE) == 0
        self.sent += BATCH

    def results(self, name):
        """The last value of every key."""
        rows = read_topic(self.broker.bootstrap, f"{self.topic}-{name}")
        return {row.key.decode(): row.value.decode() for row in rows}

    def seen(self):
        """Which numbers each key has had, as bits."""
        found = self.results("seen")
        return {key: bytes.fromhex(bits) for key, bits in found.items()}

    def expected(self):
        numbers = (1 << self.sent // KEYS) - 1
        size = (self.sent // KEYS + 7) // 8
        return {f"k{i}": numbers.to_bytes(size, "little") for i in range(KEYS)}

    def processed(self):
        def all_seen():
            for instance in self.instances:
                if instance.running:
                    instance.check()
            return self.seen() == self.expected()

        try:
            until(all_seen, "every record to be processed", PATIENCE)
        except AssertionError as error:
            missing = {k: v.hex() for k, v in self.expected().items() if self.seen().get(k) != v}
            logs = [instance.log[-3000:] for instance in self.instances]
            raise AssertionError(f"{error}: wanted {missing}, got {self.seen()}; {logs}") from None

    def counted(self):
        """The counts, when the instances have ended: each record at least once."""
        counts = {key: int(text) for key, text in self.results("counts").items()}
        assert set(counts) == set(self.expected())
        assert min(counts.values()) >= self.sent // KEYS


@contextmanager
def running(broker, topic, folder):
    application = Application(broker, topic, folder)
    with ExitStack() as stack:
        for instance in application.instances:
            stack.enter_context(instance)
        yield application


def topics(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    return set(admin.list_topics(timeout=PATIENCE).topics)


def test_killed_instances(broker, topic, tmp_path):
    with running(broker, topic, tmp_path) as application:
        kill_instances(application)
    made = {f"{topic}-{name}" for name in ("seen-changelog", "counts-changelog")}
    made.add(f"{topic}-by-key-repartition")
    assert made <= topics(broker)
    reset = ("--application-id", topic, "--input-topics", topic, "--force")
    where = ("--bootstrap-server", broker.bootstrap)
    tool("org.apache.kafka.tools.StreamsResetter", *where, *reset, libraries=NEWEST)
    assert not made & topics(broker)


def kill_instances(application):
    one, two = application.instances
    application.send()
    application.processed()
    for killed, other in ((one, two), (two, one)):
        application.send()
        killed.kill()  # in the middle of its work
        application.send()
        application.processed()  # by the other alone
        other.check()
        application.send()
        killed.start()  # with the state that it left
    for instance in (one, two):
        instance.kill()
    application.send()
    shutil.rmtree(application.folders[0])  # from its changelogs, from the beginning
    one.start()
    application.processed()
    one.stop()
    application.counted()


def test_killed_brokers(topic, tmp_path):
    settings = {
        "default.replication.factor": 3,
        "offsets.topic.replication.factor": 3,
        "min.insync.replicas": 2,
    }
    with LocalCluster(3, settings) as cluster, running(cluster, topic, tmp_path) as application:
        application.send()
        application.processed()
        for broker in cluster.brokers.values():
            application.send()
            broker.kill()
            application.send()
            application.processed()  # with two brokers
            application.send()
            broker.start()
            until(lambda: in_sync(cluster, topic), "three replicas", PATIENCE)
        application.processed()
        for instance in application.instances:
            instance.stop()
        application.counted()
        for broker in cluster.brokers.values():
            assert "Traceback" not in broker.log, broker.log


def in_sync(cluster, topic):
    """Every partition of the input and of the internal topics has all of its replicas."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found = admin.list_topics(timeout=PATIENCE).topics
    mine = [found[name] for name in found if name.startswith((topic, "__"))]
    return all(len(p.isrs) == 3 for each in mine for p in each.partitions.values())
