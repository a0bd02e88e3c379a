"""Members of a consumer group without a broker, and what the owner of a group does."""

from dataclasses import fields

from tidelog.clock import FakeClock
from tidelog.coordinators.groups.consumer_group import ConsumerGroup
from tidelog.coordinators.groups.consumer_image import ConsumerGroupImage
from tidelog.coordinators.groups.consumer_members import Beat, ConsumerLimits
from tidelog.coordinators.groups.consumer_records import replay
from tidelog.coordinators.groups.records import (
    SERDE,
    GroupMetadataKey,
)
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ErrorCode
from tidelog.metadata import ClusterMetadata, PartitionInfo, TopicInfo

PARTITION = PartitionInfo(leader=1, leader_epoch=0, replicas=(1,), isr=(1,))


def topic_id(name):
    return name.encode().ljust(16, b".")[:16]


def cluster(**partitions):
    """A cluster with these topics: name and number of partitions."""
    metadata = ClusterMetadata()
    for name, count in partitions.items():
        metadata = metadata.with_topic(TopicInfo(name, topic_id(name), (PARTITION,) * count))
    return metadata


def slots(topic, *partitions):
    return frozenset((topic_id(topic), index) for index in partitions)


class Owner:
    """Does for one group what the shard does, at once unless ``hold`` is set."""

    def __init__(self, clock=None, hold=False, metadata=None, **limits):
        self.clock = clock or FakeClock()
        self.ids = iter(f"id{i}" for i in range(10**9))
        self.limits = ConsumerLimits(**limits)
        self.metadata = metadata or cluster(clicks=6)
        self.hold = hold
        self.answers = {}  # token -> result
        self.log = []  # records as bytes
        self.compacted = Compacted()
        self.in_flight = []
        self._tokens = iter(range(10**9))
        self.group = self.new_group()

    def new_group(self, timeline=None):
        return ConsumerGroup(
            "g", self.limits, self.clock, lambda: self.metadata, lambda: next(self.ids), timeline
        )

    def token(self):
        return next(self._tokens)

    def take(self):
        replies = self.group.replies.copy()
        self.group.replies.clear()
        for token, result in replies:
            assert token not in self.answers, "answered twice"
            self.answers[token] = result
        writes, self.group.writes = self.group.writes, []
        self.in_flight += writes
        assert len(self.in_flight) <= 1

    def store(self, error=ErrorCode.NONE, *, late=False):
        """The oldest write is done; if it is late, it is in the log in spite of the error."""
        write = self.in_flight.pop(0)
        if not error or late:
            rows = [SERDE.encode(record) for record in write.records]
            self.log += rows
            self.compacted.add(rows)
        self.group.stored(write, error)
        self.take()

    def after(self):
        self.take()
        while self.in_flight and not self.hold:
            self.store()

    def beat(self, member_id, epoch, **more):
        """The answer to a heartbeat; None if it has to wait."""
        token = self.send(member_id, epoch, **more)
        return self.answers.get(token)

    def send(self, member_id, epoch, **more):
        token = self.token()
        self.group.consumer_heartbeat(Beat(member_id, epoch, "app", "10.0.0.1", **more), token)
        self.after()
        return token

    def join(self, member_id, *topics, **more):
        values = {"rebalance_ms": 60_000, "owned": frozenset(), "topics": frozenset(topics)}
        return self.beat(member_id, 0, **{**values, **more})

    def set_topics(self, **partitions):
        self.metadata = cluster(**partitions)
        self.group.refresh()
        self.after()

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

    def restarted(self):
        """The group as the next coordinator reads it from the log."""
        self.group.unload(ErrorCode.NOT_COORDINATOR)
        self.take()
        while self.in_flight:
            self.store(ErrorCode.NOT_COORDINATOR)
        self.group = self.new_group()
        for row in self.log:
            record = SERDE.decode(*row)
            if not isinstance(record.key, GroupMetadataKey):
                self.group.replay(record)
        self.group.loaded()
        self.after()
        return self.group


def what_records_say(image):
    """An image without what is in no record: deadlines."""
    members = {
        member_id: [
            getattr(member, field.name)
            for field in fields(member)
            if field.name not in ("deadline", "act_by")
        ]
        for member_id, member in image.members.items()
    }
    numbers = image.epoch, image.target_epoch, image.metadata_hash
    return numbers, members, image.static, image.targets, image.regexes, image.owners


class Compacted:
    """A log of which compaction has left the last record of each key, in the order of the log."""

    def __init__(self, rows=()):
        self.rows = {}
        self.add(rows)

    def add(self, rows):
        for row in rows:
            self.rows.pop(row[0], None)
            if row[1] is not None:
                self.rows[row[0]] = row

    def replayed(self, *more):
        """The image of a consumer group, with more records after those that are stored."""
        log = Compacted(self.rows.values())
        log.add(SERDE.encode(record) for records in more for record in records)
        image = ConsumerGroupImage("g")
        for row in log.rows.values():
            replay(image, SERDE.decode(*row))
        image.index_owners()
        return image


class Consumer:
    """A client of the consumer protocol: it holds what it is told to hold."""

    def __init__(self, owner, member_id, *topics, **first):
        self.owner, self.member_id = owner, member_id
        self.first = {"topics": frozenset(topics), "rebalance_ms": 60_000, **first}
        self.epoch = 0
        self.owned = frozenset()
        self.said = None  # what it has told the coordinator that it owns

    def beat(self):
        """One heartbeat, and what its answer asks for."""
        if self.epoch == 0:
            self.owned = frozenset()
            result = self.owner.beat(self.member_id, 0, owned=frozenset(), **self.first)
        else:
            owned = self.owned if self.owned != self.said else None
            result = self.owner.beat(self.member_id, self.epoch, owned=owned, **self.instance)
        assert result is not None
        self.take(result)
        return result

    @property
    def instance(self):
        instance = self.first.get("instance_id")
        return {"instance_id": instance} if instance else {}

    def take(self, result):
        if result.error in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned, self.said = 0, frozenset(), None
        elif not result.error:
            self.said = self.owned
            self.epoch = result.epoch
            if result.assignment is not None:
                self.owned = result.assignment

    def leave(self, epoch=-1):
        result = self.owner.beat(self.member_id, epoch, **self.instance)
        self.owned = frozenset()
        return result


def settle(owner, *consumers):
    """Heartbeats, until the group is stable."""
    for _ in range(50):
        for consumer in consumers:
            consumer.beat()
        if owner.group.state is GroupState.STABLE and all(c.owned == c.said for c in consumers):
            return
    raise AssertionError(f"the group does not settle: {list(owner.group.timeline)[-20:]}")
