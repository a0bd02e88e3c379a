"""Consumer groups over the wire: errors, limits, and what survives a restart."""

import contextlib
from types import SimpleNamespace

import pytest
from support.group_client import GroupClient
from support.raw_client import batch_of
from support.waiting import until

from tidelog.broker.handlers.k16_list_groups import list_groups
from tidelog.broker.registry import REGISTRY
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.messages import create_partitions, delete_records
from tidelog.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from tidelog.wire.messages.join_group import JoinGroupResponse
from tidelog.wire.messages.list_groups import ListGroupsRequest
from tidelog.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)


@pytest.fixture
def client(broker):
    with GroupClient(broker.port) as connected:
        connected.find()
        yield connected


@pytest.fixture
def group(topic):
    return f"group-of-{topic}"


# -- finding ------------------------------------------------------------------------


def test_the_topic_is_made_on_first_use():
    with LocalBroker() as broker, GroupClient(broker.port) as client:
        assert client.list() == []
        early = client.join("g")
        assert early.error_code == ErrorCode.NOT_COORDINATOR
        found = client.find("g")
        assert (found.error_code, found.node_id, found.port) == (0, 0, broker.port)
        answer = client.call(MetadataRequest(topics=None), MetadataResponse, 9)
        (topic,) = answer.topics
        assert (topic.name, topic.is_internal) == ("__consumer_offsets", True)
        assert len(topic.partitions) == 50
        resource = DescribeConfigsResource(
            resource_type=2, resource_name=topic.name, configuration_keys=["cleanup.policy"]
        )
        request = DescribeConfigsRequest(resources=[resource])
        configs = client.call(request, DescribeConfigsResponse, 4).results[0].configs
        assert [row.value for row in configs] == ["compact"]
        assert client.join("g").error_code == 0


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator(broker, client, version):
    found = client.find("some group", version)
    assert (found.error_code, found.node_id, found.port) == (0, 0, broker.port)


def test_kinds_of_coordinators_that_are_not_there(client):
    assert client.find("x", key_type=7).error_code == ErrorCode.INVALID_REQUEST
    assert client.find("x", key_type=-1).error_code == ErrorCode.INVALID_REQUEST


# -- members ------------------------------------------------------------------------


def test_assignments_of_megabytes(client, group):
    """As large as the log takes them; beyond that an error, and the connection stays."""
    joined = client.join(group)
    answer = client.sync(group, joined, {joined.member_id: bytes(1_000_000)})
    assert (answer.error_code, len(answer.assignment)) == (0, 1_000_000)
    joined = client.join(group, joined.member_id)
    answer = client.sync(group, joined, {joined.member_id: bytes(2_000_000)})
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    joined = client.join(group, joined.member_id)
    assert client.sync(group, joined, {joined.member_id: b"all"}).assignment == b"all"


def test_the_life_of_a_member(client, group, topic):
    joined = client.enter(group)
    assert joined.member_id.startswith("raw-")
    assert (joined.generation_id, joined.leader) == (1, joined.member_id)
    assert client.heartbeat(group, joined) == 0
    found = client.describe(group)
    assert (found.group_state, found.protocol_data) == ("Stable", "range")
    (member,) = found.members
    assert (member.client_id, member.client_host) == ("raw", "/127.0.0.1")
    assert member.member_assignment == b"all"
    member_id = joined.member_id
    mine = {"generation_id_or_member_epoch": 1, "member_id": member_id}
    assert client.commit(group, topic, 5, **mine) == 0
    left = client.leave(group, {"member_id": member_id, "reason": "done"})
    assert [row.error_code for row in left.members] == [0]
    assert client.describe(group).group_state == "Empty"
    assert client.committed(group, topic) == 5


def test_unknown_members_and_illegal_generations(client, group, topic):
    joined = client.enter(group)
    unknown, illegal = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION
    assert client.join(group, "nobody").error_code == unknown
    assert client.join("no such group", "nobody").error_code == unknown
    assert client.sync(group, joined, member_id="nobody").error_code == unknown
    assert client.sync(group, joined, generation_id=7).error_code == illegal
    assert client.sync("no such group", joined).error_code == unknown
    assert client.heartbeat(group, joined, member_id="nobody") == unknown
    assert client.heartbeat(group, joined, generation_id=7) == illegal
    assert client.heartbeat("no such group", joined) == unknown
    wrong = client.leave(group, {"member_id": "nobody"}, {"member_id": joined.member_id})
    assert [row.error_code for row in wrong.members] == [unknown, 0]
    again = client.enter(group)
    late = {"member_id": again.member_id, "generation_id_or_member_epoch": 1}
    assert client.commit(group, topic, 5, **late) == illegal
    assert client.commit(group, topic, 5) == unknown  # not a member, and the group is at work
    someone = {"member_id": "m", "generation_id_or_member_epoch": 3}
    assert client.commit("new", topic, 5, version=8, **someone) == illegal
    assert client.commit("new", topic, 5, **someone) == ErrorCode.GROUP_ID_NOT_FOUND
    assert client.committed(group, topic) == -1


def test_bad_joins(client, group):
    def error(**changes):
        return client.join(group, **changes).error_code

    assert error(session_timeout_ms=1) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert error(session_timeout_ms=2**31 - 1) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert error(protocols=[]) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(protocol_type="") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.join("").error_code == ErrorCode.INVALID_GROUP_ID
    client.enter(group)
    assert error(protocols=["other"]) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(protocol_type="connect") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert client.describe(group).group_state == "Stable"


def test_a_join_that_is_refused_leaves_no_group_behind(client):
    client.join("refused", session_timeout_ms=1)
    client.join("refused", "stranger")
    assert "refused" not in {row.group_id for row in client.list()}


def test_static_members(client, group):
    joined = client.enter(group, group_instance_id="i")
    assert joined.member_id.startswith("i-")
    again = client.join(group, group_instance_id="i")
    assert (again.error_code, again.generation_id, again.skip_assignment) == (0, 1, True)
    synced = client.sync(group, again, group_instance_id="i")
    assert synced.assignment == b"all"
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert client.heartbeat(group, joined, group_instance_id="i") == fenced
    assert client.sync(group, joined, group_instance_id="i").error_code == fenced
    late = client.leave(group, {"member_id": joined.member_id, "group_instance_id": "i"})
    assert late.members[0].error_code == fenced
    gone = client.leave(group, {"member_id": "", "group_instance_id": "i"})
    assert gone.members[0].error_code == 0
    assert client.describe(group).group_state == "Empty"


def test_a_group_that_is_full():
    with LocalBroker({"group.max.size": 1}) as broker, GroupClient(broker.port) as client:
        client.find()
        client.enter("g")
        assert client.join("g").error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert client.join("h").error_code == 0


def test_who_removes_a_member_is_in_the_timeline(client, group):
    client.enter(group, group_instance_id="i")
    assert client.leave(group, {"member_id": "", "group_instance_id": "i"}).error_code == 0
    joined = client.enter(group)
    client.leave(group, {"member_id": joined.member_id})
    events = [event for event in client.explain(group).events if event.kind == "left"]
    assert "removed it" in events[0].cause
    assert events[1].cause == "it left the group"


def test_commits_of_who_is_no_member_are_in_the_timeline(client, group):
    client.create_topic("by-hand")
    for offset in range(20):
        assert client.commit(group, "by-hand", offset) == 0
    events = client.explain(group).events
    assert [event.kind for event in events] == ["committed"] * 5
    assert events[-1].cause.endswith(", which is no member, set by-hand-0 to 19")
    joined = client.enter(group)
    member = {"member_id": joined.member_id, "generation_id_or_member_epoch": 1}
    assert client.commit(group, "by-hand", 30, **member) == 0
    assert client.explain(group).events[-1].kind == "stable"


def test_a_member_that_stops_heartbeating():
    with (
        LocalBroker({"group.min.session.timeout.ms": 100}) as broker,
        GroupClient(broker.port) as client,
    ):
        client.find()
        joined = client.enter("g", session_timeout_ms=100)
        until(lambda: client.describe("g").group_state == "Empty", "the member to expire")
        assert client.heartbeat("g", joined) == ErrorCode.UNKNOWN_MEMBER_ID
        kinds = [event.kind for event in client.explain("g").events]
        assert kinds[-3:] == ["expired", "rebalance", "empty"]


def test_a_member_that_joins_and_disappears_a_thousand_times():
    with (
        LocalBroker({"group.min.session.timeout.ms": 100}) as broker,
        GroupClient(broker.port) as client,
    ):
        client.find()
        joined = client.enter("g")
        request = client.join_request("g", session_timeout_ms=300)
        with GroupClient(broker.port) as flighty:
            for _ in range(1000):  # takes an id and never uses it
                answer = flighty.call(request, JoinGroupResponse, 9)
                assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert client.heartbeat("g", joined) == 0
        assert len(client.describe("g").members) == 1
        for _ in range(100):  # and some that go while they wait
            with GroupClient(broker.port) as flighty:
                flighty.send(request, 3)
        again = ErrorCode.REBALANCE_IN_PROGRESS
        until(lambda: client.heartbeat("g", joined) == again, "a rebalance")
        # Those who are gone never sync; their sessions end, and the group goes on without.
        last = client.join("g", joined.member_id)
        while len(last.members) > 1:
            synced = client.sync("g", last, {last.member_id: b"all"})
            assert synced.error_code in (0, again)
            while client.heartbeat("g", last) == 0:
                pass
            last = client.join("g", joined.member_id)
        assert client.sync("g", last, {last.member_id: b"all"}).error_code == 0
        assert client.describe("g").group_state == "Stable"


def test_requests_behind_a_parked_join_wait_and_keep_their_order(broker, client, group):
    joined = client.enter(group)
    with GroupClient(broker.port) as other:
        other.send(other.join_request(group), 3)
        sent = other.send(MetadataRequest(topics=[]), 9)
        # The first member leaves, so that the join is answered, and then the rest.
        until(lambda: client.describe(group).group_state == "PreparingRebalance", "a rebalance")
        client.leave(group, {"member_id": joined.member_id})
        _, joined = other.receive(JoinGroupResponse, 3)
        assert joined.error_code == 0
        assert other.receive(MetadataResponse, 9)[0] == sent


# -- offsets --------------------------------------------------------------------------


def test_bad_commits(client, group, topic):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.commit(group, "no-such-topic", 1) == unknown
    assert client.commit(group, topic, 1, partition=99) == unknown
    assert client.commit(group, topic, 1, partition=-1) == unknown
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert client.commit(group, topic, 1, metadata="m" * 4097) == too_large
    assert client.commit(group, topic, 1, metadata="é" * 2049) == too_large
    assert client.commit(group, bytes(range(16)), 1, version=10) == ErrorCode.UNKNOWN_TOPIC_ID
    assert client.committed(group, topic) == -1
    assert client.commit(group, topic, 1, metadata="m" * 4096) == 0


@pytest.mark.parametrize("offset", [-1, -2, -(2**63)])
def test_a_negative_offset_is_stored_as_in_kafka(client, group, topic, offset):
    """kafkajs commits -1 (the end) and -2 (the beginning) to let a group begin anew."""
    assert client.commit(group, topic, 7) == 0
    assert client.commit(group, topic, offset) == 0
    assert client.committed(group, topic) == offset


@pytest.mark.parametrize("version", range(1, 8))
def test_old_offset_fetches(client, group, topic, version):
    client.commit(group, topic, 7, metadata="seven")
    row = OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])
    request = OffsetFetchRequest(group_id=group, topics=[row])
    answer = client.call(request, OffsetFetchResponse, version)
    found = answer.topics[0].partitions
    assert [(p.committed_offset, p.error_code) for p in found] == [(7, 0), (-1, 0)]
    assert found[0].metadata == "seven"


def test_offsets_of_many_groups_at_once(client, group, topic):
    names = [f"{group}-{i}" for i in range(20)]
    for i, name in enumerate(names):
        assert client.commit(name, topic, i) == 0
    groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in [*names, "none"]]
    answer = client.call(OffsetFetchRequest(groups=groups), OffsetFetchResponse, 9)
    assert [row.group_id for row in answer.groups] == [*names, "none"]
    found = [row.topics[0].partitions[0].committed_offset for row in answer.groups[:-1]]
    assert found == list(range(20))
    assert answer.groups[-1].topics == []


def test_delete_offsets_and_groups(client, group, topic):
    missing = ErrorCode.GROUP_ID_NOT_FOUND
    assert client.delete_offset("none", topic) == missing
    assert client.delete("none") == [missing]
    joined = client.enter(group, topics=[topic])
    mine = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
    assert client.commit(group, topic, 5, **mine) == 0
    assert client.delete_offset(group, topic) == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert client.delete(group) == [ErrorCode.NON_EMPTY_GROUP]
    client.leave(group, {"member_id": joined.member_id})
    assert client.delete_offset(group, "other") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.delete_offset(group, topic) == 0
    assert client.committed(group, topic) == -1
    assert client.commit(group, topic, 6) == 0
    assert client.delete(group, "none", group) == [0, missing]
    assert client.committed(group, topic) == -1
    assert client.describe(group).error_code == missing
    assert client.describe(group, version=5).group_state == "Dead"


def test_list_groups_by_state_and_type(client, group, topic):
    client.enter(group)
    client.commit(f"{group}-idle", topic, 1)

    def listed(**filters):
        return {row.group_id for row in client.list(**filters)} & {group, f"{group}-idle"}

    assert listed() == {group, f"{group}-idle"}
    assert listed(states_filter=["stable"]) == {group}
    assert listed(states_filter=["Empty"]) == {f"{group}-idle"}
    assert listed(types_filter=["Classic"]) == {group, f"{group}-idle"}
    assert listed(types_filter=["consumer"]) == set()
    assert listed(version=0) == {group, f"{group}-idle"}


def test_offsets_go_with_their_topic(client, group):
    client.create_topic("short-lived")
    assert client.commit(group, "short-lived", 3) == 0
    client.delete_topic("short-lived")
    client.create_topic("short-lived")
    assert client.committed(group, "short-lived") == -1
    (removed,) = client.explain(group).removed_offsets
    assert (removed.topic, removed.reason) == ("short-lived", "the topic was deleted")


def test_retention_removes_offsets_and_says_so_even_after_a_restart(tmp_path):
    settings = {"offsets.retention.check.interval.ms": 50}
    with LocalBroker(settings, tmp_path / "data") as broker:
        with GroupClient(broker.port) as client:
            client.find()
            client.create_topic("t")
            client.produce("t", batch_of(*[b"x"] * 10))
            assert client.commit("old", "t", 3) == 0
            assert client.commit("new", "t", 9) == 0
            assert client.commit("short", "t", 9, version=4, retention_time_ms=1) == 0
            client.delete_records("t", 5)
            until(lambda: client.committed("old", "t") == -1, "the offset to go")
            until(lambda: client.committed("short", "t") == -1, "the offset to go")
            assert client.committed("new", "t") == 9
        broker.restart()
        with GroupClient(broker.port) as client:
            until(lambda: client.explain("old").error_code == 0, "the groups to be loaded")
            (removed,) = client.explain("old").removed_offsets
            assert "its data is deleted: offset 3, and the log starts at 5" in removed.reason
            assert removed.removed_at_ms > 0
            assert client.committed("new", "t") == 9


# -- restarts -------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_groups_and_offsets_survive_a_restart(tmp_path, end):
    with LocalBroker(data=tmp_path / "data") as broker:
        with GroupClient(broker.port) as client:
            client.find()
            client.create_topic("t")
            joined = client.enter("g", topics=["t"])
            mine = {"generation_id_or_member_epoch": 1, "member_id": joined.member_id}
            for offset in range(50):
                assert client.commit("g", "t", offset, **mine) == 0
            client.commit("other", "t", 7)
            client.commit("anew", "t", -2)
            # In the middle of a rebalance:
            client.send(client.join_request("g"), 3)
            with GroupClient(broker.port) as watcher:
                until(
                    lambda: watcher.describe("g").group_state == "PreparingRebalance",
                    "a rebalance",
                )
            getattr(broker, end)()
        broker.start()
        with GroupClient(broker.port) as client:
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            until(lambda: client.heartbeat("g", joined) != loading, "the group to be loaded")
            assert client.heartbeat("g", joined) == 0
            assert client.committed("g", "t") == 49
            assert client.committed("other", "t") == 7
            assert client.committed("anew", "t") == -2
            assert client.describe("g").group_state == "Stable"
            again = client.join("g", joined.member_id, topics=["t"])
            assert (again.error_code, again.generation_id) == (0, 2)
            assert client.sync("g", again, {again.member_id: b"all"}).error_code == 0
        assert "Traceback" not in broker.log


OFFSETS = "__consumer_offsets"


def test_nobody_else_writes_to_the_offsets_topic(client, topic):
    refused = client.produce(OFFSETS, batch_of(b"x", key=b"k"))
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    row = delete_records.DeleteRecordsPartition(partition_index=0, offset=-1)
    rows = [delete_records.DeleteRecordsTopic(name=OFFSETS, partitions=[row])]
    request = delete_records.DeleteRecordsRequest(topics=rows, timeout_ms=10_000)
    answer = client.call(request, delete_records.DeleteRecordsResponse, 2)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    grown = create_partitions.CreatePartitionsTopic(name=OFFSETS, count=51, assignments=None)
    request = create_partitions.CreatePartitionsRequest(
        topics=[grown], timeout_ms=10_000, validate_only=False
    )
    answer = client.call(request, create_partitions.CreatePartitionsResponse, 3)
    assert answer.results[0].error_code == ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("how", ["asked for", "created"])
def test_the_offsets_topic_is_compacted_however_it_comes(how):
    with LocalBroker() as broker, GroupClient(broker.port) as client:
        if how == "created":
            client.create_topic(OFFSETS, partitions=3)
        else:
            row = MetadataRequestTopic(name=OFFSETS)
            found = client.call(MetadataRequest(topics=[row]), MetadataResponse, 9)
            assert len(found.topics[0].partitions) == 50
        resource = DescribeConfigsResource(
            resource_type=2, resource_name=OFFSETS, configuration_keys=["cleanup.policy"]
        )
        request = DescribeConfigsRequest(resources=[resource])
        configs = client.call(request, DescribeConfigsResponse, 4).results[0].configs
        assert [row.value for row in configs] == ["compact"]
        client.find()
        assert client.join("g").error_code == 0


def test_records_that_make_no_sense_do_no_harm(tmp_path):
    with LocalBroker(data=tmp_path / "data") as broker:
        with GroupClient(broker.port) as client:
            client.find()
            client.create_topic("t")
            assert client.commit("my-group", "t", 5) == 0
        broker.kill()
        (path,) = (tmp_path / "data" / f"{OFFSETS}-12").glob("*.log")
        keys = (b"", b"\0", b"\0\1garbage", b"\0\2", b"\x7f\xff", b"\0\1\0\0\0\0\0\0\0\0")
        with path.open("ab") as file:
            for offset, key in enumerate(keys, start=1):
                batch = bytearray(batch_of(b"garbage", key=key))
                batch[:8] = offset.to_bytes(8, "big")  # not part of what the CRC is of
                file.write(batch)
        broker.start()
        with GroupClient(broker.port) as client:
            until(lambda: not client.describe("my-group").error_code, "the group to be loaded")
            assert client.committed("my-group", "t") == 5
            assert client.commit("my-group", "t", 6) == 0
        assert "5 of 7 records could not be read" in broker.log
        assert "Traceback" not in broker.log


def test_the_offsets_topic_may_be_deleted(tmp_path):
    with LocalBroker() as broker, GroupClient(broker.port) as client:
        client.find()
        client.create_topic("t")
        joined = client.enter("g")
        with GroupClient(broker.port) as other:
            other.send(other.join_request("g"), 3)
            until(lambda: client.describe("g").group_state == "PreparingRebalance", "a rebalance")
            client.delete_topic(OFFSETS)
            _, parked = other.receive(JoinGroupResponse, 3)
            assert parked.error_code == ErrorCode.NOT_COORDINATOR
        assert client.heartbeat("g", joined) == ErrorCode.NOT_COORDINATOR
        client.find()
        assert client.heartbeat("g", joined) == ErrorCode.UNKNOWN_MEMBER_ID
        client.enter("g")


def test_offsets_after_compaction_and_kill_9(tmp_path):
    settings = {
        "offsets.topic.segment.bytes": 20_000,
        "log.cleaner.backoff.ms": 100,
        "log.cleaner.min.cleanable.ratio": 0.01,
    }
    data = tmp_path / "data"

    def size():
        sizes = []
        for path in data.glob("__consumer_offsets-12/*.log"):
            with contextlib.suppress(FileNotFoundError):  # compaction is at work
                sizes.append(path.stat().st_size)
        return sum(sizes)

    with LocalBroker(settings, data) as broker:
        with GroupClient(broker.port) as client:
            client.find()
            client.create_topic("t", partitions=5)
            for offset in range(2000):  # more than 200,000 bytes
                assert client.commit("my-group", "t", offset, partition=offset % 5) == 0
            until(lambda: size() < 100_000, "the log to be compacted")
        broker.kill()
        broker.start()
        with GroupClient(broker.port) as client:
            until(lambda: not client.describe("my-group").error_code, "the group to be loaded")
            found = [client.committed("my-group", "t", i) for i in range(5)]
            assert found == [1995, 1996, 1997, 1998, 1999]


def test_listing_tens_of_thousands_of_groups_leaves_others_their_turn():
    groups = [
        SimpleNamespace(
            group_id=f"g{i}", protocol_type=None, state=GroupState.EMPTY, group_type="classic"
        )
        for i in range(20_000)
    ]
    groups[7].state = GroupState.DEAD  # it may die while others are served
    broker = SimpleNamespace(groups=SimpleNamespace(groups=lambda: groups))
    work = list_groups(broker, ListGroupsRequest(), None)
    turns = 0
    try:
        while True:
            work.send(None)
            turns += 1
    except StopIteration as done:
        assert len(done.value.groups) == 19_999
    assert turns >= 5
    assert REGISTRY[ListGroupsRequest.api_key].large_answer, "nor does its encoding hold them up"
