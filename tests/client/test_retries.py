"""What the client tries again by itself, and what it must not: brokers that answer by a script."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from client.scripted import ScriptedBroker, metadata, tell
from support.waiting import until

from tidelog.client import admin
from tidelog.client.cluster import LEADER_MOVED, Cluster
from tidelog.client.fetcher import FetchedBatches, Fetcher
from tidelog.client.groups import delete_groups, list_groups
from tidelog.client.partitions import LATEST, list_offsets
from tidelog.errors import ApiError, ErrorCode
from tidelog.new_topic import NewTopic
from tidelog.topic_partition import TopicPartition
from tidelog.wire.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tidelog.wire.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tidelog.wire.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from tidelog.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tidelog.wire.records import encode_batch

ROW = TopicPartition("t", 0)
TOPIC_ID = b"t".ljust(16, b"\1")
MOVED = sorted(LEADER_MOVED)


@pytest.fixture
def brokers() -> Iterator[list[ScriptedBroker]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ScriptedBroker(i)) for i in range(2)]


@pytest.fixture
def cluster(brokers: list[ScriptedBroker]) -> Iterator[Cluster]:
    with Cluster(brokers[0].bootstrap, patience=60) as connected:
        yield connected


def created(code: ErrorCode) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[
            CreatableTopicResult(
                name="t",
                error_code=code,
                error_message=None,
                num_partitions=1,
                replication_factor=1,
                configs=[],
            )
        ]
    )


def listed(code: ErrorCode, offset: int = -1) -> ListOffsetsResponse:
    part = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=offset)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[part])])


def fetched(code: ErrorCode = ErrorCode.NONE, *, offset: int | None = None) -> FetchResponse:
    """An error, or a batch of one record at an offset, or nothing."""
    records = b"" if offset is None else encode_batch([(0, None, b"x", ())], base_offset=offset)
    data = PartitionData(
        partition_index=0, error_code=code, high_watermark=100, records=records,
        aborted_transactions=None,
    )  # fmt: skip
    topic = FetchableTopicResponse(topic="t", topic_id=TOPIC_ID, partitions=[data])
    return FetchResponse(responses=[topic])


def poll(fetcher: Fetcher) -> list[FetchedBatches]:
    """The next answer that the caller is told of."""
    found: list[FetchedBatches] = until(lambda: fetcher.poll(0.1), "an answer of the fetcher")
    return found


# -- the controller -------------------------------------------------------------


def test_the_next_controller_is_asked(brokers: list[ScriptedBroker], cluster: Cluster) -> None:
    first, second = brokers
    tell(brokers, metadata(*brokers, controller=0), metadata(*brokers, controller=1))
    first.on(CreateTopicsRequest, created(ErrorCode.NOT_CONTROLLER))
    second.on(CreateTopicsRequest, created(ErrorCode.NONE))
    assert admin.create_topics(cluster, [NewTopic("t")]) == {"t": (1, 1)}
    assert [len(broker.asked[CreateTopicsRequest]) for broker in brokers] == [1, 1]


def test_a_controller_that_has_died(brokers: list[ScriptedBroker], cluster: Cluster) -> None:
    """Its port refuses connections, and the others do not know yet."""
    with ScriptedBroker(2) as dead:
        pass
    gone, found = metadata(*brokers, dead, controller=2), metadata(*brokers, controller=1)
    tell(brokers, gone, found)
    brokers[1].on(CreateTopicsRequest, created(ErrorCode.NONE))
    assert admin.create_topics(cluster, [NewTopic("t")]) == {"t": (1, 1)}


def test_without_a_controller_the_client_gives_up(brokers: list[ScriptedBroker]) -> None:
    tell(brokers, metadata(*brokers, controller=-1))
    brokers[0].on(CreateTopicsRequest, created(ErrorCode.NOT_CONTROLLER))
    with Cluster(brokers[0].bootstrap, patience=0.2) as cluster:
        with pytest.raises(ApiError, match="has no controller"):
            admin.create_topics(cluster, [NewTopic("t")])
        tell(brokers, metadata(*brokers))
        error = admin.create_topics(cluster, [NewTopic("t")])["t"]
    assert isinstance(error, ApiError)
    assert error.code == ErrorCode.NOT_CONTROLLER


# -- coordinators ---------------------------------------------------------------


def test_groups_of_a_coordinator_that_loads(
    brokers: list[ScriptedBroker], cluster: Cluster
) -> None:
    """Else a list would lack the groups of a broker that has just begun to coordinate."""
    tell(brokers, metadata(*brokers))
    row = ListedGroup(group_id="g", protocol_type="consumer")
    loading = ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, groups=[])
    brokers[0].on(ListGroupsRequest, loading, ListGroupsResponse(error_code=0, groups=[row]))
    brokers[1].on(ListGroupsRequest, ListGroupsResponse(error_code=0, groups=[]))
    assert [group.group_id for group in list_groups(cluster)] == ["g"]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ],
)
def test_a_coordinator_that_moves(
    brokers: list[ScriptedBroker], cluster: Cluster, code: ErrorCode
) -> None:
    first, second = brokers

    def found(broker: ScriptedBroker, error: ErrorCode = ErrorCode.NONE) -> FindCoordinatorResponse:
        row = Coordinator(
            key="g", node_id=broker.broker_id, host="127.0.0.1", port=broker.port,
            error_code=error, error_message=None,
        )  # fmt: skip
        return FindCoordinatorResponse(coordinators=[row])

    def deleted(error: ErrorCode) -> DeleteGroupsResponse:
        return DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=error)])

    tell(brokers, metadata(*brokers))
    unknown = found(first, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    for broker in brokers:
        broker.on(FindCoordinatorRequest, unknown, found(first), found(second))
    first.on(DeleteGroupsRequest, deleted(code))
    second.on(DeleteGroupsRequest, deleted(ErrorCode.NONE))
    assert delete_groups(cluster, ["g"]) == {"g": None}
    assert len(second.asked[DeleteGroupsRequest]) == 1


# -- offsets --------------------------------------------------------------------


@pytest.mark.parametrize("code", MOVED)
def test_offsets_of_a_partition_whose_leader_moves(
    brokers: list[ScriptedBroker], cluster: Cluster, code: ErrorCode
) -> None:
    first, second = brokers
    tell(brokers, metadata(*brokers, leaders={"t": [0]}), metadata(*brokers, leaders={"t": [1]}))
    first.on(ListOffsetsRequest, listed(code))
    second.on(ListOffsetsRequest, listed(ErrorCode.NONE, 5))
    assert list_offsets(cluster, {ROW: LATEST}) == {ROW: 5}
    assert [len(broker.asked[ListOffsetsRequest]) for broker in brokers] == [1, 1]


def test_offsets_wait_for_a_leader(brokers: list[ScriptedBroker], cluster: Cluster) -> None:
    tell(brokers, metadata(*brokers, leaders={"t": [-1]}), metadata(*brokers, leaders={"t": [1]}))
    brokers[1].on(ListOffsetsRequest, listed(ErrorCode.NONE, 5))
    assert list_offsets(cluster, {ROW: LATEST}) == {ROW: 5}


def test_what_a_new_leader_cannot_say_yet_may_be_left_out(
    brokers: list[ScriptedBroker], cluster: Cluster
) -> None:
    tell(brokers, metadata(*brokers, leaders={"t": [0]}))
    brokers[0].on(ListOffsetsRequest, listed(ErrorCode.OFFSET_NOT_AVAILABLE))
    assert list_offsets(cluster, {ROW: LATEST}, known_only=True) == {}
    assert len(brokers[0].asked[ListOffsetsRequest]) == 1


def test_other_errors_are_raised_at_once(brokers: list[ScriptedBroker], cluster: Cluster) -> None:
    tell(brokers, metadata(*brokers, leaders={"t": [0]}))
    brokers[0].on(ListOffsetsRequest, listed(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(ApiError) as refused:
        list_offsets(cluster, {ROW: LATEST})
    assert refused.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert len(brokers[0].asked[ListOffsetsRequest]) == 1


# -- the fetcher ----------------------------------------------------------------


@pytest.mark.parametrize("code", [*MOVED, ErrorCode.KAFKA_STORAGE_ERROR])
def test_a_moved_leader_is_followed(
    brokers: list[ScriptedBroker], cluster: Cluster, code: ErrorCode
) -> None:
    """Without a word to the caller, and from the same position."""
    first, second = brokers
    tell(brokers, metadata(*brokers, leaders={"t": [0]}), metadata(*brokers, leaders={"t": [1]}))
    first.on(FetchRequest, fetched(code))
    second.on(FetchRequest, fetched(offset=7))
    fetcher = Fetcher(cluster)
    fetcher.assign(ROW, 7)
    (found,) = poll(fetcher)
    assert (found.partition, found.offset, found.error) == (ROW, 7, ErrorCode.NONE)
    assert fetcher.positions == {ROW: 8}
    fetcher.close()
    asked = [broker.asked[FetchRequest] for broker in brokers]
    assert [rows[0].topics[0].partitions[0].fetch_offset for rows in asked] == [7, 7]
    assert len(asked[0]) == 1


def test_a_leader_that_is_not_elected_yet_is_awaited(
    brokers: list[ScriptedBroker], cluster: Cluster
) -> None:
    tell(brokers, metadata(*brokers, leaders={"t": [-1]}), metadata(*brokers, leaders={"t": [1]}))
    brokers[1].on(FetchRequest, fetched(offset=0))
    fetcher = Fetcher(cluster)
    fetcher.assign(ROW, 0)
    assert poll(fetcher)[0].offset == 0
    fetcher.close()


def test_an_error_that_only_the_caller_can_handle_is_told(
    brokers: list[ScriptedBroker], cluster: Cluster
) -> None:
    tell(brokers, metadata(*brokers, leaders={"t": [0]}))
    brokers[0].on(FetchRequest, fetched(ErrorCode.OFFSET_OUT_OF_RANGE))
    fetcher = Fetcher(cluster)
    fetcher.assign(ROW, 3)
    assert [(f.offset, f.error) for f in poll(fetcher)] == [(3, ErrorCode.OFFSET_OUT_OF_RANGE)]
    assert fetcher.positions == {ROW: 3}
    fetcher.close()


@pytest.mark.parametrize("what", ["moved", "dropped", "dropped and assigned again"])
def test_an_answer_to_an_old_question_is_ignored(
    brokers: list[ScriptedBroker], cluster: Cluster, what: str
) -> None:
    """The caller goes elsewhere while the answer is under way."""
    broker, go = brokers[0], threading.Event()

    def late(_request: FetchRequest) -> FetchResponse:
        assert go.wait(60)
        return fetched(offset=0)

    tell(brokers, metadata(*brokers, leaders={"t": [0]}))
    broker.on(FetchRequest, late, fetched(offset=50))
    fetcher = Fetcher(cluster)
    fetcher.assign(ROW, 0)
    assert fetcher.poll(0) == []
    until(lambda: broker.asked[FetchRequest], "the first fetch")
    if what != "moved":
        fetcher.drop(ROW)
    if what != "dropped":
        fetcher.assign(ROW, 50)
    go.set()
    if what == "dropped":
        until(lambda: fetcher.poll(0.1) or not fetcher._requests, "the answer")
        assert fetcher.positions == {}
    else:
        (found,) = poll(fetcher)
        assert found.offset == 50
        assert fetcher.positions == {ROW: 51}
    fetcher.close()
