"""A group whose members speak both protocols, under random schedules.

Members of the classic and of the consumer protocol come, go, die and are slow, so that the
group is upgraded and downgraded again and again; writes may be slow or fail, and the
coordinator may restart from its log at any time.  What must hold:

- a group that has settled is the replay of its records;
- no partition is held by two clients that the coordinator takes for members;
- no request is answered twice, and each is answered in the end;
- once the faults stop, everybody who is alive is in, and every partition is held once.
"""

import os
import random

import pytest
from support.classic_group import assignment, request, subscription
from support.classic_group import what_records_say as classic_records_say
from support.consumer_group import cluster, slots, what_records_say
from support.group_shard import Log

from tidelog.clock import FakeClock
from tidelog.coordinators.groups.consumer_group import ConsumerGroup
from tidelog.coordinators.groups.consumer_members import Beat, ConsumerLimits
from tidelog.coordinators.groups.members import GroupLimits, Sync
from tidelog.coordinators.groups.records import (
    SERDE,
)
from tidelog.coordinators.groups.shard import GroupShard
from tidelog.coordinators.groups.states import GroupState
from tidelog.errors import ErrorCode
from tidelog.wire.consumer_protocol import assigned_partitions

SEED = os.environ.get("TIDELOG_SEED", "1")
PARTITIONS = 7
GONE = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
AGAIN = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REBALANCE_IN_PROGRESS,
}


class Client:
    """What both kinds have in common: at most one request under way."""

    def __init__(self, world):
        self.world = world
        self.member_id = ""
        self.epoch = 0
        self.owned = frozenset()
        self.busy = False
        self.alive = True

    def ask(self, call, *args):
        self.busy = True
        self.world.asked += 1
        answered = []

        def reply(result):
            assert not answered, "answered twice"
            answered.append(result)
            self.world.answered += 1
            self.busy = False
            if self.alive:
                self.take(result)

        call("g", *args, reply)

    def step(self):
        if not self.busy:
            self.act()

    def take(self, result):
        raise NotImplementedError

    def act(self):
        raise NotImplementedError


class NewClient(Client):
    def __init__(self, world):
        super().__init__(world)
        self.member_id = f"new{next(world.names)}"
        self.given = frozenset()
        self.full = True

    def act(self):
        if self.world.rng.random() < 0.7:
            self.owned = self.given
        if self.epoch == 0:
            self.owned = self.given = frozenset()
        more = {"owned": self.owned}
        if self.full or self.epoch == 0:
            more |= {"topics": frozenset({"clicks"}), "rebalance_ms": 20_000}
        beat = Beat(self.member_id, self.epoch, "app", "10.0.0.1", **more)
        self.ask(self.world.shard.manager.consumer_heartbeat, beat)

    def take(self, result):
        self.full = bool(result.error)
        if result.error in GONE:
            self.epoch, self.owned, self.given = 0, frozenset(), frozenset()
        elif result.error:
            assert result.error in AGAIN, result
        else:
            self.epoch = result.epoch
            if result.assignment is not None:
                self.given = result.assignment

    def leave(self):
        beat = Beat(self.member_id, -1)
        self.ask(self.world.shard.manager.consumer_heartbeat, beat)


class OldClient(Client):
    """Eager: it holds nothing while it joins."""

    state = "joining"

    def act(self):
        shard = self.world.shard
        if self.state == "joining":
            self.owned = frozenset()
            join = request(
                self.member_id,
                protocols=(("range", subscription("clicks")),),
                rebalance_ms=20_000,
            )
            self.ask(shard.manager.join, join)
        elif self.state == "syncing":
            self.ask(shard.manager.sync, Sync(self.member_id, None, self.epoch, self.plan))
        else:
            self.failed(shard.manager.heartbeat("g", self.member_id, None, self.epoch))

    def take(self, result):
        if result.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
        elif result.error:
            self.failed(result.error)
        elif self.state == "joining":
            self.member_id, self.epoch, self.state = result.member_id, result.generation, "syncing"
            ids = [row.member_id for row in result.members]
            self.plan = {
                member_id: assignment(*range(i, PARTITIONS, len(ids)))
                for i, member_id in enumerate(ids)
            }
        else:
            rows = assigned_partitions(result.assignment)
            self.owned = slots("clicks", *(index for _, index in rows))
            self.state = "consuming"

    def failed(self, code):
        if code in GONE:
            self.owned, self.state = frozenset(), "joining"
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        elif code:
            assert code in AGAIN, code
            self.state = "joining"

    def leave(self):
        self.world.shard.manager.leave("g", self.member_id, None, "")


class World:
    """The members, the shard, and what happens to them."""

    def __init__(self, rng):
        self.rng = rng
        self.clock = FakeClock()
        self.metadata = cluster(clicks=PARTITIONS)
        self.names = iter(range(10**6))
        self.clients = []
        self.asked = self.answered = 0
        self.converted = 0
        self.log = Log()
        self.unwritten = False  # did the last write fail?
        self.replayed_rows = 0
        self.replica = self.new_shard(Log())
        self.shard = self.new_shard(self.log)
        self.kind = None
        self.speed = rng.choice((1, 0.5, 0.1))

    def new_shard(self, log):
        limits = ConsumerLimits(session_ms=15_000)
        return GroupShard(
            log, log, self.clock, GroupLimits(), lambda _: limits, lambda: self.metadata
        )

    def restart(self):
        old, rows = self.log, self.log.rows
        self.log = Log()
        self.log.rows = rows
        old_shard, self.shard = self.shard, self.new_shard(self.log)
        while old.waiting:
            old.store(ErrorCode.NOT_COORDINATOR)
        old_shard.unload(ErrorCode.NOT_COORDINATOR)
        while old.waiting:
            old.store(ErrorCode.NOT_COORDINATOR)
        for row in rows:
            self.shard.replay(SERDE.decode(*row), self.clock.now_ms())
        self.shard.loaded()

    def work(self, fail=0.03):
        while self.log.waiting and self.rng.random() < self.speed:
            error = ErrorCode.NONE
            if self.rng.random() < fail:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            late = self.rng.random() < 0.5
            self.log.store(error, late=late)
            self.unwritten = bool(error) and not late
        self.check()

    def advance(self, ms):
        end = int(self.clock.monotonic() * 1000) + ms
        while True:
            now = int(self.clock.monotonic() * 1000)
            due = min(self.log.deadlines.values(), default=end + 1)
            if due > end:
                self.clock.advance(end - now)
                return
            self.clock.advance(max(0, due - now))
            for key in [k for k, d in self.log.deadlines.items() if d <= due]:
                del self.log.deadlines[key]
                self.log.callback(key)
            self.work()

    def check_replay(self):
        """A group that has settled, with nothing under way, is the replay of its records."""
        for row in self.log.rows[self.replayed_rows :]:
            self.replica.replay(SERDE.decode(*row), self.clock.now_ms())
        self.replayed_rows = len(self.log.rows)
        group, replica = self.shard.groups.get("g"), self.replica.groups.get("g")
        if self.log.waiting or self.unwritten or group is None:
            return
        if isinstance(group, ConsumerGroup):
            if not group.image.dirty:
                replica.image.index_owners()
                assert what_records_say(replica.image) == what_records_say(group.image)
        elif group.state is GroupState.STABLE:
            assert classic_records_say(replica) == classic_records_say(group)

    def check(self):
        self.check_replay()
        group = self.shard.groups.get("g")
        kind = type(group)
        if group is not None and kind is not self.kind:
            self.converted += self.kind is not None
            self.kind = kind
        members = () if group is None else group.members
        held = [s for c in self.clients if c.alive and c.member_id in members for s in c.owned]
        assert len(held) == len(set(held)), "two owners"
        if isinstance(group, ConsumerGroup):
            rows = [s for m in group.members.values() for s in m.assigned | m.revoking]
            assert len(rows) == len(set(rows)), "two owners"

    def happen(self):
        what = self.rng.random()
        alive = [c for c in self.clients if c.alive]
        client = self.rng.choice(alive) if alive else None
        if what < 0.05 and len(alive) < 5:
            self.clients.append(self.rng.choice((NewClient, OldClient))(self))
        elif what < 0.06 and client:
            client.alive = False
        elif what < 0.09 and client and client.member_id and not client.busy:
            client.alive = False
            client.leave()
        elif what < 0.095:
            self.restart()
        elif what < 0.2:
            self.advance(self.rng.choice((10, 1000, 4000)))
        elif client:
            client.step()
        self.work()

    def calm_down(self):
        self.speed = 1
        for _ in range(400):
            self.work(fail=0)
            for client in self.clients:
                if client.alive:
                    client.step()
                    self.work(fail=0)
            self.advance(500)
            if self.quiet():
                return
        group = self.shard.groups.get("g")
        raise AssertionError(f"the group does not settle: {list(group.timeline)[-20:]}")

    def quiet(self):
        group = self.shard.groups.get("g")
        alive = [c for c in self.clients if c.alive]
        if not alive:
            return group is None or group.state is GroupState.EMPTY
        held = sorted(s for c in alive for s in c.owned)
        return (
            group is not None
            and group.state is GroupState.STABLE
            and set(group.members) == {c.member_id for c in alive}
            and held == sorted(slots("clicks", *range(PARTITIONS)))
            and not any(c.busy for c in self.clients)
        )


@pytest.mark.parametrize("number", range(40))
def test_random_schedules(number):
    world = World(random.Random(f"{SEED} {number}"))
    for _ in range(600):
        world.happen()
    world.calm_down()
    assert world.asked == world.answered
    kinds = {isinstance(c, NewClient) for c in world.clients if c.alive}
    if kinds:
        group = world.shard.groups["g"]
        assert isinstance(group, ConsumerGroup) is (True in kinds)
    before = world.shard.groups.get("g")
    ids = set() if before is None else set(before.members)
    world.restart()
    again = world.shard.groups.get("g")
    assert (set() if again is None else set(again.members)) == ids
    assert type(again) is type(before) or not ids


def test_the_schedules_convert_groups():
    world = World(random.Random(f"{SEED} conversions"))
    for _ in range(6000):
        world.happen()
    assert world.converted > 3
