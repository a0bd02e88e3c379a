"""Members of a classic group without a broker: what they send, and what the owner does."""

from tidelog.clock import FakeClock
from tidelog.coordinators.groups.classic_group import ClassicGroup
from tidelog.coordinators.groups.members import GroupLimits, Join, JoinResult, Sync, SyncResult
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ErrorCode
from tidelog.wire.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    SubscribedPartitions,
    encode_consumer,
)


def subscription(*topics):
    return encode_consumer(ConsumerProtocolSubscription(topics=list(topics)), 1)


def assignment(*partitions, topic="clicks"):
    rows = [SubscribedPartitions(topic=topic, partitions=list(partitions))]
    return encode_consumer(ConsumerProtocolAssignment(assigned_partitions=rows), 1)


def request(member_id="", instance_id=None, **changes):
    values = {
        "member_id": member_id,
        "client_id": "app",
        "client_host": "10.0.0.1",
        "session_ms": 10_000,
        "rebalance_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": (("range", subscription("clicks")),),
        "instance_id": instance_id,
    }
    return Join(**{**values, **changes})


def what_records_say(group):
    """A classic group without what is in no record: requests that wait, deadlines."""
    members = [
        (
            *(m.member_id, m.instance_id, m.client_id, m.client_host, m.session_ms),
            *(m.rebalance_ms, m.metadata(group.protocol), m.assignment),
        )
        for m in group.members.values()
    ]
    numbers = group.generation, group.state, group.protocol_type, group.protocol, group.leader
    return numbers, members, group.image.static


class Owner:
    """Does for one group what the runtime does, at once unless ``hold`` is set."""

    def __init__(self, clock=None, hold=False, **limits):
        self.clock = clock or FakeClock()
        self.ids = iter(f"id{i}" for i in range(10**9))
        self.limits = GroupLimits(**limits)
        self.group = ClassicGroup("g", self.limits, self.clock, lambda: next(self.ids))
        self.hold = hold
        self.answers = {}  # token -> result
        self.log = []  # records that are stored
        self.in_flight = []
        self.unwritten = False  # did the last write fail?
        self._tokens = iter(range(10**9))

    def token(self):
        return next(self._tokens)

    def settle(self, error=ErrorCode.NONE):
        """Take what the group wants to say and to write."""
        self._take()
        while self.in_flight:
            self.store(error)

    def _take(self):
        replies = self.group.replies.copy()
        self.group.replies.clear()
        for token, result in replies:
            assert token not in self.answers, "answered twice"
            self.answers[token] = result
        writes, self.group.writes = self.group.writes, []
        self.in_flight += writes

    def store(self, error=ErrorCode.NONE, *, late=False):
        """The oldest write is done; if it is late, it is in the log in spite of the error."""
        write = self.in_flight.pop(0)
        if not error or late:
            self.log.append(write.record)
        self.unwritten = bool(error) and not late
        self.group.stored(write, error)
        self._take()

    def after(self):
        self._take()
        if not self.hold:
            self.settle()

    def join(self, *args, **changes):
        """The token of a join; an id is fetched first, as clients do."""
        token = self.token()
        self.group.join(request(*args, **changes), token)
        self.after()
        result = self.answers.get(token)
        if result is not None and result.error == ErrorCode.MEMBER_ID_REQUIRED:
            return self.join(result.member_id, *args[1:], **changes)
        return token

    def sync(self, member_id, generation, assignments=None, instance_id=None, **options):
        token = self.token()
        sync = Sync(member_id, instance_id, generation, assignments or {}, **options)
        self.group.sync(sync, token)
        self.after()
        return token

    def heartbeat(self, member_id, generation=None, instance_id=None):
        generation = self.group.generation if generation is None else generation
        code = self.group.heartbeat(member_id, instance_id, generation)
        self.after()
        return code

    def leave(self, member_id, instance_id=None, reason=""):
        code = self.group.leave(member_id, instance_id, reason)
        self.after()
        return code

    def advance(self, ms):
        """Time passes; the group is called whenever it asked for it."""
        end = int(self.clock.monotonic() * 1000) + ms
        while True:
            now = int(self.clock.monotonic() * 1000)
            due = self.group.next_deadline()
            if due is None or due > end:
                self.clock.advance(end - now)
                return
            self.clock.advance(max(0, due - now))
            self.group.tick()
            self.after()
            after = self.group.next_deadline()
            assert after is None or after > int(self.clock.monotonic() * 1000), "it would spin"

    def members_join(self, *requests):
        """New members that end up in one stable generation; their member ids."""
        tokens = [self.join(**changes) for changes in requests]
        self.advance(0)
        ids = list(self.group.members)
        self.rejoin(*[i for i in ids if self.group.members[i].join_token is None])
        assert self.group.state is GroupState.COMPLETING
        joined = [self.answers[t] for t in tokens if t in self.answers]
        assert all(isinstance(r, JoinResult) for r in joined)
        self.stabilize()
        return list(self.group.members)

    def rejoin(self, *member_ids):
        for member_id in member_ids:
            member = self.group.members[member_id]
            self.join(member_id, member.instance_id, protocols=member.protocols)

    def stabilize(self):
        """Everybody syncs; each member gets the partition of its place."""
        group = self.group
        ids = list(group.members)
        given = {member_id: assignment(i) for i, member_id in enumerate(ids)}
        tokens = {}
        for member_id in sorted(ids, key=lambda i: i == group.leader):
            rows = given if member_id == group.leader else None
            instance = group.members[member_id].instance_id
            tokens[member_id] = self.sync(member_id, group.generation, rows, instance)
        if self.hold:
            self.settle()
        for member_id, token in tokens.items():
            assert self.answers[token] == SyncResult(
                ErrorCode.NONE, given[member_id], "consumer", group.protocol
            )
        assert group.state is GroupState.STABLE

    def restarted(self):
        """The group as the next coordinator reads it from the log."""
        self.group.unload(ErrorCode.NOT_COORDINATOR)
        self._take()
        while self.in_flight:  # not acknowledged, so their senders are told
            self.store(ErrorCode.NOT_COORDINATOR)
        self.group = ClassicGroup("g", self.limits, self.clock, lambda: next(self.ids))
        if self.log:
            self.group.restore(self.log[-1].value)
        self.group.loaded()
        return self.group
