"""Group members, as many as wanted, in one process over epoll.

Every member has a connection of its own with one request in flight, and does what a
consumer does, without its pauses: whoever learns that the group rebalances joins again at
once.  A member that waits for news asks for it with heartbeats, so often that all together
send a few thousand a second (a real one waits for seconds between two of them, which would be
all that such a measurement shows).

A group has come to rest when every member has its assignment in one and the same
generation, made by a leader that saw them all (classic), or when all have the same epoch and
own every partition exactly once (consumer, KIP-848).

Five hundred members make this process as busy as the broker, so the classic ones take a
request ready-made, with their own id in it, and look into an answer no further than they must.
"""

from __future__ import annotations

import select
import socket
import struct
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from bench.load import gone
from bench.wire import BenchError
from tidelog.errors import ErrorCode
from tidelog.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    SubscribedPartitions,
    encode_consumer,
)
from tidelog.wire.frame import decode_response, encode_request
from tidelog.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tidelog.wire.messages.consumer_group_heartbeat import TopicPartitions as OwnedPartitions
from tidelog.wire.messages.heartbeat import HeartbeatRequest
from tidelog.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidelog.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidelog.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tidelog.wire.schema import Message

_VERSIONS: dict[type[Message], int] = {
    JoinGroupRequest: 9,
    SyncGroupRequest: 5,
    HeartbeatRequest: 4,
    LeaveGroupRequest: 5,
    ConsumerGroupHeartbeatRequest: 1,
}
_SESSION_MS = 300_000
_PAUSE = 0.0002  # seconds between two heartbeats of a member, for each member of the group
_READ = 64 << 10
_PATIENCE = 120.0  # seconds until a group that does not come to rest is an error

# Every answer of the classic protocol begins with these, after the header (correlation id, no
# tags): throttle time and error code; that of JoinGroup goes on with the generation.
_CODE = struct.Struct(">4x x 4x h")
_CODE_AND_GENERATION = struct.Struct(">4x x 4x hi")
_NO_MEMBERS = b"\x01\x00"  # the end of a JoinGroup answer to one who does not lead

Ask = tuple[type[Message], bytes]  # a request, and its frame
R = TypeVar("R", bound=Message)

_MEMBER_ID_REQUIRED = ErrorCode.MEMBER_ID_REQUIRED
_REBALANCE = ErrorCode.REBALANCE_IN_PROGRESS


def _ask_for(request: Message) -> Ask:
    return type(request), encode_request(request, _VERSIONS[type(request)], 1, "bench")


class Member:
    """One connection, and what its owner knows of itself."""

    __slots__ = ("asked", "got", "member_id", "owned", "round", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.member_id = ""
        self.round = -1  # generation or epoch
        self.owned: frozenset[int] = frozenset()
        self.asked: type[Message] = Message  # the request in flight
        self.got = b""  # of its answer, while it is not whole

    def ask(self, request: Ask) -> None:
        self.asked, frame = request
        self.sock.sendall(frame)

    def receive(self) -> bytes | None:
        """The answer without its size, once it is whole."""
        data = self.sock.recv(_READ)
        if not data:
            raise gone()
        got = self.got + data if self.got else data
        if len(got) < 4 or len(got) < 4 + int.from_bytes(got[:4], "big"):
            self.got = got
            return None
        self.got = b""
        return got[4:]

    def decode(self, answer: type[R], frame: bytes) -> R:
        return decode_response(answer, _VERSIONS[self.asked], frame)[1]


class Group:
    """What both protocols share: the loop, and the two measurements."""

    def __init__(self, socks: Sequence[socket.socket], group_id: str, topic: str) -> None:
        """The topic has a partition for each of the connections."""
        self.group_id = group_id
        self.topic = topic
        self.partitions = len(socks)
        self.members = [Member(sock) for sock in socks]
        self._by_fd = {member.sock.fileno(): member for member in self.members}
        self._poller = select.epoll()
        for fd in self._by_fd:
            self._poller.register(fd, select.EPOLLIN)
        self._pause = _PAUSE * len(socks)
        self._in_flight = 0
        self._resting: deque[tuple[float, Member]] = deque()  # until when, who

    def form(self) -> float:
        """Everybody joins; seconds until the group has come to rest."""
        began = time.perf_counter()
        for member in self.members:
            self._ask(member, self._entrance(member))
        return self._until_at_rest() - began

    def leave_one(self) -> float:
        """One leaves and the others learn of it at once; seconds until they are at rest."""
        began = time.perf_counter()
        self._leave(self.members.pop())
        for member in self.members:
            self._ask(member, self._heartbeat(member))
        return self._until_at_rest() - began

    def close(self) -> None:
        """All leave; the connections can serve another group."""
        while self.members:
            self._leave(self.members.pop())
        self._poller.close()

    def _until_at_rest(self) -> float:
        """Answer and ask until then; returns when that was, with nothing in flight any more."""
        deadline = time.perf_counter() + _PATIENCE
        while not self._is_at_rest():
            self._receive(self._pause, deadline)
            now = time.perf_counter()
            while self._resting and self._resting[0][0] <= now:
                member = self._resting.popleft()[1]
                self._ask(member, self._heartbeat(member))
        ended = time.perf_counter()
        self._resting.clear()
        while self._in_flight:
            self._receive(1, deadline)
            self._resting.clear()
        return ended

    def _receive(self, wait: float, deadline: float) -> None:
        for fd, _ in self._poller.poll(wait):
            member = self._by_fd[fd]
            frame = member.receive()
            if frame is None:
                continue
            self._in_flight -= 1
            request = self._answered(member, frame)
            if request is not None:
                self._ask(member, request)
        if time.perf_counter() > deadline:
            raise BenchError(f"{self.group_id} did not come to rest in {_PATIENCE:.0f} s")

    def _ask(self, member: Member, request: Ask) -> None:
        self._in_flight += 1
        member.ask(request)

    def _rest(self, member: Member) -> None:
        self._resting.append((time.perf_counter() + self._pause, member))

    def _refused(self, member: Member, code: int) -> BenchError:
        what = f"{member.asked.__name__} of {self.group_id}"
        return BenchError(f"{what}: {ErrorCode(code).name}")

    def _leave(self, member: Member) -> None:
        member.ask(self._exit(member))
        while (frame := member.receive()) is None:
            pass
        self._left(member, frame)

    # -- what a protocol adds ---------------------------------------------------

    def _entrance(self, member: Member) -> Ask:
        raise NotImplementedError

    def _heartbeat(self, member: Member) -> Ask:
        raise NotImplementedError

    def _exit(self, member: Member) -> Ask:
        raise NotImplementedError

    def _answered(self, member: Member, frame: bytes) -> Ask | None:
        """What the member asks next; None if it has nothing to ask now."""
        raise NotImplementedError

    def _left(self, member: Member, frame: bytes) -> None:
        raise NotImplementedError

    def _is_at_rest(self) -> bool:
        raise NotImplementedError


class ClassicGroup(Group):
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup; the leader gives everyone a partition."""

    def __init__(self, socks: Sequence[socket.socket], group_id: str, topic: str) -> None:
        super().__init__(socks, group_id, topic)
        metadata = encode_consumer(ConsumerProtocolSubscription(topics=[topic]), 3)
        self._protocols = [JoinGroupRequestProtocol(name="range", metadata=metadata)]
        self._assignments = [
            encode_consumer(
                ConsumerProtocolAssignment(
                    assigned_partitions=[SubscribedPartitions(topic=topic, partitions=[i])]
                ),
                3,
            )
            for i in range(self.partitions)
        ]
        self._complete = -1  # the generation in which the leader saw all
        self._synced = 0  # members of that generation with an assignment
        self._templates: dict[tuple[type[Message], int, int], bytes] = {}

    def _filled(
        self, member: Member, kind: type[Message], build: Callable[[str, int], Message]
    ) -> Ask:
        """A request that differs from those of other members in the member id only."""
        size = len(member.member_id)
        key = kind, member.round, size
        frame = self._templates.get(key)
        if frame is None:
            frame = self._templates[key] = _ask_for(build("?" * size, member.round))[1]
        if size:
            frame = frame.replace(b"?" * size, member.member_id.encode())
        return kind, frame

    def _entrance(self, member: Member) -> Ask:
        return self._filled(member, JoinGroupRequest, self._join_request)

    def _join_request(self, member_id: str, _: int) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_SESSION_MS,
            member_id=member_id,
            protocol_type="consumer",
            protocols=self._protocols,
        )

    def _heartbeat(self, member: Member) -> Ask:
        return self._filled(member, HeartbeatRequest, self._heartbeat_request)

    def _heartbeat_request(self, member_id: str, generation: int) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self.group_id, generation_id=generation, member_id=member_id
        )

    def _sync_request(self, member_id: str, generation: int) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=generation,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[],
        )

    def _exit(self, member: Member) -> Ask:
        row = MemberIdentity(member_id=member.member_id)
        return _ask_for(LeaveGroupRequest(group_id=self.group_id, members=[row]))

    def _left(self, member: Member, frame: bytes) -> None:
        (code,) = _CODE.unpack_from(frame)
        if code:
            raise self._refused(member, code)
        self._complete, self._synced = -1, 0

    def _is_at_rest(self) -> bool:
        return self._complete >= 0 and self._synced == len(self.members)

    def _answered(self, member: Member, frame: bytes) -> Ask | None:
        if member.asked is JoinGroupRequest:
            return self._joined(member, frame)
        (code,) = _CODE.unpack_from(frame)
        if code == _REBALANCE:
            return self._entrance(member)
        if code:
            raise self._refused(member, code)
        if member.asked is HeartbeatRequest:
            self._rest(member)
        elif member.round == self._complete:
            self._synced += 1
        else:
            return self._heartbeat(member)
        return None

    def _joined(self, member: Member, frame: bytes) -> Ask:
        code, generation = _CODE_AND_GENERATION.unpack_from(frame)
        if code == _MEMBER_ID_REQUIRED:
            member.member_id = member.decode(JoinGroupResponse, frame).member_id
            return self._entrance(member)
        if code:
            raise self._refused(member, code)
        member.round = generation
        if frame.endswith(_NO_MEMBERS):
            return self._filled(member, SyncGroupRequest, self._sync_request)
        rows = [
            SyncGroupRequestAssignment(member_id=row.member_id, assignment=self._assignments[i])
            for i, row in enumerate(member.decode(JoinGroupResponse, frame).members)
        ]
        if len(rows) == len(self.members):
            self._complete, self._synced = generation, 0
        request = self._sync_request(member.member_id, generation)
        request.assignments = rows
        return _ask_for(request)


class ConsumerGroup(Group):
    """ConsumerGroupHeartbeat; the coordinator gives every partition to somebody."""

    def _entrance(self, member: Member) -> Ask:
        member.member_id = str(uuid.uuid4())
        return _ask_for(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=member.member_id,
                member_epoch=0,
                rebalance_timeout_ms=_SESSION_MS,
                subscribed_topic_names=[self.topic],
                topic_partitions=[],
            )
        )

    def _heartbeat(self, member: Member) -> Ask:
        return _ask_for(self._request(member, member.round))

    def _exit(self, member: Member) -> Ask:
        return _ask_for(self._request(member, -1))

    def _request(self, member: Member, epoch: int) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id, member_id=member.member_id, member_epoch=epoch
        )

    def _left(self, member: Member, frame: bytes) -> None:
        code = member.decode(ConsumerGroupHeartbeatResponse, frame).error_code
        if code:
            raise self._refused(member, code)

    def _is_at_rest(self) -> bool:
        first, *others = self.members
        if first.round < 1 or any(member.round != first.round for member in others):
            return False
        owned = [partition for member in self.members for partition in member.owned]
        return len(owned) == self.partitions == len(set(owned))

    def _answered(self, member: Member, frame: bytes) -> Ask | None:
        answer = member.decode(ConsumerGroupHeartbeatResponse, frame)
        if answer.error_code:
            raise self._refused(member, answer.error_code)
        member.round = answer.member_epoch
        if answer.assignment is None:
            self._rest(member)
            return None
        # New partitions are taken and old ones given up at once, and that is said.
        rows = answer.assignment.topic_partitions
        member.owned = frozenset(i for row in rows for i in row.partitions)
        request = self._request(member, member.round)
        request.topic_partitions = [
            OwnedPartitions(topic_id=row.topic_id, partitions=row.partitions) for row in rows
        ]
        return _ask_for(request)
