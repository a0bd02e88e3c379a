"""Consumer groups with real clients, each member in a process of its own."""

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from interop.building import heavy
from interop.groups import JAVA, PATIENCE, SHORT_SESSION, Groups
from interop.kafkajs_driver import why_not
from support.waiting import until

from tidelog.testing import LocalBroker

PARTITIONS = 6
PYTHONS = ("confluent", "kafka-python", "aiokafka")
JAVAS = [pytest.param(name, marks=heavy("java", "javac", "mvn")) for name in JAVA]
FRANZ = pytest.param("franz", marks=heavy("go"))
CLIENTS = [
    *PYTHONS,
    pytest.param("kafkajs", marks=pytest.mark.skipif(bool(why_not()), reason=why_not())),
    *JAVAS,
    FRANZ,
    pytest.param("sarama", marks=heavy("go")),
]
STATIC = ["confluent", "kafka-python", *JAVAS, FRANZ]
COOPERATIVE = ["confluent", *JAVAS, FRANZ]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def groups(broker, topic):
    yield from _groups(broker, topic)


def _groups(broker, topic, partitions=PARTITIONS):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        done.result(PATIENCE)
    with Groups(broker, topic, partitions) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS)
def test_a_queue_and_publish_subscribe(groups, topic, client):
    """Within a group each record goes to one member, and every group gets them all."""
    early = groups.send(30)
    one, two = groups.start(client, topic), groups.start(client, topic)
    other = groups.start(client, f"{topic}-other")
    groups.settled(one, two)
    groups.settled(other)
    values = early + groups.send(30)
    assert set(groups.seen([one, two], values).values()) == {1}
    assert set(groups.seen([other], values).values()) == {1}
    # One more member, and one that leaves in good order: still exactly once.
    three = groups.start(client, topic)
    groups.settled(one, two, three)
    more = groups.send(30)
    assert set(groups.seen([one, two, three], more).values()) == {1}
    one.stop()
    groups.settled(two, three)
    more = groups.send(30)
    assert set(groups.seen([two, three], more).values()) == {1}


@pytest.mark.parametrize("clients", [pytest.param(PYTHONS, id="python"), *CLIENTS[len(PYTHONS) :]])
def test_kill_9_and_come_back(groups, topic, clients):
    """A group for each client, and all at once: the end of a session takes its time."""

    def start(client):
        return groups.start(client, f"{topic}-{client}", SHORT_SESSION)

    clients = [clients] if isinstance(clients, str) else clients
    members = {client: [start(client) for _ in range(3)] for client in clients}
    for own in members.values():
        groups.settled(*own)
    values = groups.send(30)
    for own in members.values():
        groups.seen(own, values)
        own[0].kill()
    values += groups.send(30)
    for client, own in members.items():
        groups.settled(*own[1:])
        own.append(start(client))
    values += groups.send(30)
    for own in members.values():
        groups.settled(*own[1:])
        groups.seen(own, values)


@pytest.mark.parametrize("client", STATIC)
def test_a_static_member_that_restarts_disturbs_nobody(groups, topic, client):
    one = groups.start(client, topic, instance="one")
    two = groups.start(client, topic, instance="two")
    groups.settled(one, two)
    values = groups.send(30)
    groups.seen([one, two], values)
    quiet, had = len(one.told("assigned")) + len(one.told("revoked")), two.owned
    two.kill()
    values = groups.send(30)
    back = groups.start(client, topic, instance="two")
    groups.settled(one, back)
    assert back.owned == had
    groups.seen([one, back], values)
    assert len(one.told("assigned")) + len(one.told("revoked")) == quiet


@pytest.mark.parametrize("client", STATIC)
def test_a_duplicate_static_member_fences_the_first(groups, topic, client):
    one = groups.start(client, topic, instance="one")
    groups.settled(one)
    double = groups.start(client, topic, instance="one")
    groups.settled(double)
    values = groups.send(12)
    groups.seen([double], values)
    # librdkafka hears it with a heartbeat, kafka-python when it commits.
    until(lambda: one.process.poll() is not None, "the fenced member to end", PATIENCE)
    assert any("fenced" in event["text"].lower() for event in one.told("error"))
    assert not one.values


@pytest.mark.parametrize("client", COOPERATIVE)
def test_cooperative_members_keep_what_they_have(groups, topic, client):
    one = groups.start(client, topic, strategy="cooperative")
    groups.settled(one)
    values = groups.send(12)
    groups.seen([one], values)
    two = groups.start(client, topic, SHORT_SESSION, strategy="cooperative")
    groups.settled(one, two)
    assert [len(event["partitions"]) for event in one.told("revoked")] == [PARTITIONS // 2]
    values = groups.send(30)
    assert set(groups.seen([one, two], values).values()) == {1}
    two.kill()
    groups.settled(one)
    values = groups.send(30)
    groups.seen([one, two], values)


def test_members_on_different_clients_share_a_group(groups, topic):
    members = [groups.start(client, topic) for client in ("confluent", "kafka-python", "aiokafka")]
    groups.settled(*members)
    values = groups.send(60)
    assert set(groups.seen(members, values).values()) == {1}
    assert all(member.values for member in members)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_offsets_survive_the_broker(tmp_path, topic, end):
    with LocalBroker(data=tmp_path / "data") as broker:
        for groups in _groups(broker, topic):
            one, two = groups.start("confluent", topic), groups.start("kafka-python", topic)
            groups.settled(one, two)
            values = groups.send(30)
            groups.seen([one, two], values)
            had = one.owned, two.owned
            getattr(broker, end)()
            broker.start()
            values = groups.send(30)
            groups.seen([one, two], values)
            assert (one.owned, two.owned) == had  # nobody had to join again
            one.stop()
            two.stop()
            reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
            places = [TopicPartition(topic, i) for i in range(PARTITIONS)]
            committed = reader.committed(places, timeout=PATIENCE)
            reader.close()
            assert [place.offset for place in committed] == [10] * PARTITIONS
        assert "Traceback" not in broker.log
