"""Consumer groups: how long until everyone has an assignment, commits, and their fetches."""

from __future__ import annotations

import itertools
import socket
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial

from bench import load
from bench.contest import Latencies, Work, contest, row, values
from bench.members import ClassicGroup, ConsumerGroup, Group
from bench.peers import Brokers, pair, running_kafka, warm_up
from bench.report import Row, Section, number
from bench.system import LISTENER, Bench, allow_descriptors
from bench.wire import BenchError, ask, connect, make_topic, read_frame
from tidelog.errors import ErrorCode
from tidelog.wire.frame import decode_response, encode_request
from tidelog.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from tidelog.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidelog.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

SETTINGS = {
    **LISTENER,
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
CLASSIC = (3, 50, 500)
CONSUMER = (3, 50)
COMMITTERS = (1, 50)
FETCHED = (1, 50)  # partitions
AT_ONCE = "kafka at once"  # a second Kafka, which writes without linger

_COMMIT_VERSION = 9
_FETCH_VERSION = 9
_DESCRIBE_VERSION = 5
_FIND_VERSION = 4
_NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)

Sockets = dict[str, list[socket.socket]]


def measure(bench: Bench) -> Section:
    """Rebalances of groups of several sizes, commits and OffsetFetch."""
    section = Section(
        "groups",
        "members join on open connections, until each has its assignment; then one leaves, until "
        "each of the others has its new one; they learn of a rebalance at once and not with the "
        "next heartbeat.  Commits of one partition, one in flight on each connection, by members. "
        "One partition of __consumer_offsets.  Kafka by default gathers writes to it for 5 ms: the "
        "last column has what it does with group.coordinator.append.linger.ms=0",
    )
    most = max(CLASSIC)
    allow_descriptors(4096)
    with pair(bench, SETTINGS) as brokers, ExitStack() as stack:
        if bench.kafka:
            bench.progress("starting and warming up Kafka without linger")
            settings = {**SETTINGS, "group.coordinator.append.linger.ms": 0}
            brokers[AT_ONCE] = node = stack.enter_context(running_kafka(bench, settings))
            warm_up(node.port, 4 if bench.quick else 12)
        socks: Sockets = {
            who: [stack.enter_context(connect(broker.port)) for _ in range(most)]
            for who, broker in brokers.items()
        }
        for who in brokers:
            _prepare(socks[who][0])
        for kind, sizes in ((ClassicGroup, CLASSIC), (ConsumerGroup, CONSUMER)):
            for count in sizes:
                _rebalances(bench, section, socks, kind, count)
        for count in COMMITTERS:
            _commits(bench, section, brokers, socks, count)
        for count in FETCHED:
            _offset_fetches(bench, section, socks, count)
    return section


def _topic(count: int) -> str:
    return f"groups-{count}"


def _prepare(sock: socket.socket) -> None:
    """The topics are there, and the coordinator is."""
    for count in {*CLASSIC, *CONSUMER, *COMMITTERS, *FETCHED}:
        make_topic(sock, _topic(count), count)
    deadline = time.monotonic() + 60
    while not _coordinates(sock):
        if time.monotonic() > deadline:
            raise BenchError("there is no group coordinator after a minute")
        time.sleep(0.01)


def _coordinates(sock: socket.socket) -> bool:
    find = FindCoordinatorRequest(coordinator_keys=["groups"])
    found = ask(sock, find, _FIND_VERSION, FindCoordinatorResponse).coordinators[0]
    return not found.error_code and _describe(sock, "groups")[0] not in _NOT_YET


def _describe(sock: socket.socket, group_id: str) -> tuple[int, str, int]:
    """Error code, state and size of a classic group."""
    request = DescribeGroupsRequest(groups=[group_id])
    found = ask(sock, request, _DESCRIBE_VERSION, DescribeGroupsResponse).groups[0]
    return found.error_code, found.group_state, len(found.members)


def _row(name: str, unit: str, got: Mapping[str, list[float]], less_is_better: bool) -> Row:
    note = ""
    if AT_ONCE in got:
        note = f"Kafka without linger: {number(statistics.median(got[AT_ONCE]))}"
    return row(name, unit, got, less_is_better=less_is_better, note=note)


# -- rebalances ---------------------------------------------------------------------


def _rebalances(
    bench: Bench, section: Section, socks: Sockets, kind: type[Group], count: int
) -> None:
    """New groups, one after the other; of small ones several make a round."""
    protocol = "classic" if kind is ClassicGroup else "consumer"
    joins = {who: list[float]() for who in socks}
    leaves = {who: list[float]() for who in socks}
    several = max(1, 30 // count)
    names = (f"{protocol}-{count}-{i}" for i in itertools.count())
    for who in socks.keys() - {"tidelog"}:
        for _ in range(max(2, (30 if bench.quick else 300) // count)):
            _rebalance(kind, socks[who][:count], next(names))
    for i in range(bench.rounds):
        for who, all_socks in socks.items():
            times = [_rebalance(kind, all_socks[:count], next(names)) for _ in range(several)]
            joins[who].append(statistics.median(joined for joined, _ in times) * 1e3)
            leaves[who].append(statistics.median(left for _, left in times) * 1e3)
        bench.progress(f"{count} members, {protocol}, round {i + 1}/{bench.rounds}")
    section.rows += [
        _row(f"{count} members join, {protocol}", "ms", joins, less_is_better=True),
        _row(f"1 of {count} leaves, {protocol}", "ms", leaves, less_is_better=True),
    ]


def _rebalance(
    kind: type[Group], socks: Sequence[socket.socket], group_id: str
) -> tuple[float, float]:
    group = kind(socks, group_id, _topic(len(socks)))
    with closing(group):
        joined = group.form()
        _check(group, socks[0])
        left = group.leave_one()
        _check(group, socks[0])
    return joined, left


def _check(group: Group, sock: socket.socket) -> None:
    """Does the coordinator think so too?"""
    if isinstance(group, ClassicGroup):
        found = _describe(sock, group.group_id)
        if found != (0, "Stable", len(group.members)):
            raise BenchError(f"{group.group_id}: {found} instead of {len(group.members)} at rest")


# -- offsets ------------------------------------------------------------------------


def _commits(bench: Bench, section: Section, brokers: Brokers, socks: Sockets, count: int) -> None:
    with ExitStack() as stack:
        works: dict[str, Work] = {}
        for who in brokers:
            mine = socks[who][:count]
            group = stack.enter_context(
                closing(ClassicGroup(mine, f"commits-{count}", _topic(count)))
            )
            group.form()
            works[who] = partial(_commit, group, mine, bench.seconds)
        meters = contest(bench, works, brokers)
    name = f"commits, {count} connection{'s' if count > 1 else ''}"
    section.rows += [
        _row(name, "/s", values(meters, "per_second"), less_is_better=False),
        _row(f"{name}, CPU", "us/request", values(meters, "cpu_us"), less_is_better=True),
    ]


def _commit(group: ClassicGroup, socks: Sequence[socket.socket], seconds: float) -> load.Rate:
    frames = [
        commit_request(group.group_id, group.topic, [i], member.member_id, member.round)
        for i, member in enumerate(group.members)
    ]
    answer = max(try_commit(sock, frame) for sock, frame in zip(socks, frames, strict=True))
    load.many(socks, frames, answer, seconds / 4)
    return load.many(socks, frames, answer, seconds)


def commit_request(
    group_id: str, topic: str, partitions: Sequence[int], member_id: str = "", generation: int = -1
) -> bytes:
    """A whole OffsetCommit frame; without a member, as a program that assigns by itself."""
    rows = [
        OffsetCommitRequestPartition(
            partition_index=i, committed_offset=1, committed_leader_epoch=0, committed_metadata=""
        )
        for i in partitions
    ]
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=rows)],
    )
    return encode_request(request, _COMMIT_VERSION, 7, "bench")


def try_commit(sock: socket.socket, frame: bytes) -> int:
    """Commit once and look at the answer; returns the size of the answer frame."""
    sock.sendall(frame)
    raw = read_frame(sock)
    _, answer = decode_response(OffsetCommitResponse, _COMMIT_VERSION, raw)
    code = max(row.error_code for topic in answer.topics for row in topic.partitions)
    if code:
        raise BenchError(f"OffsetCommit: {ErrorCode(code).name}")
    return 4 + len(raw)


def _offset_fetches(bench: Bench, section: Section, socks: Sockets, count: int) -> None:
    """One request in flight, for so many partitions; nothing is written, so linger is nothing."""
    socks = {who: each for who, each in socks.items() if who != AT_ONCE}
    group_id = f"fetches-{count}"
    partitions = range(count)
    for each in socks.values():
        try_commit(each[0], commit_request(group_id, _topic(count), partitions))
    topics = [OffsetFetchRequestTopics(name=_topic(count), partition_indexes=list(partitions))]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=topics)], require_stable=True
    )
    frame = encode_request(request, _FETCH_VERSION, 7, "bench")
    latencies = Latencies()
    for i in range(-1, bench.rounds):  # the first one warms up
        for who, each in socks.items():
            answer = _try_offset_fetch(each[0], frame, count)
            load.ping_pong(each[0], frame, answer, bench.seconds / 4)
            times = load.ping_pong(each[0], frame, answer, bench.seconds * 2)
            if i >= 0:
                latencies.note(who, times)
        bench.progress(f"OffsetFetch, round {i + 1}/{bench.rounds}")
    name = f"OffsetFetch, {count} partition{'s' if count > 1 else ''}"
    section.rows += latencies.rows(name, (50, 99))


def _try_offset_fetch(sock: socket.socket, frame: bytes, count: int) -> int:
    """Fetch once and look at the answer; returns the size of the answer frame."""
    sock.sendall(frame)
    raw = read_frame(sock)
    _, answer = decode_response(OffsetFetchResponse, _FETCH_VERSION, raw)
    rows = [row for topic in answer.groups[0].topics for row in topic.partitions]
    if [row.committed_offset for row in rows] != [1] * count:
        raise BenchError("OffsetFetch does not give back what was committed")
    return 4 + len(raw)
