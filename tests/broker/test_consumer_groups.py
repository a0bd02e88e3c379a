"""Consumer groups of KIP-848 over the wire: errors, both protocols at once, restarts."""

import itertools

import pytest
from support.group_client import ConsumerGroupClient
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.consumer_protocol import assigned_partitions
from tidelog.wire.messages import create_partitions
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

_groups = itertools.count()


@pytest.fixture(scope="module")
def broker():
    with LocalBroker({"group.consumer.max.size": 3}) as running:
        with ConsumerGroupClient(running.port) as client:
            client.create_topic("clicks", partitions=4)
            client.find()
        yield running
        assert "Traceback" not in running.log


@pytest.fixture
def client(broker):
    with ConsumerGroupClient(broker.port) as connected:
        yield connected


@pytest.fixture
def group():
    return f"group-{next(_groups)}"


def indexes(assignment):
    assert assignment is not None
    return [index for row in assignment.topic_partitions for index in row.partitions]


def holds(assignment):
    """The same partitions, as a member says that it holds them."""
    return [
        TopicPartitions(topic_id=row.topic_id, partitions=row.partitions)
        for row in assignment.topic_partitions
    ]


# -- the new protocol --------------------------------------------------------------


def test_the_life_of_a_member(client, group):
    joined = client.beat(group)
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (0, "me", 1)
    assert indexes(joined.assignment) == [0, 1, 2, 3]
    assert 0 < joined.heartbeat_interval_ms <= 5000
    again = client.beat(group, epoch=1)
    assert (again.error_code, again.member_epoch, again.assignment) == (0, 1, None)
    assert client.beat(group, epoch=-1).member_epoch == -1
    assert client.beat(group, epoch=1).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_version_0_makes_the_member_id(client, group):
    joined = client.beat(group, "", version=0)
    assert joined.error_code == 0
    assert len(joined.member_id) > 20


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST, "group id"),
        ({"member_id": "x" * 1001}, ErrorCode.INVALID_REQUEST, "1000"),
        ({"instance_id": "x" * 1001}, ErrorCode.INVALID_REQUEST, "1000"),
        ({"subscribed_topic_names": ["x" * 249] * 2000}, ErrorCode.INVALID_REQUEST, "names"),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST, "member id"),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST, "-3"),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST, "instance id"),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST, "instance id"),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST, "rack id"),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST, "rebalance timeout"),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST, "own nothing"),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST, "wants to read"),
        ({"server_assignor": "mine"}, ErrorCode.UNSUPPORTED_ASSIGNOR, "uniform, range"),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION, "missing )"),
        ({"member_epoch": 5}, ErrorCode.UNKNOWN_MEMBER_ID, "epoch 0"),
    ],
)
def test_a_bad_request_leaves_nothing_behind(client, group, changes, error, says):
    values = {
        "group_id": group,
        "member_id": "me",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": ["clicks"],
        "topic_partitions": [],
    }
    request = ConsumerGroupHeartbeatRequest(**{**values, **changes})
    answer = client.call(request, ConsumerGroupHeartbeatResponse, 1)
    assert answer.error_code == error
    assert says in answer.error_message
    assert group not in [row.group_id for row in client.list()]


def test_a_full_group(client, group):
    for name in "abc":
        assert client.beat(group, name).error_code == 0
    assert client.beat(group, "d").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED


def test_members_with_very_many_topics(client, group):
    """Together they are more than a batch of __consumer_offsets may have."""
    topics = [f"{i:0200d}" for i in range(1900)]
    for name in "abc":
        client.send_beat(group, name, subscribed_topic_names=[*topics, "clicks"])
    for _ in "abc":
        assert client.receive(ConsumerGroupHeartbeatResponse, 1)[1].error_code == 0
    assert len(client.describe_consumers(group).members) == 3


def test_describe_and_list(client, group):
    joined = client.beat(group, server_assignor="range", rack_id="r", instance_id="one")
    found = client.describe_consumers(group)
    assert (found.error_code, found.group_state, found.assignor_name) == (0, "Stable", "range")
    assert (found.group_epoch, found.assignment_epoch) == (1, 1)
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id) == ("me", "one", "r")
    assert (member.member_epoch, member.client_id, member.member_type) == (1, "raw", 1)
    assert member.client_host == "/127.0.0.1"
    assert member.subscribed_topic_names == ["clicks"]
    (row,) = member.assignment.topic_partitions
    assert (row.topic_name, row.partitions) == ("clicks", [0, 1, 2, 3])
    assert member.assignment == member.target_assignment
    client.beat(group, "other")
    assert client.describe_consumers(group).group_state == "Reconciling"
    listed = client.list(types_filter=["consumer"], states_filter=["reconciling"])
    assert group in [row.group_id for row in listed]
    assert not [row for row in client.list(types_filter=["classic"]) if row.group_id == group]
    # DescribeGroups does not know such a group, as in Kafka; nor the other way round.
    old = client.describe(group)
    assert (old.error_code, old.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
    assert "not a classic group" in old.error_message
    assert client.describe(group, version=5).error_code == 0
    assert joined.error_code == 0


def test_describe_what_is_not_there(client, group):
    assert client.describe_consumers(group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert client.describe_consumers("").error_code == ErrorCode.INVALID_GROUP_ID
    client.enter(group)
    found = client.describe_consumers(group)
    assert found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "not a consumer group" in found.error_message


def test_offsets_go_by_the_epoch_of_the_member(client, group):
    assert client.commit(group, "clicks", 5) == 0  # nobody is in it
    assert client.beat(group).error_code == 0
    own = {"member_id": "me", "generation_id_or_member_epoch": 1}
    assert client.commit(group, "clicks", 7, **own) == 0
    own["generation_id_or_member_epoch"] = 0
    assert client.commit(group, "clicks", 9, **own) == ErrorCode.STALE_MEMBER_EPOCH
    assert client.commit(group, "clicks", 9) == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.committed(group, "clicks") == 7
    assert client.may_fetch(group, "me", 1) == 0
    assert client.may_fetch(group, "me", 2) == ErrorCode.STALE_MEMBER_EPOCH
    assert client.may_fetch(group, "you", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert client.delete_offset(group, "clicks") == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


def test_delete(client, group):
    client.beat(group)
    client.commit(group, "clicks", 1, member_id="me", generation_id_or_member_epoch=1)
    assert client.delete(group) == [ErrorCode.NON_EMPTY_GROUP]
    client.beat(group, epoch=-1)
    assert client.delete(group) == [0]
    assert client.describe_consumers(group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert client.committed(group, "clicks") == -1


def test_topics_that_grow_and_come(client, group):
    pattern = f"{group}-.*"
    joined = client.beat(group, subscribed_topic_regex=pattern, subscribed_topic_names=[])
    assert indexes(joined.assignment) == []
    client.create_topic(f"{group}-one")
    grown = client.beat(group, epoch=1)
    assert (grown.member_epoch, indexes(grown.assignment)) == (2, [0])
    row = create_partitions.CreatePartitionsTopic(name=f"{group}-one", count=2, assignments=None)
    request = create_partitions.CreatePartitionsRequest(
        topics=[row], timeout_ms=10_000, validate_only=False
    )
    client.call(request, create_partitions.CreatePartitionsResponse, 3)
    assert indexes(client.beat(group, epoch=2).assignment) == [0, 1]
    client.delete_topic(f"{group}-one")
    assert indexes(client.beat(group, epoch=3).assignment) == []


def test_everything_survives_the_broker(tmp_path):
    with LocalBroker(data=tmp_path / "data") as broker:
        with ConsumerGroupClient(broker.port) as client:
            client.create_topic("clicks", partitions=4)
            client.find()
            first = client.beat("g", instance_id="one", subscribed_topic_regex="cl.*")
            client.beat("g", "other")
            before = client.describe_consumers("g")
        broker.kill()
        broker.start()
        with ConsumerGroupClient(broker.port) as client:
            assert client.describe_consumers("g") == before
            epoch = first.member_epoch
            told = client.beat("g", epoch=epoch, instance_id="one", topic_partitions=[])
            assert told.member_epoch == before.group_epoch
        assert "Traceback" not in broker.log


def test_settings():
    settings = {
        "group.coordinator.rebalance.protocols": "classic",
        "group.consumer.assignors": "range",
    }
    with LocalBroker(settings) as broker, ConsumerGroupClient(broker.port) as client:
        client.find()
        refused = client.beat("g")
        assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "group.coordinator.rebalance.protocols" in refused.error_message
    settings = {
        "group.consumer.assignors": "range",
        "group.consumer.heartbeat.interval.ms": 100,
        "group.consumer.session.timeout.ms": 400,
        "group.consumer.migration.policy": "disabled",
    }
    with LocalBroker(settings) as broker, ConsumerGroupClient(broker.port) as client:
        client.find()
        assert client.beat("g").heartbeat_interval_ms == 100
        other = client.beat("g", server_assignor="uniform")
        assert other.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        until(lambda: client.describe_consumers("g").group_state == "Empty", "the session's end")
        client.enter("classic")
        refused = client.beat("classic")
        assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert "group.consumer.migration.policy" in refused.error_message


# -- both protocols ----------------------------------------------------------------


def test_upgrade_and_downgrade(client, group):
    old = client.join(group, topics=["clicks"])
    assert client.sync(group, old, {old.member_id: b""}).error_code == 0
    assert (
        client.commit(group, "clicks", 3, member_id=old.member_id, generation_id_or_member_epoch=1)
        == 0
    )
    # A member of the new protocol comes: the old one is told to join again, and shares.
    new = client.beat(group, "new")
    assert new.error_code == 0
    assert client.heartbeat(group, old) == ErrorCode.REBALANCE_IN_PROGRESS
    old = client.join(group, old.member_id, topics=["clicks"])
    assert (old.error_code, old.protocol_name, old.members) == (0, "range", [])
    given = client.sync(group, old).assignment
    found = client.describe_consumers(group)
    assert {row.member_id: row.member_type for row in found.members} == {
        "new": 1,
        old.member_id: 0,
    }
    assert len(assigned_partitions(given)) == 2
    assert client.committed(group, "clicks") == 3
    # It goes again, and the group is a classic one.
    assert client.beat(group, "new", epoch=-1).error_code == 0
    assert client.describe(group).group_state == "PreparingRebalance"
    assert client.heartbeat(group, old) == ErrorCode.REBALANCE_IN_PROGRESS
    old = client.join(group, old.member_id, topics=["clicks"])
    assert (old.error_code, old.leader) == (0, old.member_id)
    assert client.sync(group, old, {old.member_id: b"mine"}).assignment == b"mine"
    assert client.describe(group).group_state == "Stable"
    assert client.committed(group, "clicks") == 3
    kinds = [event.kind for event in client.explain(group).events]
    assert "upgraded" in kinds


def test_an_empty_group_is_of_the_kind_of_who_comes(client, group):
    client.beat(group)
    client.beat(group, epoch=-1)
    old = client.enter(group)
    assert client.describe(group).group_state == "Stable"
    client.leave(group, {"member_id": old.member_id})
    assert client.beat(group).error_code == 0
    assert client.describe_consumers(group).group_state == "Stable"
    told = [event.kind for event in client.explain(group).events]  # of all its lives
    assert told.count("joined") == 3


def test_a_group_that_is_no_consumer_group_stays_one(client, group):
    other = client.join(group, protocol_type="connect")
    assert other.error_code == 0
    refused = client.beat(group)
    assert refused.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "no consumers" in refused.error_message
    bad = client.beat(group, subscribed_topic_regex="(")
    assert bad.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert client.describe(group).error_code == 0


def test_conversions_survive_the_broker(tmp_path):
    with LocalBroker(data=tmp_path / "data") as broker:
        with ConsumerGroupClient(broker.port) as client:
            client.create_topic("clicks", partitions=4)
            client.find()
            ends = {}
            for name in ("up", "down"):
                old = client.join(name, topics=["clicks"])
                client.sync(name, old, {old.member_id: b""})
                assert client.beat(name, "new").error_code == 0
                ends[name] = old
            client.beat("down", "new", epoch=-1)
        broker.kill()
        broker.start()
        with ConsumerGroupClient(broker.port) as client:
            members = {row.member_id for row in client.describe_consumers("up").members}
            assert members == {"new", ends["up"].member_id}
            found = client.describe("down")
            assert [row.member_id for row in found.members] == [ends["down"].member_id]
            kinds = {row.group_id: row.group_type for row in client.list()}
            assert kinds == {"up": "consumer", "down": "classic"}
        assert "Traceback" not in broker.log


def test_members_with_many_topics_are_bounded():
    """What they say that they read is held in memory, as in the classic protocol."""
    names = [f"{i:030d}" for i in range(10_000)]
    refused = ErrorCode.GROUP_MAX_SIZE_REACHED
    with LocalBroker() as broker, ConsumerGroupClient(broker.port) as client:
        client.create_topic("clicks")
        client.find()
        codes = []
        while refused not in codes and len(codes) < 70:
            codes.append(client.beat(f"g{len(codes)}", subscribed_topic_names=names).error_code)
        assert codes[-1] == refused
        assert set(codes[:-1]) == {0}
        assert "bytes of metadata or assignments" in broker.log
        assert client.beat("small").error_code == 0
        assert client.beat("g0", epoch=-1).error_code == 0

        def another():
            return client.beat("late", subscribed_topic_names=names).error_code == 0

        until(another, "the memory of the member that has left")
        assert "Traceback" not in broker.log
