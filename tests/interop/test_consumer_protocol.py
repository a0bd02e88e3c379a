"""``group.protocol=consumer`` (KIP-848) with real clients, each member in its own process."""

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from interop.building import heavy
from interop.groups import JAVA, PATIENCE, SHORT_SESSION, Groups
from interop.recording import served
from support.cli import run
from support.waiting import until

from tidelog.testing import LocalBroker

PARTITIONS = 6
JAVAS = [pytest.param(name, marks=heavy("java", "javac", "mvn")) for name in JAVA]
# Those whose static members say that they will be back.
STATIC = ["confluent", *JAVAS]
CLIENTS = [*STATIC, pytest.param("franz", marks=heavy("go"))]
NEW = {"protocol": "consumer"}
# Members hear soon what has changed; and a group whose members are killed may have a short session.
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.min.session.timeout.ms": SHORT_SESSION,
}
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def broker():
    with served(SETTINGS) as running:
        yield running


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def groups(broker, admin, topic):
    create(admin, topic)
    with Groups(broker, topic, PARTITIONS) as running:
        yield running


def create(admin, topic, partitions=PARTITIONS):
    for done in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        done.result(PATIENCE)


def describe(admin, group):
    return admin.describe_consumer_groups([group])[group].result(PATIENCE)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_queue_and_publish_subscribe(groups, topic, client):
    early = groups.send(30)
    one, two = groups.start(client, topic, **NEW), groups.start(client, topic, **NEW)
    other = groups.start(client, f"{topic}-other", **NEW)
    groups.settled(one, two)
    groups.settled(other)
    values = early + groups.send(30)
    groups.seen([one, two], values)
    assert set(groups.seen([other], values).values()) == {1}
    # One more member, and one that leaves in good order: exactly once.
    three = groups.start(client, topic, **NEW)
    groups.settled(one, two, three)
    more = groups.send(30)
    assert set(groups.seen([one, two, three], more).values()) == {1}
    one.stop()
    groups.settled(two, three)
    more = groups.send(30)
    assert set(groups.seen([two, three], more).values()) == {1}


@pytest.mark.parametrize("client", CLIENTS)
def test_kill_9_and_come_back(broker, groups, topic, client):
    session = f"consumer.session.timeout.ms={SHORT_SESSION}"
    options = ("--group", topic, "--set", session)
    assert run("configs", "alter", *options, bootstrap=broker.bootstrap).code == 0
    members = [groups.start(client, topic, **NEW) for _ in range(3)]
    groups.settled(*members)
    values = groups.send(30)
    groups.seen(members, values)
    members[0].kill()
    values += groups.send(30)
    groups.settled(*members[1:])
    members.append(groups.start(client, topic, **NEW))
    groups.settled(*members[1:])
    values += groups.send(30)
    groups.seen(members, values)


@pytest.mark.parametrize("client", STATIC)
def test_a_static_member_that_restarts_keeps_its_partitions(groups, topic, client):
    one = groups.start(client, topic, instance="one", **NEW)
    two = groups.start(client, topic, instance="two", **NEW)
    groups.settled(one, two)
    quiet, had = len(one.told("assigned")) + len(one.told("revoked")), two.owned
    two.stop()
    values = groups.send(30)
    back = groups.start(client, topic, instance="two", **NEW)
    groups.settled(one, back)
    assert back.owned == had
    groups.seen([one, back], values)
    assert len(one.told("assigned")) + len(one.told("revoked")) == quiet


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("strategy", ["range", "cooperative"])
def test_members_change_the_protocol_one_after_the_other(groups, admin, topic, client, strategy):
    """Live upgrade and downgrade: at no time is a record lost."""
    old = [groups.start(client, topic, strategy=strategy) for _ in range(2)]
    groups.settled(*old)
    values = groups.send(30)
    groups.seen(old, values)
    assert describe(admin, topic).type == ConsumerGroupType.CLASSIC
    new = [groups.start(client, topic, **NEW)]
    groups.settled(*old, *new)
    assert describe(admin, topic).type == ConsumerGroupType.CONSUMER
    values += groups.send(30)
    groups.seen([*old, *new], values)
    old[0].stop()
    new.append(groups.start(client, topic, **NEW))
    old[1].stop()
    groups.settled(*new)
    values += groups.send(30)
    groups.seen([*old, *new], values)
    # And back again.
    back = groups.start(client, topic, strategy=strategy)
    groups.settled(*new, back)
    new[0].stop()
    new[1].stop()
    groups.settled(back)
    assert describe(admin, topic).type == ConsumerGroupType.CLASSIC
    values += groups.send(30)
    groups.seen([*old, *new, back], values)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_members_survive_the_broker(tmp_path, topic, end):
    with LocalBroker(SETTINGS, data=tmp_path / "data") as broker:
        create(AdminClient({"bootstrap.servers": broker.bootstrap}), topic)
        with Groups(broker, topic, PARTITIONS) as groups:
            one = groups.start("confluent", topic, **NEW)
            two = groups.start("confluent", topic, **NEW)
            groups.settled(one, two)
            values = groups.send(30)
            groups.seen([one, two], values)
            getattr(broker, end)()
            broker.start()
            values = groups.send(30)
            groups.settled(one, two)
            groups.seen([one, two], values)
            one.stop()
            two.stop()
            reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
            places = [TopicPartition(topic, i) for i in range(PARTITIONS)]
            committed = reader.committed(places, timeout=PATIENCE)
            reader.close()
            assert [place.offset for place in committed] == [10] * PARTITIONS
        assert "Traceback" not in broker.log


def test_a_pattern_finds_topics_that_come_later(broker, admin, topic):
    create(admin, f"{topic}-one", 1)
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": topic, "group.protocol": "consumer"}
    )
    consumer.subscribe([f"^{topic}-.*"])

    def has(*wanted):
        consumer.poll(0.1)
        return sorted((p.topic, p.partition) for p in consumer.assignment()) == sorted(wanted)

    one, two = f"{topic}-one", f"{topic}-two"
    until(lambda: has((one, 0)), "the first topic", PATIENCE)
    create(admin, two, 1)
    until(lambda: has((one, 0), (two, 0)), "the second topic", PATIENCE)
    for done in admin.create_partitions([NewPartitions(one, 2)]).values():
        done.result(PATIENCE)
    until(lambda: has((one, 0), (one, 1), (two, 0)), "the new partition", PATIENCE)
    consumer.close()


@pytest.mark.parametrize("client", JAVAS)
def test_a_pattern_of_java(groups, admin, topic, client):
    """Java sends patterns to the broker only where it is asked to (SubscriptionPattern)."""
    reader = groups.start(client, topic, pattern=f"{topic}(-later)?", **NEW)
    groups.settled(reader)
    create(admin, f"{topic}-later", 1)
    until(lambda: (f"{topic}-later", 0) in reader.owned, "the new topic", PATIENCE)
    bad = groups.start(client, f"{topic}-bad", pattern="(a", **NEW)
    until(lambda: bad.told("closed"), "the end of the member with a bad pattern", PATIENCE)
    assert "is not valid: a ( that is not closed" in bad.told("error")[0]["text"]


def test_admin(broker, admin, topic):
    create(admin, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "client.id": "me",
            "group.protocol": "consumer",
            "group.remote.assignor": "range",
        }
    )
    consumer.subscribe([topic])

    def has_all():
        consumer.poll(0.1)
        return len(consumer.assignment()) == PARTITIONS

    until(has_all, "an assignment", PATIENCE)
    found = describe(admin, topic)
    assert (found.state, found.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    assert found.partition_assignor == "range"
    (member,) = found.members
    assert member.client_id == "me"
    places = [(p.topic, p.partition) for p in member.assignment.topic_partitions]
    assert sorted(places) == [(topic, i) for i in range(PARTITIONS)]
    listed = admin.list_consumer_groups().result(PATIENCE).valid
    row = next(group for group in listed if group.group_id == topic)
    assert (row.state, row.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER)
    consumer.close()
    assert describe(admin, topic).state == ConsumerGroupState.EMPTY
    admin.delete_consumer_groups([topic])[topic].result(PATIENCE)


def test_a_bad_pattern_is_told_to_the_client(broker, topic):
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": topic, "group.protocol": "consumer"}
    )
    consumer.subscribe([r"^(a)\1"])  # fine for librdkafka, and nothing that RE2 has
    message = until(lambda: consumer.poll(0.1), "an error", PATIENCE)
    assert "is not valid" in str(message.error())
    consumer.close()
