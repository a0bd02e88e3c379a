"""Clients that are slow, silent or greedy: bounded memory, and the others are served."""

import contextlib
import resource
import socket

import pytest
from support.group_client import GroupClient
from support.raw_client import RawClient, batch_of
from support.waiting import until

from tidelog.coordinators.groups.memory import GroupMemory
from tidelog.errors import ApiError, ErrorCode
from tidelog.testing import LocalBroker
from tidelog.wire.frame import encode_request
from tidelog.wire.messages.join_group import JoinGroupResponse
from tidelog.wire.messages.metadata import MetadataRequest

MIB = 1 << 20
OUT = "out of file descriptors: the limit is 256 (ulimit -n)"


def resident(broker):
    """Resident memory in bytes, without the pages of mapped log files."""
    with open(f"/proc/{broker.pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


def pump(sock, data, limit):
    """Send the same bytes until the other side stops taking them."""
    sock.settimeout(0.3)
    sent = 0
    try:
        while sent < limit:
            sent += sock.send(data)
    except TimeoutError:
        return sent
    return sent


def test_clients_that_never_read_their_answers(broker, client, topic):
    for _ in range(20):
        client.produce(topic, batch_of(bytes(500_000)))
    before = resident(broker)
    fetch = encode_request(client.fetch_request((topic, 0, 0)), 12, 1, "slow")
    slow = [RawClient(broker.port) for _ in range(5)]
    for greedy in slow:
        sent = pump(greedy.sock, fetch * 100, limit=50 * MIB)
        assert sent < 50 * MIB, "the broker stops reading while output is pending"
    assert resident(broker) - before < 30 * MIB
    assert client.produce(topic, batch_of(b"others are served")).error_code == 0
    for greedy in slow:
        greedy.sock.close()


def test_pipelining_without_reading(broker, client, topic):
    before = resident(broker)
    with RawClient(broker.port) as greedy:
        request = encode_request(MetadataRequest(topics=None), 9, 1, "greedy")
        assert pump(greedy.sock, request * 500, limit=100 * MIB) < 100 * MIB
        assert resident(broker) - before < 30 * MIB
        assert client.produce(topic, batch_of(b"others are served")).error_code == 0


def test_announcing_a_large_request_costs_nothing(broker, client, topic):
    before = resident(broker)
    waiting = []
    for _ in range(50):
        liar = RawClient(broker.port)
        liar.sock.sendall((100_000_000).to_bytes(4, "big") + bytes(1000))
        waiting.append(liar)
    assert client.produce(topic, batch_of(b"x")).error_code == 0
    assert resident(broker) - before < 5 * MIB
    for liar in waiting:
        liar.sock.close()


def test_ten_thousand_idle_connections():
    count = 10_000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + 200 + 1024  # the broker keeps some for its logs
    if hard < needed:
        pytest.skip(f"this machine allows {hard} descriptors, {needed} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with (
        LocalBroker() as broker,
        RawClient(broker.port) as client,
        contextlib.ExitStack() as idle,  # closed whatever happens: other tests use select()
    ):
        client.create_topic("t")
        before = resident(broker)
        for _ in range(count):
            idle.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
        assert client.produce("t", batch_of(b"served")).error_code == 0
        assert client.read_values("t") == [b"served"]
        assert (resident(broker) - before) / count < 16 * 1024
        # The last one is a client like any other.
        last = idle.enter_context(RawClient(broker.port))
        assert last.read_values("t") == [b"served"]


def test_idle_connections_are_closed():
    settings = {"connections.max.idle.ms": 200}
    with LocalBroker(settings) as broker, RawClient(broker.port) as silent:
        assert silent.hung_up()


def test_max_connections():
    with LocalBroker({"max.connections": 3}) as broker:
        held = [RawClient(broker.port) for _ in range(3)]
        held[0].create_topic("t")
        with RawClient(broker.port) as one_too_many:
            assert one_too_many.hung_up()
        assert "max.connections=3 reached" in broker.log
        held.pop().sock.close()

        def accepted():
            with RawClient(broker.port) as retry:
                try:
                    return retry.read_values("t") == []
                except OSError:
                    return False

        until(accepted, "a free place")
        for client in held:
            client.sock.close()


def test_connections_leave_descriptors_to_the_logs():
    """A flood of connections must not make a segment roll fail as if the disk did."""
    with LocalBroker() as broker, RawClient(broker.port) as client:
        client.create_topic("t", segment_bytes=1000)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (256, 256))
        with contextlib.ExitStack() as flood:
            for _ in range(300):
                flood.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            until(lambda: OUT in broker.log, "the reason")
            with RawClient(broker.port) as late:
                assert late.hung_up()
            for i in range(10):  # each into a segment of its own
                assert client.produce("t", batch_of(bytes(900))).base_offset == i
            client.create_topic("new", partitions=5)
            assert client.produce("new", batch_of(b"x"), partition=4).error_code == 0
            assert len(client.read_values("t")) == 10
        assert "cannot write" not in broker.log

        def accepted():
            with RawClient(broker.port) as retry, contextlib.suppress(OSError):
                return retry.read_values("new", partition=4) == [b"x"]

        until(accepted, "the next connection")


def test_partitions_that_use_up_the_descriptors():
    """It is told as what it is, not as a failing disk; and it is over when the limit is raised."""
    with LocalBroker() as broker, RawClient(broker.port) as client:
        client.create_topic("t", segment_bytes=1000)
        client.produce("t", batch_of(bytes(900)))
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (256, 4096))
        client.create_topic("many", partitions=300)

        def refused():
            return client.produce("t", batch_of(bytes(900))).error_message

        message = until(refused, "the roll of a segment to be refused")
        assert OUT in message
        assert client.read_values("t"), "reads go on"
        assert f"{OUT}; what needs a file is refused" in broker.log
        assert "writes are refused" not in broker.log
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (4096, 4096))
        assert client.produce("t", batch_of(bytes(900))).error_code == 0
        assert client.produce("many", batch_of(b"x"), partition=299).error_code == 0
        assert "Traceback" not in broker.log


def test_members_with_large_metadata():
    """What the members of all groups hold is bounded; those with little are always let in."""

    with LocalBroker() as broker, contextlib.ExitStack() as held:
        first = held.enter_context(GroupClient(broker.port))
        first.find()
        before = resident(broker)
        for i in range(150):
            member = held.enter_context(GroupClient(broker.port))
            request = member.join_request(f"g{i}")
            request.protocols[0].metadata = bytes(900_000)
            member.send(request, 3)  # before KIP-394: a member at once
        until(lambda: "bytes of metadata or assignments" in broker.log, "one to be refused")
        request = first.join_request("late")
        request.protocols[0].metadata = bytes(900_000)
        answer = first.call(request, JoinGroupResponse, 3)
        assert answer.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        first.enter("small")
        assert resident(broker) - before < 200 * MIB
        held.pop_all().close()
        assert "Traceback" not in broker.log


def test_what_groups_hold_is_counted_while_it_is_held():
    memory = GroupMemory(most=100_000)
    held = memory.protocols((("range", bytes(50_000)), ("sticky", bytes(10_000))))
    assert held == (("range", bytes(50_000)), ("sticky", bytes(10_000)))
    assigned = memory.assignments({"a": bytes(20_000), "b": bytes(10)})
    topics = memory.topics(frozenset({"one", "two"}))
    assert topics == {"one", "two"}
    assert memory.used == 60_411 + 20_210 + 206
    with pytest.raises(ApiError, match="hold 80827 of at most 100000"):
        memory.assignments({"a": bytes(20_000)})
    with pytest.raises(ApiError, match="hold 80827 of at most 100000"):
        memory.topics(frozenset(map(str, range(200))))
    rest = dict(assigned)
    del assigned, held, topics
    assert memory.used == 20_210
    del rest["a"]
    assert memory.used == 110
    assert memory.protocols((("range", bytes(90_000)),))


def test_small_members_have_a_larger_bound():
    """They get in when large ones have used up theirs, but not without end."""
    memory = GroupMemory(most=100_000)
    large = memory.protocols((("range", bytes(99_000)),))
    small = []
    with pytest.raises(ApiError, match="of at most 200000"):
        while len(small) < 100:
            small.append(memory.protocols((("range", bytes(10_000)),)))
    assert len(small) == 9
    del large
    assert memory.protocols((("range", bytes(10_000)),))


def test_what_consumers_have_read_does_not_stay_resident(broker, client, topic):
    """Consumers on this machine are sent mapped files, and mapped pages count as ours."""

    def mapped():
        with open(f"/proc/{broker.pid}/maps") as maps:
            return [line for line in maps if f"/{topic}-0/" in line]

    for _ in range(10):
        client.produce(topic, batch_of(bytes(900_000)))
    assert len(client.read_values(topic)) == 10
    assert mapped()
    until(lambda: not mapped(), "the files to be unmapped")
    assert len(client.read_values(topic)) == 10
