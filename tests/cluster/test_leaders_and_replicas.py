"""Elections on demand, moves of replicas, reads from followers, groups on several brokers."""

from __future__ import annotations

from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from support.cluster import (
    Load,
    ask_controller,
    create_topic,
    everybody_knows,
    in_sync,
    leaders,
    move_leaders,
    reassign,
    topic_state,
)
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.errors import ErrorCode
from tidelog.testing import LocalCluster
from tidelog.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    TopicPartitions,
)
from tidelog.wire.messages.fetch import FetchResponse
from tidelog.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


def test_preferred_leaders(own_cluster: LocalCluster) -> None:
    """After a restart others lead; ElectLeaders gives the lead back."""
    cluster = own_cluster
    create_topic(cluster.brokers[1], "t", 3)
    everybody_knows(cluster, "t")
    before = leaders(cluster.brokers[1], "t")
    victim = cluster.brokers[2]
    assert victim.stop() == 0
    until(lambda: 2 not in leaders(cluster.brokers[1], "t").values(), "others lead")
    victim.start()
    until(lambda: in_sync(cluster.brokers[1], "t", 3), "all are in sync")
    mine = [index for index, leader in before.items() if leader == 2]
    row = TopicPartitions(topic="t", partitions=[0, 1, 2, 9])
    answer = ask_controller(
        cluster, ElectLeadersRequest(topic_partitions=[row]), ElectLeadersResponse, 2
    )
    codes = {
        result.partition_id: result.error_code
        for result in answer.replica_election_results[0].partition_result
    }
    assert codes[9] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for index in range(3):
        assert codes[index] == (0 if index in mine else ErrorCode.ELECTION_NOT_NEEDED)
    until(lambda: leaders(cluster.brokers[1], "t") == before, "the leaders are back")


def test_a_move_under_load(own_cluster: LocalCluster) -> None:
    """A partition goes to other brokers while records come in; the old files go."""
    cluster = own_cluster
    cluster.add_broker()
    create_topic(cluster.brokers[1], "load", 1)
    everybody_knows(cluster, "load")
    old = set(topic_state(cluster.brokers[1], "load").partitions[0].replica_nodes)
    new = [next(b for b in cluster.brokers if b not in old), *sorted(old)[:2]]
    gone = cluster.brokers[(old - set(new)).pop()]
    with Load(cluster.bootstrap, "load", 1) as load:
        load.more()
        assert reassign(cluster, "load", {0: new}) == [0]

        def finished() -> bool:
            listed = ask_controller(
                cluster,
                ListPartitionReassignmentsRequest(),
                ListPartitionReassignmentsResponse,
                0,
            )
            return not listed.topics

        until(finished, "the move has ended")
        load.more()
    state = topic_state(cluster.brokers[new[0]], "load").partitions[0]
    assert list(state.replica_nodes) == new
    assert sorted(state.isr_nodes) == sorted(new)
    until(lambda: not list(gone.data.glob("load-0")), "the old replica is gone")
    load.check(cluster.bootstrap)


def test_moves_that_are_refused(cluster: LocalCluster) -> None:
    create_topic(cluster.brokers[1], "stays", 1)
    everybody_knows(cluster, "stays")
    for replicas, code in [
        ([1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 99], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ]:
        assert reassign(cluster, "stays", {0: replicas}) == [code]


def test_who_does_not_lead_says_so(cluster: LocalCluster) -> None:
    create_topic(cluster.brokers[1], "led", 1)
    everybody_knows(cluster, "led")
    (leader,) = leaders(cluster.brokers[1], "led").values()
    other = next(b for b in cluster.brokers.values() if b.broker_id != leader)
    with RawClient(other.port) as client:
        answer = client.produce("led", batch_of(b"x"))
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_batches_that_overtake_others_while_the_leader_moves(cluster: LocalCluster) -> None:
    """A new leader that lacks a batch asks for it once; librdkafka would begin a new epoch at
    OUT_OF_ORDER_SEQUENCE_NUMBER, and write again what the old leader did not acknowledge."""
    create_topic(cluster.brokers[1], "overtake", 1)
    everybody_knows(cluster, "overtake")
    later, never = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def send(client: RawClient, sequence: int, producer: int = 7) -> int:
        batch = batch_of(
            b"%d" % sequence, producer_id=producer, producer_epoch=0, base_sequence=sequence
        )
        code: int = client.produce("overtake", batch, timeout_ms=60_000).error_code
        return code

    (old,) = leaders(cluster.brokers[1], "overtake").values()
    with RawClient(cluster.brokers[old].port) as client:
        assert send(client, 0) == 0
    move_leaders(cluster, "overtake")
    (new,) = leaders(cluster.brokers[1], "overtake").values()
    with RawClient(cluster.brokers[new].port) as client:
        plain = batch_of(b"plain")
        until(
            lambda: client.produce("overtake", plain, timeout_ms=60_000).error_code == 0,
            "the new leader knows that it leads",
        )
        assert [send(client, n) for n in (2, 3, 4)] == [later] * 3
        assert [send(client, n) for n in (1, 2, 3, 4)] == [0] * 4
        assert [send(client, n) for n in (9, 10)] == [later] * 2
        assert send(client, 9) == never, "it begins with the same batch again: the gap is real"
        assert send(client, 4) == 0, "a duplicate"
        # One of whom this leader has never heard: its first batches may be under way.
        assert [send(client, n, producer=8) for n in (5, 6)] == [later] * 2
        assert [send(client, n, producer=8) for n in (5, 6)] == [0, 0], "or have expired"


def test_leaders_move_under_load(cluster: LocalCluster) -> None:
    """Requests are under way whenever leaders move; nothing is written twice."""
    create_topic(cluster.brokers[1], "moving", 3)
    everybody_knows(cluster, "moving")
    with Load(cluster.bootstrap, "moving", 3) as load:
        for _ in range(8):
            move_leaders(cluster, "moving")
            move_leaders(cluster, "moving")
            load.more_everywhere()
    load.check(cluster.bootstrap)


def test_followers_serve_what_is_committed(cluster: LocalCluster) -> None:
    """KIP-392: a consumer may read from any replica, up to the high watermark."""
    create_topic(cluster.brokers[1], "near", 1)
    everybody_knows(cluster, "near")
    (leader,) = leaders(cluster.brokers[1], "near").values()
    with RawClient(cluster.brokers[leader].port) as client:
        answer = client.produce("near", batch_of(b"a", b"b"), timeout_ms=30_000)
        assert answer.error_code == 0
    for broker in cluster.brokers.values():
        with RawClient(broker.port) as client:
            until(
                lambda c=client: c.read_values("near") == [b"a", b"b"],
                "the follower has it",
            )


def commits(consumer: Consumer, message: Message) -> bool:
    """False while librdkafka looks for the coordinator: it leaves trying again to us."""
    try:
        consumer.commit(message, asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._WAIT_COORD:
            raise
        return False
    return True


def test_groups_survive_the_death_of_their_coordinator(own_cluster: LocalCluster) -> None:
    """Committed offsets never go back, whichever broker coordinates."""
    cluster = own_cluster
    create_topic(cluster.brokers[1], "read", 1)
    everybody_knows(cluster, "read")
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "survivors",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 30_000,
        }
    )
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(10):
        producer.produce("read", str(number).encode())
    assert producer.flush(100) == 0
    consumer.subscribe(["read"])
    where = [TopicPartition("read", 0)]
    for round_number in range(3):
        message = consumer.poll(100)
        assert message is not None
        assert not message.error(), message.error()
        until(lambda m=message: commits(consumer, m), "a commit")
        committed = consumer.committed(where, timeout=100)[0].offset
        assert committed == message.offset() + 1 == round_number + 1
        everybody_knows(cluster, "__consumer_offsets")
        coordinators = set(leaders(cluster.brokers[1], "__consumer_offsets").values())
        assert len(coordinators) > 1
        victim = cluster.brokers[1 + round_number % 3]
        victim.kill()
        again = consumer.committed(where, timeout=100)[0].offset
        assert again == committed, "what was committed stands"
        victim.start()
        until(lambda v=victim: in_sync(v, "__consumer_offsets", 3), "all in sync")
        until(lambda v=victim: in_sync(v, "read", 3), "all in sync")
    consumer.close()


def test_a_consumer_reads_from_its_own_rack(new_cluster: Any) -> None:
    """KIP-392: the leader sends it to a replica that is near."""
    settings = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    }
    cluster = new_cluster(settings=settings)
    for broker in cluster.brokers.values():
        broker.settings["broker.rack"] = f"rack-{broker.broker_id}"
    with cluster:
        create_topic(cluster.brokers[1], "near", 1)
        everybody_knows(cluster, "near")
        (leader,) = leaders(cluster.brokers[1], "near").values()
        with RawClient(cluster.brokers[leader].port) as client:
            assert client.produce("near", batch_of(b"1"), timeout_ms=30_000).error_code == 0
            (part,) = client.fetch(("near", 0, 0), rack_id=f"rack-{leader}")
            assert part.preferred_read_replica == -1
            assert part.records
            other = leader % 3 + 1
            (part,) = client.fetch(("near", 0, 0), rack_id=f"rack-{other}")
            assert part.preferred_read_replica == other
            assert not part.records
            (part,) = client.fetch(("near", 0, 0), rack_id="rack-9")
            assert part.records
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "near",
                "client.rack": f"rack-{other}",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.assign([TopicPartition("near", 0, 0)])
        message = consumer.poll(60)
        assert message is not None
        assert message.value() == b"1"
        consumer.close()


def test_a_follower_does_not_judge_offsets(cluster: LocalCluster) -> None:
    """It may be behind the leader, or have deleted more: only the leader says OUT_OF_RANGE.

    A consumer that hears that from a follower begins again at the other end (KAFKA-14255).
    """
    topic_id = create_topic(cluster.brokers[1], "judged", 1)
    everybody_knows(cluster, "judged")
    state = topic_state(cluster.brokers[1], "judged").partitions[0]
    leader = cluster.brokers[state.leader_id]
    follower = next(b for b in cluster.brokers.values() if b is not leader)
    with RawClient(leader.port) as client:
        assert client.produce("judged", batch_of(b"a", b"b")).error_code == 0
        row = DeleteRecordsPartition(partition_index=0, offset=1)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="judged", partitions=[row])], timeout_ms=60_000
        )
        answer = client.call(request, DeleteRecordsResponse, 2)
        assert answer.topics[0].partitions[0].error_code == 0

    def code(port: int, offset: int, epoch: int) -> int:
        request = RawClient.fetch_request((topic_id, 0, offset))
        request.topics[0].partitions[0].current_leader_epoch = epoch
        with RawClient(port) as client:
            answer = client.call(request, FetchResponse, 16)
        error: int = answer.responses[0].partitions[0].error_code
        return error

    for offset in (0, 100):
        assert code(leader.port, offset, -1) == ErrorCode.OFFSET_OUT_OF_RANGE
        assert code(follower.port, offset, -1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(follower.port, 100, state.leader_epoch) == ErrorCode.OFFSET_NOT_AVAILABLE
    assert code(follower.port, 0, state.leader_epoch) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code(follower.port, 1, -1) == ErrorCode.NONE
